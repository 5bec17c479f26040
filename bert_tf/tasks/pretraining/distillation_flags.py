"""The flags of run_distillation.py, pre-training with a teacher, and their settings."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.settings_flags import Definer, from_flags, require
from bert_tf.tasks.distillation.flags import define_teacher_flags
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.settings import PretrainingSettings
from bert_tf.util.errors import UserError

_POSITION_EMBEDDINGS = r"^bert/embeddings/position_embeddings$"


def define_distillation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_distillation.py: those of pre-training plus the teacher's."""
    define = Definer(values)
    define_pretraining_flags(values)
    # DistilBERT has no next-sentence head.
    values.set_default("nsp", False)
    define_teacher_flags(define, label_flag="alpha_mlm")
    define.boolean("freeze_pos_embs", False, "Keep the student's position embeddings as they are.")


def distillation_settings(values: flags.FlagValues) -> PretrainingSettings:
    """Turns the parsed flags of run_distillation.py into settings; raises UserError."""
    require(values, "teacher_checkpoint")
    if not values.mlm:
        raise UserError("--mlm=false leaves no words to compare with the teacher's; drop it.")
    distillation = from_flags(DistillationSettings, values)
    rate_factors: tuple[tuple[str, float], ...] = ()
    if values.freeze_pos_embs:
        rate_factors = ((_POSITION_EMBEDDINGS, 0.0),)
        if distillation.student_layers == ():
            raise UserError(
                "--freeze_pos_embs would keep the random values that --student_layers=none starts "
                "from; drop one of them."
            )
    return pretraining_settings(values, distillation=distillation, rate_factors=rate_factors)
