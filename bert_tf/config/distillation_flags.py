"""The flags of run_distillation.py, and those by which fine-tunings learn from a teacher.

Names are those of Hugging Face's distillation examples (``train.py`` and
``run_squad_w_distillation.py``) where they have such a flag.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from absl import flags

from bert_tf.command_line import flag_group
from bert_tf.config.flags import Definer, at_least_one, optional_file, require
from bert_tf.config.pretraining_flags import define_pretraining_flags, pretraining_settings
from bert_tf.config.settings import DistillationSettings, PretrainingSettings
from bert_tf.console import warn
from bert_tf.errors import UserError

# Paths, which may differ between hosts.
TEACHER_FILES = ("teacher_checkpoint", "teacher_config_file")

# What both kinds of scripts have besides the teacher and the weight of the labels.
_WEIGHTS = ("alpha_ce", "alpha_cos", "alpha_hidden", "alpha_attention")
_LABELS_HELP = "Weight of the loss on labels."
_POSITION_EMBEDDINGS = r"^bert/embeddings/position_embeddings$"


def define_distillation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_distillation.py: those of pre-training, and the teacher's."""
    define = Definer(values)
    define_pretraining_flags(values)
    # DistilBERT has no next-sentence head.
    values.set_default("nsp", False)
    define_teacher_flags(define, DistillationSettings(""), label_flag="alpha_mlm")
    _define_target_flags(define)


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


@flag_group("Teacher")
def _define_target_flags(define: Definer) -> None:
    define.boolean(
        "restrict_ce_to_mask",
        DistillationSettings.restrict_ce_to_mask,
        "Compare soft targets at masked tokens only, instead of at all tokens: several times "
        "faster.",
    )
    define.number(
        "min_target_probability",
        DistillationSettings.min_target_probability,
        "Least probability of a soft target; all words below it together count as one.",
    )
    define.integer(
        "top_k_targets",
        DistillationSettings.top_k_targets,
        "Largest number of soft targets at a token, the most probable; all other words together "
        "count as one (default: all words).",
    )
    define.string(
        "cache_teacher",
        None,
        "Directory, on a disk that all ranks share, where the teacher's soft targets are kept: it "
        "computes each record once, however many epochs follow. For records with stored masks, "
        "--restrict_ce_to_mask, a bound on the targets and no comparison of hidden states.",
    )
    define.boolean("freeze_pos_embs", False, "Keep the student's position embeddings as they are.")


def distillation_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns the parsed flags of run_distillation.py into settings; raises UserError."""
    require(values, "teacher_checkpoint")
    if not values.mlm:
        raise UserError("--mlm=false leaves no words to compare with the teacher's; drop it.")
    settings = pretraining_settings(values, has_teacher=True)
    at_least_one(values, "top_k_targets")
    if not 0 <= values.min_target_probability < 1:
        raise UserError(
            f"--min_target_probability={values.min_target_probability} must be in [0, 1)."
        )
    optimization = settings.optimization
    if values.freeze_pos_embs:
        optimization = dataclasses.replace(
            optimization, rate_factors=((_POSITION_EMBEDDINGS, 0.0),)
        )
    of_teacher = teacher_settings(values, label_flag="alpha_mlm")
    if values.freeze_pos_embs and of_teacher.student_layers == ():
        raise UserError(
            "--freeze_pos_embs would keep the random values that --student_layers=none starts "
            "from; drop one of them."
        )
    distillation = dataclasses.replace(
        of_teacher,
        restrict_ce_to_mask=values.restrict_ce_to_mask,
        min_target_probability=values.min_target_probability,
        top_k_targets=values.top_k_targets,
        teacher_cache=Path(values.cache_teacher) if values.cache_teacher else None,
    )
    if distillation.teacher_cache is not None:
        _check_cache(distillation)
        if optimization.length_ramp is not None:
            raise UserError(
                "--length_ramp cuts records, but --cache_teacher keeps the targets of whole ones; "
                "drop one of them."
            )
        if settings.data.final_masked_lm_prob is not None:
            raise UserError(
                "--final_masked_lm_prob masks other numbers of words than --cache_teacher keeps "
                "targets of; drop one of them."
            )
    host_flags = settings.run.host_flags.union(TEACHER_FILES, ["cache_teacher"])
    return dataclasses.replace(
        settings,
        run=dataclasses.replace(settings.run, host_flags=host_flags),
        distillation=distillation,
        optimization=optimization,
    )


def _check_cache(settings: DistillationSettings) -> None:
    """Raises UserError if the settings need more of a teacher than its targets on disk."""
    needed = {
        "--restrict_ce_to_mask": settings.restrict_ce_to_mask,
        "--alpha_ce of more than 0": settings.alpha_ce > 0,
        "--alpha_cos=0": settings.alpha_cos == 0,
        "--alpha_hidden=0": settings.alpha_hidden == 0,
        "--alpha_attention=0": settings.alpha_attention == 0,
        "--top_k_targets or --min_target_probability": settings.top_k_targets
        or settings.min_target_probability,
    }
    missing = [name for name, is_given in needed.items() if not is_given]
    if missing:
        raise UserError(
            f"--cache_teacher keeps soft targets of masked tokens only, so it needs {missing[0]}; "
            "give that or drop the flag."
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
