"""What every run does around its training: ledger, resuming, results."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.directory import remove_leftovers, write_missing_list
from bert_tf.checkpoint.model_files import CONFIG_NAME
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.files import remove_partial_files, write_json
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.communication import describe_communication
from bert_tf.training import ledger
from bert_tf.training.changes import changed_settings, jump_of_learning_rate
from bert_tf.training.checks import check_start, settle_scaling
from bert_tf.training.context import RunContext, begin_run, choose_arithmetic
from bert_tf.training.disk import checkpoint_sizes, disk_warning
from bert_tf.training.evaluation import Evaluation, Results, finish_exchange
from bert_tf.training.job import Job, Model, TrainingData, make_job
from bert_tf.training.memory import estimate_memory, format_memory
from bert_tf.training.trainer import Trainer
from bert_tf.training.xla_choice import Choice, choose_xla
from bert_tf.update.batch_plan import BatchPlan

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
    """Trains and evaluates a task on batches of its own; returns the last results. Collective.

    Args:
      model: the task, and what its directory is to hold.
      settings: what to do, where to write and how often.
      optimization: batch, schedule and optimizer; a training needs a number of steps.
      runtime: precision, ranks and threads; None for the defaults.
      batches: this rank's part of every global batch of a plan, each [accumulation steps x micro
        batch, ...], from position ``context.start.data_position`` on and without end.
      max_seq_length: positions of the longest sequence, for the choice of the fastest arithmetic.
      evaluation: makes what measures the task, where ``settings.do_eval``.
      data: more about the data, for the ledger.

    Raises UserError for what does not go together, ValueError for a training without steps.
    """
    if settings.do_train and optimization.num_train_steps is None:
        raise ValueError("a training needs OptimizationSettings.num_train_steps")
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
            data=TrainingData(lambda plan: batches(context, plan), max_seq_length),
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
    """Announces, trains and evaluates as the settings say; returns the last results.

    ``checks.check_start`` has passed. Nothing but an empty output directory is there before all
    other checks have passed too, and a dry run ends then.

    Args:
      job: what to do.
      train_data: the ledger's section on the data, with ``train_records``, ``sha256`` and
        ``vocabulary_sha256`` in it; all ranks must have the same.
      data_names: what messages call entries of it that only the task knows.
      lists: JSON files to leave in the output directory, name to content.
    """
    context, settings = job.context, job.context.settings
    check_same_on_all_ranks(context.ranks, _compared(job, train_data, data_names or {}))
    trains = settings.do_train and context.start.step < job.steps.last_step
    choice = None
    if context.runtime.use_xla is None and trains and not settings.dry_run:
        choice = choose_xla(job, earlier=_earlier_choice(context))
        context.message(choice.sentence)
        job = job.with_xla() if choice.use_xla else job
    run_ledger = _announce(job, train_data, choice) if settings.do_train else None
    _say_where_it_resumes(job)
    if settings.dry_run:
        if settings.do_train:
            context.message(format_memory(estimate_memory(job)))
        context.message("this was a dry run: nothing was trained or written")
        return None
    trainer = Trainer(job)
    if context.keeps_files:
        _tidy(context)
        _write_files(job, run_ledger if trains else None, lists or {})
    if settings.do_train and not _is_finished(job, trainer):
        trainer.train_and_evaluate()
    results = trainer.evaluate_at_end() if settings.do_eval else None
    context.message(f"output is in {settings.output_dir}")
    return results


def _tidy(context: RunContext) -> None:
    """Brings the output directory to the state in which a run without a kill leaves it."""
    output_dir = context.settings.output_dir
    removed = remove_leftovers(output_dir) + remove_partial_files(output_dir)
    if removed:
        context.message(f"removed what a killed run left in {output_dir}: {', '.join(removed)}")
    missing = write_missing_list(output_dir)
    if missing:
        context.message(missing)
    finish_exchange(output_dir)
    if context.settings.do_train:
        context.log.resume(context.start.step)


def _earlier_choice(context: RunContext) -> Mapping[str, Any] | None:
    """The facts of the choice that the run was begun with, None without one."""
    if context.record is None or "xla" not in context.record.ledger:
        return None
    context.record.fact("xla", "kept", bool)
    return context.record.ledger["xla"]


def _write_files(
    job: Job, run_ledger: ledger.Ledger | None, lists: Mapping[str, Sequence[Any]]
) -> None:
    """Describes in the output directory what the run makes there; no ledger without a training.

    A model that is only evaluated keeps the files that it has.
    """
    context = job.context
    directory = context.settings.output_dir
    described = context.start.checkpoint is not None and (directory / CONFIG_NAME).is_file()
    if run_ledger is not None or not described:
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


def _compared(job: Job, data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What ranks found on their hosts, by names for messages."""
    names = {"sha256": "training data", "vocabulary_sha256": "vocabulary", **names}
    return {
        **{names.get(name, name.replace("_", " ")): value for name, value in data.items()},
        "precision": job.context.precision,
        **{f"the model's {name}": value for name, value in job.model.config.to_dict().items()},
    }


def _announce(job: Job, train_data: Mapping[str, Any], choice: Choice | None) -> ledger.Ledger:
    """Prints what a training will do, and what it changes; returns its ledger."""
    context = job.context
    run_ledger = _ledger(job, train_data)
    run_ledger.update({section: dict(found) for section, found in context.measured.items()})
    sizes = checkpoint_sizes(
        job.task.specs(),
        context.settings,
        job.optimization,
        start_step=context.start.step,
        last_step=job.steps.last_step,
    )
    run_ledger["checkpoints"] = sizes.facts()
    if choice is not None:
        run_ledger["xla"] = choice.facts
    elif context.runtime.use_xla is None:
        run_ledger["precision"]["xla"] = "to be tried"
    if context.record is not None:
        _say_what_changed(job, run_ledger)
    several_ranks = context.runtime.horovod or context.ranks.world_size > 1
    context.message(ledger.format_ledger(run_ledger, several_ranks=several_ranks))
    warning = disk_warning(sizes, context.settings.output_dir)
    if warning is not None:
        context.message(f"warning: {warning}")
    return run_ledger


def _say_where_it_resumes(job: Job) -> None:
    context, settings, start = job.context, job.context.settings, job.context.start
    if start.checkpoint is None:
        return
    ignored = "; --init_checkpoint is not read again" if settings.init_checkpoint else ""
    context.message(f"resuming from {start.checkpoint} (step {start.step}){ignored}")
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
        precision={
            "policy": context.precision,
            "amp": context.runtime.amp,
            "xla": job.session.use_xla,
            **({"from_file": sorted(changes)} if changes else {}),
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


def _say_what_changed(job: Job, run_ledger: ledger.Ledger) -> None:
    """Names what is not as at the run's last start, in a line and in the ledger."""
    context = job.context
    changes = changed_settings(
        context.record, run_ledger, job.model.config.with_explicit_gelu().to_dict()
    )
    if changes:
        facts = ", ".join(f"{name} {change}" for name, change in changes.items())
        context.message(f"changed since the run's last start: {facts}")
    jump = jump_of_learning_rate(context.record, run_ledger, step=context.start.step)
    if jump is not None and context.start.step < job.steps.last_step:
        context.message(jump)
    if changes:
        run_ledger["changed"] = changes


def _is_finished(job: Job, trainer: Trainer) -> bool:
    context, total, start = job.context, job.steps.last_step, job.context.start
    if start.step >= total:
        end = f"the run is to end at step {total}" if start.step > total else "the run ends there"
        context.message(
            f"nothing to train: {start.checkpoint} is at step {start.step} and {end}; raise "
            f"{job.length_flag} to train further."
        )
        return True
    if start.checkpoint is None:
        return False
    trainer.catch_up_on_evaluation()
    return trainer.has_stalled()
