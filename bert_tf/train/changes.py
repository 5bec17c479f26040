"""Describes what has changed in a resumed run since its last start."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from bert_tf.model_directory.run_record import RunRecord
from bert_tf.train.ledger import Ledger, show_value
from bert_tf.update.schedules import SCHEDULES, Schedule
from bert_tf.util.files import finite_or_null

# Ledger entries that are not settings: they differ between starts, or follow from other entries.
_NOT_SETTINGS = {
    ("batch", "arithmetic"),
    ("checkpoints", "checkpoints"),
    ("checkpoints", "gib_each"),
    ("checkpoints", "gib_of_all_kept"),
    ("checkpoints", "gib_of_best"),
    ("optimizer", "slot_bytes_of_a_rank"),
    ("precision", "because"),
    ("ranks", "hosts"),
    ("steps", "last_step"),
    ("steps", "schedule_offset"),
    ("steps", "start_step"),
}
_SECTION_WITHOUT_SETTINGS = re.compile(
    r"changed|compute|consumption|source_\d+|speed"  # data.mixture has the fractions
)
# Settings that a ledger has only where they are in use.
_WHERE_IN_USE = {"data": {"mixture": None}}

_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12


def changed_settings(record: RunRecord, ledger: Ledger, model: Mapping[str, Any]) -> dict[str, str]:
    """Maps ``section.name`` to ``before -> after``, for settings that both ledgers know.

    ``record`` is of the last start, ``ledger`` and the configuration ``model`` of this one.
    """
    before = {**record.ledger, "model": record.config.to_dict()}
    changes = {}
    for section, entries in {**ledger, "model": model}.items():
        if _SECTION_WITHOUT_SETTINGS.fullmatch(section):
            continue
        in_use = _WHERE_IN_USE.get(section, {})
        known = {**in_use, **before.get(section, {})}
        for name, value in {**in_use, **entries}.items():
            if (section, name) in _NOT_SETTINGS or name not in known:
                continue
            old, new = known[name], _as_json(value)
            if old != new:
                changes[f"{section}.{name}"] = f"{_show(old)} -> {_show(new)}"
    return changes


def learning_rate_jump(record: RunRecord, ledger: Ledger, *, step: int) -> str | None:
    """A sentence if the learning rate at ``step`` differs from the last start's, else None.

    Differences of up to one step of either schedule are ignored: they come from rounding steps when
    the number of ranks changes.
    """
    now = RunRecord(record.path, {"ledger": ledger})
    before, after = _rates(record, step), _rates(now, step)
    if before is None or after is None:
        return None
    one_step = max(abs(rates[1] - rates[0]) for rates in (before, after))
    old, new = before[0], after[0]
    if abs(new - old) <= one_step + 1e-6 * max(old, new):
        return None
    return f"the learning rate jumps at step {step}: {old:.3g} -> {new:.3g}"


def _rates(record: RunRecord, step: int) -> tuple[float, float] | None:
    """The learning rates of the update after ``step`` updates, and of the next one.

    None if the schedule is unknown to this version.
    """
    fact = functools.partial(record.fact, "learning_rate")
    name = fact("schedule", str)
    if name not in SCHEDULES:
        return None
    of_rate = record.ledger["learning_rate"]
    options = {}
    for keyword, option in SCHEDULES[name].options.items():
        kinds = (str,) if option.value_type is str else (float, int)
        # Records of earlier versions lack options that had only one value then.
        is_missing = keyword not in of_rate and option.default is not None
        value = option.default if is_missing else fact(keyword, *kinds)
        if option.choices and value not in option.choices:
            return None
        options[keyword] = value
    begins_again = of_rate.get("rewarm_at_step") is not None
    schedule = Schedule(
        name,
        peak_rate=fact("peak", float, int),
        total_steps=record.fact("steps", "train_steps", int),
        warmup_steps=record.fact("steps", "warmup_steps", int),
        end_rate=fact("end", float, int),
        options=options,
        rewarm_at_step=fact("rewarm_at_step", int) if begins_again else None,
        rewarm_steps=fact("rewarm_steps", int) if begins_again else 0,
    )
    position = step + record.fact("steps", "schedule_offset", int)
    return float(schedule.rate(position)), float(schedule.rate(position + 1))


def _as_json(value: Any) -> Any:
    """Converts a value to what would be read back from JSON."""
    return json.loads(json.dumps(finite_or_null(value)))


def _show(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:_SHOWN_DIGITS]
    return show_value(value)
