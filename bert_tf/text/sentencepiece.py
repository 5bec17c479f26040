"""A SentencePiece model as a BERT vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_pb2

from bert_tf.text.tokenizer import Encoding, SpecialIds, Tokenizer
from bert_tf.util.digest import digest_of_file
from bert_tf.util.errors import UserError

WORD_START = "\u2581"  # SentencePiece's visible space

# Spellings in use; data_prep.vocabulary writes the first.
_SPECIAL_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class SentencePieceTokenizer(Tokenizer):
    """Lower-cases text if requested; the model and its normalizer do everything else."""

    kind = "sentencepiece"

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        *,
        special: SpecialIds,
        lower_case: bool,
        vocab_digest: str,
    ):
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
        super().__init__(pieces, special=special, lower_case=lower_case, vocab_digest=vocab_digest)
        self._processor = processor
        always_starts = self.special_ids - {special.unk}  # an unknown piece may be inside a word
        self._starts = [
            piece.startswith(WORD_START) or index in always_starts
            for index, piece in enumerate(pieces)
        ]

    @classmethod
    def from_file(cls, path: Path, *, lower_case: bool) -> SentencePieceTokenizer:
        """Reads a model; raises UserError if it is malformed or lacks a special piece."""
        try:
            processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
            processor.id_to_piece(list(range(processor.get_piece_size())))
        except (RuntimeError, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--spm_model_file: {path} is not a SentencePiece model; give a .model file."
            ) from error
        return cls(
            processor,
            special=_find_special_ids(processor, path),
            lower_case=lower_case,
            vocab_digest=digest_of_file(path),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special pieces around them."""
        text = text.lower() if self.lower_case else text
        return self._processor.encode(_to_bytes(text), out_type=int)

    def encode_with_offsets(self, text: str) -> Encoding:
        """Like :meth:`encode`, with the range of ``text`` that each id represents.

        White space around a piece is not part of its range.
        """
        lowered = text.lower() if self.lower_case else text
        data = _to_bytes(lowered)
        serialized = self._processor.encode(data, out_type="serialized_proto")
        pieces = sentencepiece_pb2.SentencePieceText.FromString(serialized).pieces
        bounds = np.array([(piece.begin, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
        if len(data) != len(lowered):
            bounds = _trace_back(bounds, _char_of_byte(data))
        if len(lowered) != len(text):
            bounds = _trace_back(bounds, _char_of_lowered(text))
        starts, ends = bounds.T.tolist()
        for index, (start, end) in enumerate(zip(starts, ends)):
            part = text[start:end]
            starts[index] = end - len(part.lstrip())
            ends[index] = starts[index] + len(part.strip())
        return Encoding([piece.id for piece in pieces], starts, ends)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special pieces appear by name, surrounded by spaces."""
        parts = []
        for is_special, run in itertools.groupby(ids, self.special_ids.__contains__):
            if is_special:
                parts.extend(self.convert_ids_to_tokens(run))
            else:
                parts.append(self._processor.decode(list(run)))
        return " ".join(parts)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """True for special pieces and pieces that begin with U+2581, False for all others."""
        starts = self._starts
        return [starts[index] for index in ids]


def _to_bytes(text: str) -> bytes:
    """Encodes as UTF-8; a lone surrogate (from JSON) becomes an unknown character, not an error."""
    return text.encode("utf-8", "surrogatepass")


def _trace_back(bounds: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """Maps ranges [N, 2] of units to ranges of their origins; empty ranges stay empty.

    ``origins`` has the index of each unit's origin, and of the end's.
    """
    starts, ends = bounds.T
    firsts = origins[starts]
    return np.stack([firsts, np.where(starts < ends, origins[ends - 1] + 1, firsts)], axis=1)


def _char_of_byte(data: bytes) -> np.ndarray:
    """The index of the character to which each byte of UTF-8 text belongs."""
    is_first = np.append((np.frombuffer(data, np.uint8) & 0xC0) != 0x80, True)
    return np.cumsum(is_first) - 1


def _char_of_lowered(text: str) -> np.ndarray:
    """For each character of ``text.lower()``, the index of its character in ``text``."""
    lengths = [len(char.lower()) for char in text]
    return np.append(np.repeat(np.arange(len(text)), lengths), len(text))


def _find_special_ids(processor: sentencepiece.SentencePieceProcessor, path: Path) -> SpecialIds:
    found, missing = {}, []
    for role, names in _SPECIAL_NAMES.items():
        # For a missing name, piece_to_id returns the unknown piece's id.
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
