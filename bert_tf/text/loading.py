"""From vocabulary files to the tokenizer that reads them."""

from __future__ import annotations

from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import WordPieceTokenizer
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, require_file


def load_tokenizer(
    *,
    vocab_file: PathLike | None = None,
    spm_model_file: PathLike | None = None,
    do_lower_case: bool = True,
) -> Tokenizer:
    """Opens a vocabulary, given as exactly one of the two files.

    Args:
      vocab_file: WordPiece entries, one per line (BERT's vocab.txt).
      spm_model_file: a SentencePiece model.
      do_lower_case: WordPiece: lower-case, strip accents, as google-research/bert. SentencePiece:
        lower-case before the model; any other normalization is part of the model.

    Raises:
      UserError: not exactly one file, missing or malformed file, missing special entries.
    """
    if bool(vocab_file) == bool(spm_model_file):
        given = "both were given" if vocab_file else "neither was given"
        raise UserError(f"give one of --vocab_file and --spm_model_file; {given}.")
    if vocab_file:
        path = require_file(vocab_file, flag="vocab_file")
        return WordPieceTokenizer.from_file(path, lower_case=do_lower_case)
    # Imported here: sentencepiece is only needed for its files.
    from bert_tf.text.sentencepiece import SentencePieceTokenizer

    path = require_file(spm_model_file, flag="spm_model_file")
    return SentencePieceTokenizer.from_file(path, lower_case=do_lower_case)
