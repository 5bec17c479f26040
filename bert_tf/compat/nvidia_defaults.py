"""The defaults of NVIDIA's scripts, for commands written for these scripts.

Such a command omits flags whose default is right there, so with our defaults it would train
something else: with Adam instead of LAMB, and fewer steps on several ranks. A command with a flag
that only NVIDIA's scripts have gets NVIDIA's defaults, and prints that it does.
"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Callable, NamedTuple, Union

from absl import flags

from bert_tf.update.schedules import SCHEDULES
from bert_tf.util.console import remark
from bert_tf.util.options import shown

_WIDTH = 100

Value = Union[bool, int, float, str]


@dataclasses.dataclass(frozen=True)
class Default:
    """A flag whose default is different in NVIDIA's scripts.

    Attributes:
      flag: its name, here and there; or our flag for something that their scripts always do.
      value: the value that corresponds to their default.
      ours: our default in words, if it is None.
      applies: whether the difference applies, given the other flags; None means always.
    """

    flag: str
    value: Value
    ours: str = ""
    applies: Callable[[flags.FlagValues], bool] | None = None


class PeerScript(NamedTuple):
    """One of NVIDIA's scripts.

    Attributes:
      marks: flags that identify its commands: either the script requires them, or they have no
        effect here, so that our own commands do not contain them.
      to_avoid: how to get our defaults instead.
    """

    marks: tuple[str, ...]
    defaults: tuple[Default, ...]
    to_avoid: str


def _trains_with_lamb(values: flags.FlagValues) -> bool:
    return not values["optimizer_type"].present or values.optimizer_type == "lamb"


def _decays_with_a_power(values: flags.FlagValues) -> bool:
    given = values.lr_schedule if values["lr_schedule"].present else "google"
    return _trains_with_lamb(values) and "decay_power" in SCHEDULES[given].options


def _computes_in_half(values: flags.FlagValues) -> bool:
    return bool(values.amp or values.use_fp16 or values.manual_fp16)


def _asks_for_float32(values: flags.FlagValues) -> bool:
    says_so = values["amp"].present or values["use_fp16"].present
    return bool(says_so) and not (_computes_in_half(values) or values["precision_policy"].present)


def _has_no_batch(values: flags.FlagValues) -> bool:
    return not (values["global_batch_size"].present or values["micro_batch_size"].present)


def _keeps_whole_state(values: flags.FlagValues) -> bool:
    return not values.shard_optimizer_state


# Without --amp: the default of a command is float32 in the scripts of 2019, and half precision in
# later ones, which always state it. --precision then decides.
_ALL = (
    Default("precision", "fp32", applies=_asks_for_float32),
    Default("init_loss_scale", 2**32, applies=_computes_in_half),
    Default("fp16_compression", True, applies=_computes_in_half),
    Default("allreduce_post_accumulation", False, applies=_keeps_whole_state),
)

PRETRAINING = PeerScript(
    marks=("input_files_dir", "eval_files_dir"),
    defaults=(
        Default("optimizer_type", "lamb"),
        Default("learning_rate_scaling", "linear"),
        Default("scale_steps_by_ranks", False, ours="true with --horovod"),
        Default("lr_schedule", "google", applies=_trains_with_lamb),
        Default("lr_decay_power", 0.5, applies=_decays_with_a_power),
        Default("loss_normalization", "micro_batch"),
        Default("max_seq_length", 512),
        Default("max_predictions_per_seq", 80),
        Default("max_eval_steps", 100, ours="all records"),
        *_ALL,
        Default("display_loss_steps", 1),
    ),
    to_avoid="name the records by --input_file and --eval_file instead",
)

_LEAVE_OUT = "leave out what is in parentheses, which has no effect here"

SQUAD = PeerScript(
    marks=(
        *("eval_script", "use_trt", "export_triton", "triton_model_name", "triton_model_version"),
        *("triton_server_url", "triton_model_overwrite", "triton_max_batch_size"),
        *("triton_dyn_batching_delay", "triton_engine_count"),
    ),
    defaults=(
        Default("learning_rate", 5e-6),
        Default("learning_rate_scaling", "linear"),
        Default("adam_bias_correction", False),
        Default("train_batch_size", 8, ours="32", applies=_has_no_batch),
        Default("length_buckets", False),
        Default("save_checkpoints_steps", 5000),
        *_ALL,
    ),
    to_avoid=_LEAVE_OUT,
)

TAGGING = PeerScript(
    marks=("do_prepare",),
    defaults=(
        Default("learning_rate", 5e-6),
        Default("learning_rate_scaling", "linear"),
        Default("adam_bias_correction", False),
        Default("num_train_epochs", 10.0),
        Default("train_batch_size", 64, ours="32", applies=_has_no_batch),
        Default("eval_batch_size", 16),
        Default("predict_batch_size", 16),
        *_ALL,
    ),
    to_avoid=_LEAVE_OUT,
)


def adopt_and_say(values: flags.FlagValues, script: PeerScript) -> None:
    """Like :func:`adopt`; rank 0 prints the text."""
    text = adopt(values, script)
    if text:
        remark(text, part="flags")


def adopt(values: flags.FlagValues, script: PeerScript) -> str:
    """Gives flags that a command for NVIDIA's ``script`` omits NVIDIA's defaults.

    Returns the changes as lines; "" for commands that are not NVIDIA's, and if there was nothing to
    change.
    """
    given = [f"--{name}" for name in script.marks if values[name].present]
    if not given:
        return ""
    adopted = [
        default
        for default in script.defaults
        if not values[default.flag].present
        and values[default.flag].value != default.value
        and (default.applies is None or default.applies(values))
    ]
    if not adopted:
        return ""
    rows = [("flag", "NVIDIA's", "otherwise")]
    for default in adopted:
        ours = default.ours or shown(values[default.flag].value)
        rows.append((f"--{default.flag}", shown(default.value), ours))
    for default in adopted:
        values.set_default(default.flag, default.value)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"  {flag:{widths[0]}}  {here:{widths[1]}}  {there}" for flag, here, there in rows]
    begin = (
        f"This is a command for NVIDIA's scripts ({', '.join(given)}), so flags that it omits "
        "have NVIDIA's defaults:"
    )
    end = f"Give a flag to set another value; for the usual defaults, {script.to_avoid}."
    if any(default.flag == "lr_schedule" for default in adopted):
        end += (
            " NVIDIA's schedule drops to (1 - warm-up / steps) ** 0.5 of its peak when the "
            "warm-up ends; with --lr_schedule=polynomial it does not."
        )
    return "\n".join([textwrap.fill(begin, _WIDTH), *table, textwrap.fill(end, _WIDTH)])
