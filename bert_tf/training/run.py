"""What every job does around its training: ranks, precision, ledger, going on, results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf import environment
from bert_tf.checkpoint.directory import remove_leftovers, write_missing_list
from bert_tf.checkpoint.model_files import CONFIG_NAME, require_checkpoint
from bert_tf.checkpoint.run_record import read_run_record
from bert_tf.config.bert_config import BertConfig
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.console import say
from bert_tf.directory_lock import hold_directory
from bert_tf.errors import UserError
from bert_tf.files import check_output_dir, check_output_file, remove_partial_files, write_json
from bert_tf.model import precision
from bert_tf.model.options import ForwardOptions
from bert_tf.ranks import distribution
from bert_tf.ranks.agreement import (
    check_same_on_all_ranks,
    code_sha256,
)
from bert_tf.ranks.communication import describe_communication
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.ranks.launched import binding_warning
from bert_tf.records.tfrecord import records_read
from bert_tf.training import ledger
from bert_tf.training.changes import changed_settings, jump_of_learning_rate
from bert_tf.training.checks import Model
from bert_tf.training.context import Run
from bert_tf.training.disk import checkpoint_sizes, disk_warning
from bert_tf.training.evaluation import Evaluation, Results, finish_exchange
from bert_tf.training.memory import estimate_memory, format_memory
from bert_tf.training.run_log import RunLog
from bert_tf.training.start_point import find_start
from bert_tf.training.trainer import Job, Trainer
from bert_tf.training.xla_choice import Choice, choose_xla
from bert_tf.tuning.hardware import (
    agree_on_hardware,
    choose_policy,
    comparable_policy_changes,
    needs_loss_scale,
)
from bert_tf.tuning.session import SessionSettings, gpu_of_a_rank
from bert_tf.tuning.speed_choice import Wanted, choose_speed
from bert_tf.tuning.speed_probe import JobShapes
from bert_tf.tuning.thread_choice import choose_threads
from bert_tf.update.batch_plan import BatchPlan, StepPlan, resolve_batch_plan, resolve_step_plan
from bert_tf.watch.watch import NoWatch, watched


@contextlib.contextmanager
def begin(settings: RunSettings, runtime: RuntimeSettings) -> Iterator[Run]:
    """Connects the ranks, finds the checkpoint to go on from and checks the precision.

    The ranks watch each other while the body runs. Raises UserError for ranks that were given
    different flags or code, for an output directory that cannot be used, and for float16 on a CPU.
    """
    environment.quiet_tensorflow(verbose=runtime.verbose)
    if runtime.deterministic:
        tf.compat.v2.config.experimental.enable_op_determinism()
    environment.limit_stalls(runtime.rank_timeout_seconds)
    ranks = distribution.connect(
        horovod=runtime.horovod,
        num_threads=runtime.num_threads,
        communication=runtime.communication,
    )
    with watched(
        ranks,
        settings,
        timeout_seconds=runtime.rank_timeout_seconds,
        records_read=records_read,
    ) as watch:
        check_same_on_all_ranks(
            ranks,
            {
                "bert_tf version": ledger.versions()["bert_tf"],
                "bert_tf code": code_sha256(),
                **settings.compared_flags(),
                **comparable_policy_changes(runtime),
            },
        )
        with _only_run(settings, ranks):
            yield _begin(settings, runtime, ranks, watch)


@contextlib.contextmanager
def _only_run(settings: RunSettings, ranks: SingleProcess) -> Iterator[None]:
    """Keeps other runs out of the output directory, unless this one writes nothing there."""
    if not ranks.is_chief:
        yield
        return
    if settings.dllog_path:
        check_output_file(settings.dllog_path, flag="dllog_path")
    if settings.dry_run:
        check_output_dir(settings.output_dir, flag="output_dir")
        yield
        return
    with hold_directory(settings.output_dir, flag="output_dir") as killed:
        if killed is not None:
            say(f"{settings.output_dir} was left by {killed}, which did not end by itself")
        yield


def _begin(
    settings: RunSettings, runtime: RuntimeSettings, ranks: SingleProcess, watch: NoWatch
) -> Run:
    start = ranks.broadcast(find_start(settings.output_dir) if ranks.is_chief else None)
    record = None
    if ranks.is_chief and start.checkpoint is not None:
        record = read_run_record(settings.output_dir)
    elif ranks.is_chief and settings.init_checkpoint:
        require_checkpoint(settings.init_checkpoint, flag="init_checkpoint")
    record = ranks.broadcast(record)
    hardware = agree_on_hardware(ranks, precision.probe_hardware())
    asked = precision.resolve_precision(runtime.precision, hardware)
    policy = choose_policy(runtime, asked, hardware)
    log = None
    if ranks.is_chief:
        log = RunLog(
            settings.output_dir,
            report_loss=settings.report_loss,
            dllog_path=settings.dllog_path,
        )
    run = Run(
        settings, runtime, ranks, watch, start, record, hardware, asked, policy, None, {}, log
    )
    idle = binding_warning(
        os.environ,
        allowed_cores=environment.allowed_cores(),
        all_cores=os.cpu_count() or 1,
        local_size=ranks.local_size,
    )
    if idle is not None:
        run.message(f"warning: {idle}")
    return run


def choose_arithmetic(
    run: Run, config: BertConfig, optimization: OptimizationSettings, *, max_seq_length: int
) -> Run:
    """The run with the precision and the operations that compute its network fastest. Collective.

    What the user says is kept. Raises UserError where native operations are insisted on and
    missing, and for batches that contradict each other.
    """
    runtime, settings = run.runtime, run.settings
    batch = batch_plan(optimization, run.ranks)
    shapes = JobShapes.of(
        config,
        sequences=batch.micro_batch_size if settings.do_train else settings.eval_batch_size,
        length=max_seq_length,
        accumulation_steps=batch.accumulation_steps if settings.do_train else 0,
    )
    wanted = Wanted(
        precision=runtime.precision,
        native_ops=runtime.native_ops,
        policy_changes=runtime.policy_changes,
        # TensorFlow's rewrite and XLA know TensorFlow's operations only, and would find none left.
        native_layers=not (runtime.amp or runtime.use_xla),
        amp=runtime.amp_flag if runtime.amp else None,
    )
    earlier = None if run.record is None else run.record.ledger.get("speed")
    choice = choose_speed(wanted, shapes, hardware=run.hardware, ranks=run.ranks, earlier=earlier)
    slow = precision.slow_policy_warnings(choice.policy, run.hardware)
    for warning in [*slow, *choice.warnings]:
        run.message(f"warning: {warning}")
    threads: dict[str, Any] = {}
    if runtime.num_threads is None and not run.hardware.has_gpu:
        threads = choose_threads(
            run.ranks,
            shapes,
            policy=choice.policy,
            kernels=choice.kernels,
            earlier=None if run.record is None else run.record.ledger.get("threads"),
        )
    return dataclasses.replace(
        run,
        precision=choice.precision,
        policy=choice.policy,
        kernels=choice.kernels,
        speed=choice.facts,
        threads=threads,
    )


def resolve_plans(
    optimization: OptimizationSettings, ranks: SingleProcess
) -> tuple[BatchPlan, StepPlan]:
    """The arithmetic of batches, steps and learning rate; raises UserError for contradictions."""
    return batch_plan(optimization, ranks), resolve_step_plan(
        num_train_steps=optimization.num_train_steps,
        num_warmup_steps=optimization.num_warmup_steps,
        learning_rate=optimization.learning_rate,
        world_size=ranks.world_size,
        scale_steps_by_ranks=optimization.scale_steps_by_ranks,
        learning_rate_scaling=optimization.learning_rate_scaling,
    )


def batch_plan(optimization: OptimizationSettings, ranks: SingleProcess) -> BatchPlan:
    """The arithmetic of batches alone."""
    return resolve_batch_plan(
        micro_batch_size=optimization.micro_batch_size,
        micro_batch_flag=optimization.micro_batch_flag,
        accumulation_steps=optimization.accumulation_steps,
        global_batch_size=optimization.global_batch_size,
        world_size=ranks.world_size,
    )


def with_steps(
    optimization: OptimizationSettings,
    ranks: SingleProcess,
    *,
    records: int,
    epochs: float | None,
    warmup_proportion: float | None,
    trains: bool,
    is_bound: bool = False,
) -> OptimizationSettings:
    """The optimization with its steps counted from epochs, where no steps are given.

    An epoch is one pass over all training records by all ranks together. Raises UserError for a
    warm-up that is longer than the epochs.

    Args:
      optimization: settled (``checks.settle_scaling``).
      ranks: all ranks.
      records: to train on.
      epochs, warmup_proportion: of the training; None where steps are given.
      trains: whether there is a training that a warm-up must fit.
      is_bound: whether ``records`` is the most that there can be.
    """
    steps, warmup = optimization.num_train_steps, optimization.num_warmup_steps
    if steps is None:
        batch = batch_plan(optimization, ranks)
        # Steps are asked for as on one rank where they are divided by the ranks later.
        own = optimization.scale_steps_by_ranks
        sequences = batch.rank_batch_size if own else batch.global_batch_size
        steps = max(1, math.ceil(records * epochs / sequences))
        if trains and warmup is not None and warmup > steps:
            at_most = "at most " * is_bound
            raise UserError(
                f"--num_warmup_steps={warmup} is more than the {at_most}{steps} steps of "
                f"--num_train_epochs={epochs:g}, so that the learning rate would never reach its "
                "peak; lower it, or give --warmup_proportion instead."
            )
    if warmup is None:
        warmup = int(steps * warmup_proportion)
    elif not trains:
        warmup = min(warmup, steps)
    return dataclasses.replace(optimization, num_train_steps=steps, num_warmup_steps=warmup)


def make_job(
    run: Run,
    *,
    model: Model,
    evaluation: Evaluation | None,
    optimization: OptimizationSettings,
    train_input: Callable[[BatchPlan], tf.data.Dataset],
    max_seq_length: int,
    steps_follow_data: bool,
    skip_padding: bool = False,
    length_flag: str = "--num_train_steps",
) -> Job:
    """The job for :class:`Trainer`; ``train_input`` is this rank's data from ``run.start`` on.

    ``optimization`` is settled (``checks.settle_scaling``). Where ``steps_follow_data``, the length
    of the training is an amount of data, so that a run that goes on with another global batch needs
    another number of steps.
    """
    batch, steps = resolve_plans(optimization, run.ranks)
    if steps_follow_data:
        steps = steps.going_on(
            data_position=run.start.data_position,
            consumed_sequences=run.consumed_sequences(batch),
            global_batch_size=batch.global_batch_size,
        )
    return Job(
        task=model.task,
        options=ForwardOptions(
            run.policy, recompute=run.runtime.recompute, skip_padding=skip_padding
        ),
        evaluation=evaluation,
        run=run.settings,
        ranks=run.ranks,
        watch=run.watch,
        start=run.start,
        batch=batch,
        steps=steps,
        optimization=optimization,
        runtime=run.runtime,
        session=SessionSettings(
            threads=run.ranks.threads,
            use_xla=bool(run.runtime.use_xla),
            amp=run.runtime.amp,
            gpu=gpu_of_a_rank(run.ranks.local_rank, run.hardware.gpu_count),
        ),
        kernels=run.kernels,
        needs_loss_scale=needs_loss_scale(run.runtime, run.policy, run.hardware),
        train_input=lambda: train_input(batch),
        max_seq_length=max_seq_length,
        length_flag=length_flag,
        frozen=model.frozen,
    )


def execute(
    run: Run,
    job: Job,
    *,
    model: Model,
    train_data: Mapping[str, Any],
    data_names: Mapping[str, str] | None = None,
    lists: Mapping[str, Sequence[Any]] | None = None,
) -> Results | None:
    """Announces, trains and evaluates as the settings say; returns the last results.

    ``checks.check_start`` has passed. Nothing but an empty output directory is there before all
    other checks have passed too, and a dry run ends then.

    Args:
      run, job: what to do.
      model: the job's.
      train_data: the ledger's section on the data, with ``train_records``, ``sha256`` and
        ``vocabulary_sha256`` in it; all ranks must have the same.
      data_names: what messages call entries of it that only the task knows.
      lists: JSON files to leave in the output directory, name to content.
    """
    settings = run.settings
    check_same_on_all_ranks(run.ranks, _compared(run, job, train_data, data_names or {}))
    trains = settings.do_train and run.start.step < job.steps.last_step
    choice = None
    if run.runtime.use_xla is None and trains and not settings.dry_run:
        choice = choose_xla(job, earlier=_earlier_choice(run))
        run.message(choice.sentence)
        job = job.with_xla() if choice.use_xla else job
    run_ledger = _announce(run, job, train_data, choice) if settings.do_train else None
    _say_where_it_goes_on(run, job)
    if settings.dry_run:
        if settings.do_train:
            run.message(format_memory(estimate_memory(job)))
        run.message("this was a dry run: nothing was trained or written")
        return None
    trainer = Trainer(job, run.log)
    if run.keeps_files:
        _tidy(run)
        _write_files(run, model, run_ledger if trains else None, lists or {})
    if settings.do_train and not _is_finished(run, job, trainer):
        trainer.train_and_evaluate()
    results = trainer.evaluate_at_end() if settings.do_eval else None
    run.message(f"output is in {settings.output_dir}")
    return results


def _tidy(run: Run) -> None:
    """Brings the output directory to the state in which a run without a kill leaves it."""
    output_dir = run.settings.output_dir
    removed = remove_leftovers(output_dir) + remove_partial_files(output_dir)
    if removed:
        run.message(f"removed what a killed run left in {output_dir}: {', '.join(removed)}")
    missing = write_missing_list(output_dir)
    if missing:
        run.message(missing)
    finish_exchange(output_dir)
    if run.settings.do_train:
        run.log.resume(run.start.step)


def _earlier_choice(run: Run) -> Mapping[str, Any] | None:
    """The facts of the choice that the run was begun with, None without one."""
    if run.record is None or "xla" not in run.record.ledger:
        return None
    run.record.fact("xla", "kept", bool)
    return run.record.ledger["xla"]


def _write_files(
    run: Run,
    model: Model,
    run_ledger: ledger.Ledger | None,
    lists: Mapping[str, Sequence[Any]],
) -> None:
    """Says in the output directory what the run makes there; no ledger where it trains nothing.

    A model that is only evaluated keeps the files that it has.
    """
    directory = run.settings.output_dir
    described = run.start.checkpoint is not None and (directory / CONFIG_NAME).is_file()
    if run_ledger is not None or not described:
        model.write_files(directory)
    for name, content in lists.items():
        write_json(directory / name, content)
    if run_ledger is not None:
        ledger.write_run_json(
            directory,
            ledger=run_ledger,
            flags=run.settings.flags,
            model=model.config.to_dict(),
        )


def _compared(
    run: Run, job: Job, data: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """What ranks found on their hosts, by names for messages."""
    names = {"sha256": "training data", "vocabulary_sha256": "vocabulary", **names}
    return {
        **{names.get(name, name.replace("_", " ")): value for name, value in data.items()},
        "precision": run.precision,
        **{f"the model's {name}": value for name, value in job.task.config.to_dict().items()},
    }


def _announce(
    run: Run, job: Job, train_data: Mapping[str, Any], choice: Choice | None
) -> ledger.Ledger:
    """Prints what a training will do, and what it changes; returns its ledger."""
    run_ledger = _ledger(run, job, train_data)
    if run.speed:
        run_ledger["speed"] = dict(run.speed)
    if run.threads:
        run_ledger["threads"] = dict(run.threads)
    sizes = checkpoint_sizes(
        job.task.specs(),
        run.settings,
        job.optimization,
        start_step=run.start.step,
        last_step=job.steps.last_step,
    )
    run_ledger["checkpoints"] = sizes.facts()
    if choice is not None:
        run_ledger["xla"] = choice.facts
    elif run.runtime.use_xla is None:
        run_ledger["precision"]["xla"] = "to be tried"
    if run.record is not None:
        _say_what_changed(run, job, run_ledger)
    several_ranks = run.runtime.horovod or run.ranks.world_size > 1
    run.message(ledger.format_ledger(run_ledger, several_ranks=several_ranks))
    warning = disk_warning(sizes, run.settings.output_dir)
    if warning is not None:
        run.message(f"warning: {warning}")
    return run_ledger


def _say_where_it_goes_on(run: Run, job: Job) -> None:
    settings, start = run.settings, run.start
    if start.checkpoint is None:
        return
    ignored = "; --init_checkpoint is not read again" if settings.init_checkpoint else ""
    run.message(f"going on from {start.checkpoint} (step {start.step}){ignored}")
    assumption = start.assumption(job.batch.global_batch_size)
    if settings.do_train and assumption:
        run.message(assumption)


def _ledger(run: Run, job: Job, train_data: Mapping[str, Any]) -> ledger.Ledger:
    changes = run.runtime.policy_changes
    return ledger.training_ledger(
        ranks=run.ranks,
        batch=job.batch,
        steps=job.steps,
        optimization=job.optimization,
        operations=job.kernels.description,
        precision={
            "policy": run.precision,
            "amp": run.runtime.amp,
            "xla": job.session.use_xla,
            **({"from_file": sorted(changes)} if changes else {}),
            "layers": "native" if job.options.policy.native else "TensorFlow's",
            "recompute": run.runtime.recompute,
            **job.options.policy.describe(),
        },
        communication=describe_communication(
            run.runtime.communication,
            os.environ,
            complete_at_once=job.batch.accumulation_steps > 1
            and not job.optimization.allreduce_every_micro_batch,
        ),
        num_records=train_data["train_records"],
        data={**train_data, "seed": run.settings.seed},
        start_step=run.start.step,
        consumed_sequences=run.consumed_sequences(job.batch),
    )


def _say_what_changed(run: Run, job: Job, run_ledger: ledger.Ledger) -> None:
    """Names what is not as at the run's last start, in a line and in the ledger."""
    changes = changed_settings(
        run.record, run_ledger, job.task.config.with_explicit_gelu().to_dict()
    )
    if changes:
        facts = ", ".join(f"{name} {change}" for name, change in changes.items())
        run.message(f"changed since the run's last start: {facts}")
    jump = jump_of_learning_rate(run.record, run_ledger, step=run.start.step)
    if jump is not None and run.start.step < job.steps.last_step:
        run.message(jump)
    if changes:
        run_ledger["changed"] = changes


def _is_finished(run: Run, job: Job, trainer: Trainer) -> bool:
    total, start = job.steps.last_step, run.start
    if start.step >= total:
        end = f"the run is to end at step {total}" if start.step > total else "the run ends there"
        run.message(
            f"nothing to train: {start.checkpoint} is at step {start.step} and {end}; raise "
            f"{job.length_flag} to go on."
        )
        return True
    if start.checkpoint is None:
        return False
    trainer.catch_up_on_evaluation()
    return trainer.has_stalled()
