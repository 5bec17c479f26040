"""Settings of runs by the names of their values, whatever group these are in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.update.schedules import schedule_options

# Settings by names of their own, where those in their group are too short.
_FIELDS = {
    "schedule": "name",
    "schedule_options": "options",
    "batch_ramp": "ramp",
    "loss_scale": "static",
    "initial_loss_scale": "initial",
    "min_loss_scale": "minimum",
    "loss_scale_window": "window",
    "flags": "values",
}


def with_values(settings, **values):
    """The same settings with other values, of their own or of the groups in them."""
    given = {_FIELDS.get(name, name): value for name, value in values.items()}
    own, left = {}, dict(given)
    for field in dataclasses.fields(settings):
        inner = getattr(settings, field.name)
        if field.name in left:
            own[field.name] = left.pop(field.name)
        elif dataclasses.is_dataclass(inner):
            below = {name: left.pop(name) for name in list(left) if _has(inner, name)}
            if below:
                own[field.name] = with_values(inner, **below)
    assert not left, f"no settings {sorted(left)}"
    return dataclasses.replace(settings, **own)


def _has(settings, name):
    if not dataclasses.is_dataclass(settings):
        return False
    return any(
        field.name == name or _has(getattr(settings, field.name), name)
        for field in dataclasses.fields(settings)
    )


def optimization_settings(**changes: object) -> OptimizationSettings:
    """Settings of a plain AdamW run with micro batches of four.

    ``changes`` replace some, or are options of the schedule.
    """
    options = {name: changes.pop(name) for name in schedule_options() if name in changes}
    usual = {
        "micro_batch_size": 4,
        "num_train_steps": 1,
        "num_warmup_steps": 0,
        "learning_rate": 1e-3,
        "schedule_options": options,
    }
    return with_values(OptimizationSettings(), **{**usual, **changes})


def runtime_settings(**changes: object) -> RuntimeSettings:
    """Settings of one quiet process; ``changes`` replace some."""
    return with_values(
        RuntimeSettings(), **{"rank_timeout_seconds": 0.0, "num_threads": 1, **changes}
    )


def run_settings(output_dir: Path, **changes: object) -> RunSettings:
    """Settings of a run in a directory; ``changes`` replace some."""
    return with_values(RunSettings(output_dir), **changes)
