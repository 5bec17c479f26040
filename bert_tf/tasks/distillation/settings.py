"""The settings of a teacher, and its flags.

Flags are named as in Hugging Face's distillation examples (``train.py`` and
``run_squad_w_distillation.py``) where those have an equivalent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.config.declared import AT_LEAST_ONE, NOT_NEGATIVE, Settings, path_setting, setting
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

# Options that are offered only for pre-training with a teacher.
FOR_PRETRAINING = (
    "restrict_ce_to_mask", "min_target_probability", "top_k_targets", "teacher_cache",
)  # fmt: skip


def _layers(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    if text == "none":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--student_layers={text} must be comma-separated whole numbers, or none."
        ) from None


@dataclasses.dataclass(frozen=True)
class DistillationSettings(Settings):
    """The teacher, and the weights of the losses that compare the student with it.

    Default weights are those of the published DistilBERT run (its training command, in the README
    of Hugging Face's distillation example).
    """

    teacher_checkpoint: str = setting(
        ...,
        "The teacher's weights: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's format, or its directory.",
        kind=str,
        per_host=True,
    )
    teacher_config_file: Path | None = path_setting(
        "JSON file of the teacher's architecture (default: the one stored with it).",
        flag_of_file="teacher_config_file",
    )
    student_layers: tuple[int, ...] | None = setting(
        None,
        "The teacher's layers from which a student without --init_checkpoint is initialised, "
        "comma-separated, from 0 (default: evenly spaced, every second one for half as many); "
        "none: random weights.",
        kind=str,
        parse=_layers,
    )
    alpha_ce: float = setting(
        5.0,
        "Weight of the divergence from the teacher's soft targets, times --temperature squared.",
        bounds=NOT_NEGATIVE,
    )
    alpha_label: float = setting(2.0, "Weight of the loss on the labels.", bounds=NOT_NEGATIVE)
    alpha_cos: float = setting(
        1.0,
        "Weight of 1 - cosine between the last hidden states of student and teacher.",
        bounds=NOT_NEGATIVE,
    )
    alpha_hidden: float = setting(
        0.0,
        "Weight of the squared differences of the embeddings and of all layers (TinyBERT).",
        bounds=NOT_NEGATIVE,
    )
    alpha_attention: float = setting(
        0.0,
        "Weight of the squared differences of all layers' attention scores (TinyBERT).",
        bounds=NOT_NEGATIVE,
    )
    temperature: float = setting(
        2.0,
        "Divides the logits of student and teacher before the softmax.",
        bounds=Interval(0, open_low=True),
    )
    restrict_ce_to_mask: bool = setting(
        False,
        "Compare soft targets at masked tokens only, rather than at all tokens: several times "
        "faster.",
    )
    min_target_probability: float = setting(
        0.0,
        "Minimum probability of a soft target; all words below it are merged into one class.",
        bounds=Interval(0, 1, open_high=True),
    )
    top_k_targets: int | None = setting(
        None,
        "Maximum number of soft targets per token, the most probable ones; all other words are "
        "merged into one class (default: all words).",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    teacher_cache: Path | None = path_setting(
        "Directory, on a disk that all ranks share, to cache the teacher's soft targets in: each "
        "record is computed once, however many epochs follow. Requires records with stored masks, "
        "--restrict_ce_to_mask, a bound on the targets and no comparison of hidden states.",
        flag="cache_teacher",
    )


@flag_group("Teacher")
def define_teacher_flags(
    define: Definer, *, label_flag: str, without: tuple[str, ...] = (), **changes: Mapping[str, Any]
) -> None:
    """Defines the flags of the teacher and of the loss weights (see ``Definer.settings``).

    ``label_flag`` is the name of the flag for the weight of the labels.
    """
    label = {"flag": label_flag, **changes.pop("alpha_label", {})}
    define.settings(DistillationSettings, without=without, alpha_label=label, **changes)


def teacher_settings(values: flags.FlagValues) -> DistillationSettings | None:
    """The settings parsed from the teacher's flags, None without a teacher; raises UserError."""
    if values.teacher_checkpoint:
        return from_flags(DistillationSettings, values)
    for name in values:
        kind, *_ = getattr(values[name], "setting", None) or [None]
        if kind is DistillationSettings and values[name].present and values[name].value:
            warn(f"--{name} has no effect without --teacher_checkpoint.")
            break
    return None
