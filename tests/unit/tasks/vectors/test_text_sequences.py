"""Texts become sequences as in google-research/bert."""

import itertools

import numpy as np
import pytest

from bert_tf.tasks.vectors.texts import SequenceMaker
from bert_tf.util.errors import UserError
from tests.helpers.small_vocabulary import load_tokenizer

CLS, SEP, PAD, FIRST = 2, 3, 0, 5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = "".join(f"w{number}\n" for number in range(35))
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + words)
    return load_tokenizer(vocab_file=path, do_lower_case=False)


def text_of(numbers):
    return " ".join(f"w{number}" for number in numbers)


def naive(first, second, length):
    """Ids and segments, one token removed at a time."""
    a, b = list(first), list(second)
    while len(a) + len(b) > length - (3 if b or second else 2):
        (a if len(a) > len(b) else b).pop()
    ids = [CLS, *(FIRST + n for n in a), SEP]
    segments = [0] * len(ids)
    if b:
        ids += [*(FIRST + n for n in b), SEP]
        segments += [1] * (len(b) + 1)
    return ids, segments


@pytest.mark.parametrize("length", [5, 8, 16])
def test_sequences_against_one_token_at_a_time(tokenizer, length):
    maker = SequenceMaker(tokenizer, length)
    for sizes in itertools.product(range(9), range(9)):
        first, second = range(sizes[0]), range(20, 20 + sizes[1])
        texts = [text_of(first), *([text_of(second)] if second else [])]
        found = maker.sequence(texts)
        ids, segments = naive(first, second, length)
        assert found.ids.tolist() == ids
        assert found.first == segments.count(0)
        assert found.is_cut == (sum(sizes) > length - 1 - len(texts))


def test_a_batch(tokenizer):
    maker = SequenceMaker(tokenizer, 16)
    batch = maker.batch([maker.sequence(["w0 w1"]), maker.sequence(["w2", "w3"])], 6)
    np.testing.assert_array_equal(
        batch["input_ids"], [[CLS, 5, 6, SEP, PAD, PAD], [CLS, 7, SEP, 8, SEP, PAD]]
    )
    np.testing.assert_array_equal(batch["input_mask"], [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(batch["segment_ids"], [[0] * 6, [0, 0, 0, 1, 1, 0]])


def test_a_second_text_without_tokens_is_left_out(tokenizer):
    maker = SequenceMaker(tokenizer, 16)
    assert maker.sequence(["w0", " "]).ids.tolist() == [CLS, 5, SEP]


def test_no_room_for_a_pair(tokenizer):
    maker = SequenceMaker(tokenizer, 4)
    maker.sequence(["w0 w1 w2"])
    with pytest.raises(UserError, match="--max_seq_length=4 has no room for a pair of texts"):
        maker.sequence(["w0", "w1"])
