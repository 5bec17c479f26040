"""By which rules text is split into a vocabulary's entries, as the files next to them say.

BERT's own rules are run by ``wordpiece.py``. Others are kept whole, as one document: the content
of a tokenizer.json, which ``library.py`` runs, or the settings of a BertJapaneseTokenizer with its
entries, which ``japanese.py`` runs. Where the files leave a choice, transformers 4.57's is taken.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
from bert_tf.text.tokenizer import (
    ADDED_TOKENS_NAME,
    JAPANESE,
    LIBRARY,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_JSON_NAME,
    VOCAB_NAME,
)
from bert_tf.text.vocabulary import (
    ADVICE,
    SPECIAL_TOKENS,
    added_tokens,
    find_special_ids,
    is_cased,
    read_vocab_file,
    wordpiece_entries,
)
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import read_json_object, require_file

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
_SPECIAL_NAME = "special_tokens_map.json"

# Its other classes with BERT's rules, of which tokenizer_config.json has the settings.
_BERT_CLASS = re.compile(
    "((Conv|Distil|Mobile|Squeeze|Retri)?Bert|Electra|Ernie|Funnel|LayoutLM|Lxmert|MPNet|Nezha"
    "|Realm|DPR(ContextEncoder|QuestionEncoder|Reader))Tokenizer(Fast)?"
)

_CONFIG_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "do_lower_case": ((bool, type(None)), "true or false"),
    "strip_accents": ((bool, type(None)), "true, false or null"),
    "tokenize_chinese_chars": ((bool, type(None)), "true or false"),
    "tokenizer_class": ((str, type(None)), "a string"),
    "added_tokens_decoder": ((dict,), "an object"),
}
_MECAB_KEYS = {"normalize_text", "mecab_dic", "mecab_option"}
_DICTIONARIES = ("unidic_lite", "ipadic", "unidic")


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


def read_rules(vocab_file: Path) -> Rules:
    """The rules of a vocab.txt or tokenizer.json, by the files in its directory.

    The rules of a file of another name are in it, or BERT's own. Raises UserError if a file is
    malformed, or names rules that it does not contain.
    """
    if vocab_file.name not in (VOCAB_NAME, TOKENIZER_JSON_NAME):
        return _of_json(vocab_file, {}) if vocab_file.suffix == ".json" else Rules()
    config = read_tokenizer_config(vocab_file.parent)
    class_name = config.get("tokenizer_class")
    if class_name == JAPANESE_CLASS:
        return _of_japanese(config, vocab_file.with_name(VOCAB_NAME))
    as_json = vocab_file.with_name(TOKENIZER_JSON_NAME)
    if as_json.is_file():
        rules = _of_json(as_json, config)
        if rules.document is None and vocab_file != as_json:
            _require_same_entries(vocab_file, as_json)
        return rules
    if class_name and class_name not in AS_IT_IS and not _BERT_CLASS.fullmatch(class_name):
        raise UserError(
            f"{vocab_file.with_name(TOKENIZER_CONFIG_NAME)} names {class_name}, a class of "
            f"transformers with rules of its own, and there is no {TOKENIZER_JSON_NAME}, which "
            "would contain them; load the model with AutoTokenizer, and give the file that its "
            "save_pretrained writes."
        )
    return _of_settings(vocab_file, config)


def read_casing(directory: Path) -> Rules:
    """What a directory's tokenizer_config.json says of the casing, without a vocab.txt."""
    config = read_tokenizer_config(directory)
    return Rules(config.get("do_lower_case"), config.get("strip_accents"))


def read_tokenizer_config(directory: Path) -> Json:
    """A directory's tokenizer_config.json, with the names in its special_tokens_map.json.

    {} without one; UserError if it is malformed.
    """
    path, names = directory / TOKENIZER_CONFIG_NAME, directory / _SPECIAL_NAME
    values = read_json_object(path, what="tokenizer configuration") if path.is_file() else {}
    for key, (types, expected) in _CONFIG_TYPES.items():
        if key in values and not isinstance(values[key], types):
            raise UserError(
                f"tokenizer configuration {path}: {key} must be {expected}; restore the file."
            )
    special = read_json_object(names, what="names of special tokens") if names.is_file() else {}
    return {**special, **values}


def _of_json(path: Path, config: Mapping[str, Any]) -> Rules:
    """The rules in a tokenizer.json, some of which tokenizer_config.json replaces."""
    values = read_json_object(path, what="vocabulary")
    for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"):
        if not isinstance(values.setdefault(key, None), (dict, type(None))):
            raise UserError(f"vocabulary {path} is malformed; {ADVICE} ({key} has another type).")
    is_bert = bool(config) and config.get("tokenizer_class") not in AS_IT_IS
    normalizer = values["normalizer"] or {}
    if is_bert and normalizer.get("type") == "BertNormalizer":
        values["normalizer"] = {
            **normalizer,
            "lowercase": config.get("do_lower_case", normalizer.get("lowercase")),
            "strip_accents": config.get("strip_accents"),
            "handle_chinese_chars": config.get("tokenize_chinese_chars") is not False,
        }
    splitter = values["pre_tokenizer"] or {}
    if PREFIX_SPACE in splitter:
        splitter[PREFIX_SPACE] = bool(config.get(PREFIX_SPACE))
    return _of_values(values, config, path)


def _of_settings(vocab_file: Path, config: Mapping[str, Any]) -> Rules:
    """The rules of a vocab.txt without a tokenizer.json: BERT's own but for a few settings."""
    path = vocab_file.with_name(ADDED_TOKENS_NAME)
    if "added_tokens_decoder" not in config and path.is_file():
        added = read_json_object(path, what="list of added tokens")
        listed = {str(index): {"content": name} for name, index in added.items()}
        config = {**config, "added_tokens_decoder": listed}
    stated, strip_accents = config.get("do_lower_case"), config.get("strip_accents")
    own = Rules(stated, strip_accents)
    if not config:
        return own
    entries = read_vocab_file(vocab_file)
    known = {entry: index for index, entry in enumerate(entries)}
    names = special_names(known, config)
    rules = librarys_rules(
        lower_case=is_cased(entries) is not True if stated is None else stated,
        strip_accents=strip_accents,
        chinese_chars=config.get("tokenize_chinese_chars") is not False,
    )
    values = wordpiece_values(known, rules, unk_token=names.get("unk", "[UNK]"))
    found = _of_values(values, config, vocab_file)
    is_own = found.document is None or len(names) < len(SPELLINGS)  # the latter is an error later
    return own if is_own else found


def _require_same_entries(vocab_file: Path, as_json: Path) -> None:
    entries, others = read_vocab_file(vocab_file), wordpiece_entries(as_json)
    if len(entries) == len(others) and all(
        other in ("", entry) or entry in SPECIAL_TOKENS for entry, other in zip(entries, others)
    ):
        return
    raise UserError(
        f"{vocab_file} and {as_json} have different entries; copy the one that the model was "
        "trained with to a directory of its own, and give it as --vocab_file."
    )


def _of_japanese(config: Mapping[str, Any], vocab_file: Path) -> Rules:
    """The rules that a tokenizer_config.json of the class states.

    Raises UserError for words or pieces of a kind that is not supported.
    """
    vocab_file = require_file(vocab_file, flag="vocab_file")
    words = config.get("word_tokenizer_type", "basic")
    pieces = config.get("subword_tokenizer_type", "wordpiece")
    off = [key for key in ("do_word_tokenize", "do_subword_tokenize") if config.get(key) is False]
    if words not in ("basic", "mecab") or pieces not in ("wordpiece", "character") or off:
        raise UserError(
            f"the tokenizer of {vocab_file.parent} splits Japanese text with "
            f"{' and '.join([str(words), str(pieces), *(f'{key}=false' for key in off)])}; "
            "supported are words of basic or mecab, and pieces of wordpiece or character."
        )
    entries = read_vocab_file(vocab_file)
    find_special_ids(entries, path=vocab_file)
    lower_case = bool(config.get("do_lower_case", False))
    if words == "basic":
        return _of_basic_words(entries, lower_case, pieces, vocab_file)
    values = {
        "tokenizer_class": JAPANESE_CLASS,
        "do_lower_case": lower_case,
        "word_tokenizer_type": words,
        "subword_tokenizer_type": pieces,
        "mecab_kwargs": _mecab_settings(config, vocab_file),
        "entries": entries,
    }
    return Rules(lower_case, None, Document.of(values, vocab_file))


def _of_basic_words(
    entries: Sequence[str], lower_case: bool, pieces: str, vocab_file: Path
) -> Rules:
    """Rules that the library can run: those of BERT, but with ideographs as parts of words."""
    rules = librarys_rules(lower_case=lower_case, strip_accents=None, chinese_chars=False)
    normalizers = [{"type": "NFC"}, rules["normalizer"]]
    splitters = [rules["pre_tokenizer"]]
    ids = {entry: index for index, entry in enumerate(entries)}
    values = wordpiece_values(ids, rules, unk_token="[UNK]")
    if pieces == "character":
        normalizers.append({"type": "NFKC"})
        splitters.append(
            {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
        )
        values["model"] = {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"}
    values["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splitters}
    return _of_values(values, {}, vocab_file)


def _mecab_settings(config: Mapping[str, Any], vocab_file: Path) -> Json:
    found = config.get("mecab_kwargs") or {}
    used = {k: v for k, v in found.items() if k not in ("do_lower_case", "never_split")}
    settings = {"normalize_text": True, "mecab_dic": "unidic_lite", "mecab_option": None, **used}
    known = (*_DICTIONARIES, None)
    if settings.keys() != _MECAB_KEYS or settings["mecab_dic"] not in known:
        raise UserError(
            f"the tokenizer of {vocab_file.parent} has the mecab_kwargs {short_repr(found)}; known "
            f"are {', '.join(sorted(_MECAB_KEYS))}, and the dictionaries "
            f"{', '.join(_DICTIONARIES)}."
        )
    return settings


def special_names(known: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, str]:
    """The names of the special tokens that are in a vocabulary, by role."""
    found = {}
    for role, spellings in SPELLINGS.items():
        named = config.get(f"{role}_token")
        named = named.get("content") if isinstance(named, dict) else named
        names = (named, *spellings) if isinstance(named, str) else spellings
        found[role] = next((name for name in names if name in known), None)
    return {role: name for role, name in found.items() if name is not None}


def _of_values(values: Json, config: Mapping[str, Any], path: Path) -> Rules:
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
