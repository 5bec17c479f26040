"""Runs the phases of a plan in order; when started again, it resumes where it stopped.

All phases are checked before the first one starts, so that the last one cannot fail for a reason
that was known from the beginning. Everything that a phase needs to resume is in its own directory;
``plan.json`` only adds which phases are done, with the ledger of the whole plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.checkpoint.directory import newest_checkpoint
from bert_tf.config.settings import StartSettings, dry
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.model_directory.run_record import read_run_record
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.data import TrainingBatches
from bert_tf.tasks.pretraining.network import Inherited
from bert_tf.tasks.pretraining.phases import Phase
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute
from bert_tf.train.job import Job
from bert_tf.train.ledger import Ledger, format_ledger, show_value
from bert_tf.train.run import Run, begin
from bert_tf.train.start_point import NEW
from bert_tf.train.update_timing import describe_conditions, peak_flops, seconds_per_update
from bert_tf.util.digest import VOCABULARY_DIGEST_KEY
from bert_tf.util.directory_lock import hold_directory, is_abandoned
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
      full_updates: model FLOPs of the phase, in units of its largest update.
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
    full_updates: float
    state: str = PLANNED
    sequences_per_second: float | None = None

    @property
    def seconds(self) -> float:
        """The duration of the phase, excluding start-up, checkpoints and evaluations."""
        if self.sequences_per_second:
            return self.sequences / self.sequences_per_second
        return self.full_updates * self.seconds_per_update

    def changed_flags(self, now: Mapping[str, Any]) -> dict[str, str]:
        """Maps ``--flag`` to ``before -> now``, for flags that both have and that differ."""
        shown = {}
        for name, value in self.flags.items():
            other = now.get(name, value)
            if other != value:
                shown[f"--{name}"] = f"{show_value(value)} -> {show_value(other)}"
        return shown


Entries = dict[str, PhaseEntry]


def run_phases(phases: Sequence[Phase]) -> Results | None:
    """Runs all phases that are not done; returns the results of the last. Collective.

    Raises UserError for bad input in any phase, before anything is trained.
    """
    entries = _check_phases(phases, _recorded(phases))
    results = None
    for phase in phases:
        settings = phase.settings
        if settings.run.dry_run or entries[phase.name].state == DONE:
            continue
        with begin(settings.run, settings.runtime, plan_dir=phase.directory.parent) as begun:
            results = _run_phase(phase, len(phases), begun, entries)
            if phase is phases[-1]:
                _show_plan(begun, entries)
                begun.message(
                    f"the plan is done; its last checkpoint is {newest_checkpoint(phase.directory)}"
                )
    return results


def _recorded(phases: Sequence[Phase]) -> Entries:
    """The phase entries of an earlier start, the same on all ranks; empty in a new directory."""
    first, directory = phases[0].settings, phases[0].directory.parent
    whole = dataclasses.replace(first.run, output_dir=directory, start=StartSettings())
    with begin(whole, first.runtime) as begun:
        if begun.start.checkpoint is not None:
            raise UserError(
                f"--output_dir: {directory} contains a checkpoint of a run without --phases; "
                "choose another directory."
            )
        is_chief = begun.ranks.is_chief
        recorded: Entries = begun.ranks.broadcast(read_plan(directory) if is_chief else None)
        finished = {name for name, entry in recorded.items() if entry.state == DONE}
        done = [phase for phase in phases if phase.name in finished]
        for phase in done:
            _report_done(begun, phase, recorded[phase.name])
            if is_chief and not first.run.dry_run:
                _remove_abandoned_lock(phase.directory)
        if len(done) == len(phases):
            begun.message(f"nothing to train: {directory} contains all phases of the plan")
        else:
            pretraining.run_before_training(first, begun)
        return recorded


def _remove_abandoned_lock(directory: Path) -> None:
    """Removes the lock left by a kill right after a phase, which no later start would run again."""
    if is_abandoned(directory):
        with contextlib.suppress(UserError), hold_directory(directory, flag="output_dir"):
            pass


def _report_done(run: Run, phase: Phase, entry: PhaseEntry) -> None:
    command = phase.settings.run.command
    changes = entry.changed_flags(comparable_flags(command.values, command.per_host))
    ignored = ""
    if changes:
        listed = ", ".join(f"{name} {change}" for name, change in changes.items())
        ignored = f"; flags changed since then have no effect: {listed}"
    run.message(f"{phase.name} is done{ignored}")


def _check_phases(phases: Sequence[Phase], recorded: Entries) -> Entries:
    """Checks every unfinished phase and estimates its duration; prints the plan's ledger."""
    entries: Entries = {}
    before: Job | None = None
    for phase in phases:
        earlier = recorded.get(phase.name)
        if earlier is not None and earlier.state == DONE:
            entries[phase.name] = earlier
            continue
        settings, start = dry(phase.settings), phase.settings.run.start
        awaited = None  # the phase whose last checkpoint is the start, but does not exist yet
        if before is not None and str(before.settings.output_dir) in (
            start.init_checkpoint,
            start.resume_from,
        ):
            awaited = before
            settings = _without_start(phase, settings, awaited)
        shows = phase.settings.run.dry_run
        with begin(settings.run, settings.runtime) as begun:
            start_now = NEW if awaited else begun.start
            log = begun.log if shows else None
            checked = dataclasses.replace(begun, start=start_now, log=log)
            of_awaited = None
            if awaited is not None:
                of_awaited = Inherited(awaited.model.config, awaited.model.tokenizer_files)
            job = pretraining.prepare_pretraining(settings, checked, of_awaited)
            if awaited is not None:
                _check_same_network(phase, awaited, job)
            begins_at = _first_step(phase, job, earlier, [*entries.values()])
            entries[phase.name] = _entry(phase, job, earlier, begins_at)
            if shows:
                begun.message(f"{phase.name}: {phase.flag_file}")
                execute(job)
            if phase is phases[-1]:
                _show_plan(begun, entries)
            before = job
    return entries


def _without_start(phase: Phase, settings: PretrainingSettings, before: Job) -> PretrainingSettings:
    """Settings to check a phase whose start does not exist yet, as a run from random weights."""
    optimizer = settings.optimization.optimizer
    if settings.run.start.resume_from and optimizer != before.plan.requested.optimizer:
        raise UserError(
            f"{phase.flag_file}: --resume_from keeps the optimizer state of the previous phase, "
            f"which trains with {before.plan.requested.optimizer}, not with {optimizer}; give the "
            "same --optimizer_type, or --init_checkpoint=previous for the weights alone."
        )
    run = dataclasses.replace(settings.run, start=StartSettings())
    return dataclasses.replace(settings, run=run)


def _check_same_network(phase: Phase, before: Job, job: Job) -> None:
    """Raises UserError if a phase has a different network or vocabulary than the previous one."""
    differences = before.model.config.differences(job.model.config).function
    if differences:
        raise UserError(
            f"{phase.flag_file}: the network differs from that of the previous phase: "
            f"{', '.join(differences.values())}; all phases train the same network."
        )
    hashes = [one.data.entries[VOCABULARY_DIGEST_KEY] for one in (before, job)]
    if None not in hashes and hashes[0] != hashes[1]:
        raise UserError(
            f"{phase.flag_file}: the records have a different vocabulary than those of the "
            "previous phase; make both with the same one."
        )


def _first_step(
    phase: Phase, job: Job, earlier: PhaseEntry | None, others: Sequence[PhaseEntry]
) -> int:
    """The first step of a phase; 0 unless it resumes a run and counts its steps.

    It does not change between starts of the plan. ``earlier`` is its entry from an earlier start,
    ``others`` are those of the phases before.
    """
    given = phase.settings.run.start
    if not given.resume_from or given.reset_step:
        return 0
    if others and given.resume_from == str(phase.directory.with_name(others[-1].name)):
        return others[-1].last_step
    if job.run.start.is_elsewhere:
        return job.run.start.step
    return earlier.last_step - earlier.updates if earlier else 0


def _entry(phase: Phase, job: Job, earlier: PhaseEntry | None, begins_at: int) -> PhaseEntry:
    command, training = phase.settings.run.command, job.data.training
    assert isinstance(training, TrainingBatches), "a phase trains"
    batch, last_step = job.plan.batch, job.plan.last_step
    updates = last_step - begins_at
    if updates < 1:
        raise UserError(
            f"{phase.flag_file}: the phase continues at step {begins_at}, where the run that it "
            f"resumes ends, and would end at step {last_step}; raise {job.plan.length_flag}, "
            "or give --reset_step to count from 0."
        )
    seconds, peak, conditions = _timing(job, earlier)
    parts = [(part.sequences, part.length) for part in batch.segments(begins_at, last_step)]
    typical = training.typical_lengths(job.run, job.plan)
    flops = training.flops_of(parts, typical)
    return PhaseEntry(
        name=phase.name,
        flag_file=phase.flag_file,
        flags=comparable_flags(command.values, command.per_host),
        length=training.max_seq_length,
        global_batch=batch.global_batch_size,
        last_step=last_step,
        updates=updates,
        sequences=batch.sequences(begins_at, last_step),
        model_flops=flops,
        peak_flops=peak,
        seconds_per_update=seconds,
        conditions=conditions,
        state=PLANNED if earlier is None else earlier.state,
        full_updates=flops / training.flops_of([(batch.global_batch_size, None)], typical),
    )


def _timing(job: Job, earlier: PhaseEntry | None) -> tuple[float, float, str]:
    """Seconds per update, FLOP/s of large products, and the conditions of both. Collective."""
    ranks, arithmetic = job.run.ranks, job.arithmetic
    conditions = ranks.broadcast(describe_conditions(job))
    if earlier is not None and earlier.conditions == conditions:
        return earlier.seconds_per_update, earlier.peak_flops, conditions
    peak = peak_flops(ranks, arithmetic.session, arithmetic.options.policy.dense)
    return seconds_per_update(job), peak, conditions


def _run_phase(phase: Phase, num_phases: int, run: Run, entries: Entries) -> Results | None:
    job = pretraining.prepare_pretraining(phase.settings, run)
    left = sum(entry.seconds for entry in entries.values() if entry.state != DONE)
    run.message(
        f"{phase.name} of {num_phases} phases: {phase.flag_file} (the plan needs about "
        f"{format_duration(left)} more)"
    )
    _note(phase, run, entries, state=RUNNING)
    results = execute(job)
    rate = None
    if run.ranks.is_chief:
        record = read_run_record(phase.directory)
        training = record.content.get("training", {}) if record else {}
        rate = training.get("sequences_per_second")
    _note(phase, run, entries, state=DONE, sequences_per_second=rate)
    return results


def _note(phase: Phase, run: Run, entries: Entries, **changes: Any) -> None:
    """Changes the entry of a phase, in ``plan.json`` too."""
    entries[phase.name] = dataclasses.replace(entries[phase.name], **changes)
    if run.ranks.is_chief:
        write_plan(phase.directory.parent, list(entries.values()))


def _show_plan(run: Run, entries: Entries) -> None:
    run.message(format_ledger(plan_sections(list(entries.values())), title="plan"))


def comparable_flags(flags: Mapping[str, Any], host_flags: frozenset[str]) -> dict[str, Any]:
    """A phase's flags for :class:`PhaseEntry`, as if read back from JSON."""
    return finite_or_null({name: v for name, v in flags.items() if name not in host_flags})


def plan_sections(entries: Sequence[PhaseEntry]) -> Ledger:
    """The sections of the ledger: one per phase, and the total."""
    sections = {
        entry.name: {
            "flags": entry.flag_file,
            "state": entry.state,
            "length": entry.length,
            "global_batch": entry.global_batch,
            **_total([entry]),
        }
        for entry in entries
    }
    return {**sections, "total": _total(entries)}


def _total(entries: Sequence[PhaseEntry]) -> dict[str, Any]:
    flops, seconds = sum(e.model_flops for e in entries), sum(e.seconds for e in entries)
    peak = sum(entry.peak_flops * entry.seconds for entry in entries) / seconds
    return {
        "updates": sum(entry.updates for entry in entries),
        "sequences": sum(entry.sequences for entry in entries),
        "model_flops": flops,
        "time": format_duration(seconds),
        "flops_utilisation": round(flops / seconds / peak, 3),
    }


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
