"""The flags of run_distillation.py and the settings made from them: pre-training with a teacher."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import Definer, at_least_one, require
from bert_tf.config.settings import DistillationSettings, PretrainingSettings
from bert_tf.tasks.distillation.flags import (
    TEACHER_FILES,
    define_teacher_flags,
    teacher_settings,
)
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.util.errors import UserError

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
