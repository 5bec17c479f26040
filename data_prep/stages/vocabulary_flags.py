"""Vocabulary and casing of the records, from flags or from a checkpoint's directory."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.model_directory.same_model import other_vocabulary
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import report
from bert_tf.util.errors import UserError


@flag_group("Vocabulary")
def define_vocabulary_flags(*, otherwise: str = "") -> None:
    """Defines the flags of :func:`chosen_vocabulary`; ``otherwise`` is appended to a help text."""
    flags.DEFINE_string("vocab_file", None, f"WordPiece vocabulary (vocab.txt){otherwise}.")
    flags.DEFINE_string("spm_model_file", None, "Instead of --vocab_file: a SentencePiece model.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "The checkpoint that training will start from; vocabulary and casing are taken from its "
        "directory.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        None,
        "Lower-case the text, for uncased models; by default decided by the vocabulary.",
    )


def chosen_vocabulary(values: flags.FlagValues) -> TokenizerFiles | None:
    """The vocabulary and casing for a stage's tokenizer.

    Returns None if neither a vocabulary nor a checkpoint was given.

    Raises:
      UserError: the checkpoint does not exist; the vocabulary or its casing is not the
        checkpoint's, or the checkpoint's is unknown; it has more entries than the model, or
        --max_seq_length exceeds the model's positions.
    """
    files = TokenizerFiles.from_flags(values)
    if values.init_checkpoint:
        return _model_vocabulary(values, files)
    return files.with_casing(None) if files.file else None


def _model_vocabulary(values: flags.FlagValues, files: TokenizerFiles) -> TokenizerFiles:
    checkpoint = values.init_checkpoint
    require_checkpoint(checkpoint, flag="init_checkpoint")
    stored = ModelDirectory.of(checkpoint)
    files = files.with_vocabulary_of(stored.tokenizer_files)
    if not files.file:
        raise UserError(
            f"--init_checkpoint={checkpoint} has no vocab.txt or spm.model in its directory; give "
            "--vocab_file or --spm_model_file."
        )
    problem, notes = other_vocabulary(stored, files.vocabulary())
    if problem:
        raise UserError(
            f"--init_checkpoint={checkpoint} cannot be trained on these records: {problem}; leave "
            "out --vocab_file and --spm_model_file, or give the model's."
        )
    _check_sizes(values, files, stored)
    for note in notes:
        report(note)
    return files.with_casing(stored.tokenizer_files.do_lower_case)


def _check_sizes(values: flags.FlagValues, files: TokenizerFiles, stored: ModelDirectory) -> None:
    if stored.config is None:
        return
    length, checkpoint = values.max_seq_length, f"--init_checkpoint={values.init_checkpoint}"
    stored.config.check_length(
        length, f"--max_seq_length={length} is", advice=f"lower it for {checkpoint}"
    )
    size = files.load().vocab_size
    if size > stored.config.vocab_size:
        raise UserError(
            f"{files.file} has {size} entries, more than the vocab_size={stored.config.vocab_size} "
            f"of {checkpoint}; give the vocabulary that the model was trained with."
        )
