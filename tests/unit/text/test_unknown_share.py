"""The share of unknown tokens, and what they stand for in the text."""

import pickle

import pytest

from bert_tf.text.unknown_share import CountingTokenizer, HintingTokenizer, UnknownTokens
from bert_tf.text.vocabulary import write_vocab_file
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KNOWN = "a film of the river"


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "vocab.txt"
    write_vocab_file(path, [*SPECIAL, *KNOWN.split(), ".", "##s"])
    return load_tokenizer(vocab_file=path, do_lower_case=False)


def counted(tokenizer, *texts):
    counting = CountingTokenizer(tokenizer)
    for text in texts:
        assert counting.encode(text) == tokenizer.encode(text)
    return counting.take()


def test_tokens_and_pieces_are_counted(tokenizer):
    found = counted(tokenizer, "a film 영화가.", "영화가 of films", "the 石")
    assert (found.tokens, found.unknown) == (10, 3)
    assert found.pieces == {"영화가": 2, "石": 1}


def test_offsets_count_like_ids(tokenizer):
    counting = CountingTokenizer(tokenizer)
    assert counting.encode_with_offsets("a 石 film") == tokenizer.encode_with_offsets("a 石 film")
    assert counting.take() == counted(tokenizer, "a 石 film")
    assert counting.take() == UnknownTokens()


def test_it_is_the_tokenizer_otherwise(tokenizer):
    counting = CountingTokenizer(tokenizer)
    ids = tokenizer.encode("films")
    assert counting.word_starts(ids) == tokenizer.word_starts(ids)
    assert counting.decode(ids) == tokenizer.decode(ids)
    assert counting.tokenize("films.") == tokenizer.tokenize("films.")
    assert (counting.kind, counting.special_ids) == (tokenizer.kind, tokenizer.special_ids)


def test_a_usual_share_needs_no_sentence(tokenizer):
    found = counted(tokenizer, *[KNOWN] * 40, "石 石")
    assert found.share == 2 / 202
    assert not found.remark
    found.require_known("texts")


def test_an_unusual_share_is_said_with_its_pieces(tokenizer):
    found = counted(tokenizer, *[KNOWN] * 10, "石 川 石")
    assert found.remark.startswith(
        "5.7% of the 53 tokens are unknown to the vocabulary ([UNK]), most often '石' (2), '川' (1)"
    )
    found.require_known("texts")


def test_a_text_that_is_mostly_unknown_is_refused(tokenizer):
    found = counted(tokenizer, *["영화가 아주 film"] * 20)
    with pytest.raises(
        UserError, match=r"train\.tsv: 66\.7% of the 60 .*'영화가' \(20\).*language"
    ):
        found.require_known("train.tsv")


def test_capitals_that_a_vocabulary_lacks_are_the_reason(tokenizer):
    found = counted(tokenizer, *["A FILM Of The river"] * 20)
    with pytest.raises(UserError, match=r"80\.0% .*do_lower_case=true"):
        found.require_known("train.tsv")


def test_a_short_text_says_nothing(tokenizer):
    counted(tokenizer, "영화가 아주").require_known("texts")


def test_counts_of_parts_add_up_in_little_memory(tokenizer):
    total = UnknownTokens()
    for number in range(60):
        words = " ".join(chr(0x4E00 + 100 * number + n) for n in range(100))
        total.add(pickle.loads(pickle.dumps(counted(tokenizer, words, "石 a"))))
    assert (total.tokens, total.unknown) == (60 * 102, 60 * 101)
    assert len(total.pieces) <= 2000
    assert total.pieces.most_common(1) == [("石", 60)]


def test_of_very_many_only_some_are_looked_at(tokenizer):
    found = counted(tokenizer, *["石 川"] * 1000)
    assert found.unknown == 2000
    assert sum(found.pieces.values()) == 256
    assert "most often (among 256 that were looked at) '石' (128)" in found.remark


@pytest.fixture
def hinting(tokenizer):
    return HintingTokenizer(tokenizer, "model")


def test_a_hint_is_said_once(hinting, capsys):
    hinting.encode("영화가")
    hinting.encode_with_offsets("영화가 a film of the river")
    assert not capsys.readouterr().err
    for _ in range(100):
        hinting.encode("영화가 a film of the river")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: model: of its texts, 1")
    assert "'영화가' (" in line


def test_a_rare_unknown_word_is_no_hint(hinting, capsys):
    for number in range(2000):
        hinting.encode("a film of the river " + ("石" if number % 50 == 0 else "film"))
    assert not capsys.readouterr().err
