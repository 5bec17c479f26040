"""Which vocabulary and casing the records get: from flags, or from beside a checkpoint."""

from __future__ import annotations

from absl import flags

from bert_tf.checkpoint.model_files import model_files
from bert_tf.checkpoint.same_model import other_vocabulary
from bert_tf.command_line import flag_group
from bert_tf.errors import UserError
from bert_tf.text.tokenizer_files import TokenizerFiles


@flag_group("Vocabulary")
def define_vocabulary_flags(*, otherwise: str = "") -> None:
    """Defines the flags of :func:`chosen_vocabulary`; ``otherwise`` ends a help text."""
    flags.DEFINE_string("vocab_file", None, f"WordPiece vocabulary (vocab.txt){otherwise}.")
    flags.DEFINE_string("spm_model_file", None, "Instead of --vocab_file: a SentencePiece model.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "The checkpoint that training is to start from: vocabulary and casing are taken from "
        "beside it.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        None,
        "Lower-case the text, for uncased models; what fits the vocabulary if not given.",
    )


def chosen_vocabulary(values: flags.FlagValues) -> TokenizerFiles | None:
    """What a stage opens its tokenizer from, with its casing.

    Returns None where neither a vocabulary nor a checkpoint was given.

    Raises:
      UserError: the vocabulary or its casing is not that of the checkpoint, or nobody says which
        one that is; or --max_seq_length is more than the model has positions for.
    """
    files = TokenizerFiles.from_flags(values)
    if values.init_checkpoint:
        return _of_model(values, files)
    return files.with_casing(None) if files.file else None


def _of_model(values: flags.FlagValues, files: TokenizerFiles) -> TokenizerFiles:
    checkpoint = values.init_checkpoint
    beside = model_files(checkpoint)
    files = files.with_vocabulary_of(beside.tokenizer_files)
    if not files.file:
        raise UserError(
            f"--init_checkpoint={checkpoint} has no vocab.txt beside it; give --vocab_file."
        )
    problem, _ = other_vocabulary(beside, files.vocabulary())
    if problem:
        raise UserError(
            f"--init_checkpoint={checkpoint} cannot be trained on these records: {problem}; leave "
            "--vocab_file and --spm_model_file out, or give the model's own."
        )
    positions = beside.config.max_position_embeddings if beside.config else None
    if positions is not None and values.max_seq_length > positions:
        raise UserError(
            f"--max_seq_length={values.max_seq_length} is more than the max_position_embeddings="
            f"{positions} of --init_checkpoint={checkpoint}; lower it."
        )
    return files.with_casing(beside.tokenizer_files.do_lower_case)
