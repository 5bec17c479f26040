"""The ledger: every number that determines a run, printed and saved before its first step.

The ledger of a run that resumes is compared with that of its last start.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import bert_tf
from bert_tf.diagnose.disk import checkpoint_sizes
from bert_tf.model_directory.record import MODEL_RECORD_NAME
from bert_tf.model_directory.run_record import MODEL_RECORD_KEY, RUN_RECORD_NAME, RunRecord
from bert_tf.ranks.communication import describe_communication
from bert_tf.train.job import Job
from bert_tf.train.plan import Plan
from bert_tf.train.start_point import StartPoint
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.schedules import SCHEDULES, Schedule
from bert_tf.util.files import finite_or_null, write_json

_PACKAGES = ("tensorflow-cpu", "tensorflow", "horovod", "numpy", "sentencepiece", "tokenizers")

Ledger = dict[str, dict[str, Any]]


def training_ledger(job: Job) -> Ledger:
    """Returns section -> entries of a training run, in the order in which they are shown.

    Collective.
    """
    run, plan, requested = job.run, job.plan, job.plan.requested
    batch, schedule, start = plan.batch, plan.schedule, run.start
    stop = plan.stop_after_steps
    hosts = run.ranks.gather(socket.gethostname())
    consumed = start.total(batch, plan.last_step)
    num_records = job.data.entries["train_records"]
    further = {**job.model.ledger, **job.training.ledger_sections(run, plan)}
    return {
        "ranks": {"world_size": run.ranks.world_size, "hosts": sorted(set(hosts))},
        "batch": {
            "micro_batch": batch.micro_batch_size,
            "accumulation_steps": batch.accumulation_steps,
            "global_batch": batch.global_batch_size,
            "arithmetic": batch.arithmetic(),
            "batch_ramp": batch.sizes and str(batch.sizes),
            "length_ramp": batch.lengths and str(batch.lengths),
        },
        "steps": {
            "train_steps_on_one_rank": plan.train_steps_on_one_rank,
            "warmup_steps_on_one_rank": plan.warmup_steps_on_one_rank,
            "scaled_by_ranks": batch.scaled_by_ranks,
            "train_steps": schedule.total_steps,
            "warmup_steps": schedule.warmup_steps,
            **({} if stop is None else {"stop_after_steps": stop}),
            "start_step": start.step,
            "schedule_offset": batch.offset,
            "last_step": plan.last_step,
        },
        "learning_rate": {
            "requested": requested.schedule.learning_rate,
            "scaling": requested.schedule.learning_rate_scaling,
            **schedule_entries(schedule),
        },
        "consumption": {
            "sequences": consumed,
            **_positions(plan, start),
            "records": num_records,
            "epochs": round(consumed / num_records, 3) if num_records else 0.0,
        },
        "optimizer": {**_optimizer_section(job), **_sharding_entries(job)},
        "communication": _communication_section(job),
        "precision": _precision_section(job),
        "data": {**job.data.entries, "seed": job.settings.seed},
        **{section: dict(entries) for section, entries in further.items()},
        "checkpoints": checkpoint_sizes(job).ledger_section(),
    }


def _positions(plan: Plan, start: StartPoint) -> dict[str, int]:
    """The number of positions of all sequences, if there is a length ramp."""
    if plan.batch.lengths is None:
        return {}
    parts = start.parts(plan.batch, plan.last_step)
    return {"positions": round(sum(number * length for number, length in parts if length))}


def schedule_entries(schedule: Schedule) -> dict[str, Any]:
    """The ledger's entries on a schedule, except its steps."""
    entries = {
        "peak": schedule.peak_rate,
        "end": schedule.end_rate,
        "schedule": schedule.name,
        **schedule.options,
        "rewarm_at_step": schedule.rewarm_at_step,
    }
    if schedule.rewarm_at_step is not None:
        entries["rewarm_steps"] = schedule.rewarm_steps
    return entries


def _optimizer_section(job: Job) -> dict[str, Any]:
    requested, operations = job.plan.requested, job.arithmetic.kernels.description
    row = optimizer_row(requested.optimizer)
    section = {
        "name": requested.optimizer,
        "weight_decay": requested.weight_decay,
        **row.resolve(requested.optimizer_options),
        "clip_norm": requested.clip_norm,
        "loss_normalization": requested.batch.loss_normalization,
        "operations": operations,
    }
    if row.fused_rule is None:
        section["operations"] = f"{operations} ({row.title}: TensorFlow's)"
    for name in ("rate_factors", "trained_from"):
        if rules := getattr(requested, name):
            section[name] = [f"{pattern}:{value:g}" for pattern, value in rules]
    return section


def _sharding_entries(job: Job) -> dict[str, Any]:
    if not job.plan.requested.shard_optimizer_state:
        return {}
    ranks = job.run.ranks
    several = ranks.world_size > 1
    shared = f"over {ranks.world_size} ranks" if several else "no: a single rank"
    return {
        "state_shared_out": shared,
        "slot_bytes_of_a_rank": job.plan.slot_bytes(job.task.specs()),
    }


def _communication_section(job: Job) -> dict[str, Any]:
    requested, batch = job.plan.requested, job.plan.batch
    every = requested.allreduce_every_micro_batch
    settings = describe_communication(
        job.run.runtime.communication,
        os.environ,
        complete_at_once=job.arithmetic.options.compiled
        or (batch.accumulation_steps > 1 and not every),
    )
    if requested.shard_optimizer_state and batch.world_size > 1:
        exchange = "reduce-scatter and all-gather, once an update"
        return {"allreduce": exchange, **settings, "embeddings": "table"}
    return {"allreduce": "every micro batch" if every else "once an update", **settings}


def _precision_section(job: Job) -> dict[str, Any]:
    runtime, arithmetic = job.run.runtime, job.arithmetic
    changes = runtime.numerics.policy_changes
    return {
        "policy": arithmetic.precision,
        **({"because": arithmetic.because} if arithmetic.because else {}),
        "xla": arithmetic.options.compiled,
        **({"tf32": runtime.numerics.tf32} if job.run.hardware.has_gpu else {}),
        **({"from_file": sorted(changes)} if changes else {}),
        **_loss_scale_entries(job),
        "layers": "native" if arithmetic.options.native_layers else "TensorFlow's",
        "recompute": runtime.recompute,
        **arithmetic.options.policy.describe(),
    }


def _loss_scale_entries(job: Job) -> dict[str, Any]:
    scale = job.run.runtime.numerics.loss_scale
    if not job.arithmetic.scales_loss:
        return {}
    if scale.static is not None:
        return {"loss_scale": scale.static}
    return {
        "loss_scale": "dynamic",
        "initial_loss_scale": scale.initial,
        "min_loss_scale": scale.minimum,
        "loss_scale_window": scale.window,
    }


def format_ledger(ledger: Ledger, *, several_ranks: bool = True, title: str = "ledger") -> str:
    """Formats the ledger as a table of at most 100 columns, entries separated by two spaces.

    Leaves out nested values, ramps that are not used and, unless there are ``several_ranks``,
    entries about ranks; all of them are in ``run.json``.
    """
    shown = {
        section: [
            f"{name}={show_value(value)}"
            for name, value in entries.items()
            if not isinstance(value, Mapping)
            and (value is not None or name not in _ONLY_IF_GIVEN)
            and (several_ranks or (section, name) not in _OF_SEVERAL_RANKS)
        ]
        for section, entries in ledger.items()
        if several_ranks or section not in _SECTIONS_OF_SEVERAL_RANKS
    }
    width = max(len(section) for section in shown)
    lines = [f"-- {title} ".ljust(_RULE, "-")]
    for section, entries in shown.items():
        rows = _rows(entries, _COLUMNS - width - 2)
        lines += [
            f"{name:<{width}}  {row}" for name, row in zip([section, *[""] * len(rows)], rows)
        ]
    lines.append("-" * _RULE)
    return "\n".join(lines)


_COLUMNS = 100
_RULE = 70
_ONLY_IF_GIVEN = {"batch_ramp", "length_ramp"}
_SECTIONS_OF_SEVERAL_RANKS = {"ranks", "communication"}
_OF_SEVERAL_RANKS = {
    ("steps", "train_steps_on_one_rank"),
    ("steps", "warmup_steps_on_one_rank"),
    ("steps", "scaled_by_ranks"),
    ("learning_rate", "requested"),
    ("learning_rate", "scaling"),
}


def _rows(entries: Sequence[str], columns: int) -> list[str]:
    """Fills entries into rows; an entry longer than a row is broken at spaces."""
    rows = [""]
    for entry in entries:
        first, *rest = textwrap.wrap(entry, columns, break_long_words=False, break_on_hyphens=False)
        joined = f"{rows[-1]}  {first}" if rows[-1] else first
        if len(joined) <= columns:
            rows[-1] = joined
        else:
            rows.append(first)
        rows += rest
    return rows


def show_value(value: Any) -> str:
    """Formats a value: whole numbers with all digits, other floats with six."""
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < _WHOLE_FLOATS
        return f"{value:.0f}" if whole else f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(show_value, value))
    return str(value)


_WHOLE_FLOATS = 1e15  # larger values are bounds, such as float32's largest number


def write_run_json(
    output_dir: Path, *, ledger: Ledger, flags: Mapping[str, Any], model: Mapping[str, Any]
) -> None:
    """Writes ``run.json``: the ledger, resolved flags, the model, versions and the git commit."""
    content = {
        "ledger": ledger,
        "flags": dict(flags),
        "model": dict(model),
        MODEL_RECORD_KEY: MODEL_RECORD_NAME,
        "versions": versions(),
        "git_commit": git_commit(),
        "command": sys.argv,
    }
    write_json(output_dir / RUN_RECORD_NAME, content)


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """The versions of Python, this package and its installed dependencies."""
    found = {"python": platform.python_version(), "bert_tf": bert_tf.__version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the code; None if it is not in a git repository.

    A package installed inside somebody else's repository does not have that repository's commit.
    """
    code = Path(bert_tf.__file__)
    for command in (["ls-files", "--error-unmatch", code.name], ["rev-parse", "HEAD"]):
        try:
            done = subprocess.run(
                ["git", *command], cwd=code.parent, capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        if done.returncode:
            return None
    return done.stdout.strip()


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
            # As it would be read back.
            old, new = known[name], json.loads(json.dumps(finite_or_null(value)))
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


def _show(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:_SHOWN_DIGITS]
    return show_value(value)
