"""A SentencePiece model as a BERT vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from bert_tf.errors import UserError
from bert_tf.files import sha256_of_file
from bert_tf.text.tokenizer import SpecialIds, Tokenizer

WORD_START = "\u2581"  # SentencePiece's visible blank

# Spellings in use, the first one is what data_prep.vocabulary trains.
_SPECIAL_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class SentencePieceTokenizer(Tokenizer):
    """Text is lower-cased if asked for; all else is up to the model and its normalizer."""

    kind = "sentencepiece"

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        *,
        special: SpecialIds,
        lower_case: bool,
        vocab_sha256: str,
    ):
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
        super().__init__(pieces, special=special, lower_case=lower_case, vocab_sha256=vocab_sha256)
        self._processor = processor
        always_starts = self.special_ids - {special.unk}  # an unknown character may be in a word
        self._starts = [
            piece.startswith(WORD_START) or index in always_starts
            for index, piece in enumerate(pieces)
        ]

    @classmethod
    def from_file(cls, path: Path, *, lower_case: bool) -> SentencePieceTokenizer:
        """Reads a model; raises UserError when it is malformed or lacks a special piece."""
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(
                f"--spm_model_file: {path} is not a SentencePiece model; give a .model file."
            ) from error
        return cls(
            processor,
            special=_find_special_ids(processor, path),
            lower_case=lower_case,
            vocab_sha256=sha256_of_file(path),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special piece around them."""
        text = text.lower() if self.lower_case else text
        # As bytes, so that a lone surrogate (from JSON) is an unknown character, not an error.
        return self._processor.encode(text.encode("utf-8", "surrogatepass"), out_type=int)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special pieces are shown by name, with blanks around them."""
        parts = []
        for is_special, run in itertools.groupby(ids, self.special_ids.__contains__):
            if is_special:
                parts.extend(self.convert_ids_to_tokens(run))
            else:
                parts.append(self._processor.decode(list(run)))
        return " ".join(parts)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """False for each piece without a leading U+2581, except special pieces."""
        starts = self._starts
        return [starts[index] for index in ids]


def _find_special_ids(processor: sentencepiece.SentencePieceProcessor, path: Path) -> SpecialIds:
    found, missing = {}, []
    for role, names in _SPECIAL_NAMES.items():
        # piece_to_id gives the unknown piece's id for a name that is not there.
        ids = [processor.piece_to_id(name) for name in names]
        ids = [index for index, name in zip(ids, names) if processor.id_to_piece(index) == name]
        if ids:
            found[role] = ids[0]
        else:
            missing.append(" or ".join(names))
    if missing:
        raise UserError(
            f"--spm_model_file: {path} has no piece {', no piece '.join(missing)}; "
            "train the model with them (data_prep.vocabulary does)."
        )
    return SpecialIds(**found)
