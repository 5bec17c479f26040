"""Japanese words by MeCab: ids as transformers has them, offsets in the text as it was written."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
import transformers

from bert_tf.model_directory.record import write_tokenizer_config
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.stages.tokenizer_content import TokenizerContent

ENTRIES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "石川", "は", "川", "の", "近く", "に", "ある",
    "映画", "見", "##た", "を", "パリ", "tokyo", "##タワー", "東京", "1", "##2", "。", "am", "ある",
    *"近くあ映画見東京パリタワー12が", "##ん",
]  # fmt: skip
TEXTS = [
    "石川は川の近くにある。",
    "映画を見た。\n東京タワー",
    "ﾊﾟﾘに １２　Ｔｏｋｙｏ ㏂",
    "か\u3099くせい [MASK]は石川[SEP]",
    "",
    "　 ",
    "😀石川\ud83d",
]
MECAB = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}


def write(directory, **config):
    directory.mkdir(exist_ok=True)
    (directory / "vocab.txt").write_text("".join(f"{e}\n" for e in ENTRIES), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (directory / "tokenizer_config.json").write_text(json.dumps({**MECAB, **config}))
    return directory


def read(directory):
    files = TokenizerFiles.in_directory(directory)
    return files.with_casing(files)


@pytest.mark.parametrize(
    "config",
    [
        {"subword_tokenizer_type": "wordpiece", "mecab_kwargs": {"mecab_dic": "ipadic"}},
        {"subword_tokenizer_type": "character", "do_lower_case": True},
        {"do_lower_case": True},
        {"mecab_kwargs": {"normalize_text": False, "mecab_dic": "ipadic"}},
        {"mecab_kwargs": {"normalize_text": False}, "subword_tokenizer_type": "character"},
    ],
    ids=["pieces", "characters", "lower-cased", "as-written", "characters-as-written"],
)
def test_ids_are_those_of_transformers(tmp_path, config):
    for package in ("fugashi", "ipadic", "unidic_lite"):
        pytest.importorskip(package)
    files = read(write(tmp_path / "published", **config))
    ours = files.load()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    assert (ours.kind, ours.lower_case) == ("japanese", bool(config.get("do_lower_case")))
    for text in TEXTS:
        found = ours.encode_with_offsets(text)
        clean = text.replace("\ud83d", "\ufffd")
        assert found.ids == ours.encode(text) == theirs(clean, add_special_tokens=False).input_ids
        for index, start, end in zip(*found):
            piece = ours.convert_ids_to_tokens([index])[0].removeprefix("##")
            written = unicodedata.normalize("NFKC", text[start:end])
            written = written.lower() if ours.lower_case else written
            assert piece in ("[UNK]", written, text[start:end])
        assert found.starts == sorted(found.starts)
        assert ours.decode(found.ids) == theirs.decode(
            found.ids, clean_up_tokenization_spaces=False
        )
    ours_dir = tmp_path / "ours"
    ours_dir.mkdir()
    files.copy_to(ours_dir)
    write_tokenizer_config(ours_dir, files)
    copy = read(ours_dir)
    assert copy.required_vocabulary().digest == files.required_vocabulary().digest
    assert ours.vocab_digest == files.required_vocabulary().digest
    for other in (copy.load(), TokenizerContent.of(files).load()):
        assert other.encode(TEXTS[0]) == ours.encode(TEXTS[0])


def test_offsets_of_what_is_written_in_other_forms(tmp_path):
    pytest.importorskip("fugashi")
    pytest.importorskip("unidic_lite")
    ours = read(write(tmp_path / "published")).load()
    text = "今はﾊﾟﾘ"
    found = ours.encode_with_offsets(text)
    assert [text[start:end] for start, end in zip(found.starts, found.ends)] == ["今", "は", "ﾊﾟﾘ"]


def test_without_mecab_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fugashi", None)
    files = read(write(tmp_path / "published"))  # nothing is split yet
    with pytest.raises(UserError, match=r"MeCab .*; pip install fugashi ipadic unidic-lite"):
        files.load()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"word_tokenizer_type": "sudachi"}, "with sudachi and wordpiece; supported are words of"),
        ({"subword_tokenizer_type": "sentencepiece"}, "with mecab and sentencepiece; supported"),
        ({"do_subword_tokenize": False}, "and do_subword_tokenize=false; supported"),
        ({"mecab_kwargs": {"mecab_dic": "neologd"}}, "dictionaries unidic_lite, ipadic, unidic"),
    ],
)
def test_other_japanese_tokenizers_are_refused_by_name(tmp_path, config, said):
    with pytest.raises(UserError, match=said):
        TokenizerFiles.in_directory(write(tmp_path / "published", **config))


def test_words_between_blanks_as_characters(tmp_path):
    config = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}
    files = read(write(tmp_path / "published", **config))
    assert files.kind == "tokenizer.json"
    ours = files.load()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    for text in ("東京 パリは,１２ㅋ", "映画。"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
