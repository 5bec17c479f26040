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
from bert_tf.tasks.pretraining.batches import TrainingBatches
from bert_tf.tasks.pretraining.hosts import run_before_training
from bert_tf.tasks.pretraining.settings import Phase, Phases, PretrainingSettings
from bert_tf.train.evaluation import Results
from bert_tf.train.execute import execute
from bert_tf.train.job import Job
from bert_tf.train.ledger import Ledger, format_ledger, show_value
from bert_tf.train.run import Run, begin
from bert_tf.train.start_point import NEW, StartPoint
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


def run_phases(plan: Phases) -> Results | None:
    """Runs all phases that are not done; returns the results of the last. Collective.

    Raises UserError for bad input in any phase, before anything is trained.
    """
    entries = _check_phases(plan, _recorded(plan))
    results = None
    for phase in plan.phases:
        if phase.settings.run.dry_run or entries[phase.name].state == DONE:
            continue
        settings = phase.settings
        with begin(settings.run, settings.runtime, plan_dir=plan.directory) as begun:
            results = _run_phase(plan, phase, begun, entries)
    return results


def _recorded(plan: Phases) -> Entries:
    """The phase entries of an earlier start, the same on all ranks; empty in a new directory."""
    settings = plan.phases[0].settings.run
    whole = dataclasses.replace(settings, output_dir=plan.directory, start=StartSettings())
    found = None
    with begin(whole, plan.runtime) as begun:
        if begun.start.checkpoint is not None:
            raise UserError(
                f"--output_dir: {plan.directory} contains a checkpoint of a run without --phases; "
                "choose another directory."
            )
        if begun.ranks.is_chief:
            found = read_plan(plan.directory)
        recorded = begun.ranks.broadcast(found)
        done = [
            phase
            for phase in plan.phases
            if phase.name in recorded and recorded[phase.name].state == DONE
        ]
        for phase in done:
            _report_done(begun, phase, recorded[phase.name])
            if begun.ranks.is_chief and not phase.settings.run.dry_run:
                _remove_abandoned_lock(phase.settings.run.output_dir)
        if len(done) == len(plan.phases):
            begun.message(f"nothing to train: {plan.directory} contains all phases of the plan")
        else:
            run_before_training(plan.phases[0].settings, begun)
        return recorded


def _remove_abandoned_lock(directory: Path) -> None:
    """Removes the lock left by a kill right after a phase, which no later start would run again."""
    if is_abandoned(directory):
        with contextlib.suppress(UserError), hold_directory(directory, flag="output_dir"):
            pass


def _check_phases(plan: Phases, recorded: Entries) -> Entries:
    """Checks every unfinished phase and estimates its duration; prints the plan's ledger."""
    entries: Entries = {}
    before: Job | None = None
    for previous, phase in zip((None, *plan.phases), plan.phases):
        earlier = recorded.get(phase.name)
        if earlier is not None and earlier.state == DONE:
            entries[phase.name] = earlier
            continue
        settings = dry(phase.settings)
        given = settings.run.start.init_checkpoint, settings.run.start.resume_from
        awaited = before  # the phase whose last checkpoint is the start, but does not exist yet
        if before is not None and str(before.settings.output_dir) not in given:
            awaited = None
        if awaited is not None:
            settings = _without_start(phase, settings, awaited)
        with begin(settings.run, settings.runtime) as begun:
            shows = phase.settings.run.dry_run
            checked = dataclasses.replace(
                begun,
                start=NEW if awaited else begun.start,
                log=begun.log if shows else None,
            )
            job = pretraining.prepare_pretraining(settings, checked)
            if awaited is not None:
                _check_same_network(phase, awaited, job)
            if previous is not None and _resumes_from(phase, previous):
                begins_at = entries[previous.name].last_step
            else:
                begins_at = _first_step(phase, checked.start, earlier)
            entries[phase.name] = _entry(phase, job, earlier, begins_at)
            if shows:
                begun.message(f"{phase.name}: {phase.flag_file}")
                execute(job)
            if phase is plan.phases[-1]:
                begun.message(format_ledger(plan_sections(list(entries.values())), title="plan"))
            before = job
    return entries


def _report_done(run: Run, phase: Phase, entry: PhaseEntry) -> None:
    command = phase.settings.run.command
    changes = entry.changed_flags(comparable_flags(command.values, command.per_host))
    ignored = ""
    if changes:
        listed = ", ".join(f"{name} {change}" for name, change in changes.items())
        ignored = f"; flags changed since then have no effect: {listed}"
    run.message(f"{phase.name} is done{ignored}")


def _without_start(phase: Phase, settings: PretrainingSettings, before: Job) -> PretrainingSettings:
    """Settings to check a phase whose start does not exist yet, as a run from random weights."""
    run = settings.run
    optimizer = settings.optimization.optimizer
    if run.start.resume_from and optimizer != before.plan.requested.optimizer:
        raise UserError(
            f"{phase.flag_file}: --resume_from keeps the optimizer state of the previous phase, "
            f"which trains with {before.plan.requested.optimizer}, not with {optimizer}; give the "
            "same --optimizer_type, or --init_checkpoint=previous for the weights alone."
        )
    network = settings.network
    if not settings.bert_config_file:
        network = {**before.model.config.to_dict(), **network}
    files = settings.tokenizer_files.with_vocabulary_of(before.model.tokenizer_files)
    return dataclasses.replace(
        settings,
        run=dataclasses.replace(run, start=StartSettings()),
        network=network,
        tokenizer_files=files,
    )


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


def _resumes_from(phase: Phase, previous: Phase) -> bool:
    """Whether a phase continues the step count of the previous one."""
    run = phase.settings.run
    return run.start.resume_from == str(previous.directory) and not run.start.reset_step


def _first_step(phase: Phase, start: StartPoint, earlier: PhaseEntry | None) -> int:
    """The first step of a phase that does not resume the previous one; 0 for a new run.

    It does not change between starts of the plan. ``start`` is where the phase would start now,
    ``earlier`` its entry from an earlier start.
    """
    run = phase.settings.run
    if not run.start.resume_from or run.start.reset_step:
        return 0
    if start.is_elsewhere:
        return start.step
    return earlier.last_step - earlier.updates if earlier else 0


def _entry(phase: Phase, job: Job, earlier: PhaseEntry | None, begins_at: int) -> PhaseEntry:
    run, training = phase.settings.run, job.data.training
    assert isinstance(training, TrainingBatches), "a phase trains"
    batch, last_step = job.plan.batch, job.plan.steps.last_step
    updates = last_step - begins_at
    if updates < 1:
        raise UserError(
            f"{phase.flag_file}: the phase continues at step {begins_at}, where the run that it "
            f"resumes ends, and would end at step {last_step}; raise {job.plan.length_flag}, "
            "or give --reset_step to count from 0."
        )
    seconds, peak, conditions = _timing(job, earlier)
    effort = training.effort(job.run, job.plan)
    parts = batch.segments(begins_at, last_step)
    flops = effort.total((part.sequences, part.length) for part in parts)
    largest = batch.global_batch_size * effort.per_sequence
    return PhaseEntry(
        name=phase.name,
        flag_file=phase.flag_file,
        flags=comparable_flags(run.command.values, run.command.per_host),
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
        full_updates=flops / largest,
    )


def _timing(job: Job, earlier: PhaseEntry | None) -> tuple[float, float, str]:
    """Seconds per update, FLOP/s of large products, and the conditions of both. Collective."""
    ranks, arithmetic = job.run.ranks, job.arithmetic
    conditions = ranks.broadcast(describe_conditions(job))
    if earlier is not None and earlier.conditions == conditions:
        return earlier.seconds_per_update, earlier.peak_flops, conditions
    peak = peak_flops(ranks, arithmetic.session, arithmetic.options.policy.dense)
    return seconds_per_update(job), peak, conditions


def _run_phase(plan: Phases, phase: Phase, run: Run, entries: Entries) -> Results | None:
    job = pretraining.prepare_pretraining(phase.settings, run)
    left = format_duration(seconds_left(list(entries.values())))
    run.message(
        f"{phase.name} of {len(plan.phases)} phases: {phase.flag_file} (the plan needs about "
        f"{left} more)"
    )
    _note(plan, run, entries, phase, state=RUNNING)
    results = execute(job)
    rate = None
    if run.ranks.is_chief:
        record = read_run_record(phase.directory)
        training = record.content.get("training", {}) if record else {}
        rate = training.get("sequences_per_second")
    _note(plan, run, entries, phase, state=DONE, sequences_per_second=rate)
    if phase is plan.phases[-1]:
        run.message(format_ledger(plan_sections(list(entries.values())), title="plan"))
        run.message(
            f"the plan is done; its last checkpoint is {newest_checkpoint(phase.directory)}"
        )
    return results


def _note(plan: Phases, run: Run, entries: Entries, phase: Phase, **changes: Any) -> None:
    """Changes the entry of a phase, in ``plan.json`` too."""
    entries[phase.name] = dataclasses.replace(entries[phase.name], **changes)
    if run.ranks.is_chief:
        write_plan(plan.directory, list(entries.values()))


def comparable_flags(flags: Mapping[str, Any], host_flags: frozenset[str]) -> dict[str, Any]:
    """A phase's flags for :class:`PhaseEntry`, as if read back from JSON."""
    return finite_or_null({name: v for name, v in flags.items() if name not in host_flags})


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
