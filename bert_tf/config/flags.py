"""Command-line flags that the training scripts share, and what becomes of them.

Flags are defined by functions, so that importing is free.

Names and meanings are those of google-research/bert and NVIDIA's scripts wherever they have one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from absl import flags

from bert_tf.command_line import (
    LARGEST_FLOAT32,
    Number,
    flag_group,
    project_flags,
    run_command,
)
from bert_tf.config.optimizers import OPTIMIZERS, option_flags, options_from_flags
from bert_tf.config.policy_file import policy_changes
from bert_tf.config.settings import (
    CommunicationSettings,
    OptimizationSettings,
    RunSettings,
    RuntimeSettings,
)
from bert_tf.console import warn
from bert_tf.errors import UserError
from bert_tf.files import require_file

# Flags of scripts for other hardware: accepted, so that known command lines go on working. Each has
# the type that it has there, for a boolean takes no word and all others take the next.
_IGNORED = {
    "use_tpu": bool,
    "tpu_name": str,
    "tpu_zone": str,
    "gcp_project": str,
    "master": str,
    "num_tpu_cores": int,
    "iterations_per_loop": int,
}

AUTO = "auto"

_LEAST_RANK_TIMEOUT = 5

_COUNTS = ("save_checkpoints_steps", "keep_checkpoint_max", "num_threads", "display_loss_steps",
           "eval_every_steps", "early_stopping_evaluations")  # fmt: skip


class Definer:
    """Defines flags in one set of flags, the program's own or a test's."""

    def __init__(self, values: flags.FlagValues) -> None:
        self.string = functools.partial(flags.DEFINE_string, flag_values=values)
        self.integer = functools.partial(flags.DEFINE_integer, flag_values=values)
        self.number = functools.partial(flags.DEFINE, Number(), flag_values=values)
        self.number_or_infinity = functools.partial(
            flags.DEFINE, Number(infinite=True), flag_values=values
        )
        self.boolean = functools.partial(flags.DEFINE_bool, flag_values=values)
        self.choice = functools.partial(flags.DEFINE_enum, flag_values=values)
        self.values = values

    def ignored(self, kinds: Mapping[str, type], why: str) -> None:
        """Defines flags, by name and type, that have no effect here."""
        by_kind = {bool: self.boolean, str: self.string, int: self.integer, float: self.number}
        for name, kind in kinds.items():
            by_kind[kind](name, None, f"Ignored: {why}.")

    def boolean_or_auto(self, name: str, default: bool | str, help_text: str) -> None:
        """Defines a flag for ``--name``, ``--noname``, ``--name=true``, ``=false`` or ``=auto``."""
        parser = _BooleanOrAuto()
        serializer = flags.ArgumentSerializer()
        flag = flags.Flag(parser, serializer, name, default, help_text, boolean=True)
        flags.DEFINE_flag(flag, self.values)


class _BooleanOrAuto(flags.BooleanParser):
    """Parses to True, False or ``AUTO``."""

    def parse(self, argument: str | int | bool) -> bool | str:
        if argument == AUTO:
            return AUTO
        try:
            return super().parse(argument)
        except ValueError as error:
            raise ValueError("must be true, false or auto") from error


def run_script(define_flags: Callable[[flags.FlagValues], None], run: Callable[[], object]) -> None:
    """A training script: defines and parses its flags, runs it, ends on a UserError."""
    define_flags(flags.FLAGS)
    run_command(lambda _: run())


@flag_group("Run")
def define_run_flags(define: Definer) -> None:
    """Defines what to do, where to write and how often, which all training scripts share."""
    define.string("output_dir", None, "Where checkpoints, logs and results go.")
    define.string(
        "init_checkpoint",
        None,
        "Weights to start from: a checkpoint of google's, NVIDIA's, Hugging Face's or our own, or "
        "its directory; steps count from 0.",
    )
    define.string(
        "allow_fresh",
        None,
        "Scopes that --init_checkpoint may lack, comma-separated, e.g. cls/seq_relationship.",
    )
    define.boolean("do_train", False, "Train.")
    define.boolean(
        "dry_run", False, "Show the ledger and an estimate of the memory, write nothing and end."
    )
    define.integer(
        "save_checkpoints_steps", RunSettings.save_checkpoints_steps, "Steps between checkpoints."
    )
    define.integer(
        "eval_every_steps",
        None,
        "Steps between evaluations while training (a multiple of --save_checkpoints_steps); only "
        "after training if not given.",
    )
    define.boolean(
        "keep_best",
        RunSettings.keep_best,
        "Keep a copy of the checkpoint that evaluated best, in best/.",
    )
    define.integer(
        "early_stopping_evaluations",
        None,
        "End the training after so many evaluations in a row that were not the best "
        "(with --eval_every_steps).",
    )
    define.integer(
        "keep_checkpoint_max",
        RunSettings.keep_checkpoint_max,
        "Checkpoints to keep besides the best one.",
    )
    define.integer(
        "display_loss_steps", RunSettings.display_loss_steps, "Steps between progress lines."
    )
    define.integer("seed", RunSettings.seed, "Seed of weights, data order, masking and dropout.")
    define.boolean("report_loss", True, "NVIDIA's name: show losses in progress lines.")
    define.string(
        "dllog_path",
        None,
        "NVIDIA's name: a file that also gets what is logged, as lines of NVIDIA's DLLogger.",
    )
    _define_ignored_flags(define)


@flag_group("Ignored flags of other scripts")
def _define_ignored_flags(define: Definer) -> None:
    define.ignored(_IGNORED, "there is no TPU support")


@flag_group("Batch, schedule and optimizer")
def define_optimization_flags(
    define: Definer, *, optimizer: str, num_train_steps: int | None, num_warmup_steps: int | None
) -> None:
    """Defines batch, schedule and optimizer flags, which all training scripts share.

    Scripts that count in epochs have no default for the steps.
    """
    define.integer(
        "train_batch_size",
        None,
        "Micro batch: sequences of one rank in one forward and backward pass "
        "(32 if neither this nor --global_batch_size is given). "
        "Global batch = micro batch x --num_accumulation_steps x ranks.",
    )
    define.integer("micro_batch_size", None, "The same as --train_batch_size.")
    define.integer("num_accumulation_steps", None, "Micro batches in an update (1).")
    define.integer("global_batch_size", None, "Sequences in an update, over all ranks.")
    define.integer("num_train_steps", num_train_steps, "Optimizer updates, on one rank.")
    define.integer("num_warmup_steps", num_warmup_steps, "Updates of warm-up, on one rank.")
    define.boolean(
        "scale_steps_by_ranks",
        None,
        "Divide --num_train_steps and --num_warmup_steps by the number of ranks (default: as the "
        "run that is resumed; a new one: on with --horovod).",
    )
    define.number("learning_rate", OptimizationSettings.learning_rate, "Peak learning rate.")
    define.choice(
        "learning_rate_scaling",
        OptimizationSettings.learning_rate_scaling,
        ["none", "linear", "sqrt"],
        "Multiply the learning rate by nothing, the number of ranks or its square root.",
    )
    define.choice(
        "lr_schedule",
        OptimizationSettings.schedule,
        ["polynomial", "google"],
        "polynomial: warm-up, then decay from there; google: google-research/bert's overlaid form.",
    )
    define.number(
        "lr_decay_power",
        OptimizationSettings.decay_power,
        "Power of the polynomial decay; 1 is linear.",
    )
    define.number(
        "end_learning_rate",
        OptimizationSettings.end_learning_rate,
        "Learning rate after the last step.",
    )
    _define_optimizer_flags(define, optimizer)
    define.number("weight_decay", OptimizationSettings.weight_decay, "Decoupled weight decay.")
    define.number_or_infinity(
        "clip_norm",
        OptimizationSettings.clip_norm,
        "Largest global norm of the gradient; 0 or inf is no limit.",
    )
    define.choice(
        "loss_normalization",
        OptimizationSettings.loss_normalization,
        ["global_batch", "micro_batch"],
        "What the loss is divided by; micro_batch is google-research/bert's.",
    )
    define.boolean(
        "allreduce_post_accumulation", True, "NVIDIA's name: communicate once an update."
    )
    define.boolean(
        "allreduce_every_micro_batch", False, "Communicate after each micro batch, to compare."
    )


def _define_optimizer_flags(define: Definer, default: str) -> None:
    titles = ", ".join(f"{name} ({row.title})" for name, row in OPTIMIZERS.items())
    define.choice("optimizer_type", default, list(OPTIMIZERS), f"Optimizer: {titles}.")
    for flag, option in option_flags().items():
        define_option = define.boolean if isinstance(option.default, bool) else define.number
        define_option(flag, option.default, option.help_text)


@flag_group("Precision, compiler, ranks and threads")
def define_runtime_flags(define: Definer) -> None:
    """Defines flags for precision, compiler, ranks and threads, which all scripts share."""
    define.boolean("horovod", False, "Train on all ranks that mpirun or horovodrun started.")
    define.number(
        "rank_timeout",
        RuntimeSettings.rank_timeout_seconds,
        "Seconds after which a rank that is not heard of, or hangs, ends the job; 0: never.",
    )
    _define_communication_flags(define)
    define.choice(
        "precision",
        RuntimeSettings.precision,
        ["auto", "fp32", "bf16", "fp16"],
        "Type of dense and attention products; auto measures which is the fastest here.",
    )
    define.string(
        "precision_policy",
        None,
        "JSON file: class of operation -> type, for classes that should not have --precision's.",
    )
    define.boolean("manual_fp16", False, "NVIDIA's name of --precision=fp16.")
    define.boolean("amp", False, "TensorFlow's graph rewrite instead of --precision.")
    define.boolean("use_fp16", None, "The name of --amp in NVIDIA's older scripts.")
    define.boolean_or_auto(
        "use_xla",
        RuntimeSettings.use_xla,
        "Compile clusters of the graph with XLA; auto tries both ways for some updates before the "
        "training and takes the faster.",
    )
    define.number(
        "init_loss_scale", RuntimeSettings.initial_loss_scale, "First loss scale, with fp16."
    )
    define.boolean("allow_slow_fp16", False, "Compute in float16 on a CPU all the same.")
    define.boolean(
        "native_ops",
        None,
        "Update the weights with the operations that set-up compiled, in one pass over memory "
        "(default: on CPUs, where they are built and faster).",
    )
    define.boolean(
        "recompute",
        False,
        "Keep only each layer's input for the backward pass and compute the layer again there: "
        "less memory, slower steps, the same results.",
    )
    define.integer(
        "num_threads",
        None,
        "Threads of a rank (its share of the cores, or half of it where that is found faster).",
    )
    define.boolean("deterministic", False, "The same bits in every run, at some cost in speed.")
    define.boolean("verbose", False, "Show TensorFlow's own messages.")
    define.boolean("verbose_logging", False, "NVIDIA's name of --verbose.")


# Of all scripts; see RunSettings.host_flags.
_HOST_FLAGS = frozenset({
    "output_dir", "dllog_path", "init_checkpoint", "bert_config_file", "vocab_file",
    "spm_model_file", "precision_policy", "num_threads", "verbose", "verbose_logging",
})  # fmt: skip


def run_settings(
    values: flags.FlagValues,
    *,
    do_eval: str,
    eval_batch_size: str,
    max_eval_steps: str | None,
    host_flags: Iterable[str],
    does: Iterable[str] = (),
) -> RunSettings:
    """What to do, where to write and how often, from parsed flags.

    Three names are those that the script's flags for evaluation have; ``host_flags`` are the
    script's own that may differ from host to host, ``does`` those of other things to do.
    """
    does = [f"--{name}" for name in ("do_train", do_eval, *does)]
    if not any(values[name[2:]].value for name in does):
        several = "both" if len(does) == 2 else "several"
        raise UserError(f"nothing to do: give {', '.join(does)} or {several}.")
    for name in (*_COUNTS, eval_batch_size, *filter(None, [max_eval_steps])):
        at_least_one(values, name)
    every = values.eval_every_steps
    if every is not None and (not values[do_eval].value or not values.do_train):
        raise UserError(
            f"--eval_every_steps needs --do_train and --{do_eval}; give them or drop it."
        )
    if every is None and values.early_stopping_evaluations is not None:
        raise UserError(
            "--early_stopping_evaluations needs evaluations to count; give --eval_every_steps."
        )
    if every is not None and every % values.save_checkpoints_steps:
        raise UserError(
            f"--eval_every_steps={every} is no multiple of --save_checkpoints_steps="
            f"{values.save_checkpoints_steps}: what is evaluated is a checkpoint; change one."
        )
    fresh = values.allow_fresh or ""
    same_names = {field.name for field in dataclasses.fields(RunSettings)} - {
        "output_dir",
        "allowed_fresh",
        "flags",
        "do_eval",
        "eval_batch_size",
        "max_eval_steps",
        "host_flags",
    }
    return RunSettings(
        output_dir=Path(values.output_dir),
        allowed_fresh=tuple(filter(None, fresh.split(","))),
        flags={flag.name: flag.value for flag in project_flags(values)},
        do_eval=values[do_eval].value,
        eval_batch_size=values[eval_batch_size].value,
        max_eval_steps=values[max_eval_steps].value if max_eval_steps else None,
        host_flags=_HOST_FLAGS.union(host_flags),
        **{name: values[name].value for name in same_names},
    )


def optimization_settings(values: flags.FlagValues) -> OptimizationSettings:
    """Batch, schedule and optimizer settings from parsed flags."""
    micro = _same(values, "train_batch_size", "micro_batch_size")
    if values.clip_norm < 0:
        raise UserError(f"--clip_norm={values.clip_norm} must not be negative; 0 is no limit.")
    if values.weight_decay < 0:
        raise UserError(f"--weight_decay={values.weight_decay} must not be negative.")
    options = {flag: values[flag].value for flag in option_flags()}
    return OptimizationSettings(
        micro_batch_size=micro,
        accumulation_steps=values.num_accumulation_steps,
        global_batch_size=values.global_batch_size,
        num_train_steps=values.num_train_steps,
        num_warmup_steps=values.num_warmup_steps,
        learning_rate=values.learning_rate,
        end_learning_rate=values.end_learning_rate,
        decay_power=values.lr_decay_power,
        schedule=values.lr_schedule,
        scale_steps_by_ranks=values.scale_steps_by_ranks,
        learning_rate_scaling=values.learning_rate_scaling,
        optimizer=values.optimizer_type,
        optimizer_options=options_from_flags(values.optimizer_type, options),
        weight_decay=values.weight_decay,
        clip_norm=values.clip_norm if 0 < values.clip_norm <= LARGEST_FLOAT32 else None,
        loss_normalization=values.loss_normalization,
        allreduce_every_micro_batch=values.allreduce_every_micro_batch
        or not values.allreduce_post_accumulation,
        micro_batch_flag=(
            "train_batch_size" if values.micro_batch_size is None else "micro_batch_size"
        ),
    )


def runtime_settings(values: flags.FlagValues) -> RuntimeSettings:
    """Precision, compiler, ranks and threads from parsed flags."""
    precision = values.precision
    amp, amp_name = values.amp, "amp"
    if values.use_fp16 is not None:
        if values["amp"].present and amp != values.use_fp16:
            raise UserError("--amp and --use_fp16 are two names for one thing; give one.")
        amp, amp_name = values.use_fp16, "use_fp16"
    if values.manual_fp16:
        if precision not in ("auto", "fp16"):
            raise UserError(f"--manual_fp16 contradicts --precision={precision}; drop one.")
        precision = "fp16"
    if amp:
        given = f"--precision={values.precision}"
        if values.manual_fp16:
            given = "--manual_fp16"
        elif values.precision_policy:
            given = "--precision_policy"
        if precision not in ("auto", "fp32") or values.precision_policy:
            raise UserError(
                f"--{amp_name} rewrites a float32 graph and contradicts {given}; drop one."
            )
        precision = "fp32"
    if values.use_xla == AUTO and values.deterministic:
        raise UserError(
            "--use_xla=auto goes by time, and --deterministic wants the same bits in every run; "
            "give --use_xla=true or --use_xla=false."
        )
    if not 1 <= values.init_loss_scale <= 2.0**32:
        raise UserError(f"--init_loss_scale={values.init_loss_scale} must lie in [1, 2**32].")
    if values.rank_timeout and not _LEAST_RANK_TIMEOUT <= values.rank_timeout <= 1e6:
        raise UserError(
            f"--rank_timeout={values.rank_timeout:g} must be 0, for no limit, or at least "
            f"{_LEAST_RANK_TIMEOUT} seconds."
        )
    return RuntimeSettings(
        horovod=values.horovod,
        rank_timeout_seconds=values.rank_timeout,
        communication=_communication_settings(values),
        precision=precision,
        policy_changes=policy_changes(values.precision_policy),
        amp=amp,
        use_xla=None if values.use_xla == AUTO else values.use_xla,
        initial_loss_scale=values.init_loss_scale,
        allow_slow_fp16=values.allow_slow_fp16,
        native_ops=values.native_ops,
        num_threads=values.num_threads,
        deterministic=values.deterministic,
        recompute=values.recompute,
        precision_flag="--manual_fp16" if values.manual_fp16 else "--precision=fp16",
        amp_flag=f"--{amp_name}",
        verbose=values.verbose or values.verbose_logging,
    )


@flag_group("How gradients travel between ranks")
def _define_communication_flags(define: Definer) -> None:
    define.boolean(
        "fp16_compression",
        False,
        "Send gradients as float16, under a loss scale.",
    )
    define.boolean(
        "adasum",
        False,
        "Combine gradients by Adasum (a power of two of ranks).",
    )
    define.integer(
        "num_allreduce_groups",
        None,
        "Send gradients in so many groups; 0: whatever is ready (default: 1 with several micro "
        "batches an update, else 0).",
    )
    define.boolean(
        "embedding_gradient_rows",
        None,
        "Send the word embeddings' gradient as a batch's rows and not as a table: in fine-tuning "
        "(default: where that is much less to send).",
    )
    define.number("fusion_threshold_mb", None, "Horovod's: most MiB that travel together (128).")
    define.number("cycle_time_ms", None, "Horovod's: how often it looks for gradients (1).")
    define.boolean("hierarchical_allreduce", None, "Horovod's: add up within each host first.")
    define.boolean("allreduce_autotune", None, "Horovod's: find the settings above by trial.")
    define.integer("num_nccl_streams", None, "Horovod's: rings side by side, on GPUs (1).")


def _communication_settings(values: flags.FlagValues) -> CommunicationSettings:
    for name in ("fusion_threshold_mb", "cycle_time_ms", "num_allreduce_groups"):
        if values[name].value is not None and values[name].value < 0:
            raise UserError(f"--{name}={values[name].value} must not be negative.")
    at_least_one(values, "num_nccl_streams")
    if values.adasum and values.num_allreduce_groups:
        raise UserError(
            "--adasum combines gradients one by one, not in groups; drop it or "
            "--num_allreduce_groups."
        )
    if values.embedding_gradient_rows and (values.adasum or values.num_allreduce_groups):
        raise UserError(
            "--embedding_gradient_rows goes with neither --adasum nor --num_allreduce_groups: they "
            "combine tables; drop one."
        )
    return CommunicationSettings(
        compression="fp16" if values.fp16_compression else "none",
        adasum=values.adasum,
        groups=values.num_allreduce_groups,
        embedding_rows=values.embedding_gradient_rows,
        fusion_threshold_mb=values.fusion_threshold_mb,
        cycle_time_ms=values.cycle_time_ms,
        hierarchical=values.hierarchical_allreduce,
        autotune=values.allreduce_autotune,
        nccl_streams=values.num_nccl_streams,
    )


def _same(values: flags.FlagValues, first: str, second: str) -> int | None:
    a, b = values[first].value, values[second].value
    if a is not None and b is not None and a != b:
        raise UserError(f"--{first}={a} and --{second}={b} are two names for one thing; give one.")
    return b if a is None else a


def require(values: flags.FlagValues, *names: str) -> None:
    """Raises UserError for the first of the flags that was not given."""
    for name in names:
        if not values[name].value:
            raise UserError(f"--{name} is required.")


def optional_file(values: flags.FlagValues, name: str) -> Path | None:
    """The file that a flag names, None without one; UserError where there is no such file."""
    value = values[name].value
    return require_file(value, flag=name) if value else None


def at_least_one(values: flags.FlagValues, name: str) -> None:
    """Raises UserError for a count that is given but not positive."""
    value = values[name].value
    if value is not None and value < 1:
        raise UserError(f"--{name}={value} must be at least 1.")


def warn_of_ignored(values: flags.FlagValues, *, also: Iterable[str] = ()) -> None:
    """Says which of the given flags have no effect; a boolean that is off would have none."""
    for name in (*_IGNORED, *also):
        if values[name].present and values[name].value is not False:
            warn(f"--{name} has no effect here and is ignored.")
