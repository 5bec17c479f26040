"""Command-line flags that the training scripts share, and the settings made from them.

Flags are defined by functions, so importing this module defines none.

Names and meanings follow google-research/bert and NVIDIA's scripts wherever they have such a flag.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.cli.flags import (
    LARGEST_FLOAT32,
    Number,
    flag_group,
    project_flags,
    run_command,
)
from bert_tf.config.policy_file import policy_changes
from bert_tf.config.schedules import check_lengths, check_schedule
from bert_tf.config.settings import (
    DEFAULT_MAX_SKIPPED,
    CommunicationSettings,
    OptimizationSettings,
    RunSettings,
    RuntimeSettings,
)
from bert_tf.config.sharding import check_sharding
from bert_tf.update.optimizers import OPTIMIZERS, option_flags, options_from_flags
from bert_tf.update.schedules import SCHEDULES, schedule_options
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError
from bert_tf.util.files import require_file
from bert_tf.util.options import Option

# Flags of scripts for other hardware, accepted so that existing command lines keep working. Types
# are as in those scripts, since a boolean flag takes no separate argument and all others do.
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
           "eval_every_steps", "early_stopping_evaluations", "max_skipped_updates",
           "max_rollbacks")  # fmt: skip


class Definer:
    """Defines flags in a given set of flags: the program's or a test's."""

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

    def option(self, option: Option) -> None:
        """Defines the flag of an option that an algorithm declares."""
        if option.choices:
            self.choice(option.flag, option.default, list(option.choices), option.help_text)
            return
        kinds = {bool: self.boolean, int: self.integer, float: self.number, str: self.string}
        kinds[option.value_type](option.flag, option.default, option.help_text)

    def boolean_or_auto(self, name: str, default: bool | str, help_text: str) -> None:
        """Defines a flag for ``--name``, ``--noname``, ``--name=true``, ``=false`` or ``=auto``."""
        parser = _BooleanOrAuto()
        serializer = flags.ArgumentSerializer()
        flag = flags.Flag(parser, serializer, name, default, help_text, boolean=True)
        flags.DEFINE_flag(flag, self.values)


class _BooleanOrAuto(flags.BooleanParser):
    """Parses an argument to True, False or ``AUTO``."""

    def parse(self, argument: str | int | bool) -> bool | str:
        if argument == AUTO:
            return AUTO
        try:
            return super().parse(argument)
        except ValueError as error:
            raise ValueError("must be true, false or auto") from error


def run_script(
    define_flags: Callable[[flags.FlagValues], None], run: Callable[[flags.FlagValues], object]
) -> None:
    """Runs a training script: defines and parses its flags, exits with a message on UserError."""
    define_flags(flags.FLAGS)
    run_command(lambda _: run(flags.FLAGS))


@flag_group("Run")
def define_run_flags(define: Definer) -> None:
    """Defines what all training scripts share: what to do, where to write and how often."""
    define.string("output_dir", None, "Directory for checkpoints, logs and results.")
    define.string(
        "init_checkpoint",
        None,
        "Weights to start from: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's, or its directory; steps count from 0.",
    )
    define.string(
        "resume_from",
        None,
        "Checkpoint of another run of this program, or its directory, to resume from in a new "
        "--output_dir: weights, optimizer state, step and position in the data.",
    )
    define.boolean(
        "reset_step",
        False,
        "With --resume_from: keep the optimizer's state, but count steps and data from 0.",
    )
    define.string(
        "allow_fresh",
        None,
        "Scopes that --init_checkpoint may lack, comma-separated, e.g. cls/seq_relationship.",
    )
    define.boolean("do_train", False, "Train.")
    define.boolean(
        "dry_run", False, "Show the ledger and a memory estimate, then exit without writing."
    )
    define.string(
        "replay_batch",
        None,
        "A batch that a run saved because its gradients were not finite, in OUTPUT_DIR/"
        "nonfinite_STEP, or one of its files: show its losses and gradients with the weights that "
        "the run would start from, also in float32, then exit without writing.",
    )
    define.integer(
        "save_checkpoints_steps", RunSettings.save_checkpoints_steps, "Steps between checkpoints."
    )
    define.integer(
        "eval_every_steps",
        None,
        "Steps between evaluations during training (a multiple of --save_checkpoints_steps); by "
        "default only after training.",
    )
    define.boolean(
        "keep_best",
        RunSettings.keep_best,
        "Keep a copy of the checkpoint with the best evaluation, in best/.",
    )
    define.integer(
        "early_stopping_evaluations",
        None,
        "Stop training after this many evaluations in a row without improvement (needs "
        "--eval_every_steps).",
    )
    define.integer(
        "keep_checkpoint_max",
        RunSettings.keep_checkpoint_max,
        "Checkpoints to keep, in addition to the best one.",
    )
    define.integer(
        "display_loss_steps",
        RunSettings.display_loss_steps,
        "Steps between lines of log.jsonl and, if it is given, of the terminal, which otherwise "
        "shows about 30 of a run or one a minute.",
    )
    define.integer(
        "max_skipped_updates",
        None,
        "Stop after this many skipped updates in a row, whose loss or gradients were not finite "
        f"(default: {DEFAULT_MAX_SKIPPED} with a loss scale, 1 without).",
    )
    define.number(
        "rollback_rate_factor",
        None,
        "Instead of stopping then: go back to the last checkpoint with finite weights, multiply "
        "the learning rate by this factor from there on, and continue with the next batch.",
    )
    define.integer(
        "max_rollbacks",
        RunSettings.max_rollbacks,
        "Stop for good after this many roll-backs of the run.",
    )
    define.integer(
        "layer_summary_steps",
        RunSettings.layer_summary_steps,
        "Steps between logged norms of the weights, gradients and updates of each layer and "
        "variable, their ratios, and LAMB's trust ratios (0: none).",
    )
    define.integer("seed", RunSettings.seed, "Seed of weights, data order, masking and dropout.")
    define.boolean("report_loss", True, "NVIDIA's name: show losses in progress lines.")
    define.string(
        "dllog_path",
        None,
        "NVIDIA's name: a file to which metrics are also logged, in the format of NVIDIA's "
        "DLLogger.",
    )
    _define_ignored_flags(define)


@flag_group("Ignored flags of other scripts")
def _define_ignored_flags(define: Definer) -> None:
    define.ignored(_IGNORED, "there is no TPU support")


@flag_group("Batch, schedule and optimizer")
def define_optimization_flags(
    define: Definer, *, optimizer: str, num_train_steps: int | None, num_warmup_steps: int | None
) -> None:
    """Defines the batch, schedule and optimizer flags that all training scripts share.

    Scripts that count in epochs pass None as the default number of steps.
    """
    define.integer(
        "train_batch_size",
        None,
        "Micro batch: sequences in one forward and backward pass on one rank "
        "(32 if neither this nor --global_batch_size is given). "
        "Global batch = micro batch x --num_accumulation_steps x ranks.",
    )
    define.integer("micro_batch_size", None, "Another name of --train_batch_size.")
    define.integer("num_accumulation_steps", None, "Micro batches per update (1).")
    define.integer("global_batch_size", None, "Sequences per update, over all ranks.")
    define.integer("num_train_steps", num_train_steps, "Optimizer updates, on one rank.")
    define.integer("num_warmup_steps", num_warmup_steps, "Warm-up updates, on one rank.")
    define.integer(
        "stop_after_steps",
        None,
        "End the run after this update, on one rank, of a longer schedule.",
    )
    define.boolean(
        "scale_steps_by_ranks",
        None,
        "Divide --num_train_steps and --num_warmup_steps by the number of ranks (default: as in "
        "the resumed run; on in a new run with --horovod).",
    )
    define.number("learning_rate", OptimizationSettings.learning_rate, "Peak learning rate.")
    define.choice(
        "learning_rate_scaling",
        OptimizationSettings.learning_rate_scaling,
        ["none", "linear", "sqrt"],
        "Multiply the learning rate by 1, the number of ranks or its square root.",
    )
    _define_schedule_flags(define)
    _define_optimizer_flags(define, optimizer)
    define.number("weight_decay", OptimizationSettings.weight_decay, "Decoupled weight decay.")
    define.number_or_infinity(
        "clip_norm",
        OptimizationSettings.clip_norm,
        "Maximum global norm of the gradient; 0 or inf for no limit.",
    )
    define.choice(
        "loss_normalization",
        OptimizationSettings.loss_normalization,
        ["global_batch", "micro_batch"],
        "Batch over which the loss is averaged; micro_batch as in google-research/bert.",
    )
    define.boolean(
        "allreduce_post_accumulation", True, "NVIDIA's name: communicate once per update."
    )
    define.boolean(
        "allreduce_every_micro_batch",
        False,
        "Communicate after each micro batch, for comparison.",
    )
    define.boolean(
        "shard_optimizer_state",
        OptimizationSettings.shard_optimizer_state,
        "Share out the optimizer's slots over the ranks (stage 1 of ZeRO, Rajbhandari et al. 2020, "
        "section 5.1): each has those of a part of every weight, which saves memory.",
    )


def _define_schedule_flags(define: Definer) -> None:
    titles = "; ".join(f"{name}: {row.title}" for name, row in SCHEDULES.items())
    define.choice("lr_schedule", OptimizationSettings.schedule, list(SCHEDULES), f"{titles}.")
    for option in schedule_options().values():
        define.option(option)
    define.number(
        "end_learning_rate",
        OptimizationSettings.end_learning_rate,
        "Learning rate after the last step.",
    )
    define.integer(
        "rewarm_at_step",
        None,
        "Update, on one rank, after which the schedule begins again for the remaining ones.",
    )
    define.integer("num_rewarm_steps", None, "Warm-up updates after --rewarm_at_step, on one rank.")


def _define_optimizer_flags(define: Definer, default: str) -> None:
    titles = ", ".join(f"{name} ({row.title})" for name, row in OPTIMIZERS.items())
    define.choice("optimizer_type", default, list(OPTIMIZERS), f"Optimizer: {titles}.")
    for option in option_flags().values():
        define.option(option)


@flag_group("Precision, compiler, ranks and threads")
def define_runtime_flags(define: Definer) -> None:
    """Defines the flags for precision, compiler, ranks and threads of the training scripts."""
    define_computing_flags(
        define,
        native_ops="Update the weights with natively compiled operations, in one pass over memory "
        "(default: on CPUs, if they are built and faster).",
    )
    _define_communication_flags(define)
    define.boolean("manual_fp16", False, "NVIDIA's name for --precision=fp16.")
    define.boolean("amp", False, "Use TensorFlow's graph rewrite instead of --precision.")
    define.boolean("use_fp16", None, "The name of --amp in NVIDIA's older scripts.")
    define.boolean_or_auto(
        "use_xla",
        RuntimeSettings.use_xla,
        "Compile clusters of the graph with XLA; auto times a few updates with and without it "
        "before training and takes the faster.",
    )
    _define_loss_scale_flags(define)
    define.boolean(
        "recompute",
        False,
        "Keep only each layer's input for the backward pass and recompute the layer there: "
        "less memory, slower steps, the same results.",
    )
    define.boolean(
        "deterministic", False, "Produce the same bits in every run, at some cost in speed."
    )
    define.boolean("verbose_logging", False, "NVIDIA's name for --verbose.")


def _define_loss_scale_flags(define: Definer) -> None:
    define.number(
        "loss_scale", None, "Constant loss scale, with fp16 (default, or 0: a dynamic one)."
    )
    define.number(
        "init_loss_scale",
        RuntimeSettings.initial_loss_scale,
        "Initial value of the dynamic loss scale, with fp16.",
    )
    define.number(
        "min_loss_scale",
        RuntimeSettings.min_loss_scale,
        "Smallest value of the dynamic loss scale, which is halved when a gradient overflows.",
    )
    define.integer(
        "loss_scale_window",
        RuntimeSettings.loss_scale_window,
        "Updates in a row without an overflow after which the dynamic loss scale is doubled.",
    )


@flag_group("Precision, ranks and threads")
def define_computing_flags(define: Definer, *, native_ops: str) -> None:
    """Defines the flags for precision, ranks and threads of all scripts, trained or not.

    ``native_ops`` is the help text of that flag.
    """
    define.boolean("horovod", False, "Use all ranks started by mpirun or horovodrun.")
    define.number(
        "rank_timeout",
        RuntimeSettings.rank_timeout_seconds,
        "Seconds after which a silent or hanging rank ends the job; 0: never.",
    )
    define.choice(
        "precision",
        RuntimeSettings.precision,
        ["auto", "fp32", "bf16", "fp16"],
        "Data type of dense and attention products; auto measures which is fastest here.",
    )
    define.string(
        "precision_policy",
        None,
        "JSON file: class of operation -> data type, where it should differ from --precision.",
    )
    define.boolean("allow_slow_fp16", False, "Compute in float16 even on a CPU.")
    define.boolean("native_ops", None, native_ops)
    define.integer(
        "num_threads",
        None,
        "Threads per rank (its share of the cores, or half of that if measured to be faster).",
    )
    define.boolean("verbose", False, "Show TensorFlow's messages.")


# In all scripts; see RunSettings.host_flags.
HOST_FLAGS = frozenset({
    "output_dir", "dllog_path", "init_checkpoint", "resume_from", "replay_batch",
    "bert_config_file", "vocab_file", "spm_model_file", "precision_policy", "num_threads",
    "verbose", "verbose_logging",
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

    Args:
      values: the parsed flags.
      do_eval, eval_batch_size, max_eval_steps: the names of the script's evaluation flags.
      host_flags: names of the script's flags that may differ from host to host.
      does: names of the script's other flags that request something to do.
    """
    does = [f"--{name}" for name in ("do_train", do_eval, *does)]
    if not any(values[name[2:]].value for name in does):
        several = "both" if len(does) == 2 else "several"
        raise UserError(f"nothing to do: give {', '.join(does)} or {several}.")
    for name in (*_COUNTS, eval_batch_size, *filter(None, [max_eval_steps])):
        at_least_one(values, name)
    if values.layer_summary_steps < 0:
        raise UserError(
            f"--layer_summary_steps={values.layer_summary_steps} must not be negative; 0 is for "
            "none."
        )
    factor = values.rollback_rate_factor
    if factor is not None and not 0 < factor < 1:
        raise UserError(f"--rollback_rate_factor={factor:g} must be between 0 and 1, such as 0.5.")
    if factor is None and values["max_rollbacks"].present:
        raise UserError(
            f"--max_rollbacks={values.max_rollbacks} needs --rollback_rate_factor, the factor of "
            "the learning rate; give it or drop the flag."
        )
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
            f"--eval_every_steps={every} is not a multiple of --save_checkpoints_steps="
            f"{values.save_checkpoints_steps}, but only checkpoints are evaluated; change one."
        )
    _check_resuming(values)
    fresh = values.allow_fresh or ""
    same_names = {field.name for field in dataclasses.fields(RunSettings)} - {
        "output_dir",
        "allowed_fresh",
        "flags",
        "defaulted",
        "do_eval",
        "eval_batch_size",
        "max_eval_steps",
        "host_flags",
        "plan_dir",
        "dry_run",
        "replay_batch",
    }
    if values.replay_batch and not values.do_train:
        raise UserError("--replay_batch computes gradients; add --do_train.")
    return RunSettings(
        output_dir=Path(values.output_dir),
        allowed_fresh=tuple(filter(None, fresh.split(","))),
        **recorded_flags(values),
        do_eval=values[do_eval].value,
        eval_batch_size=values[eval_batch_size].value,
        max_eval_steps=values[max_eval_steps].value if max_eval_steps else None,
        host_flags=HOST_FLAGS.union(host_flags),
        dry_run=values.dry_run or bool(values.replay_batch),
        replay_batch=Path(values.replay_batch) if values.replay_batch else None,
        **{name: values[name].value for name in same_names},
    )


def recorded_flags(values: flags.FlagValues) -> dict[str, Any]:
    """The fields ``flags`` and ``defaulted`` of :class:`RunSettings`."""
    found = project_flags(values)
    return {
        "flags": {flag.name: flag.value for flag in found},
        "defaulted": frozenset(flag.name for flag in found if not flag.present),
    }


def _check_resuming(values: flags.FlagValues) -> None:
    """Raises UserError for contradictory flags about where a run starts."""
    if values.resume_from is None:
        if values.reset_step:
            raise UserError("--reset_step needs --resume_from, the checkpoint to continue with.")
        return
    if values.init_checkpoint:
        raise UserError(
            f"--resume_from={values.resume_from} and --init_checkpoint={values.init_checkpoint} "
            "are two places to start from; drop one of them."
        )
    if not values.do_train:
        raise UserError(
            "--resume_from is for training further; add --do_train, or evaluate with "
            "--init_checkpoint."
        )


def optimization_settings(values: flags.FlagValues) -> OptimizationSettings:
    """Batch, schedule and optimizer settings from parsed flags; UserError for invalid values."""
    micro = _value_of_either(values, "train_batch_size", "micro_batch_size")
    if values.clip_norm < 0:
        raise UserError(
            f"--clip_norm={values.clip_norm} must not be negative; give 0 for no limit."
        )
    if values.weight_decay < 0:
        raise UserError(f"--weight_decay={values.weight_decay} must not be negative.")
    options = {flag: values[flag].value for flag in option_flags()}
    of_schedules = {name: values[o.flag].value for name, o in schedule_options().items()}
    settings = OptimizationSettings(
        micro_batch_size=micro,
        accumulation_steps=values.num_accumulation_steps,
        global_batch_size=values.global_batch_size,
        num_train_steps=values.num_train_steps,
        num_warmup_steps=values.num_warmup_steps,
        learning_rate=values.learning_rate,
        end_learning_rate=values.end_learning_rate,
        schedule=values.lr_schedule,
        schedule_options=of_schedules,
        rewarm_at_step=values.rewarm_at_step,
        num_rewarm_steps=values.num_rewarm_steps,
        stop_after_steps=values.stop_after_steps,
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
        shard_optimizer_state=values.shard_optimizer_state,
    )
    check_schedule(settings)
    return settings


def check_known_lengths(optimization: OptimizationSettings) -> None:
    """As ``schedules.check_lengths``, unless the length follows from the number of records."""
    if None not in (optimization.num_train_steps, optimization.num_warmup_steps):
        check_lengths(optimization)


def checked_runtime_settings(
    values: flags.FlagValues, optimization: OptimizationSettings
) -> RuntimeSettings:
    """As :func:`runtime_settings`; UserError if they contradict those of the optimization."""
    runtime = runtime_settings(values)
    check_sharding(optimization, runtime.communication)
    return runtime


def runtime_settings(values: flags.FlagValues) -> RuntimeSettings:
    """Precision, compiler, ranks and threads from parsed flags."""
    precision = values.precision
    amp, amp_name = values.amp, "amp"
    if values.use_fp16 is not None:
        if values["amp"].present and amp != values.use_fp16:
            raise UserError("--amp and --use_fp16 are two names of one setting; give one.")
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
            "--use_xla=auto depends on timing, but --deterministic demands the same bits in every "
            "run; give --use_xla=true or --use_xla=false."
        )
    if values.deterministic and (values.fusion_threshold_mb or values.allreduce_autotune):
        given = "fusion_threshold_mb" if values.fusion_threshold_mb else "allreduce_autotune"
        raise UserError(
            f"--{given} lets the timing decide which gradients are summed together, but "
            "--deterministic demands the same bits in every run; drop one of the two."
        )
    return dataclasses.replace(
        computing_settings(values),
        communication=_communication_settings(values),
        precision=precision,
        amp=amp,
        use_xla=None if values.use_xla == AUTO else values.use_xla,
        **_loss_scale_settings(values),
        deterministic=values.deterministic,
        recompute=values.recompute,
        precision_flag="--manual_fp16" if values.manual_fp16 else "--precision=fp16",
        amp_flag=f"--{amp_name}",
        verbose=values.verbose or values.verbose_logging,
    )


def _loss_scale_settings(values: flags.FlagValues) -> dict[str, float | None]:
    static, initial, least = values.loss_scale, values.init_loss_scale, values.min_loss_scale
    if not 1 <= initial <= 2.0**32:
        raise UserError(f"--init_loss_scale={initial} must be in [1, 2**32].")
    if static is not None and not 0 <= static <= 2.0**32:
        raise UserError(f"--loss_scale={static:g} must be in (0, 2**32], or 0 for a dynamic scale.")
    if not 1 <= least <= initial:
        raise UserError(
            f"--min_loss_scale={least:g} must be at least 1 and at most --init_loss_scale="
            f"{initial:g}."
        )
    at_least_one(values, "loss_scale_window")
    for name in ("init_loss_scale", "min_loss_scale", "loss_scale_window"):
        if static and values[name].present:
            raise UserError(
                f"--loss_scale={static:g} is constant, but --{name} is for a dynamic loss scale; "
                "drop one of the two."
            )
    return {
        "loss_scale": static or None,
        "initial_loss_scale": initial,
        "min_loss_scale": least,
        "loss_scale_window": values.loss_scale_window,
    }


def computing_settings(values: flags.FlagValues) -> RuntimeSettings:
    """Settings from the flags of :func:`define_computing_flags`, defaults for all others."""
    if values.rank_timeout and not _LEAST_RANK_TIMEOUT <= values.rank_timeout <= 1e6:
        raise UserError(
            f"--rank_timeout={values.rank_timeout:g} must be 0, for no limit, or at least "
            f"{_LEAST_RANK_TIMEOUT} seconds."
        )
    return RuntimeSettings(
        library="horovod" if values.horovod else None,
        rank_timeout_seconds=values.rank_timeout,
        precision=values.precision,
        policy_changes=policy_changes(values.precision_policy),
        allow_slow_fp16=values.allow_slow_fp16,
        native_ops=values.native_ops,
        num_threads=values.num_threads,
        verbose=values.verbose,
    )


@flag_group("How gradients travel between ranks")
def _define_communication_flags(define: Definer) -> None:
    define.boolean(
        "fp16_compression",
        False,
        "Send gradients as float16, with a loss scale.",
    )
    define.boolean(
        "adasum",
        False,
        "Combine gradients with Adasum (the number of ranks must be a power of two).",
    )
    define.integer(
        "num_allreduce_groups",
        None,
        "Send gradients in this many groups; 0: as soon as they are ready (default: 1 with several "
        "micro batches per update, otherwise 0).",
    )
    define.boolean(
        "embedding_gradient_rows",
        None,
        "Fine-tuning: send the word embeddings' gradient as the batch's rows instead of a full "
        "table (default: if that is much less data).",
    )
    define.number("fusion_threshold_mb", None, "Horovod: size of its fusion buffer in MiB (128).")
    define.number("cycle_time_ms", None, "Horovod: milliseconds between its cycles (1).")
    define.boolean("hierarchical_allreduce", None, "Horovod: reduce within each host first.")
    define.boolean("allreduce_autotune", None, "Horovod: tune the settings above by trial.")
    define.integer("num_nccl_streams", None, "Horovod: parallel NCCL streams, on GPUs (1).")


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
            "--embedding_gradient_rows cannot be combined with --adasum or --num_allreduce_groups, "
            "which need full tables; drop one."
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


def _value_of_either(values: flags.FlagValues, first: str, second: str) -> int | None:
    a, b = values[first].value, values[second].value
    if a is not None and b is not None and a != b:
        raise UserError(f"--{first}={a} and --{second}={b} are two names of one setting; give one.")
    return b if a is None else a


def require(values: flags.FlagValues, *names: str) -> None:
    """Raises UserError for the first of these flags that was not given."""
    for name in names:
        if not values[name].value:
            raise UserError(f"--{name} is required.")


def optional_file(values: flags.FlagValues, name: str) -> Path | None:
    """The file named by a flag, or None if it was not given.

    Raises UserError if the file does not exist.
    """
    value = values[name].value
    return require_file(value, flag=name) if value else None


def at_least_one(values: flags.FlagValues, name: str) -> None:
    """Raises UserError for a count that was given but is not positive."""
    value = values[name].value
    if value is not None and value < 1:
        raise UserError(f"--{name}={value} must be at least 1.")


def warn_of_ignored(values: flags.FlagValues, *, also: Iterable[str] = ()) -> None:
    """Warns of given flags that have no effect here, except booleans that are off."""
    for name in (*_IGNORED, *also):
        if values[name].present and values[name].value is not False:
            warn(f"--{name} has no effect here and is ignored.")
