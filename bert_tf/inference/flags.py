"""Flags of commands that use a trained model: which model, and in what precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.config.policy_file import policy_changes
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.text.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions


@flag_group("Model and precision")
def define_model_flags() -> None:
    """Defines the flags for a command's model and its precision."""
    define_model_files_flags()
    flags.DEFINE_string("precision", "fp32", "Precision of products: fp32, bf16, fp16 or auto.")
    flags.DEFINE_string("precision_policy", None, "JSON file: class of operation -> type.")


def define_model_files_flags() -> None:
    """Defines the flags for a command's model."""
    flags.DEFINE_string("model_dir", None, "Output of a training run, or a published model.")
    flags.DEFINE_string("init_checkpoint", None, "Weights to use instead of the model directory's.")
    flags.DEFINE_string("bert_config_file", None, "Architecture to use instead of the directory's.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, instead of the directory's.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model, instead of the directory's.")
    flags.DEFINE_bool("do_lower_case", None, "Lower-case the text (default: as the model states).")
    flags.DEFINE_bool("strip_accents", None, "Strip its accents (default: as the model states).")


def model_from_flags(values: flags.FlagValues) -> CompleteModel:
    """The model that the flags of :func:`define_model_files_flags` name; see :func:`find_model`."""
    return find_model(
        values.model_dir,
        init_checkpoint=values.init_checkpoint,
        bert_config_file=values.bert_config_file,
        tokenizer_files=TokenizerFiles.from_flags(values),
    )


def options_from_flags(
    values: flags.FlagValues,
    config: BertConfig,
    *,
    native_ops: bool | None,
    sequences: int,
    length: int,
) -> tuple[ForwardOptions, list[str]]:
    """The options that the flags of :func:`define_model_flags` select, and warnings.

    ``sequences`` x ``length`` is the largest batch; ``native_ops`` is as in
    ``arithmetic.measured_options``. Raises UserError for an unknown precision or an invalid
    --precision_policy file.
    """
    changes = policy_changes(values.precision_policy)
    # Imported here, so that errors in the file are reported before TensorFlow is loaded.
    from bert_tf.inference.arithmetic import measured_options

    return measured_options(
        config,
        precision=values.precision,
        native_ops=native_ops,
        policy_changes=changes,
        sequences=sequences,
        length=length,
    )
