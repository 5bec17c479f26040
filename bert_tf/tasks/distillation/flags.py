"""The flags of a teacher, and the settings made from them.

Names are those of Hugging Face's distillation examples (``train.py`` and
``run_squad_w_distillation.py``) where they have such a flag.
"""

from __future__ import annotations

import math

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import Definer, optional_file
from bert_tf.config.settings import DistillationSettings
from bert_tf.util.console import warn
from bert_tf.util.errors import UserError

# Paths, which may differ between hosts.
TEACHER_FILES = ("teacher_checkpoint", "teacher_config_file")

# What both kinds of scripts have besides the teacher and the weight of the labels.
_WEIGHTS = ("alpha_ce", "alpha_cos", "alpha_hidden", "alpha_attention")
_LABELS_HELP = "Weight of the loss on labels."


@flag_group("Teacher")
def define_teacher_flags(
    define: Definer, defaults: DistillationSettings, *, label_flag: str
) -> None:
    """Defines the teacher and the weights of the losses; ``label_flag`` names that of labels."""
    define.string(
        "teacher_checkpoint",
        None,
        "Weights of the teacher: a checkpoint of Google's, NVIDIA's, Hugging Face's or this "
        "program's, or its directory.",
    )
    define.string(
        "teacher_config_file",
        None,
        "JSON file of the teacher's architecture (default: the one stored with it).",
    )
    define.string(
        "student_layers",
        None,
        "The teacher's layers that a student without --init_checkpoint starts from, "
        "comma-separated, from 0 (default: evenly spread, every second for half as many); none: it "
        "starts from random weights.",
    )
    define.number(
        "alpha_ce",
        defaults.alpha_ce,
        "Weight of the divergence from the teacher's soft targets, times --temperature squared.",
    )
    define.number(label_flag, defaults.alpha_label, _LABELS_HELP)
    define.number(
        "alpha_cos",
        defaults.alpha_cos,
        "Weight of 1 - cosine between the last hidden states of student and teacher.",
    )
    define.number(
        "alpha_hidden",
        defaults.alpha_hidden,
        "Weight of the squared differences of the embeddings and of all layers (TinyBERT).",
    )
    define.number(
        "alpha_attention",
        defaults.alpha_attention,
        "Weight of the squared differences of all layers' attention scores (TinyBERT).",
    )
    define.number(
        "temperature", defaults.temperature, "Divides the scores of both before their softmax."
    )


def teacher_settings(values: flags.FlagValues, *, label_flag: str) -> DistillationSettings | None:
    """The settings of :func:`define_teacher_flags`, None without a teacher; raises UserError."""
    given = [
        name
        for name in (*_WEIGHTS, label_flag, "temperature", "student_layers", "teacher_config_file")
        if values[name].present
    ]
    if not values.teacher_checkpoint:
        if given:
            warn(f"--{given[0]} has no effect without --teacher_checkpoint.")
        return None
    for name in (*_WEIGHTS, label_flag):
        if not 0 <= values[name].value < math.inf:
            raise UserError(f"--{name}={values[name].value} must not be negative.")
    if values.temperature <= 0:
        raise UserError(f"--temperature={values.temperature} must be greater than 0.")
    return DistillationSettings(
        teacher_checkpoint=values.teacher_checkpoint,
        teacher_config_file=optional_file(values, "teacher_config_file"),
        student_layers=_layers(values.student_layers),
        alpha_label=values[label_flag].value,
        temperature=values.temperature,
        **{name: values[name].value for name in _WEIGHTS},
    )


def _layers(text: str | None) -> tuple[int, ...] | None:
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
