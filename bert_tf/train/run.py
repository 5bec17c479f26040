"""Starting a run: its context, shared by everything that it does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.model_files import require_checkpoint
from bert_tf.checkpoint.run_record import RunRecord, read_run_record
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.ranks import distribution
from bert_tf.ranks.agreement import check_same_on_all_ranks, code_sha256
from bert_tf.ranks.communication import in_fixed_order
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.ranks.launched import binding_warning
from bert_tf.records.tfrecord import records_read
from bert_tf.train.ledger import versions
from bert_tf.train.plans import batch_plan
from bert_tf.train.run_log import RunLog
from bert_tf.train.start_point import StartPoint, find_resumed_start, find_start
from bert_tf.tuning.hardware import (
    Hardware,
    agree_on_hardware,
    choose_policy,
    comparable_policy_changes,
    needs_loss_scale,
    probe_hardware,
    resolve_precision,
    slow_policy_warnings,
)
from bert_tf.tuning.session import SessionSettings, gpu_index, product_type
from bert_tf.tuning.speed_choice import Wanted, choose_speed
from bert_tf.tuning.speed_probe import JobShapes
from bert_tf.tuning.thread_choice import choose_threads
from bert_tf.tuning.update_probe import update_pieces
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import Kernels, kernels_for
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError
from bert_tf.util.files import check_output_dir, check_output_file
from bert_tf.util.temporary import remove_abandoned
from bert_tf.watch.watch import NoWatch, watched


@dataclasses.dataclass(frozen=True)
class RunContext:
    """A started run: its ranks are connected and agree on the starting point.

    Attributes:
      settings, runtime: what the user requested.
      ranks: all ranks.
      watch: failure detection of the other ranks.
      start: the checkpoint and data position that training starts from.
      record: the record that a resumed run wrote at its last start; None without one, and for a
        run that only resumes with another's optimizer state.
      hardware: what all ranks can compute on; the number of GPUs is this rank's.
      precision: the precision of products, unless --precision_policy changes it; ``auto`` until
        :func:`choose_arithmetic`, which also completes ``options``, ``kernels`` and ``measured``.
      options: the type of each class of operation, and the form of the layers before a trial of
        XLA.
      log: None on ranks other than 0.
      kernels: the update's arithmetic, in the same form on all ranks; None until chosen.
      measured: sections of measurements for the ledger; empty if nothing was measured.
    """

    settings: RunSettings
    runtime: RuntimeSettings
    ranks: SingleProcess
    watch: NoWatch
    start: StartPoint
    record: RunRecord | None
    hardware: Hardware
    precision: str
    options: ForwardOptions
    log: RunLog | None
    kernels: Kernels | None = None
    measured: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def keeps_files(self) -> bool:
        """Whether this rank writes the run's output files."""
        return self.ranks.is_chief and not self.settings.dry_run

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients may underflow (float16)."""
        return needs_loss_scale(self.runtime, self.options.policy, self.hardware)

    @property
    def has_dynamic_loss_scale(self) -> bool:
        """Whether the run adapts a loss scale, which its checkpoints then contain."""
        trains = self.settings.do_train
        return trains and self.needs_loss_scale and self.runtime.loss_scale is None

    def session_settings(self) -> SessionSettings:
        """How this rank's sessions execute, before a trial of XLA."""
        return SessionSettings(
            threads=self.ranks.threads,
            use_xla=bool(self.runtime.use_xla),
            amp=self.runtime.amp,
            gpu=gpu_index(self.ranks.local_rank, self.hardware.gpu_count),
        )

    def consumed_sequences(self, batch: BatchPlan) -> int:
        """Sequences that the run consumed before this start."""
        return self.start.consumed(batch.global_batch_size)

    def batch_slice(self, batch: BatchPlan) -> GlobalBatchSlice:
        """This rank's part of every global batch, from the data position where the run stopped."""
        assumed = batch.sequences(0, self.start.data_position)
        return GlobalBatchSlice(
            batch.global_batch_size,
            self.ranks.rank,
            self.ranks.world_size,
            origin=self.consumed_sequences(batch) - assumed,
            sizes=None if batch.sizes is None else batch.size_ramp(),
        )

    def fit_length(
        self, length: int, config: BertConfig, *, whose: str = "the model's"
    ) -> tuple[RunContext, int]:
        """The maximum length of sequences for a network, whose positions a default is lowered to.

        Raises UserError for a length that the user gave and the network does not have. ``whose`` it
        is, for messages.
        """
        positions = config.max_position_embeddings
        if length <= positions:
            return self, length
        if "max_seq_length" in self.settings.defaulted:
            reason = f"{whose} max_position_embeddings"
            return self.with_default("max_seq_length", positions, reason), positions
        raise UserError(
            f"--max_seq_length={length} is more than {whose} max_position_embeddings={positions}; "
            "lower it or use another model."
        )

    def with_default(self, flag: str, value: int, reason: str) -> RunContext:
        """The context with another default of a flag, which is shown and recorded."""
        flags = self.settings.flags
        self.message(f"--{flag}: {value}, {reason}, instead of the default {flags[flag]}")
        settings = dataclasses.replace(self.settings, flags={**flags, flag: value})
        return dataclasses.replace(self, settings=settings)

    def message(self, text: str) -> None:
        """Prints a line, on rank 0 only."""
        if self.log is not None:
            self.log.message(text)


@contextlib.contextmanager
def begin_run(settings: RunSettings, runtime: RuntimeSettings) -> Iterator[RunContext]:
    """Connects the ranks, finds the checkpoint to resume from and checks the precision.

    The ranks monitor each other while the body runs. Raises UserError if ranks have different flags
    or code, for an output directory that cannot be used, and for float16 on a CPU.
    """
    environment.quiet_tensorflow(verbose=runtime.verbose)
    communication = runtime.communication
    if runtime.deterministic:
        tf.compat.v2.config.experimental.enable_op_determinism()
        communication = in_fixed_order(communication)
    environment.limit_stalls(runtime.rank_timeout_seconds)
    ranks = distribution.connect(
        horovod=runtime.horovod,
        num_threads=runtime.num_threads,
        communication=communication,
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
                "bert_tf version": versions()["bert_tf"],
                "bert_tf code": code_sha256(),
                **settings.compared_flags(),
                **comparable_policy_changes(runtime),
            },
        )
        if ranks.local_rank == 0 and not settings.dry_run:
            remove_abandoned()
        with _exclusive_output_dir(settings, ranks):
            yield _begin(settings, runtime, ranks, watch)


@contextlib.contextmanager
def _exclusive_output_dir(settings: RunSettings, ranks: SingleProcess) -> Iterator[None]:
    """Locks the output directory against other runs, unless this run writes nothing."""
    if not ranks.is_chief:
        yield
        return
    if settings.dllog_path:
        check_output_file(settings.dllog_path, flag="dllog_path")
    if settings.dry_run:
        check_output_dir(settings.output_dir, flag="output_dir")
        yield
        return
    with contextlib.ExitStack() as stack:
        for directory in filter(None, (settings.plan_dir, settings.output_dir)):
            killed = stack.enter_context(hold_directory(directory, flag="output_dir"))
            if killed is not None:
                say(f"{directory} was last used by {killed}, which did not exit normally")
        yield


def _find_start(settings: RunSettings) -> StartPoint:
    if settings.resume_from:
        return find_resumed_start(
            settings.output_dir, settings.resume_from, reset_step=settings.reset_step
        )
    return find_start(settings.output_dir)


def _begin(
    settings: RunSettings, runtime: RuntimeSettings, ranks: SingleProcess, watch: NoWatch
) -> RunContext:
    start = ranks.broadcast(_find_start(settings) if ranks.is_chief else None)
    record = None
    if ranks.is_chief and start.is_elsewhere:
        # With steps that count from 0, a run has its own schedule and scaling.
        record = None if settings.reset_step else read_run_record(Path(start.checkpoint).parent)
    elif ranks.is_chief and start.checkpoint is not None:
        record = read_run_record(settings.output_dir)
    elif ranks.is_chief and settings.init_checkpoint:
        require_checkpoint(settings.init_checkpoint, flag="init_checkpoint")
    record = ranks.broadcast(record)
    hardware = agree_on_hardware(ranks, probe_hardware())
    precision = resolve_precision(runtime.precision, hardware)
    policy = choose_policy(runtime, precision, hardware)
    log = None
    if ranks.is_chief:
        log = RunLog(
            settings.output_dir,
            report_loss=settings.report_loss,
            few_lines="display_loss_steps" in settings.defaulted,
            dllog_path=settings.dllog_path,
        )
    context = RunContext(
        settings=settings,
        runtime=runtime,
        ranks=ranks,
        watch=watch,
        start=start,
        record=record,
        hardware=hardware,
        precision=precision,
        options=ForwardOptions(policy, recompute=runtime.recompute),
        log=log,
    )
    _check_loss_scale(context)
    idle = binding_warning(
        os.environ,
        allowed_cores=environment.allowed_cores(),
        all_cores=os.cpu_count() or 1,
        local_size=ranks.local_size,
    )
    if idle is not None:
        context.message(f"warning: {idle}")
    return context


def _idle_rewrite_warning(context: RunContext) -> list[str]:
    """A sentence if TensorFlow's rewrite was requested and does nothing on this CPU."""
    settings = context.session_settings()
    if not settings.amp or settings.gpu is not None or product_type(settings) != tf.float32:
        return []
    return [
        f"{context.runtime.amp_flag} has no effect on this CPU, where TensorFlow's rewrite leaves "
        "products in float32; drop it, and --precision=auto takes what is fastest here"
    ]


def _check_loss_scale(context: RunContext) -> None:
    """Raises UserError for settings of a loss scale in a run without float16."""
    if context.needs_loss_scale or not context.settings.do_train:
        return
    runtime, usual = context.runtime, RuntimeSettings()
    for name in ("loss_scale", "min_loss_scale", "loss_scale_window"):
        value = getattr(runtime, name)
        if value != getattr(usual, name):
            raise UserError(
                f"--{name}={value:g} is for gradients that pass through float16, but with "
                f"--precision={context.precision} none do; drop it or give --precision=fp16."
            )


def choose_arithmetic(
    context: RunContext,
    config: BertConfig,
    optimization: OptimizationSettings,
    *,
    max_seq_length: int,
) -> RunContext:
    """The context with the fastest precision and operations for its network. Collective.

    The user's choices are kept. Raises UserError if native operations are required but missing, and
    for contradictory batch sizes.
    """
    runtime, settings, ranks = context.runtime, context.settings, context.ranks
    batch = batch_plan(optimization, ranks)
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
        # TensorFlow's rewrite and XLA only work on TensorFlow's operations.
        native_layers=not (runtime.amp or runtime.use_xla),
        amp=runtime.amp_flag if runtime.amp else None,
    )
    earlier = {} if context.record is None else context.record.ledger
    choice = choose_speed(
        wanted,
        shapes,
        hardware=context.hardware,
        ranks=ranks,
        earlier=earlier.get("speed"),
        update=update_pieces,
    )
    slow_types = slow_policy_warnings(choice.options.policy, context.hardware)
    for warning in [*slow_types, *choice.warnings, *_idle_rewrite_warning(context)]:
        context.message(f"warning: {warning}")
    measured = {"speed": choice.details}
    if runtime.num_threads is None and not context.hardware.has_gpu:
        measured["threads"] = choose_threads(
            ranks,
            shapes,
            options=choice.options,
            native_update=choice.against_native_ops is None,
            earlier=earlier.get("threads"),
        )
    return dataclasses.replace(
        context,
        precision=choice.precision,
        options=dataclasses.replace(choice.options, recompute=runtime.recompute),
        kernels=kernels_for(choice.against_native_ops),
        measured={section: found for section, found in measured.items() if found},
    )
