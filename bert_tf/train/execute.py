"""Prepares and executes a job: plan, checks, ledger, training, evaluation, output files.

Every task, program, dry run and doctor goes through here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import remove_leftovers, write_missing_list
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.diagnose.disk import checkpoint_sizes, disk_warning
from bert_tf.model_directory.directory import CONFIG_NAME
from bert_tf.model_directory.record import MODEL_RECORD_NAME, read_record
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.ranks import Ranks
from bert_tf.train import ledger
from bert_tf.train.checks import check_start
from bert_tf.train.evaluation import Evaluation, Results, finish_exchange
from bert_tf.train.job import InitialWeights, Job, JobData, RunModel, TrainingData
from bert_tf.train.ledger import Ledger
from bert_tf.train.plan import Plan, resolve
from bert_tf.train.run import REHEARSAL, Run, begin
from bert_tf.train.start_point import take_over
from bert_tf.train.trainer import Trainer
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.digest import DIGEST_KEY, VOCABULARY_DIGEST_KEY
from bert_tf.util.files import write_json

if TYPE_CHECKING:
    from bert_tf.diagnose.memory import MemoryEstimate

_UNKNOWN_DATA = {"train_records": 0, DIGEST_KEY: "none", VOCABULARY_DIGEST_KEY: None}


class Opened(Protocol):
    """A task of a run whose model and files are open, but whose data are not made yet."""

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""

    @property
    def model(self) -> RunModel:
        """The model to train or evaluate."""

    @property
    def max_records(self) -> int:
        """An upper bound on the number of training records; 1 for a run that does not train."""

    @property
    def is_padded(self) -> bool:
        """Whether batches may be padded."""

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Makes or opens the records of the run. Collective."""


def prepare(opened: Opened, run: Run) -> Job:
    """Plans a run, checks where it starts and makes its data. Collective.

    Whatever does not depend on the records is checked before they are made. Raises UserError if
    settings contradict each other, the run to resume or the weights.
    """
    requested = opened.optimization
    plan = resolve(run, requested, opened.max_records, is_bound=True)
    arithmetic = run.choose_arithmetic(opened.model.config, skip_padding=opened.is_padded)
    check_start(run, opened.model, plan, arithmetic)
    data = opened.make_data(run, arithmetic)
    if data.training is not None:
        plan = resolve(run, requested, data.training.num_records)
    return Job(run, plan, arithmetic, opened.model, data)


@dataclasses.dataclass(frozen=True)
class GivenBatches(TrainingData):
    """Batches that a program supplies; which records are in them is unknown."""

    make: Callable[[Run, Plan], tf.data.Dataset]
    max_seq_length: int
    num_records: int = 1

    def batches(self, run: Run, plan: Plan) -> tf.data.Dataset:
        """The program's batches."""
        return self.make(run, plan)


@dataclasses.dataclass(frozen=True)
class _UserTask:
    """A task of a user's program, in the form that :func:`prepare` takes."""

    optimization: OptimizationSettings
    model: RunModel
    training: GivenBatches
    evaluation: Callable[[Run], Evaluation] | None
    entries: Mapping[str, Any]
    max_records: int = 1
    is_padded: bool = False

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Returns the program's data."""
        del arithmetic
        evaluation = self.evaluation and self.evaluation(run)
        return JobData(self.training, evaluation, entries={**_UNKNOWN_DATA, **self.entries})


def run_task(
    model: RunModel,
    settings: RunSettings,
    optimization: OptimizationSettings,
    runtime: RuntimeSettings | None = None,
    *,
    batches: Callable[[Run, Plan], tf.data.Dataset],
    max_seq_length: int,
    evaluation: Callable[[Run], Evaluation] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Results | None:
    """Trains and evaluates a task on the given batches; returns the last results. Collective.

    Args:
      model: the task, and what its directory will contain. If it has no initial weights, it starts
        from ``settings.start.init_checkpoint``.
      settings: what to do, where to write and how often.
      optimization: batch, schedule and optimizer; training needs a number of steps.
      runtime: precision, ranks and threads; None for the defaults.
      batches: returns this rank's part of every global batch of a plan, each [accumulation steps x
        micro batch, ...], without end, from position ``run.start.data_position``. If batches grow,
        the one at a position has the size ``run.batch_slice(plan.batch).at(...)``.
      max_seq_length: length of the longest sequence.
      evaluation: creates the evaluation; called if ``settings.evaluation.do_eval``.
      data: additional entries on the data, for the ledger.

    Raises UserError for contradictory settings, ValueError for training without steps.
    """
    if settings.do_train and optimization.steps.num_train_steps is None:
        raise ValueError("training needs OptimizationSettings.num_train_steps")
    if model.initial.checkpoint is None:
        initial = InitialWeights(settings.start.init_checkpoint)
        model = dataclasses.replace(model, initial=initial)

    task = _UserTask(
        optimization,
        model,
        GivenBatches(batches, max_seq_length),
        evaluation if settings.evaluation.do_eval else None,
        data or {},
    )
    with begin(settings, runtime or RuntimeSettings()) as run:
        return execute(prepare(task, run))


def execute(job: Job) -> Results | None:
    """Prints the ledger, trains and evaluates as set; returns the last results. Collective.

    Creates nothing but an empty output directory and records before all remaining checks have
    passed; a dry run ends there.
    """
    run, settings = job.run, job.settings
    check_same_on_all_ranks(run.ranks, _compared_values(job))
    trains = settings.do_train and run.start.step < job.plan.last_step
    run_ledger = None
    if settings.do_train:
        run_ledger = _announce(job)
    report_resuming(job)
    if settings.dry_run:
        _end_dry_run(job)
        return None
    trainer = Trainer(job)
    if run.keeps_files:
        _tidy(run)
        _write_files(job, run_ledger if trains else None)
        if run.start.is_elsewhere:  # last, so that a run with a checkpoint also has its record
            batch_size = job.plan.batch.global_batch_size
            take_over(run.start, settings.output_dir, global_batch_size=batch_size)
    if settings.do_train and not _is_finished(job, trainer):
        trainer.train()
        last, total = job.plan.last_position, job.plan.schedule.total_steps
        if last < total:
            run.message(
                f"ended after {last} of the schedule's {total} updates (--stop_after_steps)"
            )
    results = trainer.evaluate_at_end() if settings.evaluation.do_eval else None
    if job.data.prediction is not None:
        trainer.predict(job.data.prediction)
    record = read_record(settings.output_dir) if run.keeps_files else None
    if record is not None:
        run.message(f"model record: {record.path}, SHA-256 {record.name}...")
    run.message(f"output is in {settings.output_dir}")
    return results


class DryRun(NamedTuple):
    """The job of a dry run, and the memory that it needs; None without training."""

    job: Job
    memory: MemoryEstimate | None


@contextlib.contextmanager
def dry_runs(ranks: Ranks) -> Iterator[list[DryRun]]:
    """Returns a list to which the dry runs in the block, on planned ``ranks``, are added."""
    done: list[DryRun] = []
    token = REHEARSAL.set((ranks, done))
    try:
        yield done
    finally:
        REHEARSAL.reset(token)


def _end_dry_run(job: Job) -> None:
    memory = None
    if job.settings.do_train:
        from bert_tf.diagnose.memory import estimate_memory, format_memory

        memory = estimate_memory(job)
        job.run.message(format_memory(memory))
    job.run.message("this was a dry run: nothing was trained or written")
    rehearsal = REHEARSAL.get()
    if rehearsal is not None:
        rehearsal[1].append(DryRun(job, memory))


def _tidy(run: Run) -> None:
    """Removes what an interrupted run left in the output directory."""
    output_dir = run.settings.output_dir
    removed = remove_leftovers(output_dir)
    if removed:
        names = ", ".join(removed)
        run.message(f"removed leftovers of a killed run from {output_dir}: {names}")
    missing = write_missing_list(output_dir)
    if missing:
        run.message(missing)
    finish_exchange(output_dir)
    if run.settings.do_train and run.log is not None:
        run.log.resume(run.start.step)


def _write_files(job: Job, run_ledger: Ledger | None) -> None:
    """Writes the model's files and ``run.json``; ``run_ledger`` is None without training.

    A model that is only evaluated keeps its existing files.
    """
    run = job.run
    directory = run.settings.output_dir
    has_files = run.start.checkpoint is not None and (directory / CONFIG_NAME).is_file()
    precision = {
        "precision": job.arithmetic.precision,
        "precision_policy": dict(job.arithmetic.policy_changes),
    }
    if run_ledger is not None or not has_files:
        job.model.write_files(directory, precision)
    elif job.model.kept and not (directory / MODEL_RECORD_NAME).is_file():
        job.model.write_record(directory, precision)  # for a model of an earlier version
    for name, content in job.data.lists.items():
        write_json(directory / name, content)
    if run_ledger is not None:
        ledger.write_run_json(
            directory,
            ledger=run_ledger,
            flags=run.flags,
            model=job.model.config.to_dict(),
        )


def _compared_values(job: Job) -> dict[str, Any]:
    """The values that must be equal on all ranks, by their names in messages."""
    names = {DIGEST_KEY: "training data", VOCABULARY_DIGEST_KEY: "vocabulary", **job.data.names}
    return {
        **{
            names.get(name, name.replace("_", " ")): value
            for name, value in job.data.entries.items()
        },
        "precision": job.arithmetic.precision,
        **{f"the model's {name}": value for name, value in job.model.config.to_dict().items()},
    }


def _announce(job: Job) -> Ledger:
    """Prints a training run's ledger and its changes since the last start; returns the ledger."""
    run, run_ledger = job.run, ledger.training_ledger(job)
    report_changes(job, run_ledger)
    several_ranks = run.runtime.library is not None or run.ranks.world_size > 1
    run.message(ledger.format_ledger(run_ledger, several_ranks=several_ranks))
    warning = disk_warning(checkpoint_sizes(job), run.settings.output_dir)
    if warning is not None:
        run.warn(warning, part="disk")
    return run_ledger


def report_resuming(job: Job) -> None:
    """Reports from which checkpoint a run resumes."""
    run, settings, start = job.run, job.settings, job.run.start
    if start.checkpoint is None:
        return
    if start.is_elsewhere and settings.start.reset_step:
        run.remark(
            f"starting from weights and optimizer state of {start.checkpoint}; steps count from 0",
            part="output directory",
        )
        return
    given = {
        "init_checkpoint": job.model.initial.checkpoint,
        "resume_from": settings.start.resume_from,
    }
    unread = [flag for flag, value in given.items() if value and not start.is_elsewhere]
    ignored = "".join(f"; --{flag} is not read again" for flag in unread)
    run.remark(
        f"resuming from {start.checkpoint} (step {start.step}){ignored}", part="output directory"
    )
    assumption = start.assumption(job.plan.batch.global_batch_size)
    if settings.do_train and assumption:
        run.message(assumption)


def report_changes(job: Job, run_ledger: Ledger) -> None:
    """Reports what has changed since the run's last start, in a line and in the ledger."""
    run = job.run
    if run.start.record is None:
        return
    changes = ledger.changed_settings(
        run.start.record, run_ledger, job.model.config.with_explicit_gelu().to_dict()
    )
    if changes:
        listed = ", ".join(f"{name} {change}" for name, change in changes.items())
        run.remark(f"changed since the run's last start: {listed}", part="output directory")
    jump = ledger.learning_rate_jump(run.start.record, run_ledger, step=run.start.step)
    if jump is not None and run.start.step < job.plan.last_step:
        run.remark(jump, part="learning rate")
    if changes:
        run_ledger["changed"] = changes


def _is_finished(job: Job, trainer: Trainer) -> bool:
    run, total, start = job.run, job.plan.last_step, job.run.start
    if start.step >= total:
        end = f"beyond the last step ({total})" if start.step > total else "the last step"
        run.message(
            f"nothing to train: {start.checkpoint} is at step {start.step}, {end}; raise "
            f"{job.plan.length_flag} to train further."
        )
        return True
    if start.checkpoint is None:
        return False
    trainer.catch_up_on_evaluation()
    return trainer.has_stalled()
