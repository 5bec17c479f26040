"""Vocabulary and casing of the records, from flags or from a checkpoint's directory."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bert_tf.config.declared import Settings, setting
from bert_tf.model_directory.complete import other_vocabulary
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.console import report
from bert_tf.util.errors import UserError


@dataclasses.dataclass(frozen=True)
class VocabularyFiles(Settings):
    """Where vocabulary and casing come from."""

    heading: ClassVar[str] = "Vocabulary"
    vocab_file: str | None = setting(None, "WordPiece vocabulary (vocab.txt).", kind=str)
    spm_model_file: str | None = setting(
        None, "Instead of --vocab_file: a SentencePiece model.", kind=str
    )
    init_checkpoint: str | None = setting(
        None,
        "The checkpoint that training will start from; vocabulary and casing are taken from its "
        "directory.",
        kind=str,
    )
    do_lower_case: bool | None = setting(
        None,
        "Lower-case the text, for uncased models; by default decided by the vocabulary.",
        kind=bool,
    )
    strip_accents: bool | None = setting(
        None,
        "WordPiece: strip the accents of the text; by default as the files next to the vocabulary "
        "state or, without any, exactly when lower-casing.",
        kind=bool,
    )


def chosen_vocabulary(given: VocabularyFiles, max_seq_length: int) -> TokenizerFiles | None:
    """The vocabulary and casing for a stage's tokenizer.

    Returns None if neither a vocabulary nor a checkpoint was given.

    Raises:
      UserError: the checkpoint does not exist; the vocabulary or its casing is not the
        checkpoint's, or the checkpoint's is unknown; it has more entries than the model, or
        ``max_seq_length`` exceeds the model's positions.
    """
    files = TokenizerFiles.from_flags(given)
    if given.init_checkpoint:
        return _model_vocabulary(given.init_checkpoint, files, max_seq_length)
    return files.with_casing() if files.file else None


def _model_vocabulary(
    checkpoint: str, files: TokenizerFiles, max_seq_length: int
) -> TokenizerFiles:
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
    _check_sizes(checkpoint, files, stored, max_seq_length)
    for note in notes:
        report(note)
    return files.with_casing(stored.tokenizer_files)


def _check_sizes(
    checkpoint: str, files: TokenizerFiles, stored: ModelDirectory, max_seq_length: int
) -> None:
    if stored.config is None:
        return
    stored.config.check_length(
        max_seq_length,
        f"--max_seq_length={max_seq_length} is",
        advice=f"lower it for --init_checkpoint={checkpoint}",
    )
    size = files.load().vocab_size
    if size > stored.config.vocab_size:
        raise UserError(
            f"{files.file} has {size} entries, more than the vocab_size={stored.config.vocab_size} "
            f"of --init_checkpoint={checkpoint}; give the vocabulary that the model was trained "
            "with."
        )
