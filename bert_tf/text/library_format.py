"""Parts of a ``tokenizer.json``, the file of Hugging Face's tokenizers library.

The library's own rules for BERT drop or keep a few other characters than google-research/bert's
(see ``wordpiece.py``), so the rules of ``basic.py`` are also written as patterns of characters,
which gives the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.text.basic import IDEOGRAPHS

Json = dict[str, Any]

WORDPIECE_PREFIX = "##"
USUAL_MAX_CHARS = 100  # the library's; longer words become [UNK]

# Rule 1 of basic.py.
_DROPPED = "(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\ufffd]"
# The end of a word, as Python's str.lower and the Unicode standard (section 3.13) determine it.
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_ACCENT = r"\p{Mn}"
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"


def googles_rules(*, lower_case: bool, strip_accents: bool) -> Json:
    """The normalizer and the splitter into words with the rules of ``basic.py``."""
    ideographs = "".join(f"{chr(low)}-{chr(high)}" for low, high in IDEOGRAPHS)
    normalizers = [replace(_DROPPED, "")]
    if lower_case:
        normalizers += python_lower_case()
    if strip_accents:
        normalizers += [{"type": "NFD"}, replace(_ACCENT, "")]
    split = {
        "type": "Split",
        "pattern": {"Regex": f"[{_PUNCTUATION}{ideographs}]"},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, split],
        },
    }


def librarys_rules(
    *, lower_case: bool | None, strip_accents: bool | None, chinese_chars: bool
) -> Json:
    """The normalizer and the splitter into words with the library's rules for BERT."""
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": chinese_chars,
        "strip_accents": strip_accents,
        "lowercase": lower_case,
    }
    return {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}}


def wordpiece_values(
    ids: Mapping[str, int],
    rules: Json,
    *,
    unk_token: str,
    max_chars: int = USUAL_MAX_CHARS,
    added: Sequence[Json] = (),
    post_processor: Json | None = None,
) -> Json:
    """The content of a tokenizer.json for WordPiece entries with their ids."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        **rules,
        "post_processor": post_processor,
        "decoder": {"type": "WordPiece", "prefix": WORDPIECE_PREFIX, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unk_token,
            "continuing_subword_prefix": WORDPIECE_PREFIX,
            "max_input_chars_per_word": max_chars,
            "vocab": dict(ids),
        },
    }


def added_token(name: str, index: int, token: Mapping[str, Any]) -> Json:
    """An entry that is found in a text before anything else, with the flags in ``token``."""
    is_special = bool(token.get("special"))
    flags = {key: bool(token.get(key)) for key in ("single_word", "lstrip", "rstrip")}
    normalized = bool(token.get("normalized", not is_special))
    return {"id": index, "content": name, **flags, "normalized": normalized, "special": is_special}


def python_lower_case() -> list[Json]:
    """str.lower of Python; the library's rule for a character does not look at its neighbours."""
    return [replace(_FINAL_SIGMA, "ς"), {"type": "Lowercase"}]


def replace(pattern: str, replacement: str) -> Json:
    """A normalizer that replaces what matches a regular expression."""
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": replacement}
