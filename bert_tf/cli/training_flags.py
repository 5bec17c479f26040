"""Command-line flags shared by the training scripts, and the settings made from them.

Flags are defined by functions, so importing this module defines none.

Names and meanings follow google-research/bert and NVIDIA's scripts if these have such a flag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import flags

from bert_tf.cli.flags import flag_group, run_command
from bert_tf.cli.settings_flags import Definer, command_line, from_flags
from bert_tf.config.declared import options_of
from bert_tf.config.settings import (
    BatchSettings,
    CommunicationSettings,
    EvaluationSettings,
    LogSettings,
    LossScaleSettings,
    NumericsSettings,
    OptimizationSettings,
    RecoverySettings,
    RunSettings,
    RuntimeSettings,
    ScheduleSettings,
    StartSettings,
    StepSettings,
    check_sharding,
)
from bert_tf.update.optimizers import option_flags, options_from_flags
from bert_tf.update.schedules import schedule_options
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError
from bert_tf.util.options import Option

# Types follow scripts for TPUs: a boolean flag takes no separate argument, and all others do.
_IGNORED = {
    "use_tpu": bool,
    "tpu_name": str,
    "tpu_zone": str,
    "gcp_project": str,
    "master": str,
    "num_tpu_cores": int,
    "iterations_per_loop": int,
}

# Evaluation flags, which each script defines itself.
_SCRIPTS_OWN = ("do_eval", "eval_batch_size", "max_eval_steps")


def run_script(
    define_flags: Callable[[flags.FlagValues], None], run: Callable[[flags.FlagValues], object]
) -> None:
    """Runs a training script: defines and parses flags; exits with a message on UserError."""
    define_flags(flags.FLAGS)
    run_command(lambda _: run(flags.FLAGS))


@flag_group("Run")
def define_run_flags(define: Definer) -> None:
    """Defines the flags of all training scripts for what to do, where to write and how often."""
    define.settings(StartSettings)
    define.settings(RunSettings)
    define.settings(EvaluationSettings, without=_SCRIPTS_OWN)
    define.settings(LogSettings)
    define.settings(RecoverySettings)
    define_ignored_flags(define)


def define_evaluation_flags(
    define: Definer, *, without: Iterable[str] = (), **changes: Mapping[str, Any]
) -> None:
    """Defines the evaluation flags that differ between scripts, like ``Definer.settings``."""
    others = [name for name in options_of(EvaluationSettings) if name not in _SCRIPTS_OWN]
    define.settings(EvaluationSettings, without=(*others, *without), **changes)


@flag_group("Ignored flags of other scripts")
def define_ignored_flags(define: Definer) -> None:
    """Defines flags of scripts for TPUs, accepted so that existing command lines keep working."""
    define.ignored(_IGNORED, "there is no TPU support")


@flag_group("Batch, schedule and optimizer")
def define_optimization_flags(
    define: Definer, *, without: Iterable[str] = (), **changes: Mapping[str, Any]
) -> None:
    """Defines the batch, schedule and optimizer flags of a training script.

    ``without`` is for ``BatchSettings``, ``changes`` for ``StepSettings`` and for the optimizers'
    flags; see ``Definer.settings``.
    """
    define.settings(BatchSettings, without=without)
    micro_batch = Option(None, help_text="Another name for --train_batch_size.", kind=int)
    define.other_name("micro_batch_size", "train_batch_size", micro_batch)
    define.settings(StepSettings, **changes)
    define.settings(ScheduleSettings)
    for option in schedule_options().values():
        define.option(option)
    define.settings(OptimizationSettings)
    for name, option in option_flags().items():
        define.option(dataclasses.replace(option, **changes.get(name, {})))
    define.boolean(
        "allreduce_post_accumulation", True, "NVIDIA's name: communicate once per update."
    )


@flag_group("Precision, compiler, ranks and threads")
def define_runtime_flags(define: Definer) -> None:
    """Defines the flags for precision, compiler, ranks and threads of the training scripts."""
    define.settings(RuntimeSettings)
    define.settings(NumericsSettings)
    define.settings(LossScaleSettings)
    manual = Option(False, help_text="NVIDIA's name for --precision=fp16.")
    define.other_name("manual_fp16", "precision=fp16", manual)
    older = Option(None, help_text="The name of --amp in NVIDIA's older scripts.", kind=bool)
    define.other_name("use_fp16", "amp", older)
    define.boolean("verbose_logging", False, "NVIDIA's name for --verbose.")
    define.per_host("verbose_logging")
    _define_communication_flags(define)


@flag_group("How gradients travel between ranks")
def _define_communication_flags(define: Definer) -> None:
    define.settings(CommunicationSettings)


@flag_group("Precision, ranks and threads")
def define_computing_flags(define: Definer, *, precision: str = "auto") -> None:
    """Defines the flags for precision, ranks and threads of scripts that do not train.

    ``precision`` is the default of that flag.
    """
    native_ops = (
        "Use the compiled operations between a layer's matrix products (default: on CPUs, if they "
        "are built and faster)."
    )
    define.settings(
        RuntimeSettings,
        without=["use_xla", "deterministic", "recompute"],
        native_ops={"help_text": native_ops},
    )
    define.settings(NumericsSettings, without=["amp"], precision={"default": precision})


def run_settings(values: flags.FlagValues, *, does: Iterable[str]) -> RunSettings:
    """What to do, where to write and how often, from parsed flags.

    ``does`` has the names of the script's flags that request an action. Raises UserError if none
    of them is given, and for invalid settings.
    """
    does = [f"--{name}" for name in does]
    if not any(values[name[2:]].value for name in does):
        several = "both" if len(does) == 2 else "several"
        raise UserError(f"nothing to do: give {', '.join(does)} or {several}.")
    return from_flags(
        RunSettings,
        values,
        command=command_line(values),
    )


def optimization_settings(values: flags.FlagValues, **made: Any) -> OptimizationSettings:
    """The batch, schedule and optimizer settings from parsed flags; UserError if invalid.

    ``made`` is as in ``from_flags``.
    """
    of_optimizers = [values[name] for name in option_flags()]
    options = {flag.name: flag.value for flag in of_optimizers}
    defaults = {flag.name: flag.default for flag in of_optimizers}
    return from_flags(
        OptimizationSettings,
        values,
        micro_batch_size=_value_of_either(values, "train_batch_size", "micro_batch_size"),
        schedule=schedule_settings(values),
        optimizer_options=options_from_flags(values.optimizer_type, options, defaults),
        allreduce_every_micro_batch=values.allreduce_every_micro_batch
        or not values.allreduce_post_accumulation,
        **made,
    )


def schedule_settings(values: flags.FlagValues) -> ScheduleSettings:
    """The learning rate settings from parsed flags; UserError if invalid."""
    options = {name: values[option.flag].value for name, option in schedule_options().items()}
    return from_flags(ScheduleSettings, values, options=options)


def checked_runtime_settings(
    values: flags.FlagValues, optimization: OptimizationSettings
) -> RuntimeSettings:
    """Like :func:`runtime_settings`; UserError if they contradict the optimization settings."""
    runtime = runtime_settings(values)
    check_sharding(optimization, runtime.communication)
    return runtime


def runtime_settings(values: flags.FlagValues) -> RuntimeSettings:
    """The precision, compiler, rank and thread settings from parsed flags."""
    _check_constant_scale(values)
    amp, precision = values.amp, values.precision
    if values.use_fp16 is not None:
        if values["amp"].present and amp != values.use_fp16:
            raise UserError("--amp and --use_fp16 are two names of one setting; give one.")
        amp = values.use_fp16
    if values.manual_fp16:
        if precision not in ("auto", "fp16"):
            raise UserError(f"--manual_fp16 contradicts --precision={precision}; drop one.")
        precision = "fp16"
    if amp and precision == "auto":
        precision = "fp32"
    return from_flags(
        RuntimeSettings,
        values,
        precision=precision,
        amp=amp,
        verbose=values.verbose or values.verbose_logging,
    )


def _check_constant_scale(values: flags.FlagValues) -> None:
    """Raises UserError for a constant loss scale with options for a dynamic one."""
    for name in ("init_loss_scale", "min_loss_scale", "loss_scale_window"):
        if values.loss_scale and values[name].present:
            raise UserError(
                f"--loss_scale={values.loss_scale:g} is constant, but --{name} is for a dynamic "
                "loss scale; drop one of the two."
            )


def _value_of_either(values: flags.FlagValues, first: str, second: str) -> int | None:
    a, b = values[first].value, values[second].value
    if a is not None and b is not None and a != b:
        raise UserError(f"--{first}={a} and --{second}={b} are two names of one setting; give one.")
    return b if a is None else a


def warn_of_ignored(values: flags.FlagValues, *, also: Iterable[str] = ()) -> None:
    """Warns about given flags that have no effect, except booleans that are off."""
    for name in (*_IGNORED, *also):
        if values[name].present and values[name].value is not False:
            warn(f"--{name} has no effect here and is ignored.")
