"""Runs a job: ledger, resuming, training, evaluation, output files."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import remove_leftovers, write_missing_list
from bert_tf.checkpoint.model_files import CONFIG_NAME
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.communication import describe_communication
from bert_tf.train import ledger
from bert_tf.train.changes import changed_settings, learning_rate_jump
from bert_tf.train.checks import check_start, settle_scaling
from bert_tf.train.context import RunContext, begin_run, choose_arithmetic
from bert_tf.train.disk import CheckpointSizes, checkpoint_sizes, disk_warning
from bert_tf.train.evaluation import Evaluation, Results, finish_exchange
from bert_tf.train.job import Job, Model, TrainingData, make_job
from bert_tf.train.memory import estimate_memory, format_memory
from bert_tf.train.nonfinite import NonFiniteError
from bert_tf.train.plans import slot_bytes
from bert_tf.train.replay import replay
from bert_tf.train.rollback import finish_rollback, roll_back
from bert_tf.train.start_point import take_over
from bert_tf.train.trainer import Trainer
from bert_tf.train.xla_choice import Choice, choose_xla
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.files import write_json

_UNKNOWN_DATA = {"train_records": 0, "sha256": "none", "vocabulary_sha256": None}


def run_task(
    model: Model,
    settings: RunSettings,
    optimization: OptimizationSettings,
    runtime: RuntimeSettings | None = None,
    *,
    batches: Callable[[RunContext, BatchPlan], tf.data.Dataset],
    max_seq_length: int,
    evaluation: Callable[[RunContext], Evaluation] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Results | None:
    """Trains and evaluates a task on the given batches; returns the last results. Collective.

    Args:
      model: the task, and what its directory will contain.
      settings: what to do, where to write and how often.
      optimization: batch, schedule and optimizer; training needs a number of steps.
      runtime: precision, ranks and threads; None for the defaults.
      batches: returns this rank's part of every global batch of a plan, each [accumulation steps x
        micro batch, ...], without end, from position ``context.start.data_position`` on. If the
        batches grow, the one at a position has the size of ``context.batch_slice(plan).at(...)``.
      max_seq_length: positions in the longest sequence, for choosing the fastest arithmetic.
      evaluation: creates the evaluation, called if ``settings.do_eval``.
      data: further entries on the data, for the ledger.

    Raises UserError for contradictory settings, ValueError for training without steps.
    """
    if settings.do_train and optimization.num_train_steps is None:
        raise ValueError("training needs OptimizationSettings.num_train_steps")
    with begin_run(settings, runtime or RuntimeSettings()) as context:
        context = choose_arithmetic(
            context, model.config, optimization, max_seq_length=max_seq_length
        )
        optimization = dataclasses.replace(
            settle_scaling(context, optimization),
            num_train_steps=optimization.num_train_steps or 1,
            num_warmup_steps=optimization.num_warmup_steps or 0,
        )
        check_start(context, model, optimization)
        job = make_job(
            context,
            model,
            data=TrainingData(batches, max_seq_length),
            evaluation=evaluation(context) if evaluation and settings.do_eval else None,
            optimization=optimization,
        )
        return run_job(job, train_data={**_UNKNOWN_DATA, **(data or {})})


def run_job(
    job: Job,
    *,
    train_data: Mapping[str, Any],
    data_names: Mapping[str, str] | None = None,
    lists: Mapping[str, Sequence[Any]] | None = None,
) -> Results | None:
    """Prints the ledger, trains and evaluates as set; returns the last results. Collective.

    Call ``checks.check_start`` first. Nothing but an empty output directory is created before all
    remaining checks have passed, after which a dry run ends.

    Args:
      job: the job to run.
      train_data: the ledger's section on the data, including ``train_records``, ``sha256`` and
        ``vocabulary_sha256``; must be equal on all ranks.
      data_names: names, for messages, of task-specific entries of ``train_data``.
      lists: JSON files to write to the output directory, name to content.
    """
    context, settings = job.context, job.context.settings
    check_same_on_all_ranks(context.ranks, _compared_values(job, train_data, data_names or {}))
    trains = settings.do_train and context.start.step < job.steps.last_step
    choice = None
    if context.runtime.use_xla is None and trains and not settings.dry_run:
        choice = choose_xla(job, earlier=_earlier_choice(context))
        context.message(choice.sentence)
        job = job.with_xla() if choice.use_xla else job
    if settings.replay_batch is not None:
        replay(job, settings.replay_batch)
        return None
    run_ledger = _announce(job, train_data, choice) if settings.do_train else None
    _report_resuming(job)
    if settings.dry_run:
        if settings.do_train:
            context.message(format_memory(estimate_memory(job)))
        context.message("this was a dry run: nothing was trained or written")
        return None
    trainer = Trainer(job)
    if context.keeps_files:
        _tidy(context)
        _write_files(job, run_ledger if trains else None, lists or {})
        if context.start.is_elsewhere:  # last: a run that has a checkpoint also has its record
            take_over(
                context.start,
                settings.output_dir,
                global_batch_size=job.batch.global_batch_size,
            )
    if settings.do_train and not _is_finished(job, trainer):
        trainer.train_and_evaluate(functools.partial(_recover, train_data, choice))
        if job.steps.last_position < job.steps.num_train_steps:
            context.message(
                f"ended after {job.steps.last_position} of the schedule's "
                f"{job.steps.num_train_steps} updates (--stop_after_steps)"
            )
    results = trainer.evaluate_at_end() if settings.do_eval else None
    context.message(f"output is in {settings.output_dir}")
    return results


def _tidy(context: RunContext) -> None:
    """Removes from the output directory what an interrupted run left behind."""
    output_dir = context.settings.output_dir
    finish_rollback(output_dir, context.start)
    removed = remove_leftovers(output_dir)
    if removed:
        names = ", ".join(removed)
        context.message(f"removed leftovers of a killed run from {output_dir}: {names}")
    missing = write_missing_list(output_dir)
    if missing:
        context.message(missing)
    finish_exchange(output_dir)
    if context.settings.do_train:
        context.log.resume(context.start.step)


def _recover(
    train_data: Mapping[str, Any], choice: Choice | None, job: Job, failure: NonFiniteError
) -> Job:
    """The job that goes on after a failure, which is in ``run.json``; else raises an error."""
    job = roll_back(job, failure)
    run_ledger = _whole_ledger(job, train_data, choice)
    if job.context.keeps_files:
        ledger.add_to_run_json(job.context.settings.output_dir, {"ledger": run_ledger})
    return job


def _earlier_choice(context: RunContext) -> Mapping[str, Any] | None:
    """The details of XLA's choice that the run recorded at its last start, None without one."""
    if context.record is None or "xla" not in context.record.ledger:
        return None
    context.record.fact("xla", "kept", bool)
    return context.record.ledger["xla"]


def _write_files(
    job: Job, run_ledger: ledger.Ledger | None, lists: Mapping[str, Sequence[Any]]
) -> None:
    """Writes the model's files and ``run.json``; ``run_ledger`` is None without training.

    A model that is only evaluated keeps its existing files.
    """
    context = job.context
    directory = context.settings.output_dir
    has_files = context.start.checkpoint is not None and (directory / CONFIG_NAME).is_file()
    if run_ledger is not None or not has_files:
        job.model.write_files(directory)
    for name, content in lists.items():
        write_json(directory / name, content)
    if run_ledger is not None:
        ledger.write_run_json(
            directory,
            ledger=run_ledger,
            flags=context.settings.flags,
            model=job.model.config.to_dict(),
        )


def _compared_values(job: Job, data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What must be equal on all ranks, by its name in messages."""
    names = {"sha256": "training data", "vocabulary_sha256": "vocabulary", **names}
    return {
        **{names.get(name, name.replace("_", " ")): value for name, value in data.items()},
        "precision": job.context.precision,
        **{f"the model's {name}": value for name, value in job.model.config.to_dict().items()},
    }


def _announce(job: Job, train_data: Mapping[str, Any], choice: Choice | None) -> ledger.Ledger:
    """Prints the ledger of a training run, and changes since its last start; returns the ledger."""
    context = job.context
    run_ledger = _whole_ledger(job, train_data, choice)
    if context.record is not None:
        _report_changes(job, run_ledger)
    several_ranks = context.runtime.horovod or context.ranks.world_size > 1
    context.message(ledger.format_ledger(run_ledger, several_ranks=several_ranks))
    warning = disk_warning(_checkpoint_sizes(job), context.settings.output_dir)
    if warning is not None:
        context.message(f"warning: {warning}")
    return run_ledger


def _whole_ledger(job: Job, train_data: Mapping[str, Any], choice: Choice | None) -> ledger.Ledger:
    context = job.context
    run_ledger = _ledger(job, train_data)
    run_ledger.update({section: dict(entries) for section, entries in job.model.ledger.items()})
    run_ledger.update({section: dict(entries) for section, entries in context.measured.items()})
    run_ledger["checkpoints"] = _checkpoint_sizes(job).ledger_section()
    if choice is not None:
        run_ledger["xla"] = choice.details
    elif context.runtime.use_xla is None:
        run_ledger["precision"]["xla"] = "to be tried"
    run_ledger["learning_rate"].update(_rollback_entries(context))
    return run_ledger


def _checkpoint_sizes(job: Job) -> CheckpointSizes:
    return checkpoint_sizes(
        job.task.specs(),
        job.context.settings,
        job.optimization,
        start_step=job.context.start.step,
        last_step=job.steps.last_step,
    )


def _rollback_entries(context: RunContext) -> dict[str, Any]:
    settings, start = context.settings, context.start
    entries = {}
    if settings.rollback_rate_factor is not None:
        entries["rollback_rate_factor"] = settings.rollback_rate_factor
        entries["max_rollbacks"] = settings.max_rollbacks
    if start.rollbacks:
        entries["rollbacks"] = len(start.rollbacks)
        entries["factor_after_rollbacks"] = start.rate_factor
    return entries


def _report_resuming(job: Job) -> None:
    context, settings, start = job.context, job.context.settings, job.context.start
    if start.checkpoint is None:
        return
    if start.is_elsewhere and settings.reset_step:
        context.message(
            f"starting from weights and optimizer state of {start.checkpoint}; steps count from 0"
        )
        return
    given = {"init_checkpoint": settings.init_checkpoint, "resume_from": settings.resume_from}
    unread = [flag for flag, value in given.items() if value and not start.is_elsewhere]
    ignored = "".join(f"; --{flag} is not read again" for flag in unread)
    context.message(f"resuming from {start.checkpoint} (step {start.step}){ignored}")
    if settings.do_train and start.rollbacks:
        number = len(start.rollbacks)
        context.message(
            f"after {number} roll-back{'s' * (number > 1)} the learning rate is "
            f"{start.rate_factor:g} of the schedule's"
        )
    assumption = start.assumption(job.batch.global_batch_size)
    if settings.do_train and assumption:
        context.message(assumption)


def _ledger(job: Job, train_data: Mapping[str, Any]) -> ledger.Ledger:
    context = job.context
    changes = context.runtime.policy_changes
    return ledger.training_ledger(
        ranks=context.ranks,
        batch=job.batch,
        steps=job.steps,
        optimization=job.optimization,
        operations=context.kernels.description,
        slot_bytes=slot_bytes(job.task.specs(), job.optimization, context.ranks),
        precision={
            "policy": context.precision,
            "amp": context.runtime.amp,
            "xla": job.session.use_xla,
            **({"from_file": sorted(changes)} if changes else {}),
            **_loss_scale_entries(context),
            "layers": "native" if job.options.native_layers else "TensorFlow's",
            "recompute": context.runtime.recompute,
            **job.options.policy.describe(),
        },
        communication=describe_communication(
            context.runtime.communication,
            os.environ,
            complete_at_once=job.batch.accumulation_steps > 1
            and not job.optimization.allreduce_every_micro_batch,
        ),
        data={**train_data, "seed": context.settings.seed},
        start=context.start,
    )


def _loss_scale_entries(context: RunContext) -> dict[str, Any]:
    runtime = context.runtime
    if not context.needs_loss_scale:
        return {}
    if runtime.loss_scale is not None:
        return {"loss_scale": runtime.loss_scale}
    names = ("initial_loss_scale", "min_loss_scale", "loss_scale_window")
    return {"loss_scale": "dynamic", **{name: getattr(runtime, name) for name in names}}


def _report_changes(job: Job, run_ledger: ledger.Ledger) -> None:
    """Reports what has changed since the run's last start, in a line and in the ledger."""
    context = job.context
    changes = changed_settings(
        context.record, run_ledger, job.model.config.with_explicit_gelu().to_dict()
    )
    if changes:
        listed = ", ".join(f"{name} {change}" for name, change in changes.items())
        context.message(f"changed since the run's last start: {listed}")
    jump = learning_rate_jump(context.record, run_ledger, step=context.start.step)
    if jump is not None and context.start.step < job.steps.last_step:
        context.message(jump)
    if changes:
        run_ledger["changed"] = changes


def _is_finished(job: Job, trainer: Trainer) -> bool:
    context, total, start = job.context, job.steps.last_step, job.context.start
    if start.step >= total:
        end = f"beyond the last step ({total})" if start.step > total else "the last step"
        context.message(
            f"nothing to train: {start.checkpoint} is at step {start.step}, {end}; raise "
            f"{job.length_flag} to train further."
        )
        return True
    if start.checkpoint is None:
        return False
    trainer.catch_up_on_evaluation()
    return trainer.has_stalled()
