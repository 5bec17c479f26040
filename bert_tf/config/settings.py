"""The settings that all runs share, as frozen dataclasses; each task's folder has its own.

Entry scripts build them from flags, other programs directly. A field declares everything about a
setting: its default, its bounds, its flag and the flag's help text.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.config.declared import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    Settings,
    group,
    setting,
)
from bert_tf.config.policy_file import policy_changes
from bert_tf.config.schedules import ScheduleSettings, check_lengths
from bert_tf.update.optimizers import OPTIMIZERS, optimizer_row
from bert_tf.util.errors import UserError
from bert_tf.util.options import LARGEST_FLOAT32, Interval, Options

if TYPE_CHECKING:
    from bert_tf.config.ramps import LengthRampSettings, RampSettings

# Consecutive skipped updates that end a run with a loss scale: more than it takes to halve the
# largest scale, 2**32, to 1.
DEFAULT_MAX_SKIPPED = 40

_LARGEST_SCALE = 2.0**32
_RANK_TIMEOUTS = Interval(5, 1e6)

_AnySettings = TypeVar("_AnySettings", bound=Any)


@dataclasses.dataclass(frozen=True)
class StartSettings(Settings):
    """Where a run starts if its output directory contains no checkpoint."""

    init_checkpoint: str | None = setting(
        None,
        "Weights to start from: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's, or its directory; steps count from 0.",
        kind=str,
        per_host=True,
    )
    resume_from: str | None = setting(
        None,
        "Checkpoint of another run of this program, or its directory, to resume from in a new "
        "--output_dir: weights, optimizer state, step and position in the data.",
        kind=str,
        per_host=True,
    )
    reset_step: bool = setting(
        False, "With --resume_from: keep the optimizer's state, but count steps and data from 0."
    )
    allowed_fresh: tuple[str, ...] = setting(
        (),
        "Scopes that --init_checkpoint may lack, comma-separated, e.g. cls/seq_relationship.",
        flag="allow_fresh",
        kind=str,
        parse=lambda given: tuple(filter(None, given.split(","))),
    )

    def contradictions(self) -> Iterator[str]:
        """Two starting points, or a missing one."""
        if self.reset_step and self.resume_from is None:
            yield "--reset_step needs --resume_from, the checkpoint to resume from."
        if self.resume_from is not None and self.init_checkpoint:
            yield (
                f"{self.given('resume_from')} and {self.given('init_checkpoint')} both say where "
                "to start; drop one of them."
            )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(Settings):
    """Evaluations during and after training, and how their results are used."""

    do_eval: bool = setting(
        False, "Evaluate on the held-out records, at least once, after training."
    )
    eval_batch_size: int = setting(
        8, "Sequences per evaluation batch and rank.", bounds=AT_LEAST_ONE
    )
    max_eval_steps: int | None = setting(
        None,
        "Evaluation batches per rank, N times as many with N ranks (default: all held-out "
        "records).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    eval_every_steps: int | None = setting(
        None,
        "Steps between evaluations during training (a multiple of --save_checkpoints_steps); by "
        "default only after training.",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    keep_best: bool = setting(
        True, "Keep a copy of the checkpoint with the best evaluation, in best/."
    )
    early_stopping_evaluations: int | None = setting(
        None,
        "Stop training after this many evaluations in a row without improvement (needs "
        "--eval_every_steps).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )

    def contradictions(self) -> Iterator[str]:
        """Early stopping without evaluations."""
        if self.eval_every_steps is None and self.early_stopping_evaluations is not None:
            yield (
                "--early_stopping_evaluations needs evaluations to count; give --eval_every_steps."
            )


@dataclasses.dataclass(frozen=True)
class LogSettings(Settings):
    """What a run logs, and where."""

    display_loss_steps: int = setting(
        10,
        "Steps between lines of log.jsonl and, if given, of the terminal, which by default shows "
        "about 30 lines per run or one per minute.",
        bounds=AT_LEAST_ONE,
    )
    layer_summary_steps: int = setting(
        0,
        "Steps between logged norms of the weights, gradients and updates of each layer and "
        "variable, their ratios, and LAMB's trust ratios (0: none).",
        bounds=NOT_NEGATIVE,
        advice="0 is for none",
    )
    report_loss: bool = setting(True, "NVIDIA's name: show losses in progress lines.")
    dllog_path: str | None = setting(
        None,
        "NVIDIA's name: a file to which metrics are also logged, in the format of NVIDIA's "
        "DLLogger.",
        kind=str,
        per_host=True,
    )


@dataclasses.dataclass(frozen=True)
class RecoverySettings(Settings):
    """How a run handles losses or gradients that are not finite."""

    max_skipped_updates: int | None = setting(
        None,
        "Stop after this many consecutive skipped updates, whose loss or gradients were not finite "
        f"(default: {DEFAULT_MAX_SKIPPED} with a loss scale, 1 without).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """The command line from which settings were made; empty for those of a program.

    Attributes:
      values: every flag with its value, for the record.
      defaulted: flags that were not given; some of these defaults depend on model or records.
      per_host: the flags that may differ between hosts.
    """

    values: Mapping[str, object] = dataclasses.field(default_factory=dict)
    defaulted: frozenset[str] = frozenset()
    per_host: frozenset[str] = frozenset()

    def compared(self) -> dict[str, object]:
        """The flags that must be equal on all ranks, by their names in messages."""
        names = self.values.keys() - self.per_host
        return {f"--{name}": value for name, value in self.values.items() if name in names}


@dataclasses.dataclass(frozen=True)
class RunSettings(Settings):
    """What a run does, where it writes and how often.

    Attributes:
      command: the command line from which the settings were made.
    """

    output_dir: Path = setting(
        ..., "Directory for checkpoints, logs and results.", kind=Path, parse=Path, per_host=True
    )
    start: StartSettings = group(StartSettings)
    do_train: bool = setting(False, "Train.")
    dry_run: bool = setting(
        False, "Show the ledger and a memory estimate, then exit without writing."
    )
    save_checkpoints_steps: int = setting(1000, "Steps between checkpoints.", bounds=AT_LEAST_ONE)
    keep_checkpoint_max: int = setting(
        5, "Checkpoints to keep, in addition to the best one.", bounds=AT_LEAST_ONE
    )
    evaluation: EvaluationSettings = group(EvaluationSettings)
    log: LogSettings = group(LogSettings)
    recovery: RecoverySettings = group(RecoverySettings)
    seed: int = setting(12345, "Seed of weights, data order, masking and dropout.")
    command: CommandLine = dataclasses.field(default_factory=CommandLine)

    def contradictions(self) -> Iterator[str]:
        """A file as directory; settings that require training, or checkpoints to evaluate."""
        places = self.output_dir, *self.output_dir.parents
        file = next(filter(os.path.isfile, places), None)
        if file is not None:
            yield f"{self.given('output_dir')}: {file} is a file; choose another directory."
        every = self.evaluation.eval_every_steps
        if every is not None and not (self.evaluation.do_eval and self.do_train):
            yield "--eval_every_steps needs --do_train and --do_eval; give them or drop it."
        if every is not None and every % self.save_checkpoints_steps:
            yield (
                f"{self.evaluation.given('eval_every_steps')} is not a multiple of "
                f"{self.given('save_checkpoints_steps')}, but only checkpoints are evaluated; "
                "change one."
            )
        if self.start.resume_from is not None and not self.do_train:
            yield (
                "--resume_from is for training further; add --do_train, or evaluate with "
                "--init_checkpoint."
            )


def _batch_ramp(given: str) -> RampSettings | None:
    if not given:
        return None
    from bert_tf.config.ramps import parse_ramp

    return parse_ramp(given, flag="batch_ramp")


@dataclasses.dataclass(frozen=True)
class BatchSettings(Settings):
    """The sequences of an update; ``update.batch_plan`` derives the rest from any two sizes."""

    micro_batch_size: int | None = setting(
        None,
        "Micro batch: sequences in one forward and backward pass on one rank "
        "(32 if neither this nor --global_batch_size is given). "
        "Global batch = micro batch x --num_accumulation_steps x ranks.",
        flag="train_batch_size",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    accumulation_steps: int | None = setting(
        None,
        "Micro batches per update (1).",
        flag="num_accumulation_steps",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    global_batch_size: int | None = setting(
        None, "Sequences per update, over all ranks.", kind=int, bounds=AT_LEAST_ONE
    )
    ramp: RampSettings | None = setting(
        None,
        "Let the global batch grow: 64:0,128:2000,256:5000 is 64 sequences at first, 128 from "
        "update 2000 and 256, the full global batch, from update 5000 on; 64+64:6000 is 64 more "
        "each time until update 6000, and 64+64:900000seq the same over 900000 sequences. Updates "
        "are those of one rank; the micro batch stays the same.",
        flag="batch_ramp",
        kind=str,
        parse=_batch_ramp,
    )
    loss_normalization: str = setting(
        "global_batch",
        "Batch over which the loss is averaged; micro_batch as in google-research/bert.",
        choices=("global_batch", "micro_batch"),
    )


@dataclasses.dataclass(frozen=True)
class StepSettings(Settings):
    """The length of training and of its warm-up, on one rank: in steps or epochs."""

    num_train_steps: int | None = setting(
        None, "Optimizer updates, on one rank.", kind=int, bounds=AT_LEAST_ONE
    )
    num_warmup_steps: int | None = setting(
        None, "Warm-up updates, on one rank.", kind=int, bounds=NOT_NEGATIVE
    )
    num_train_epochs: float | None = setting(
        None,
        "Passes over the training records, on all ranks together, instead of --num_train_steps.",
        kind=float,
        bounds=Interval(0, open_low=True),
    )
    warmup_proportion: float | None = setting(
        None,
        "Fraction of the steps used for warm-up, instead of --num_warmup_steps (0.1 with "
        "--num_train_epochs, and for runs too short for the default of --num_warmup_steps).",
        kind=float,
        bounds=Interval(0, 1),
    )
    stop_after_steps: int | None = setting(
        None,
        "End the run after this update, on one rank, of a longer schedule.",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    scale_steps_by_ranks: bool | None = setting(
        None,
        "Divide --num_train_steps and --num_warmup_steps by the number of ranks (default: as in "
        "the resumed run; on in a new run with --horovod).",
        kind=bool,
    )

    @property
    def counts_epochs(self) -> bool:
        """Whether the length of training is given in epochs.

        If so, it is an amount of data, and a run that resumes with a different global batch needs a
        different number of steps.
        """
        return self.num_train_steps is None


@dataclasses.dataclass(frozen=True)
class OptimizationSettings(Settings):
    """Batch, schedule and optimizer, as requested by the user (before scaling by ranks).

    Attributes:
      optimizer_options: the optimizer's options; omitted ones get their defaults.
      length_ramp: how the length to which records are cut grows; None keeps them whole.
      rate_factors: (regular expression, factor) pairs: a variable's learning rate is multiplied by
        the factor of the first expression found in its name; 0 freezes it.
      trained_from: likewise, the fraction of the steps after which a variable begins to be trained.
    """

    batch: BatchSettings = group(BatchSettings)
    steps: StepSettings = group(StepSettings)
    schedule: ScheduleSettings = group(ScheduleSettings)
    optimizer: str = setting(
        "adam",
        "Optimizer: "
        + ", ".join(f"{name} ({row.title})" for name, row in OPTIMIZERS.items())
        + ".",
        flag="optimizer_type",
        choices=OPTIMIZERS,
    )
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    weight_decay: float = setting(0.01, "Decoupled weight decay.", bounds=NOT_NEGATIVE)
    clip_norm: float | None = setting(
        1.0,
        "Maximum global norm of the gradient; 0 or inf for no limit.",
        bounds=NOT_NEGATIVE,
        advice="0 is for no limit",
        takes_infinity=True,
        parse=lambda given: None if given == 0 or given > LARGEST_FLOAT32 else given,
    )
    allreduce_every_micro_batch: bool = setting(
        False, "Communicate after each micro batch, for comparison."
    )
    shard_optimizer_state: bool = setting(
        False,
        "Shard the optimizer's slots over the ranks (stage 1 of ZeRO, Rajbhandari et al. 2020, "
        "section 5.1): each rank has those for a part of every weight, which saves memory.",
    )
    length_ramp: LengthRampSettings | None = None
    rate_factors: tuple[tuple[str, float], ...] = ()
    trained_from: tuple[tuple[str, float], ...] = ()

    def check_lengths(self) -> None:
        """Raises UserError if the schedule does not fit into its steps, if they are known."""
        steps = self.steps
        check_lengths(self.schedule, steps.num_train_steps, steps.num_warmup_steps)

    def rate_factor(self, variable_name: str) -> float:
        """The factor of a variable's learning rate; 1 if no expression matches its name."""
        return _first_match(self.rate_factors, variable_name, 1.0)

    def start_of(self, variable_name: str) -> float:
        """The fraction of the steps after which a variable is trained; 0 if nothing matches it."""
        return _first_match(self.trained_from, variable_name, 0.0)


def _first_match(rules: tuple[tuple[str, float], ...], name: str, default: float) -> float:
    return next((value for pattern, value in rules if re.search(pattern, name)), default)


@dataclasses.dataclass(frozen=True)
class CommunicationSettings(Settings):
    """How ranks sum gradients; None keeps Horovod's default or its environment variable."""

    compression: str = setting(
        "none",
        "Send gradients as float16, with a loss scale.",
        flag="fp16_compression",
        kind=bool,
        parse=lambda given: "fp16" if given else "none",
    )
    adasum: bool = setting(
        False,
        "Combine gradients with Adasum (Maleki et al. 2020; the number of ranks must be a power of "
        "two).",
    )
    groups: int | None = setting(
        None,
        "Send gradients in this many groups; 0: as soon as they are ready (default: 1 with several "
        "micro batches per update, otherwise 0).",
        flag="num_allreduce_groups",
        kind=int,
        bounds=NOT_NEGATIVE,
    )
    embedding_rows: bool | None = setting(
        None,
        "Fine-tuning: send the word embeddings' gradient as the batch's rows instead of a full "
        "table (default: if that is much less data).",
        flag="embedding_gradient_rows",
        kind=bool,
    )
    fusion_threshold_mb: float | None = setting(
        None, "Horovod: size of its fusion buffer in MiB (128).", kind=float, bounds=NOT_NEGATIVE
    )
    cycle_time_ms: float | None = setting(
        None, "Horovod: milliseconds between its cycles (1).", kind=float, bounds=NOT_NEGATIVE
    )
    hierarchical: bool | None = setting(
        None, "Horovod: reduce within each host first.", flag="hierarchical_allreduce", kind=bool
    )
    autotune: bool | None = setting(
        None, "Horovod: tune the settings above by trial.", flag="allreduce_autotune", kind=bool
    )
    nccl_streams: int | None = setting(
        None,
        "Horovod: parallel NCCL streams, on GPUs (1).",
        flag="num_nccl_streams",
        kind=int,
        bounds=AT_LEAST_ONE,
    )

    def contradictions(self) -> Iterator[str]:
        """Settings that require separate gradients or full tables."""
        if self.adasum and self.groups:
            yield (
                "--adasum combines gradients one by one, not in groups; drop it or "
                "--num_allreduce_groups."
            )
        if self.embedding_rows and (self.adasum or self.groups):
            yield (
                "--embedding_gradient_rows cannot be combined with --adasum or "
                "--num_allreduce_groups, which need full tables; drop one."
            )


@dataclasses.dataclass(frozen=True)
class LossScaleSettings(Settings):
    """The loss scale of float16 (Micikevicius et al. 2018, section 3.2)."""

    static: float | None = setting(
        None,
        "Constant loss scale, with fp16 (default, or 0: a dynamic one).",
        flag="loss_scale",
        kind=float,
        bounds=Interval(0, _LARGEST_SCALE),
        advice="0 is for a dynamic scale",
        parse=lambda given: given or None,
    )
    initial: float = setting(
        2.0**16,
        "Initial value of the dynamic loss scale, with fp16.",
        flag="init_loss_scale",
        bounds=Interval(1, _LARGEST_SCALE),
    )
    minimum: float = setting(
        1.0,
        "Smallest value of the dynamic loss scale, which is halved when a gradient overflows.",
        flag="min_loss_scale",
        bounds=AT_LEAST_ONE,
    )
    window: int = setting(
        1000,
        "Updates in a row without an overflow after which the dynamic loss scale is doubled.",
        flag="loss_scale_window",
        bounds=AT_LEAST_ONE,
    )

    def contradictions(self) -> Iterator[str]:
        """A dynamic loss scale that starts below its minimum."""
        if self.minimum > self.initial:
            yield f"{self.given('minimum')} must be at most {self.given('initial')}; lower it."

    def check_unused(self, precision: str) -> None:
        """Raises UserError if one was given for a run of a ``precision`` that needs none."""
        for name in ("static", "minimum", "window"):
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"{self.given(name)} is for gradients that pass through float16, but with "
                    f"--precision={precision} none do; drop it or give --precision=fp16."
                )


@dataclasses.dataclass(frozen=True)
class NumericsSettings(Settings):
    """The data types of a run's computations."""

    precision: str = setting(
        "auto",
        "Data type of dense and attention products; auto takes what is fastest on this processor.",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    policy_changes: Mapping[str, str] = setting(
        {},
        "JSON file: class of operation -> data type, for classes that differ from --precision.",
        flag="precision_policy",
        kind=str,
        parse=policy_changes,
        per_host=True,
    )
    amp: bool = setting(
        False, "Half precision under NVIDIA's name: --precision=fp16 on GPUs, bf16 on CPUs."
    )
    tf32: bool = setting(
        True, "Let GPUs round float32 factors of products to TensorFloat-32 (10 bits of mantissa)."
    )
    allow_slow_fp16: bool = setting(False, "Compute in float16 even on a CPU.")
    loss_scale: LossScaleSettings = group(LossScaleSettings)

    def contradictions(self) -> Iterator[str]:
        """Two requests for different types."""
        if not self.amp:
            return
        is_float32 = self.precision in ("auto", "fp32")
        other = "--precision_policy" if is_float32 else self.given("precision")
        if self.policy_changes or not is_float32:
            yield f"--amp chooses the types itself and contradicts {other}; drop one."


@dataclasses.dataclass(frozen=True)
class RuntimeSettings(Settings):
    """Precision, compiler, ranks and threads.

    Attributes:
      library: the communication library of ranks, a name in ``ranks.connect.LIBRARIES``; None for a
        single process.
      use_xla: None means where the job computes on GPUs.
      native_ops: None uses them if available; True fails without them.
    """

    library: str | None = setting(
        None,
        "Use all ranks started by mpirun or horovodrun.",
        flag="horovod",
        kind=bool,
        parse=lambda given: "horovod" if given else None,
    )
    rank_timeout_seconds: float = setting(
        300.0,
        "Seconds after which a silent or hanging rank ends the job; 0: never.",
        flag="rank_timeout",
    )
    communication: CommunicationSettings = group(CommunicationSettings)
    numerics: NumericsSettings = group(NumericsSettings)
    use_xla: bool | None = setting(
        None,
        "Compile the forward and backward pass of a rank's batch, and the update of the weights, "
        "each as one function with XLA (auto: on GPUs).",
        takes_auto=True,
    )
    native_ops: bool | None = setting(
        None,
        "Update the weights with natively compiled operations, in one pass over memory "
        "(default: on CPUs, if they are built).",
        kind=bool,
    )
    num_threads: int | None = setting(
        None,
        "Threads per rank (the cores divided by the ranks).",
        kind=int,
        bounds=AT_LEAST_ONE,
        per_host=True,
    )
    deterministic: bool = setting(
        False, "Produce the same bits in every run, at some cost in speed."
    )
    recompute: bool = setting(
        False,
        "Keep only each layer's input for the backward pass and recompute the layer there: "
        "less memory, slower steps, the same results.",
    )
    verbose: bool = setting(False, "Show TensorFlow's messages.", per_host=True)

    @property
    def sends_float16(self) -> bool:
        """Whether gradients are float16 when ranks exchange them."""
        return self.library is not None and self.communication.compression == "fp16"

    def contradictions(self) -> Iterator[str]:
        """Two compilers, timing-dependent choices of reproducible bits, too short a timeout."""
        if self.rank_timeout_seconds and self.rank_timeout_seconds not in _RANK_TIMEOUTS:
            yield (
                f"{self.given('rank_timeout_seconds')} must be 0, for no limit, or at least "
                f"{_RANK_TIMEOUTS.low:g} seconds."
            )
        if self.use_xla and self.native_ops:
            yield "--native_ops: XLA compiles TensorFlow's operations; drop it or --use_xla."
        if not self.deterministic:
            return
        communication = self.communication
        if communication.fusion_threshold_mb or communication.autotune:
            is_size = communication.fusion_threshold_mb
            yield (
                f"--{'fusion_threshold_mb' if is_size else 'allreduce_autotune'} lets the timing "
                "decide which gradients are summed together, but --deterministic demands the same "
                "bits in every run; drop one of the two."
            )


def check_sharding(
    optimization: OptimizationSettings, communication: CommunicationSettings
) -> None:
    """Raises UserError if the optimizer slots cannot be sharded over the ranks."""
    if not optimization.shard_optimizer_state:
        return
    row = optimizer_row(optimization.optimizer)
    if not row.can_be_sharded:
        raise UserError(
            f"--shard_optimizer_state: {row.title} updates whole weights; drop the flag."
        )
    conflicts = {
        "--adasum": (communication.adasum, "combines whole gradients"),
        "--embedding_gradient_rows": (
            communication.embedding_rows,
            "sends rows to all ranks, and a part of a table is not made of rows",
        ),
        "--allreduce_every_micro_batch": (
            optimization.allreduce_every_micro_batch,
            "is for comparison with one exchange of whole gradients",
        ),
    }
    for flag, (is_given, why) in conflicts.items():
        if is_given:
            raise UserError(
                f"--shard_optimizer_state cannot be combined with {flag}, which {why}; drop one."
            )


def dry(settings: _AnySettings) -> _AnySettings:
    """The settings of the same run of a task as a dry run."""
    return dataclasses.replace(settings, run=dataclasses.replace(settings.run, dry_run=True))
