"""The flags of run_ner.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, require
from bert_tf.cli.training_flags import warn_of_ignored
from bert_tf.finetune.flags import (
    define_directory_flags,
    define_finetuning_flags,
    directory_settings,
)
from bert_tf.tasks.tagging.settings import TaggingSettings

_IGNORED = {"task_name": str, "do_prepare": bool}


def define_tagging_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_ner.py."""
    define_finetuning_flags(
        Definer(values),
        _define_tagging_flags,
        examples="sentences",
        label_flag="alpha_label",
        max_seq_length={
            "default": 128,
            "help_text": "Maximum tokens of a sequence; longer sentences become windows.",
        },
        length_buckets=False,
    )


@flag_group("Words and labels")
def _define_tagging_flags(define: Definer) -> None:
    define_directory_flags(
        define,
        files="the files train, dev (or devel, valid) and test, each .txt, .tsv or .conll",
        predictions="predictions.txt",
    )
    define.settings(TaggingSettings)
    define.ignored(_IGNORED, "NVIDIA's; the files say what is labelled")


def tagging_settings(values: flags.FlagValues) -> TaggingSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values, also=_IGNORED)
    if values["do_prepare"].present:
        from bert_tf.compat.nvidia_defaults import TAGGING, adopt_and_say

        adopt_and_say(values, TAGGING)
    require(values, "output_dir")
    return directory_settings(TaggingSettings, values)
