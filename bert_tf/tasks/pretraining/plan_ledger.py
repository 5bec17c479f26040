"""The ledger of a whole plan, printed before the first phase and kept in ``plan.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.train.ledger import Ledger, show_value
from bert_tf.util.errors import UserError
from bert_tf.util.files import finite_or_null
from bert_tf.util.progress import format_duration

PLAN_NAME = "plan.json"
_WHAT = "plan"
_ADVICE = (
    "restore the file or delete it; deleting it only loses which phases are done, which are then "
    "checked again"
)

PLANNED, RUNNING, DONE = "planned", "running", "done"


@dataclasses.dataclass(frozen=True)
class PhaseEntry:
    """The ledger's entry for one phase.

    Attributes:
      name: the name of its directory.
      flag_file: the file with its flags.
      flags: all its flags except those that may differ between starts.
      length: length of the longest sequence.
      global_batch: sequences in the largest update.
      last_step: global_step after its last update.
      updates, sequences: of the whole phase.
      model_flops: of the whole phase, as defined in ``model.flops``.
      peak_flops: FLOP/s of large products on all ranks, in the precision of the phase.
      seconds_per_update: of the largest update, measured before the start; with several micro
        batches, extrapolated from one.
      conditions: what that measurement depends on.
      state: ``planned``, ``running`` or ``done``.
      sequences_per_second: throughput in its last start, None until it ends.
      full_updates: model FLOPs of the phase, in units of its largest update; None in records of
        earlier versions, whose updates were all of one size.
    """

    name: str
    flag_file: str
    flags: Mapping[str, Any]
    length: int
    global_batch: int
    last_step: int
    updates: int
    sequences: int
    model_flops: float
    peak_flops: float
    seconds_per_update: float
    conditions: str
    state: str = PLANNED
    sequences_per_second: float | None = None
    full_updates: float | None = None

    @property
    def seconds(self) -> float:
        """The duration of the phase, excluding start-up, checkpoints and evaluations."""
        if self.sequences_per_second:
            return self.sequences / self.sequences_per_second
        return (self.full_updates or self.updates) * self.seconds_per_update

    def changed_flags(self, now: Mapping[str, Any]) -> dict[str, str]:
        """Maps ``--flag`` to ``before -> now``, for flags that both have and that differ."""
        shown = {}
        for name, value in self.flags.items():
            other = now.get(name, value)
            if other != value:
                shown[f"--{name}"] = f"{show_value(value)} -> {show_value(other)}"
        return shown


def comparable_flags(flags: Mapping[str, Any], host_flags: frozenset[str]) -> dict[str, Any]:
    """A phase's flags for :class:`PhaseEntry`, as if read back from JSON."""
    kept = {name: value for name, value in flags.items() if name not in host_flags}
    return finite_or_null({name: _as_json(value) for name, value in kept.items()})


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def plan_sections(entries: Sequence[PhaseEntry]) -> Ledger:
    """The sections of the ledger: one per phase, and the total."""
    sections = {entry.name: _section(entry) for entry in entries}
    flops, seconds = sum(e.model_flops for e in entries), sum(e.seconds for e in entries)
    peak = sum(entry.peak_flops * entry.seconds for entry in entries) / seconds
    sections["total"] = {
        "updates": sum(entry.updates for entry in entries),
        "sequences": sum(entry.sequences for entry in entries),
        **_effort(flops, seconds, peak),
    }
    return sections


def _section(entry: PhaseEntry) -> dict[str, Any]:
    return {
        "flags": entry.flag_file,
        "state": entry.state,
        "length": entry.length,
        "global_batch": entry.global_batch,
        "updates": entry.updates,
        "sequences": entry.sequences,
        **_effort(entry.model_flops, entry.seconds, entry.peak_flops),
    }


def _effort(flops: float, seconds: float, peak: float) -> dict[str, Any]:
    return {
        "model_flops": flops,
        "time": format_duration(seconds),
        "flops_utilisation": round(flops / seconds / peak, 3),
    }


def seconds_left(entries: Sequence[PhaseEntry]) -> float:
    """The estimated duration of all phases that are not done."""
    return sum(entry.seconds for entry in entries if entry.state != DONE)


def write_plan(directory: Path, entries: Sequence[PhaseEntry]) -> None:
    """Writes ``plan.json``."""
    content = {
        "phases": [dataclasses.asdict(entry) for entry in entries],
        "ledger": plan_sections(entries),
    }
    write_sealed_json(directory / PLAN_NAME, content)


def read_plan(directory: Path) -> dict[str, PhaseEntry]:
    """The entries of ``plan.json`` by name, empty without the file; UserError if it is damaged."""
    path = directory / PLAN_NAME
    if not path.is_file():
        return {}
    try:
        phases = read_sealed_json(path, what=_WHAT, advice=_ADVICE)["phases"]
        entries = [PhaseEntry(**values) for values in phases]
        _ = plan_sections(entries)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{_WHAT}: {path} cannot be used; {_ADVICE}.") from error
    return {entry.name: entry for entry in entries}
