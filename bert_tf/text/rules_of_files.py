"""Reads the rules of a vocabulary from the files next to it.

Where they leave a choice, that of transformers 4.57 is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.text.library_format import Json, librarys_rules, wordpiece_values
from bert_tf.text.names import (
    ADDED_TOKENS_NAME,
    JAPANESE,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_JSON_NAME,
    VOCAB_NAME,
)
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_rules import (
    AS_IT_IS,
    JAPANESE_CLASS,
    PREFIX_SPACE,
    SPELLINGS,
    Document,
    Rules,
    rules_of_values,
    special_names,
)
from bert_tf.text.vocabulary import (
    ADVICE,
    SPECIAL_TOKENS,
    is_cased,
    read_vocab_file,
    wordpiece_entries,
)
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json_object

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


def tokenizer_of(document: Document, *, source: Path) -> Tokenizer:
    """The tokenizer with these rules; UserError, which names their source, if it cannot run."""
    if document.kind == JAPANESE:
        from bert_tf.text.japanese import JapaneseTokenizer

        return JapaneseTokenizer.from_document(document, source=source)
    from bert_tf.text.library import LibraryTokenizer

    return LibraryTokenizer.from_document(document, source=source)


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
        from bert_tf.text.japanese import rules_of_config

        return rules_of_config(config, vocab_file.with_name(VOCAB_NAME))
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
    return rules_of_values(values, config, path)


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
    found = rules_of_values(values, config, vocab_file)
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
