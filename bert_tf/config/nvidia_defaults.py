"""Differences between the defaults of NVIDIA's scripts and ours, shown for commands of theirs.

Their commands leave out flags that have the right default there, so the same command trains
differently here. Our defaults apply; a command with flags of theirs is shown the differences.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Callable, Union

from absl import flags

from bert_tf.console import say
from bert_tf.environment import launched_rank

_WIDTH = 100

Value = Union[bool, int, float, str]

# Flags that only NVIDIA's scripts and ours have, and that only commands written for theirs need.
_MARKS = ("dllog_path", "report_loss", "manual_fp16", "use_fp16", "allreduce_post_accumulation")
PRETRAINING_MARKS = ("input_files_dir", "eval_files_dir", "verbose_logging", *_MARKS)
SQUAD_MARKS = (
    *("eval_script", "num_eval_iterations", "use_trt", "export_triton", "triton_model_name"),
    *("triton_model_version", "triton_server_url", "triton_model_overwrite"),
    *("triton_max_batch_size", "triton_dyn_batching_delay", "triton_engine_count"),
    *_MARKS,
)


@dataclasses.dataclass(frozen=True)
class Default:
    """A flag with another default in NVIDIA's scripts.

    Attributes:
      flag: its name, here and there; or the flag of ours for what their scripts always do.
      value: the value that gives their default.
      ours: our default in words, where it is None.
      applies: whether the difference applies, given the other flags; None if it always does.
    """

    flag: str
    value: Value
    ours: str = ""
    applies: Callable[[flags.FlagValues], bool] | None = None


def _trains_with_lamb(values: flags.FlagValues) -> bool:
    return not values["optimizer_type"].present or values.optimizer_type == "lamb"


def _computes_in_half(values: flags.FlagValues) -> bool:
    if values.manual_fp16 or values.use_fp16:
        return True
    return values.amp or not (values["amp"].present or values["use_fp16"].present)


def _has_no_batch(values: flags.FlagValues) -> bool:
    return not (values["global_batch_size"].present or values["micro_batch_size"].present)


def _uses_amp(values: flags.FlagValues) -> bool:
    return not (values.manual_fp16 or values["use_fp16"].present)


_BOTH = (
    Default("amp", True, applies=_uses_amp),
    Default("precision", "fp32", applies=lambda values: not _computes_in_half(values)),
    Default("use_xla", True),
    Default("init_loss_scale", 2**32, applies=_computes_in_half),
    Default("fp16_compression", True, applies=_computes_in_half),
    Default("allreduce_post_accumulation", False),
)

PRETRAINING = (
    Default("optimizer_type", "lamb"),
    Default("learning_rate_scaling", "linear"),
    Default("scale_steps_by_ranks", False, ours="true with --horovod"),
    Default("lr_schedule", "google", applies=_trains_with_lamb),
    Default("lr_decay_power", 0.5, applies=_trains_with_lamb),
    Default("loss_normalization", "micro_batch"),
    Default("max_seq_length", 512),
    Default("max_predictions_per_seq", 80),
    Default("max_eval_steps", 100, ours="all records"),
    *_BOTH,
    Default("display_loss_steps", 1),
)

SQUAD = (
    Default("learning_rate", 5e-6),
    Default("learning_rate_scaling", "linear"),
    Default("train_batch_size", 8, ours="32", applies=_has_no_batch),
    Default("length_buckets", False),
    Default("save_checkpoints_steps", 5000),
    *_BOTH,
)


def show_pretraining_default_differences(values: flags.FlagValues) -> None:
    """Prints :func:`pretraining_default_differences`, on rank 0."""
    _show(pretraining_default_differences(values))


def show_squad_default_differences(values: flags.FlagValues) -> None:
    """Prints :func:`squad_default_differences`, on rank 0."""
    _show(squad_default_differences(values))


def pretraining_default_differences(values: flags.FlagValues) -> str:
    """The :func:`describe_default_differences` for run_pretraining.py."""
    flag_file = "nvidia_compatible.flags"
    if not _trains_with_lamb(values):
        flag_file = "nvidia_compatible_adam.flags"
    return describe_default_differences(values, PRETRAINING, PRETRAINING_MARKS, flag_file)


def squad_default_differences(values: flags.FlagValues) -> str:
    """The :func:`describe_default_differences` for run_squad.py."""
    flag_file = "nvidia_compatible_squad.flags"
    return describe_default_differences(values, SQUAD, SQUAD_MARKS, flag_file)


def _show(block: str) -> None:
    if block and launched_rank() == 0:
        say(block)


def describe_default_differences(
    values: flags.FlagValues, defaults: Sequence[Default], marks: Sequence[str], flag_file: str
) -> str:
    """The flags that a command for NVIDIA's scripts leaves to defaults that differ here, as lines.

    Empty if all of them were given, and for a command without any of the flags ``marks``.
    ``flag_file`` is the name of the recipe that sets NVIDIA's defaults.
    """
    given = [f"--{name}" for name in marks if values[name].present]
    left_out = [
        default
        for default in defaults
        if not values[default.flag].present and (not default.applies or default.applies(values))
    ]
    if not given or not left_out:
        return ""
    rows = [("flag", "here", "there")]
    rows += [(f"--{d.flag}", d.ours or _shown(values[d.flag].value), _shown(d.value))
             for d in left_out]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    end = f"--flagfile=recipes/{flag_file} before the other flags sets NVIDIA's defaults."
    if any(default.flag == "lr_schedule" for default in left_out):
        end += (
            " NVIDIA's schedule, google with a power of 0.5, drops to (1 - warm-up / steps) ** 0.5 "
            "of its peak when the warm-up ends; ours does not."
        )
    begin = (
        f"This seems to be a command for NVIDIA's scripts ({', '.join(given)}). What it leaves out "
        "has different defaults there:"
    )
    table = [f"  {flag:{widths[0]}}  {here:{widths[1]}}  {there}" for flag, here, there in rows]
    return "\n".join([textwrap.fill(begin, _WIDTH), *table, textwrap.fill(end, _WIDTH)])


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
