"""A vocabulary as ``tokenizer.json``, the file of Hugging Face's tokenizers library.

It describes each rule as data: a normalizer, a splitter into words, a model for their pieces, a
template for special tokens, and the way back to text. BERT's own rules are written as google's.
What differs is intended there: the name of a special token in a text means that token.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_tf.text.library_format import (
    Json,
    added_token,
    googles_rules,
    python_lower_case,
    replace,
    wordpiece_values,
)
from bert_tf.text.names import JAPANESE
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD

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
    from bert_tf.text.sentencepiece_model import CONTROL, UNKNOWN, read_sentencepiece_model

    model = read_sentencepiece_model(files.spm_model_file)
    reason = _why_not(model)
    if reason:
        return None, reason
    others = {index for index, p in enumerate(model.pieces) if p.type in (CONTROL, UNKNOWN)}
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


def _sentencepiece(path: Path, tokenizer: Tokenizer, model: Any, special: Iterable[int]) -> Json:
    from bert_tf.text.sentencepiece import WORD_START
    from bert_tf.text.sentencepiece_model import IDENTITY, NORMAL, USER_DEFINED

    spec = model.normalizer_spec
    best = max((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    normalizers = python_lower_case() if tokenizer.lower_case else []
    if spec.name != IDENTITY:
        normalizers += _compatibility_form(path)
    normalizers.append(replace(_EXTRA_SPACES, ""))
    blank = {
        "type": "Metaspace",
        "replacement": WORD_START,
        "prepend_scheme": "always" if spec.add_dummy_prefix else "never",
        # Adjacent unknown characters of two words are one piece if U+2581 is unknown as well.
        "split": any(piece.piece == WORD_START for piece in model.pieces)
        and not any(WORD_START in piece.piece[1:] for piece in model.pieces),
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
                    piece.piece,
                    # So that it is always chosen (SentencePiece's unigram_model.cc).
                    len(piece.piece.encode()) * best - 0.1
                    if piece.type == USER_DEFINED
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


def _why_not(model: Any) -> str:
    """Why a SentencePiece model has no equal in this format; "" if it has."""
    from bert_tf.text import sentencepiece_model as spm

    kind, spec = model.trainer_spec.model_type, model.normalizer_spec
    known = (spm.NORMAL, spm.UNKNOWN, spm.CONTROL, spm.USER_DEFINED)
    if kind != spm.UNIGRAM:
        return f"it is a {spm.MODEL_TYPES.get(kind, 'new')} model rather than a unigram model"
    if model.trainer_spec.byte_fallback:
        return "it splits unknown characters into bytes"
    if spec.name not in (spm.IDENTITY, "nfkc", "nmt_nfkc"):
        return f"its normalization ({spec.name}) is neither nmt_nfkc nor nfkc"
    if any(piece.type not in known for piece in model.pieces):
        return "it has unused pieces"
    if not spec.remove_extra_whitespaces:
        return "it keeps all white space"
    if model.trainer_spec.treat_whitespace_as_suffix or not spec.escape_whitespaces:
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
