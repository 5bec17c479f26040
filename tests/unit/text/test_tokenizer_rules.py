"""Ids and offsets of published kinds of tokenizers, against transformers'.

Each directory is written here by hand, with a small vocabulary in the language of its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
import transformers

from bert_tf.checkpoint.huggingface import _write_tokenizer
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.record import write_tokenizer_config
from bert_tf.text.tokenizer_files import TokenizerFiles
from data_prep.stages.tokenizer_content import TokenizerContent

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
OWN, LIBRARY, JAPANESE = "wordpiece", "tokenizer.json", "japanese"


class Published(NamedTuple):
    """A tokenizer's files, the language of its text, and the program that runs it here."""

    name: str
    language: str
    used: str
    text: str
    config: dict | None = None
    rules: dict | None = None
    pieces: str = ""
    others: Mapping = MappingProxyType({})


def bert(**changes):
    """BERT's rules as the library has them, with changes to its normalizer."""
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": False,
            **changes,
        }
    }


def normalized(*normalizers):
    return {"normalizer": {"type": "Sequence", "normalizers": list(normalizers)}}


def split(*splitters, **others):
    parts = {"type": "Sequence", "pretokenizers": list(splitters)}
    return {**bert(), "pre_tokenizer": parts, **others}


def replaced(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def metaspace():
    return {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }


OTHER_NAMES = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
NO_CHINESE = {"tokenize_chinese_chars": False}
ADDED = {
    "added_tokens_decoder": {
        "900": {"content": "[E1]", "special": True},
        "901": {"content": "covid-19", "special": False, "single_word": True},
    }
}
PUBLISHED = [
    Published("uncased", "en", OWN, "The Café is naïve, isn't it?", {"do_lower_case": True}),
    Published("cased", "en", OWN, "The Café is naïve!", {"do_lower_case": False}),
    Published("cased-json", "de", OWN, "Die Straße über Köln", {**FAST}, bert(strip_accents=False)),
    Published(
        "strip-off", "de", OWN, "Die Straße ÜBER Köln",
        {"do_lower_case": True, "strip_accents": False},
    ),
    Published(
        "strip-off-json", "pl", OWN, "Że wysoką izbę, ŁÓDŹ", {**FAST},
        bert(lowercase=True, strip_accents=False),
    ),
    Published(
        "strip-off-config-over-json", "pl", OWN, "Że wysoką izbę",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False},
        bert(lowercase=True),
    ),
    Published(
        "strip-cased", "fr", OWN, "École d'été à Orléans",
        {"do_lower_case": False, "strip_accents": True},
    ),
    Published(
        "strip-off", "ko", OWN, "영화가 아주 좋다. 나는 강에서",
        {"strip_accents": False, "do_lower_case": True},
    ),
    Published("strip-off", "vi", OWN, "Tiếng Việt rất đẹp", {**FAST}, bert(strip_accents=False)),
    Published(
        "strip-off", "hi", OWN, "फूल और फल हिन्दी में",
        {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "DistilBertTokenizer"},
    ),
    Published(
        "strip-off", "ar", OWN, "اللُّغَة العربية جميلة",
        {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "ElectraTokenizer"},
    ),
    Published("chinese", "zh", OWN, "我在北京大学学习，很好。", {"do_lower_case": True}),
    Published(
        "words-of-ideographs", "zh", LIBRARY, "我 在 北京 大学 学习", {**NO_CHINESE},
        pieces="北京 大学 学习",
    ),
    Published(
        "words-of-ideographs", "ja", LIBRARY, "石川は川の近くにある。", {**FAST},
        bert(handle_chinese_chars=False), pieces="石川 ##の 近く ##にある",
    ),
    Published(
        "words-of-ideographs-config", "ja", LIBRARY, "石川は 川の 近くにある。",
        {"do_lower_case": False, "tokenize_chinese_chars": False, "strip_accents": False},
        pieces="石川 ##の 近く",
    ),
    Published(
        "japanese-basic", "ja", LIBRARY, "石川は 川の 近くに、ある。",
        {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "basic"},
        pieces="石川 ##の 近く",
    ),
    Published(
        "lower-case-only", "tr", LIBRARY, "İstanbul ÇOK güzel", {**FAST},
        {"normalizer": {"type": "Lowercase"}},
    ),
    Published(
        "compatibility-form", "en", LIBRARY, "ﬁlm ① for ２０ ½", {**FAST},
        normalized({"type": "NFKC"}, bert()["normalizer"]), pieces="film 1 20 for",
    ),
    Published(
        "nfd-strip-lower", "el", LIBRARY, "Η Αθήνα είναι ΩΡΑΊΑ", {**FAST},
        normalized({"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}),
        pieces="αθηνα ειναι ωραια",
    ),
    Published(
        "replaced-quotes", "ru", LIBRARY, "Он сказал: «привет»  и   ушёл", {**FAST},
        normalized(
            replaced("[«»]", '"'),
            replaced(" +", " "),
            {"type": "Strip", "strip_left": True, "strip_right": True},
        ),
    ),
    Published(
        "no-normalizer", "ru", LIBRARY, "Ушёл\u200bв Москву", {**FAST}, {"normalizer": None},
    ),
    Published(
        "white-space", "th", LIBRARY, "ภาษาไทย ไม่มี ช่องว่าง.", {**FAST},
        {**bert(), "pre_tokenizer": {"type": "WhitespaceSplit"}},
    ),
    Published(
        "words-and-marks", "es", LIBRARY, "¿Qué pasó? ¡Nada!", {**FAST},
        {**bert(lowercase=True, strip_accents=False), "pre_tokenizer": {"type": "Whitespace"}},
    ),
    Published(
        "digits", "fi", LIBRARY, "Vuonna 1917 Suomi itsenäistyi", {**FAST},
        split({"type": "BertPreTokenizer"}, {"type": "Digits", "individual_digits": True}),
    ),
    Published(
        "scripts", "ja", LIBRARY, "東京タワーはTokyo Towerです", {**FAST},
        split({"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"}),
        pieces="東京 タワー Tokyo Tower です",
    ),
    Published(
        "metaspace", "sr", LIBRARY, "Ово је реченица да", {**FAST},
        {"normalizer": {"type": "NFC"}, "pre_tokenizer": metaspace()},
        pieces="▁Ово ▁је ▁ре ##ченица ▁да",
    ),
    Published(
        "prefix", "it", LIBRARY, "La città più bella", {**FAST},
        {**bert(), "model": {"continuing_subword_prefix": "@@"}}, pieces="cit @@tà @@lla be",
    ),
    Published(
        "short-words-only", "hu", LIBRARY, "megszentségteleníthetetlenség szép", {**FAST},
        {**bert(), "model": {"max_input_chars_per_word": 12}},
    ),
    Published("no-clean-text", "he", LIBRARY, "שָׁלוֹם\u00ad עולם", {**FAST}, bert(clean_text=False)),
    Published(
        "added-entries", "en", LIBRARY, "a[E1]b covid-19 xcovid-19 of Covid-19",
        {"do_lower_case": True, **ADDED}, pieces="covid of",
    ),
    Published(
        "added-entries-old", "en", LIBRARY, "the <drug> of [MASK] and <drug>s",
        {"do_lower_case": False}, others={"added_tokens.json": {"<drug>": None}},
    ),
    Published(
        "other-special-names", "en", LIBRARY, "the film <mask> it",
        dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), OTHER_NAMES)),
        others={"special": OTHER_NAMES},
    ),
    Published(
        "unigram", "pt", LIBRARY, "São Paulo é grande", {**FAST},
        {"normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace(), "unigram": True},
        pieces="▁São ▁Paulo ▁é ▁gran de ▁",
    ),
    Published(
        "whole-words", "sv", LIBRARY, "en bok och en åsna", {**FAST},
        {**bert(), "pre_tokenizer": {"type": "Whitespace"}, "words": True}, pieces="en bok och",
    ),
]  # fmt: skip


def write_directory(directory, row: Published):
    """The files of a published model, without weights."""
    directory.mkdir(exist_ok=True)
    special = row.others.get("special", SPECIAL)
    prefix = ((row.rules or {}).get("model") or {}).get("continuing_subword_prefix", "##")
    lowered = row.text + row.text.lower()
    chars = sorted({*lowered} - {*" \n\u200b\u00ad"})
    pieces = row.pieces.split() or row.text.lower().replace(",", " ").split()[::2]
    entries = [*special, *chars, *(prefix + char for char in chars[len(chars) // 9 :]), *pieces]
    entries = list(dict.fromkeys(entries))
    added = row.others.get("added_tokens.json")
    if added is not None:
        added = {name: len(entries) + n for n, name in enumerate(added)}
        (directory / "added_tokens.json").write_text(json.dumps(added))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (directory / "tokenizer_config.json").write_text(json.dumps(row.config))
    if row.rules is None:
        (directory / "vocab.txt").write_text("".join(f"{e}\n" for e in entries), encoding="utf-8")
    else:
        values = json_of(entries, special, row.rules)
        (directory / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    return directory


def json_of(entries, special, rules):
    """A tokenizer.json with some rules, and BERT's for the others."""
    ids = {entry: index for index, entry in enumerate(entries)}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": ids,
        **rules.get("model", {}),
    }
    if rules.get("unigram"):
        pieces = [[entry, -float(index % 7)] for index, entry in enumerate(entries)]
        model = {"type": "Unigram", "unk_id": 1, "byte_fallback": False, "vocab": pieces}
    if rules.get("words"):
        model = {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[name], "content": name, **flags, "special": True} for name in special
        ],
        "normalizer": rules["normalizer"],
        "pre_tokenizer": rules.get("pre_tokenizer", {"type": "BertPreTokenizer"}),
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": model.get("continuing_subword_prefix", "##")}
        | {"cleanup": True},
        "model": model,
    }


def read(directory):
    files = TokenizerFiles.in_directory(directory)
    return files.with_casing(files)


def same_ids_and_offsets(ours, theirs, text):
    kind = {"return_offsets_mapping": True} if theirs.is_fast else {}
    expected = theirs(text, add_special_tokens=False, **kind)
    found = ours.encode_with_offsets(text)
    assert ours.encode(text) == found.ids == expected["input_ids"]
    if theirs.is_fast:
        assert list(zip(found.starts, found.ends)) == expected["offset_mapping"]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.language}-{row.name}")
def test_ids_and_offsets_are_those_of_transformers(row, tmp_path):
    directory = write_directory(tmp_path / "published", row)
    files = read(directory)
    assert files.kind == row.used
    ours, theirs = files.load(), transformers.AutoTokenizer.from_pretrained(directory)
    assert ours.kind == row.used
    assert ours.vocab_size == len(theirs)
    for text in (row.text, f"  {row.text}\n{row.text} ", "", " "):
        same_ids_and_offsets(ours, theirs, text)
    ids = ours.encode(row.text)
    assert len(set(ids)) > 3
    assert len(ours.word_starts(ids)) == len(ids)
    assert ours.word_starts(ids)[0]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.language}-{row.name}")
def test_a_model_directory_and_an_export_keep_the_tokenizer(row, tmp_path):
    files = read(write_directory(tmp_path / "published", row))
    expected = files.load()
    ours, export = tmp_path / "ours", tmp_path / "export"
    ours.mkdir()
    files.copy_to(ours)
    write_tokenizer_config(ours, files)
    export.mkdir()
    _write_tokenizer(export, files, BertConfig(vocab_size=expected.vocab_size))
    copies = [read(ours), read(export)]
    for copy in copies:
        assert copy.required_vocabulary().digest == files.required_vocabulary().digest
        assert (copy.kind, copy.do_lower_case) == (files.kind, files.do_lower_case)
        assert copy.strip_accents == files.strip_accents
        assert copy.load().encode(row.text) == expected.encode(row.text)
    assert TokenizerContent.of(files).load().encode(row.text) == expected.encode(row.text)
    theirs = transformers.AutoTokenizer.from_pretrained(export)
    assert theirs(row.text, add_special_tokens=False)["input_ids"] == expected.encode(row.text)
    assert theirs.pad_token_id == expected.pad_id
    assert theirs("").input_ids == [expected.cls_id, expected.sep_id]
