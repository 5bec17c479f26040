"""The teacher's flags and the settings made from them.

Flags are named as in Hugging Face's distillation examples (``train.py`` and
``run_squad_w_distillation.py``) where those have an equivalent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, from_flags
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.util.console import warn

# Options that are offered only for pre-training with a teacher.
FOR_PRETRAINING = (
    "restrict_ce_to_mask", "min_target_probability", "top_k_targets", "teacher_cache",
)  # fmt: skip


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
    kinds = ((name, getattr(values[name], "setting", None)) for name in values)
    of_teacher = [name for name, found in kinds if found and found[0] is DistillationSettings]
    given = [name for name in of_teacher if values[name].present and values[name].value]
    if given:
        warn(f"--{given[0]} has no effect without --teacher_checkpoint.")
    return None
