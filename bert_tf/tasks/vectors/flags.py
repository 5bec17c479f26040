"""The flags of run_features.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, command_line, from_flags, optional_file, require
from bert_tf.cli.training_flags import (
    define_computing_flags,
    define_ignored_flags,
    warn_of_ignored,
)
from bert_tf.config.settings import RunSettings, RuntimeSettings, StartSettings
from bert_tf.finetune.flags import define_model_flags
from bert_tf.tasks.vectors.settings import FeatureSettings, VectorSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import check_output_file, require_file

_ONE_HOT = "use_one_hot_embeddings"
# Of a run's settings, the one that this script's output file stands for.
_NOT_OUTPUT = [
    "do_train", "dry_run", "save_checkpoints_steps", "keep_checkpoint_max", "seed",
]  # fmt: skip


def define_feature_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_features.py."""
    define = Definer(values)
    _define_file_flags(define)
    _define_vector_flags(define)
    define_model_flags(define)
    define_computing_flags(define, precision="fp32")
    define_ignored_flags(define)


@flag_group("Texts and output")
def _define_file_flags(define: Definer) -> None:
    define.string("input_file", None, "UTF-8 texts, one per line; ' ||| ' separates a pair.")
    define.per_host("input_file")
    model = (
        "The network: a checkpoint of Google's, NVIDIA's, Hugging Face's or this program's, or its "
        "directory."
    )
    output = "File for the vectors: an array if its name ends in .npy, otherwise JSON lines."
    define.settings(
        RunSettings, without=_NOT_OUTPUT, output_dir={"flag": "output_file", "help_text": output}
    )
    define.settings(
        StartSettings,
        without=["resume_from", "reset_step", "allowed_fresh"],
        init_checkpoint={"help_text": model},
    )


@flag_group("Vectors")
def _define_vector_flags(define: Definer) -> None:
    define.settings(VectorSettings)
    define.settings(FeatureSettings)
    define.ignored({_ONE_HOT: bool}, "embeddings are looked up")


def feature_settings(values: flags.FlagValues) -> FeatureSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    require(values, "input_file", "output_file", "init_checkpoint")
    warn_of_ignored(values, also=[_ONE_HOT])
    output_file = check_output_file(values.output_file, flag="output_file")
    return from_flags(
        FeatureSettings,
        values,
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        input_file=require_file(values.input_file, flag="input_file"),
        output_file=output_file,
        run=from_flags(
            RunSettings,
            values,
            output_dir=output_file.with_name(f"{output_file.name}.partial"),
            do_eval=True,
            # For measuring what is fastest, in the shape of a full batch.
            eval_batch_size=max(1, values.batch_size),
            command=command_line(values),
        ),
        runtime=from_flags(RuntimeSettings, values),
    )
