"""Flags of commands that use a trained model: which model, and in what precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.config.policy_file import policy_changes
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.text.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions


@flag_group("Model and precision")
def define_model_flags(precision: str | None = None) -> None:
    """Defines the flags for a command's model and its precision; None is that of its training."""
    define_model_files_flags()
    usual = "" if precision else " (default: that of the model's training)"
    flags.DEFINE_string(
        "precision", precision, f"Precision of products: fp32, bf16, fp16 or auto{usual}."
    )
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
    values: flags.FlagValues, model: CompleteModel, *, native_ops: bool | None
) -> tuple[ForwardOptions, list[str]]:
    """The options that the flags of :func:`define_model_flags` select, and warnings.

    ``native_ops`` is as in ``arithmetic.chosen_options``, and errors too. Raises UserError for an
    invalid --precision_policy file.
    """
    changes = policy_changes(values.precision_policy)
    # Imported here, so that errors in the file are reported before TensorFlow is loaded.
    from bert_tf.inference.arithmetic import chosen_options, kept_or_given

    precision, kept, warnings = kept_or_given(values.precision, model.kept)
    options, slow = chosen_options(
        model.config, precision=precision, native_ops=native_ops, policy_changes=changes or kept
    )
    return options, [*warnings, *slow]
