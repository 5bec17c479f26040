"""A vocabulary as ``tokenizer.json``, the file of Hugging Face's tokenizers library.

It describes each rule as data: a normalizer, a splitter into words, a model for their pieces, a
template for special tokens, and the way back to text. BERT's own rules are written as google's.
What differs is intended there: the name of a special token in a text means that token.
"""

from __future__ import annotations

import collections
import struct
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.text.library_format import (
    Json,
    added_token,
    googles_rules,
    python_lower_case,
    replace,
    wordpiece_values,
)
from bert_tf.text.tokenizer import JAPANESE, Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.errors import UserError

# Of a SentencePiece model: types of pieces, and of models.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM = 1
_MODEL_TYPES = {_UNIGRAM: "unigram", 2: "BPE", 3: "word", 4: "character"}
_IDENTITY = "identity"  # the name of no normalization

_EXTRA_SPACES = "^ +| +$|(?<= ) +"

# Categories of characters for which SentencePiece's rules may differ from NFKC.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")
# Its rules for Japanese keep this one; a code point that no text has stands in for it.
_WIDE_TILDE, _STAND_IN = "\uff5e", "\ufdd0"


def tokenizer_json(files: TokenizerFiles) -> tuple[Json | None, str]:
    """The content of the file for a vocabulary whose casing is known; or None, and why not.

    The reason is "" where the file is not needed.

    Raises UserError if the vocabulary is malformed.
    """
    tokenizer = files.load()
    if tokenizer.kind == JAPANESE:
        return None, ""  # transformers' own class reads vocab.txt and tokenizer_config.json
    if files.rules is not None:
        values = files.rules.values
        return {**values, "post_processor": values["post_processor"] or _template(tokenizer)}, ""
    if files.spm_model_file is None:
        return _wordpiece(tokenizer), ""
    model = _read_sentencepiece_model(files.spm_model_file)
    reason = _why_not(model)
    if reason:
        return None, reason
    others = {index for index, p in enumerate(model.pieces) if p.type in (_CONTROL, _UNKNOWN)}
    special = tokenizer.special_ids | others
    return _sentencepiece(files.spm_model_file, tokenizer, model, special), ""


def _wordpiece(tokenizer: Tokenizer) -> Json:
    entries = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    return wordpiece_values(
        {entry: index for index, entry in enumerate(entries)},
        googles_rules(lower_case=tokenizer.lower_case, strip_accents=tokenizer.strips_accents),
        unk_token=entries[tokenizer.unk_id],
        max_chars=MAX_CHARS_PER_WORD,
        added=_added(tokenizer, tokenizer.special_ids),
        post_processor=_template(tokenizer),
    )


class _Piece(NamedTuple):
    """An entry of a SentencePiece model."""

    text: str
    score: float
    type: int


class _SentencePieceModel(NamedTuple):
    """The content of a model file, which the library does not show."""

    pieces: Sequence[_Piece]
    type: int
    marks_ends: bool
    has_bytes: bool
    normalization: str
    marks_first: bool
    drops_spaces: bool
    marks_spaces: bool


def _read_sentencepiece_model(path: Path) -> _SentencePieceModel:
    """Reads fields of sentencepiece_model.proto (google/sentencepiece) by their numbers.

    The library's own generated module needs a newer protobuf than TensorFlow 2.15 has. Raises
    UserError if the file is not a SentencePiece model.
    """
    from google.protobuf.message import DecodeError

    try:
        model = _fields(path.read_bytes())
        # A message that is there several times is the one of all their bytes.
        trainer, normalizer = (_fields(b"".join(model[number])) for number in (2, 3))
        pieces = [_fields(piece) for piece in model[1]]
    except DecodeError as error:
        raise UserError(f"{path} is not a SentencePiece model; give a .model file.") from error
    return _SentencePieceModel(
        pieces=[_Piece(_last(p, 1, b"").decode(), _float(p, 2), _last(p, 3, 1)) for p in pieces],
        type=_last(trainer, 3, _UNIGRAM),
        marks_ends=bool(_last(trainer, 24, 0)),
        has_bytes=bool(_last(trainer, 35, 0)),
        normalization=_last(normalizer, 1, b"").decode(),
        marks_first=bool(_last(normalizer, 3, 1)),
        drops_spaces=bool(_last(normalizer, 4, 1)),
        marks_spaces=bool(_last(normalizer, 5, 1)),
    )


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of a protocol buffer's fields by number: integers and bytes."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    values = collections.defaultdict(list)
    for field in UnknownFieldSet(Empty.FromString(message)):
        values[field.field_number].append(field.data)
    return values


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if number in fields else default


def _float(fields: dict[int, list[Any]], number: int) -> float:
    return struct.unpack("<f", struct.pack("<I", _last(fields, number, 0)))[0]


def _sentencepiece(
    path: Path, tokenizer: Tokenizer, model: _SentencePieceModel, special: Iterable[int]
) -> Json:
    from bert_tf.text.sentencepiece import WORD_START

    best = max((piece.score for piece in model.pieces if piece.type == _NORMAL), default=0.0)
    normalizers = python_lower_case() if tokenizer.lower_case else []
    if model.normalization != _IDENTITY:
        normalizers += _compatibility_form(path)
    normalizers.append(replace(_EXTRA_SPACES, ""))
    blank = {
        "type": "Metaspace",
        "replacement": WORD_START,
        "prepend_scheme": "always" if model.marks_first else "never",
        # Adjacent unknown characters of two words are one piece if U+2581 is unknown as well.
        "split": any(piece.text == WORD_START for piece in model.pieces)
        and not any(WORD_START in piece.text[1:] for piece in model.pieces),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokenizer, special),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": blank,
        "post_processor": _template(tokenizer),
        "decoder": blank,
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.unk_id,
            "byte_fallback": False,
            "vocab": [
                [
                    piece.text,
                    # So that it is always chosen (SentencePiece's unigram_model.cc).
                    len(piece.text.encode()) * best - 0.1
                    if piece.type == _USER_DEFINED
                    else piece.score,
                ]
                for piece in model.pieces
            ],
        },
    }


def _compatibility_form(path: Path) -> list[Json]:
    """NFKC, with the model's own rules for white space and characters that are not shown.

    The model's table of all rules could be written as it is, but the library applies that to whole
    graphemes, which loses characters, and fails on some texts (version 0.22). The model's rules
    differ from NFKC for sequences of accents in an unusual order only.
    """
    import sentencepiece

    from bert_tf.text.sentencepiece import WORD_START

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    dropped = blank = ""
    for char in map(chr, range(1, sys.maxunicode + 1)):
        if unicodedata.category(char) in _UNSEEN or char == "\ufffd":
            normal = processor.normalize(f"a{char}b").lstrip(WORD_START)
            dropped += char if normal == "ab" else ""
            blank += char if normal == f"a{WORD_START}b" else ""
    rules = [replace(f"[{blank}]", " ")]
    if dropped:
        rules.append(replace(f"[{dropped}]", ""))
    if processor.normalize(_WIDE_TILDE).lstrip(WORD_START) != _WIDE_TILDE:
        return [*rules, {"type": "NFKC"}]
    hidden, shown = replace(_WIDE_TILDE, _STAND_IN), replace(_STAND_IN, _WIDE_TILDE)
    return [*rules, hidden, {"type": "NFKC"}, shown]


def _why_not(model: _SentencePieceModel) -> str:
    """Why a SentencePiece model has no equal in this format; "" if it has."""
    known = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED)
    if model.type != _UNIGRAM:
        return f"it is a {_MODEL_TYPES.get(model.type, 'new')} model rather than a unigram model"
    if model.has_bytes:
        return "it splits unknown characters into bytes"
    if model.normalization not in (_IDENTITY, "nfkc", "nmt_nfkc"):
        return f"its normalization ({model.normalization}) is neither nmt_nfkc nor nfkc"
    if any(piece.type not in known for piece in model.pieces):
        return "it has unused pieces"
    if not model.drops_spaces:
        return "it keeps all white space"
    if model.marks_ends or not model.marks_spaces:
        return "it does not mark the beginnings of words"
    return ""


def _added(tokenizer: Tokenizer, special: Iterable[int]) -> list[Json]:
    names = zip(sorted(special), tokenizer.convert_ids_to_tokens(sorted(special)))
    return [added_token(name, index, {"special": True}) for index, name in names]


def _template(tokenizer: Tokenizer) -> Json:
    """[CLS] first text [SEP], or [CLS] first text [SEP] second text [SEP], with segments."""
    cls, sep = tokenizer.convert_ids_to_tokens([tokenizer.cls_id, tokenizer.sep_id])

    def token(name: str, segment: int) -> Json:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> Json:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [token(cls, 0), text("A", 0), token(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), token(sep, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [index], "tokens": [name]}
            for name, index in ((cls, tokenizer.cls_id), (sep, tokenizer.sep_id))
        },
    }
