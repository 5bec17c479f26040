"""By which rules text is split into a vocabulary's entries, as the files next to them say.

BERT's own rules are run by ``wordpiece.py``. Others are kept whole, as one document: the content
of a tokenizer.json, which ``library.py`` runs, or the settings of a BertJapaneseTokenizer with its
entries, which ``japanese.py`` runs. Where the files leave a choice, transformers 4.57's is taken.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_tf.text.library_format import (
    USUAL_MAX_CHARS,
    Json,
    added_token,
    googles_rules,
    librarys_rules,
    wordpiece_values,
)
from bert_tf.text.names import JAPANESE, LIBRARY, TOKENIZER_JSON_NAME, VOCAB_NAME
from bert_tf.text.vocabulary import ADVICE, SPECIAL_TOKENS, added_tokens
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError

# Names of the special tokens of other models, by role.
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}

# transformers' class for a tokenizer.json as it is; from version 5 on, it has another name, too.
LIBRARY_CLASS = "PreTrainedTokenizerFast"
AS_IT_IS = (LIBRARY_CLASS, "TokenizersBackend")
JAPANESE_CLASS = "BertJapaneseTokenizer"
PREFIX_SPACE = "add_prefix_space"


@dataclasses.dataclass(frozen=True)
class Document:
    """Rules other than BERT's own, with the entries.

    Attributes:
      content: JSON, with the same bytes for the same rules.
    """

    content: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, values: Mapping[str, Any], path: Path) -> Document:
        """The document with these values from a file; UserError if an entry is not text."""
        try:
            content = json.dumps(values, ensure_ascii=False, sort_keys=True) + "\n"
            return cls(content.encode())
        except UnicodeEncodeError:
            raise UserError(
                f"vocabulary {path} has an entry with half of a surrogate pair, which is not text; "
                f"{ADVICE}."
            ) from None

    @functools.cached_property
    def values(self) -> Json:
        """The content as a JSON object."""
        return json.loads(self.content)

    @property
    def kind(self) -> str:
        """The kind of tokenizer that runs the rules."""
        return LIBRARY if "model" in self.values else JAPANESE

    @property
    def digest(self) -> str:
        """The hash of the rules and entries."""
        return digest_of(self.content)

    @property
    def lower_case(self) -> bool:
        """Whether the rules lower-case text, as far as they say so by name."""
        normalizer = self.values.get("normalizer") or {}
        return bool(self.values.get("do_lower_case")) or _lower_cases(normalizer)

    @property
    def file(self) -> tuple[str, bytes]:
        """The file that a model directory has for the rules, and its content."""
        if self.kind == LIBRARY:
            return TOKENIZER_JSON_NAME, self.content
        return VOCAB_NAME, "".join(f"{entry}\n" for entry in self.values["entries"]).encode()

    @property
    def settings(self) -> Json:
        """What a model directory's tokenizer_config.json says of the rules."""
        if self.kind == JAPANESE:
            return {name: value for name, value in self.values.items() if name != "entries"}
        splitter = self.values["pre_tokenizer"] or {}
        others = {PREFIX_SPACE: True} if splitter.get(PREFIX_SPACE) else {}
        return {"do_lower_case": self.lower_case, "tokenizer_class": LIBRARY_CLASS, **others}


def _lower_cases(normalizer: Json) -> bool:
    parts = normalizer.get("normalizers", [])
    return (
        normalizer.get("type") == "Lowercase"
        or bool(normalizer.get("lowercase"))
        or any(map(_lower_cases, parts))
    )


@dataclasses.dataclass(frozen=True)
class Rules:
    """What files say about the rules of a vocabulary.

    Attributes:
      lower_case: whether text is lower-cased; None if nothing says so.
      strip_accents: whether it loses its accents; None if exactly when it is lower-cased.
      document: rules other than BERT's own; None for these.
    """

    lower_case: bool | None = None
    strip_accents: bool | None = None
    document: Document | None = None


def special_names(known: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, str]:
    """The names of the special tokens that are in a vocabulary, by role."""
    found = {}
    for role, spellings in SPELLINGS.items():
        named = config.get(f"{role}_token")
        named = named.get("content") if isinstance(named, dict) else named
        names = (named, *spellings) if isinstance(named, str) else spellings
        found[role] = next((name for name in names if name in known), None)
    return {role: name for role, name in found.items() if name is not None}


def rules_of_values(values: Json, config: Mapping[str, Any], path: Path) -> Rules:
    """The rules of a tokenizer.json's content."""
    added = added_tokens(values, path)
    values["added_tokens"] = [*added, *_more_tokens(values, added, config)]
    found = _berts_own(values)
    if found is not None:
        stated = config.get("do_lower_case")
        return found if stated is None else dataclasses.replace(found, lower_case=stated)
    values.update(truncation=None, padding=None)  # sequences are made elsewhere
    if (values["post_processor"] or {}).get("type") in ("TemplateProcessing", "BertProcessing"):
        values["post_processor"] = None
    if values["model"]:
        values["model"].pop("dropout", None)  # which would draw another split each time
    document = Document.of(values, path)
    return Rules(document.lower_case, None, document)


def _more_tokens(values: Json, added: list[Json], config: Mapping[str, Any]) -> Iterator[Json]:
    """The tokens that tokenizer_config.json adds, and the special ones, found as written."""
    names = {token["content"] for token in added}
    vocab = (values["model"] or {}).get("vocab")
    ids = dict(vocab) if isinstance(vocab, dict) else {}
    if isinstance(vocab, list):  # of Unigram, with probabilities
        ids = {entry: index for index, (entry, *_) in enumerate(vocab)}
    more: dict[str, Json] = {n: {"special": True} for n in special_names(ids, config).values()}
    listed = config.get("added_tokens_decoder", {}).values()
    more.update((t["content"], t) for t in listed if isinstance(t, dict) and "content" in t)
    size = len(ids.keys() | names)
    for name, token in more.items():
        if name not in names:
            yield added_token(name, ids.get(name, size), token)
            size += name not in ids


def _berts_own(values: Json) -> Rules | None:
    """The casing of a tokenizer.json with BERT's own rules; None if it has others."""
    model, decoder = {**(values["model"] or {})}, {**(values["decoder"] or {})}
    vocab, max_chars = model.pop("vocab", None), model.pop("max_input_chars_per_word", 100)
    decoder.pop("cleanup", None)
    expected = wordpiece_values({}, {}, unk_token="[UNK]")
    usual = {key: expected["model"][key] for key in ("unk_token", "continuing_subword_prefix")}
    if not (
        {"type": "WordPiece", **model} == {"type": "WordPiece", **usual}
        and decoder == {"type": "WordPiece", "prefix": expected["decoder"]["prefix"]}
        and max_chars in (USUAL_MAX_CHARS, MAX_CHARS_PER_WORD)
        and isinstance(vocab, dict)
        and vocab.keys() >= {*SPECIAL_TOKENS}
        and {*SPECIAL_TOKENS}.issuperset(token["content"] for token in values["added_tokens"])
    ):
        return None
    rules = {key: values[key] for key in ("normalizer", "pre_tokenizer")}
    stated = {key: (rules["normalizer"] or {}).get(key) for key in ("lowercase", "strip_accents")}
    lower, strip = stated.values()
    if rules == librarys_rules(lower_case=lower, strip_accents=strip, chinese_chars=True):
        return Rules(lower, strip)
    for lower, strip in ((True, True), (True, False), (False, True), (False, False)):
        if rules == googles_rules(lower_case=lower, strip_accents=strip):
            return Rules(lower, strip)
    return None
