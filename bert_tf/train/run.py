"""Begins a run: connects its ranks, locks its directory, opens its log, and finds its start."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf.config.settings import RunSettings, RuntimeSettings
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.ranks.agreement import check_same_on_all_ranks, code_digest
from bert_tf.ranks.communication import in_fixed_order
from bert_tf.ranks.connect import connect
from bert_tf.ranks.launched import binding_warning, check_alone
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.run_log import RunLog
from bert_tf.train.start_point import StartPoint, find_resumed_start, find_start
from bert_tf.tuning.arithmetic import (
    NATIVE_ENTRY,
    PRECISION_ENTRY,
    Arithmetic,
    SessionSettings,
    choose,
    session_settings,
)
from bert_tf.tuning.hardware import (
    Hardware,
    agree_on_hardware,
    comparable_policy_changes,
    probe_hardware,
    settled,
)
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util import environment
from bert_tf.util.console import Grade, Note, say, say_note
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.files import check_output_dir, check_output_file
from bert_tf.util.temporary import remove_abandoned
from bert_tf.watch.interface import NoWatch, Watch

_WARNING = "warning: "

# The planned ranks on which runs begin, where this process stands for rank 0, and the list of their
# dry runs (``execute.dry_runs``); None for real ranks.
REHEARSAL: ContextVar[tuple[Ranks, list[Any]] | None] = ContextVar("rehearsal", default=None)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has begun: its ranks are connected and agree on where it starts.

    Attributes:
      settings: what the user requested.
      runtime: what the user requested, with what was left open decided by the hardware.
      ranks: all ranks.
      watch: detects failures of the other ranks.
      start: the checkpoint and data position that training starts from.
      hardware: what all ranks can compute on; the number of GPUs is this rank's.
      log: None on ranks other than 0.
      until_end: what to release when the run ends, such as temporary records.
      kept: flag -> value of the settings that decide predictions, which are stored with the model
        that is resumed or used as it is; empty for a run that trains a new one.
      decided: flags whose defaults the run has replaced, with the new values.
    """

    settings: RunSettings
    runtime: RuntimeSettings
    ranks: Ranks
    watch: Watch
    start: StartPoint
    hardware: Hardware
    log: RunLog | None
    until_end: contextlib.ExitStack
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    decided: dict[str, object] = dataclasses.field(default_factory=dict)

    @property
    def keeps_files(self) -> bool:
        """Whether this rank writes the run's output files."""
        return self.ranks.is_chief and not self.settings.dry_run

    @property
    def flags(self) -> dict[str, object]:
        """Every flag with the value that the run uses, for the record."""
        return {**self.settings.command.values, **self.decided}

    @property
    def precision_before(self) -> str | None:
        """The precision of the run's last start; None if there was none."""
        record = self.start.record
        return None if record is None else record.ledger.get("precision", {}).get("policy")

    def session_settings(self) -> SessionSettings:
        """How this rank's sessions execute."""
        return session_settings(self.ranks, self.hardware)

    def choose_arithmetic(
        self,
        config: BertConfig,
        *,
        skip_padding: bool = False,
        earlier: Mapping[str, Any] | None = None,
    ) -> Arithmetic:
        """Decides the precision and operations that the user left open. Collective.

        A resumed run, and an evaluation of what it trained, keep the precision that it began with;
        ``earlier`` are ``Arithmetic.entries`` to keep as well. Raises UserError for float16 on a
        CPU, for loss scale settings without float16, and if native operations are required but
        missing.
        """
        runtime, earlier = self.runtime, earlier or {}
        precision, native_ops = runtime.numerics.precision, runtime.native_ops
        arithmetic = choose(
            config,
            hardware=self.hardware,
            ranks=self.ranks,
            precision=earlier.get(PRECISION_ENTRY, "auto") if precision == "auto" else precision,
            native_ops=earlier.get(NATIVE_ENTRY) if native_ops is None else native_ops,
            policy_changes=runtime.numerics.policy_changes,
            allow_slow_fp16=runtime.numerics.allow_slow_fp16,
            before=self.precision_before,
            recompute=runtime.recompute,
            compiled=bool(runtime.use_xla),
            skip_padding=skip_padding,
            sends_float16=runtime.sends_float16,
        )
        if self.settings.do_train and not arithmetic.scales_loss:
            runtime.numerics.loss_scale.check_unused(arithmetic.precision)
        for warning in arithmetic.warnings:
            self.warn(warning, part="precision")
        return arithmetic

    def keep_arithmetic(self, config: BertConfig, earlier: Mapping[str, Any] | None) -> Arithmetic:
        """Like :meth:`choose_arithmetic`, with what rank 0 kept of an earlier start; prints it."""
        arithmetic = self.choose_arithmetic(config, earlier=self.ranks.broadcast(earlier))
        layers = "native" if arithmetic.options.native_layers else "TensorFlow's"
        ranks = "1 rank" if self.ranks.world_size == 1 else f"{self.ranks.world_size} ranks"
        self.message(
            f"precision {arithmetic.precision}, {layers} layers, {ranks} with {self.ranks.threads} "
            "threads each"
        )
        return arithmetic

    def batch_slice(self, batch: BatchPlan) -> GlobalBatchSlice:
        """This rank's part of every global batch, from the data position where the run stopped."""
        assumed = batch.sequences(0, self.start.data_position)
        return GlobalBatchSlice(
            batch.global_batch_size,
            self.ranks.rank,
            self.ranks.world_size,
            origin=self.start.consumed(batch.global_batch_size) - assumed,
            sizes=None if batch.sizes is None else batch.size_ramp(),
        )

    def fit_length(self, length: int, config: BertConfig, *, whose: str = "the model's") -> int:
        """The maximum sequence length for a network; a default is lowered to its positions.

        Raises UserError if the user gave a length that is too large. ``whose`` names the network in
        messages.
        """
        positions = config.max_position_embeddings
        if length > positions and "max_seq_length" in self.settings.command.defaulted:
            reason = f"{whose} max_position_embeddings"
            return self.decide("max_seq_length", positions, reason)
        config.check_length(length, f"--max_seq_length={length} is", whose=whose)
        return length

    def decide(self, flag: str, value: int, reason: str) -> int:
        """Replaces a flag's default by ``value``, which is shown, recorded and returned."""
        self.message(f"--{flag}: {value}, {reason}, instead of the default {self.flags[flag]}")
        self.decided[flag] = value
        return value

    def message(self, text: str) -> None:
        """Prints a line, on rank 0 only."""
        if self.log is not None:
            self.log.message(text)

    def remark(self, text: str, *, part: str) -> None:
        """Prints something worth knowing before the run, on rank 0 only."""
        if self.log is not None:
            say_note(Note(Grade.HINT, part, text), to=self.log.message)

    def warn(self, text: str, *, part: str = "") -> None:
        """Prints a warning about a part of the run, on rank 0 only."""
        if self.log is not None:
            say_note(Note(Grade.WARNING, part, text), to=self.log.message)

    def report(self, lines: Iterable[str], *, part: str) -> None:
        """Prints notes on a model's files; those that begin with "warning: " become warnings."""
        for line in lines:
            if line.startswith(_WARNING):
                self.warn(line.removeprefix(_WARNING), part=part)
            else:
                self.message(line)


@contextlib.contextmanager
def begin(
    settings: RunSettings, runtime: RuntimeSettings, *, plan_dir: Path | None = None
) -> Iterator[Run]:
    """Connects the ranks, finds the checkpoint to resume from and settles what hardware decides.

    The ranks monitor each other while the body runs. Raises UserError if ranks have different flags
    or code, and if the output directory cannot be used.

    Args:
      settings, runtime: what the user requested.
      plan_dir: the directory of a plan whose phase this run is; None for a single run.
    """
    rehearsal = REHEARSAL.get()
    environment.quiet_tensorflow(verbose=runtime.verbose)
    if runtime.deterministic:
        tf.compat.v2.config.experimental.enable_op_determinism()
    tf.compat.v2.config.experimental.enable_tensor_float_32_execution(runtime.numerics.tf32)
    environment.limit_stalls(runtime.rank_timeout_seconds)
    with contextlib.ExitStack() as until_end:
        if rehearsal is None:
            ranks = _connect(runtime)
            watch = until_end.enter_context(_watched(ranks, settings, runtime))
        else:
            check_alone(os.environ)
            ranks, watch = rehearsal[0], NoWatch(rehearsal[0])
        check_same_on_all_ranks(
            ranks,
            {
                "bert_tf version": bert_tf.__version__,
                "bert_tf code": code_digest(),
                **settings.command.compared(),
                **comparable_policy_changes(runtime),
            },
        )
        if ranks.local_rank == 0 and not settings.dry_run:
            remove_abandoned()
        if ranks.is_chief:
            _lock_output_dir(settings, plan_dir, until_end)
        run = _begin(settings, runtime, ranks, watch, until_end)
        idle = binding_warning(
            os.environ,
            allowed_cores=environment.allowed_cores(),
            all_cores=os.cpu_count() or 1,
            local_size=ranks.local_size,
        )
        if rehearsal is None and idle is not None:
            run.warn(idle)
        yield run


def _connect(runtime: RuntimeSettings) -> Ranks:
    communication = runtime.communication
    return connect(
        runtime.library,
        num_threads=runtime.num_threads,
        communication=in_fixed_order(communication) if runtime.deterministic else communication,
    )


def _watched(
    ranks: Ranks, settings: RunSettings, runtime: RuntimeSettings
) -> contextlib.AbstractContextManager[Watch]:
    if ranks.world_size == 1:
        return contextlib.nullcontext(NoWatch(ranks))
    from bert_tf.watch.watch import watched

    return watched(ranks, settings, timeout_seconds=runtime.rank_timeout_seconds)


def _lock_output_dir(
    settings: RunSettings, plan_dir: Path | None, until_end: contextlib.ExitStack
) -> None:
    """Locks the output directory against other runs, unless this run writes nothing."""
    if settings.log.dllog_path:
        check_output_file(settings.log.dllog_path, flag="dllog_path")
    if settings.dry_run:
        check_output_dir(settings.output_dir, flag="output_dir")
        return
    for directory in filter(None, (plan_dir, settings.output_dir)):
        killed = until_end.enter_context(hold_directory(directory, flag="output_dir"))
        if killed is not None:
            say(f"{directory} was last used by {killed}, which did not exit normally")


def _begin(
    settings: RunSettings,
    runtime: RuntimeSettings,
    ranks: Ranks,
    watch: Watch,
    until_end: contextlib.ExitStack,
) -> Run:
    start, kept = ranks.broadcast(_find_start(settings) if ranks.is_chief else None)
    hardware = agree_on_hardware(ranks, probe_hardware())
    of_model = None if settings.do_train else kept
    decided, notes = settled(runtime, hardware, kept=of_model, command=settings.command)
    log = None
    if ranks.is_chief:
        log = RunLog(
            settings.output_dir,
            report_loss=settings.log.report_loss,
            few_lines="display_loss_steps" in settings.command.defaulted,
            dllog_path=settings.log.dllog_path,
        )
    run = Run(settings, decided, ranks, watch, start, hardware, log, until_end, kept)
    run.report(notes, part="precision")
    if decided.use_xla and not hardware.has_gpu:
        run.warn("--use_xla on a CPU is slower than without; it is for GPUs", part="precision")
    return run


def _find_start(settings: RunSettings) -> tuple[StartPoint, Mapping[str, Any]]:
    """The start of a run, and :attr:`Run.kept`; UserError if there are no weights to start from."""
    asked, directory = settings.start, settings.output_dir
    if asked.resume_from:
        start = find_resumed_start(directory, asked.resume_from, reset_step=asked.reset_step)
    else:
        start = find_start(directory)
    if start.checkpoint is None and asked.init_checkpoint:
        require_checkpoint(asked.init_checkpoint, flag="init_checkpoint")
    model = start.checkpoint or (None if settings.do_train else asked.init_checkpoint)
    return start, ModelDirectory.of(model).kept_settings if model else {}
