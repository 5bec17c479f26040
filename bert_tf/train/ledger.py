"""The ledger: every number that determines a run, printed and saved before its first step."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import bert_tf
from bert_tf.config.settings import OptimizationSettings
from bert_tf.model_directory.run_record import RUN_RECORD_NAME, read_run_record
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan, StepPlan
from bert_tf.update.optimizers import optimizer_row
from bert_tf.update.schedules import Schedule
from bert_tf.util.errors import UserError
from bert_tf.util.files import write_json
from bert_tf.util.ramps import Ramp

_PACKAGES = ("tensorflow-cpu", "tensorflow", "horovod", "numpy", "sentencepiece", "tokenizers")

Ledger = dict[str, dict[str, Any]]


def training_ledger(
    *,
    ranks: Ranks,
    batch: BatchPlan,
    steps: StepPlan,
    schedule: Schedule,
    optimization: OptimizationSettings,
    operations: str,
    precision: Mapping[str, Any],
    communication: Mapping[str, Any],
    data: Mapping[str, Any],
    start: StartPoint,
    slot_bytes: int | None = None,
) -> Ledger:
    """Returns section -> entries, in the order in which they are shown. Collective.

    ``operations`` names the operations of the update; ``slot_bytes`` is the size of a rank's shard
    of the optimizer state, shown if that is sharded; ``precision``, ``communication`` and ``data``
    are the caller's sections, ``data`` with ``train_records``; training starts from ``start``.
    """
    hosts = ranks.gather(socket.gethostname())
    consumed = start.total(batch, steps.last_step)
    num_records = data["train_records"]
    return {
        "ranks": {"world_size": ranks.world_size, "hosts": sorted(set(hosts))},
        "batch": {
            "micro_batch": batch.micro_batch_size,
            "accumulation_steps": batch.accumulation_steps,
            "global_batch": batch.global_batch_size,
            "arithmetic": batch.arithmetic(),
            "batch_ramp": _shown_ramp(batch.sizes),
            "length_ramp": _shown_ramp(batch.lengths),
        },
        "steps": {
            "train_steps_on_one_rank": steps.requested_train_steps,
            "warmup_steps_on_one_rank": steps.requested_warmup_steps,
            "scaled_by_ranks": steps.scaled_by_ranks,
            "train_steps": steps.num_train_steps,
            "warmup_steps": steps.num_warmup_steps,
            **_end_of_run(steps),
            "start_step": start.step,
            "schedule_offset": steps.schedule_offset,
            "last_step": steps.last_step,
        },
        "learning_rate": {
            "requested": steps.requested_learning_rate,
            "scaling": optimization.schedule.learning_rate_scaling,
            **schedule_entries(schedule),
        },
        "consumption": {
            "sequences": consumed,
            **_positions(batch, start, steps),
            "records": num_records,
            "epochs": round(consumed / num_records, 3) if num_records else 0.0,
        },
        "optimizer": {
            **_optimizer_section(optimization, operations),
            **_sharding_entries(optimization, ranks, slot_bytes),
        },
        "communication": _communication_section(optimization, ranks, communication),
        "precision": dict(precision),
        "data": dict(data),
    }


def _shown_ramp(ramp: Ramp | None) -> str | None:
    return None if ramp is None else str(ramp)


def _positions(batch: BatchPlan, start: StartPoint, steps: StepPlan) -> dict[str, int]:
    """The number of positions of all sequences, if there is a length ramp."""
    if batch.lengths is None:
        return {}
    parts = start.parts(batch, steps.last_step)
    return {"positions": round(sum(number * length for number, length in parts if length))}


def _end_of_run(steps: StepPlan) -> dict[str, int]:
    if steps.stop_after_steps is None:
        return {}
    return {"stop_after_steps": steps.stop_after_steps}


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


def _optimizer_section(optimization: OptimizationSettings, operations: str) -> dict[str, Any]:
    row = optimizer_row(optimization.optimizer)
    section = {
        "name": optimization.optimizer,
        "weight_decay": optimization.weight_decay,
        **row.resolve(optimization.optimizer_options),
        "clip_norm": optimization.clip_norm,
        "loss_normalization": optimization.batch.loss_normalization,
        "operations": operations,
    }
    if not row.has_native_form:
        section["operations"] = f"{operations} ({row.title}: TensorFlow's)"
    for name in ("rate_factors", "trained_from"):
        if rules := getattr(optimization, name):
            section[name] = [f"{pattern}:{value:g}" for pattern, value in rules]
    return section


def _communication_section(
    optimization: OptimizationSettings, ranks: Ranks, communication: Mapping[str, Any]
) -> dict[str, Any]:
    if optimization.shard_optimizer_state and ranks.world_size > 1:
        exchange = "reduce-scatter and all-gather, once an update"
        return {"allreduce": exchange, **communication, "embeddings": "table"}
    every = optimization.allreduce_every_micro_batch
    return {"allreduce": "every micro batch" if every else "once an update", **communication}


def _sharding_entries(
    optimization: OptimizationSettings, ranks: Ranks, slot_bytes: int | None
) -> dict[str, Any]:
    if not optimization.shard_optimizer_state:
        return {}
    several = ranks.world_size > 1
    shared = f"over {ranks.world_size} ranks" if several else "no: a single rank"
    return {"state_shared_out": shared, "slot_bytes_of_a_rank": slot_bytes}


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


def add_to_run_json(output_dir: Path, entries: Mapping[str, Any]) -> None:
    """Adds entries to ``run.json`` that become known only while the job runs."""
    record = read_run_record(output_dir)
    if record is None:
        raise UserError(
            f"run record: {output_dir / RUN_RECORD_NAME} no longer exists; do not remove it during "
            "the run."
        )
    write_json(record.path, {**record.content, **entries})
