"""Tokenizers that the library runs: any rules that it has, against transformers."""

from __future__ import annotations

import base64
import json

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2

from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.stages.tokenizer_content import TokenizerContent
from tests.helpers.sentencepiece_models import LINES, train_sentencepiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "aàbBéßσΣжが中か1２ﬁ.,!-▁ _"
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


PATTERNS = st.sampled_from([{"Regex": r"[bB]+"}, {"String": "a"}, {"Regex": r"\p{Mn}"}])
BEHAVIORS = st.sampled_from(
    ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
)
ONE_NORMALIZER = st.one_of(
    st.sampled_from(
        [{"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase")]
        + [{"type": "StripAccents"}, {"type": "ByteLevel"}, {"type": "Prepend", "prepend": "▁"}]
    ),
    st.builds(
        lambda clean, chinese, strip, lower: {
            "type": "BertNormalizer",
            "clean_text": clean,
            "handle_chinese_chars": chinese,
            "strip_accents": strip,
            "lowercase": lower,
        },
        st.booleans(),
        st.booleans(),
        st.none() | st.booleans(),
        st.booleans(),
    ),
    st.builds(
        lambda left, right: {"type": "Strip", "strip_left": left, "strip_right": right},
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        lambda pattern, content: {"type": "Replace", "pattern": pattern, "content": content},
        PATTERNS,
        st.sampled_from(["", "c", "é "]),
    ),
)
NORMALIZERS = st.none() | st.lists(ONE_NORMALIZER, min_size=1, max_size=3).map(
    lambda found: found[0] if len(found) == 1 else {"type": "Sequence", "normalizers": found}
)
ONE_SPLITTER = st.one_of(
    st.sampled_from(
        [
            {"type": name}
            for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")
        ]
    ),
    st.builds(lambda each: {"type": "Digits", "individual_digits": each}, st.booleans()),
    st.builds(lambda found: {"type": "Punctuation", "behavior": found}, BEHAVIORS),
    st.builds(
        lambda found: {"type": "CharDelimiterSplit", "delimiter": found}, st.sampled_from("a_")
    ),
    st.builds(lambda length: {"type": "FixedLength", "length": length}, st.integers(1, 5)),
    st.builds(
        lambda scheme, split: {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": scheme,
            "split": split,
        },
        st.sampled_from(["always", "never", "first"]),
        st.booleans(),
    ),
    st.builds(
        lambda space, trim, regex: {
            "type": "ByteLevel",
            "add_prefix_space": space,
            "trim_offsets": trim,
            "use_regex": regex,
        },
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        lambda pattern, behavior, invert: {
            "type": "Split",
            "pattern": pattern,
            "behavior": behavior,
            "invert": invert,
        },
        PATTERNS,
        BEHAVIORS,
        st.booleans(),
    ),
)
SPLITTERS = st.none() | st.lists(ONE_SPLITTER, min_size=1, max_size=3).map(
    lambda found: found[0] if len(found) == 1 else {"type": "Sequence", "pretokenizers": found}
)
DECODERS = st.sampled_from(
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "WordPiece", "prefix": "@", "cleanup": False},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Fuse"},
    ]
)


@st.composite
def rules(draw):
    """The content of a tokenizer.json of WordPiece."""
    prefix = draw(st.sampled_from(["##", "##", "@"]))
    words = draw(st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=8))
    singles = [*LETTERS, *"ĠàÃcfi2e"]
    entries = [*SPECIAL, *singles, *(prefix + char for char in singles)]
    entries += [*words, *(prefix + word for word in words)]
    ids = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    added = [{"id": ids[name], "content": name, **FLAGS, "special": True} for name in SPECIAL]
    if draw(st.booleans()):
        flags = {name: draw(st.booleans()) for name in FLAGS}
        added.append({"id": len(ids), "content": "Bé", **flags, "special": draw(st.booleans())})
    return {
        "version": "1.0",
        "truncation": draw(
            st.sampled_from(
                [
                    None,
                    {
                        "direction": "Right",
                        "max_length": 3,
                        "strategy": "LongestFirst",
                        "stride": 0,
                    },
                ]
            )
        ),
        "padding": None,
        "added_tokens": added,
        "normalizer": draw(NORMALIZERS),
        "pre_tokenizer": draw(SPLITTERS),
        "post_processor": None,
        "decoder": draw(DECODERS),
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": draw(st.sampled_from([100, 100, 200, 5])),
            "vocab": ids,
        },
    }


def both(tmp_path, values):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    return TokenizerFiles.in_directory(tmp_path), theirs


def without_limit(theirs, text):
    return theirs(text, add_special_tokens=False, truncation=False, return_offsets_mapping=True)


@settings(max_examples=300, deadline=None)
@given(
    values=rules(),
    text=st.text(LETTERS + "\u0301\u200b\t가[", max_size=30),
    name=st.sampled_from(["", "[MASK]", "Bé"]),
)
def test_any_rules_give_the_librarys_ids_and_offsets(tmp_path_factory, values, text, name):
    text += name + text[:3]
    files, theirs = both(tmp_path_factory.mktemp("any"), values)
    ours = files.load()
    expected = without_limit(theirs, text)
    found = ours.encode_with_offsets(text)
    assert found.ids == ours.encode(text)
    if ours.kind == "wordpiece":  # google's rules; see test_tokenizer_json.py
        return
    assert found.ids == expected.input_ids
    assert list(zip(found.starts, found.ends)) == expected.offset_mapping
    assert ours.decode(found.ids) == theirs.backend_tokenizer.decode(
        found.ids, skip_special_tokens=False
    )
    copy = TokenizerContent.of(files).load()
    assert copy.encode(text) == found.ids
    assert copy.vocab_digest == files.required_vocabulary().digest


def plain(**changes):
    """The content of a tokenizer.json that gives each character an id."""
    entries = [*SPECIAL, *"abcdef", *(f"##{char}" for char in "abcdef")]
    ids = {entry: index for index, entry in enumerate(entries)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
        **changes,
    }


def test_the_table_of_a_sentencepiece_model(tmp_path):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(train_sentencepiece(tmp_path / "spm").read_bytes())
    table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    files, theirs = both(tmp_path, plain(normalizer=normalizer))
    ours = files.load()
    for text in ("ａｂ ｃ", *LINES):
        expected = without_limit(theirs, text)
        found = ours.encode_with_offsets(text)
        assert found.ids == expected.input_ids
        assert list(zip(found.starts, found.ends)) == expected.offset_mapping


def test_equal_entries_with_other_rules_are_another_vocabulary(tmp_path):
    found = []
    for name, normalizer in (("a", None), ("b", {"type": "Lowercase"}), ("c", None)):
        (tmp_path / name).mkdir()
        files, _ = both(tmp_path / name, plain(normalizer=normalizer))
        found.append(files.required_vocabulary())
    assert found[0].is_same(found[2])
    assert not found[0].is_same(found[1])


def test_words_and_their_pieces(tmp_path):
    ours = both(tmp_path, plain())[0].load()
    ids = ours.encode("ab [MASK] fed c")
    assert ours.convert_ids_to_tokens(ids) == ["a", "##b", "[MASK]", "f", "##e", "##d", "c"]
    assert ours.word_starts(ids) == [True, False, True, True, False, False, True]
    assert ours.decode(ids) == "ab [MASK] fed c"


@pytest.mark.parametrize(
    ("model", "splitter", "starts"),
    [
        ({"continuing_subword_prefix": "##"}, "WhitespaceSplit", [True, False, True]),
        ({"end_of_word_suffix": "</w>"}, "WhitespaceSplit", [True, False, True]),
        ({}, "ByteLevel", [True, False, True]),
        ({}, "Metaspace", [True, False, True]),
    ],
    ids=["prefix", "suffix", "bytes", "blank"],
)
def test_words_of_byte_pairs(tmp_path, model, splitter, starts):
    marks = {"ByteLevel": "Ġ", "Metaspace": "▁"}
    mark, end = marks.get(splitter, ""), model.get("end_of_word_suffix", "")
    inner = model.get("continuing_subword_prefix", "")
    entries = [
        *SPECIAL,
        mark,
        *"ab",
        f"{mark}a",
        f"b{end}",
        f"{inner}b",
        f"{inner}b{end}",
        f"{mark}b",
    ]
    ids = {entry: index for index, entry in enumerate(dict.fromkeys([*filter(None, entries)]))}
    ids.setdefault(f"b{end}", len(ids))
    merges = [[mark, "a"], [mark, "b"]] if mark else []
    splitters = {
        "ByteLevel": {"add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "Metaspace": {"replacement": "▁", "prepend_scheme": "always", "split": True},
    }
    values = plain(
        model={"type": "BPE", "vocab": ids, "merges": merges, "unk_token": "[UNK]", **model},
        pre_tokenizer={"type": splitter, **splitters.get(splitter, {})},
        decoder=None,
    )
    ours = both(tmp_path, values)[0].load()
    text = " ab b" if splitter == "ByteLevel" else "ab b"
    assert ours.word_starts(ours.encode(text)) == starts


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "is malformed; restore it"),
        ({"normalizer": {"type": "New"}}, r"is malformed; restore it, or install the version of"),
        ({"pre_tokenizer": 7}, r"is malformed; restore it.* \(pre_tokenizer has another type\)"),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}},
            r"has no \[PAD\] or <pad>, no \[CLS\] or <s>",
        ),
        (
            {
                "model": {
                    "type": "WordLevel",
                    "vocab": {"[UNK]": 0, "a": 10**9},
                    "unk_token": "[UNK]",
                }
            },
            "entries are not 0 to",
        ),
    ],
)
def test_rules_that_cannot_be_followed_are_named(tmp_path, changes, said):
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain(**changes)), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        TokenizerFiles.in_directory(tmp_path).load()
