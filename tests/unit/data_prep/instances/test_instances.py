from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.instances import instances
from data_prep.instances.instances import SequenceRules, Spans, TokenizedBlock

PAD, CLS, SEP = 0, 1, 2
SPECIAL = {"pad": PAD, "cls": CLS, "sep": SEP}


def block_of(documents):
    """Documents of sentences of a given number of tokens; the tokens count from 10 upwards."""
    sentence_starts, document_starts = [0], [0]
    for sentences in documents:
        for length in sentences:
            sentence_starts.append(sentence_starts[-1] + length)
        document_starts.append(len(sentence_starts) - 1)
    tokens = np.arange(10, 10 + sentence_starts[-1], dtype=np.int32)
    return TokenizedBlock(tokens, sentence_starts, document_starts)


def document_of(block, token_index):
    sentence = np.searchsorted(block.sentence_starts, token_index, side="right") - 1
    return int(np.searchsorted(block.document_starts, sentence, side="right")) - 1


def spans_of(block, rules, *, seed=0, pass_number=0):
    return instances.make_spans(block, rules, pass_number=pass_number, rng=random.Random(seed))


blocks_of_text = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=6
).map(block_of)
pair_rules = st.builds(
    SequenceRules,
    max_seq_length=st.integers(5, 60),
    short_seq_prob=st.sampled_from([0.0, 0.3, 1.0]),
    nsp=st.just(True),
)


def test_tokenizing_drops_what_has_no_tokens():
    ids = {"a": [1], "bc": [2, 3], "": [], "?": []}
    block = instances.tokenize_documents(
        [["a", "?", "bc"], ["?"], [], ["bc"]], lambda sentence: ids[sentence]
    )
    assert block.tokens.tolist() == [1, 2, 3, 2, 3]
    assert block.sentence_starts == [0, 1, 3, 5]
    assert block.document_starts == [0, 2, 3]
    assert (block.num_documents, block.num_sentences) == (2, 3)


def test_no_text_gives_no_instances():
    block = instances.tokenize_documents([], lambda sentence: [])
    for nsp in (False, True):
        rules = SequenceRules(16, 0.1, nsp)
        spans = spans_of(block, rules)
        assert len(spans) == 0
        cut = instances.truncate_spans(spans, 13, np.random.default_rng(0))
        features = instances.assemble(
            block, cut, rules, special_ids=SPECIAL, starts_word=np.ones(5, bool)
        )
        assert features["input_ids"].shape == (0, 16)


@settings(max_examples=150, deadline=None)
@given(block=blocks_of_text, rules=pair_rules, seed=st.integers(0, 1000))
def test_pairs_use_all_sentences_of_each_document_in_order(block, rules, seed):
    spans = spans_of(block, rules, seed=seed)
    borders = set(block.sentence_starts)
    position = 0
    for (a, a_end), (b, b_end), is_random in zip(
        spans.a.tolist(), spans.b.tolist(), spans.is_random.tolist()
    ):
        assert {a, a_end, b, b_end} <= borders
        assert a < a_end
        assert b < b_end
        assert a == position  # nothing is left out, nothing is used twice as a first segment
        document = document_of(block, a)
        assert document_of(block, a_end - 1) == document
        assert document_of(block, b_end - 1) == document_of(block, b)
        if is_random:
            position = a_end
            assert block.num_documents == 1 or document_of(block, b) != document
        else:
            assert b == a_end
            assert document_of(block, b) == document
            position = b_end
        if not rules.short_seq_prob and not is_random:
            # The target is reached by the last sentence, or the document ends.
            last_sentence = block.sentence_starts[block.sentence_starts.index(b_end) - 1]
            assert last_sentence - a < rules.max_tokens
            ends = {block.sentence_starts[i] for i in block.document_starts}
            assert b_end - a >= rules.max_tokens or b_end in ends
    assert position == block.sentence_starts[-1]


def test_a_single_sentence_always_gets_a_random_partner():
    block = block_of([[5]] * 10)
    spans = spans_of(block, SequenceRules(32, 0.0, True))
    assert spans.is_random.tolist() == [1] * 10


def test_a_lone_document_is_its_own_random_partner():
    block = block_of([[5, 5, 5]])
    seen = {
        tuple(row)
        for seed in range(50)
        for row in spans_of(block, SequenceRules(8, 0.0, True), seed=seed).b.tolist()
    }
    assert {start for start, _ in seen} == {0, 5, 10}


def test_random_partners_come_from_all_other_documents_alike():
    block = block_of([[3]] * 6)
    counts = np.zeros((6, 6))
    for seed in range(2000):
        spans = spans_of(block, SequenceRules(9, 0.0, True), seed=seed)
        np.add.at(counts, (spans.a[:, 0] // 3, spans.b[:, 0] // 3), 1)
    assert not np.diag(counts).any()
    others = counts[~np.eye(6, dtype=bool)]
    assert ((others - 400) ** 2 / 400).sum() < 70  # 24 degrees of freedom: beyond 1e-5


order_rules = st.builds(
    SequenceRules,
    max_seq_length=st.integers(5, 60),
    short_seq_prob=st.sampled_from([0.0, 0.3, 1.0]),
    nsp=st.just(True),
    sentence_order=st.just(True),
)


@settings(max_examples=150, deadline=None)
@given(block=blocks_of_text, rules=order_rules, seed=st.integers(0, 1000))
def test_pairs_of_sentence_order_are_neighbours_and_use_all_text(block, rules, seed):
    spans = spans_of(block, rules, seed=seed)
    borders = set(block.sentence_starts)
    used = np.zeros(len(block.tokens), int)
    for a, b, is_swapped in zip(spans.a.tolist(), spans.b.tolist(), spans.is_random.tolist()):
        first, second = (b, a) if is_swapped else (a, b)
        assert first[0] < first[1] == second[0] < second[1]
        document = document_of(block, first[0])
        assert document_of(block, second[1] - 1) == document
        sentences = np.diff(block.document_starts)[document]
        assert sentences == 1 or {*first, *second} <= borders
        used[first[0] : second[1]] += 1
    left_out = [
        start
        for start, end in zip(block.document_starts, block.document_starts[1:])
        if block.sentence_starts[end] - block.sentence_starts[start] == 1
    ]
    assert len(left_out) == block.num_documents_of_one_token
    for document, (start, end) in enumerate(zip(block.document_starts, block.document_starts[1:])):
        tokens = used[block.sentence_starts[start] : block.sentence_starts[end]]
        assert (tokens >= 1).all() or len(tokens) == 1, document
        # Only the sentence before a last one that is left alone is used twice.
        assert (tokens > 1).sum() <= 40
        assert tokens.max() <= 2


def test_half_of_the_pairs_are_swapped():
    block = block_of([[5, 6, 7, 8, 9]] * 200)
    rules = SequenceRules(20, 0.1, True, sentence_order=True)
    labels = np.concatenate([spans_of(block, rules, seed=seed).is_random for seed in range(20)])
    assert len(labels) > 4000
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(labels))


def test_a_document_of_one_sentence_is_split_anywhere():
    block = block_of([[5]])
    rules = SequenceRules(20, 0.0, True, sentence_order=True)
    seen = {
        tuple(sorted(map(tuple, [*spans.a.tolist(), *spans.b.tolist()])))
        for spans in (spans_of(block, rules, seed=seed) for seed in range(100))
    }
    assert seen == {((0, middle), (middle, 5)) for middle in range(1, 5)}


# google-research/bert @eedf571, create_instances_from_document, run over 200 passes of the
# documents below: per pass instances, their standard deviation; then per instance tokens of the
# first segment, of the second one, share of random partners, share of full length.
GOOGLE = {
    (64, 0.1): (2124.88, 28.1, 26.524, 29.378, 0.6396, 0.8457),
    (128, 0.1): (1604.42, 38.5, 48.858, 58.203, 0.6504, 0.7345),
    (128, 0.5): (1848.35, 58.5, 44.814, 52.919, 0.6806, 0.5855),
}


@pytest.mark.parametrize(("max_seq_length", "short_seq_prob"), GOOGLE)
def test_statistics_are_googles(max_seq_length, short_seq_prob):
    rng = random.Random(1)
    documents = []
    for _ in range(200):
        count = rng.choice([1, 2, 5, 20, 60])
        document = []
        for _ in range(count):
            document.append(rng.choice([1, 5, 12, 25, 60, 150]))
            for _ in range(document[-1]):
                rng.randrange(1000)
        documents.append(document)
    block = block_of(documents)
    assert len(block.tokens) == 165_845
    rules = SequenceRules(max_seq_length, short_seq_prob, nsp=True)
    passes = 60
    spans = Spans.concatenate([spans_of(block, rules, seed=seed) for seed in range(passes)])
    cut = instances.truncate_spans(spans, rules.max_tokens, np.random.default_rng(0))
    a, b = np.diff(cut.a)[:, 0], np.diff(cut.b)[:, 0]
    count, deviation, *google = GOOGLE[max_seq_length, short_seq_prob]
    assert abs(len(spans) / passes - count) < 5 * deviation * np.sqrt(1 / passes + 1 / 200)
    ours = [a.mean(), b.mean(), spans.is_random.mean(), (a + b == rules.max_tokens).mean()]
    tolerances = [0.5, 0.5, 0.01, 0.015]
    np.testing.assert_array_less(np.abs(np.array(ours) - google), tolerances)


def truncate_one_by_one(a, b, max_tokens):
    """The rule as it is stated, for the lengths alone."""
    while a + b > max_tokens:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@settings(max_examples=300, deadline=None)
@given(a=st.integers(1, 60), b=st.integers(0, 60), max_tokens=st.integers(2, 70))
def test_truncation_takes_from_the_longer_segment(a, b, max_tokens):
    spans = Spans.from_rows([(100, 100 + a, 300, 300 + b, 1)])
    cut = instances.truncate_spans(spans, max_tokens, np.random.default_rng(a))
    assert (np.diff(cut.a)[0, 0], np.diff(cut.b)[0, 0]) == truncate_one_by_one(a, b, max_tokens)
    assert 100 <= cut.a[0, 0] <= cut.a[0, 1] <= 100 + a
    assert 300 <= cut.b[0, 0] <= cut.b[0, 1] <= 300 + b


def test_truncation_takes_from_front_and_back_alike():
    spans = Spans.from_rows([(0, 60, 100, 160, 0)] * 4000)
    cut = instances.truncate_spans(spans, 60, np.random.default_rng(3))
    for part, start in ((cut.a, 0), (cut.b, 100)):
        front = part[:, 0] - start
        assert abs(front.mean() - 15) < 0.25  # binomial(30, 1/2): deviation 2.7, of the mean 0.04
        assert abs(front.std() - np.sqrt(7.5)) < 0.2
    assert abs(np.corrcoef(cut.a[:, 0], cut.b[:, 0])[0, 1]) < 0.08


@settings(max_examples=100, deadline=None)
@given(
    block=blocks_of_text,
    max_seq_length=st.integers(5, 40),
    short_seq_prob=st.sampled_from([0.0, 1.0]),
    pass_number=st.integers(0, 2),
)
def test_single_segments_cover_each_document_once(
    block, max_seq_length, short_seq_prob, pass_number
):
    rules = SequenceRules(max_seq_length, short_seq_prob, nsp=False)
    spans = spans_of(block, rules, pass_number=pass_number)
    covered = [token for start, end in spans.a for token in range(start, end)]
    assert covered == list(range(len(block.tokens)))
    assert (np.diff(spans.b) == 0).all()
    assert not spans.is_random.any()
    lengths = np.diff(spans.a)[:, 0]
    assert 1 <= lengths.min() <= lengths.max() <= max_seq_length - 2
    documents = [document_of(block, start) for start, _ in spans.a]
    if not short_seq_prob and not pass_number:
        for document in set(documents):
            of_document = lengths[np.array(documents) == document]
            assert (of_document[:-1] == max_seq_length - 2).all()


def test_later_passes_cut_single_segments_elsewhere():
    block = block_of([[1000]])
    rules = SequenceRules(66, 0.0, nsp=False)
    firsts = {spans_of(block, rules, seed=seed, pass_number=1).a[0, 1] for seed in range(300)}
    assert min(firsts) <= 3
    assert max(firsts) >= 62
    assert len(firsts) > 50


@settings(max_examples=100, deadline=None)
@given(block=blocks_of_text, max_seq_length=st.integers(5, 40), pass_number=st.integers(0, 2))
def test_packed_documents_fill_every_sequence(block, max_seq_length, pass_number):
    """All tokens in order, a separator where a document begins, and full sequences between."""
    joined = instances.join_documents(block, SEP)
    expected = []
    for first, last in zip(block.document_starts, block.document_starts[1:]):
        start, stop = block.sentence_starts[first], block.sentence_starts[last]
        expected += [SEP] * bool(expected) + block.tokens[start:stop].tolist()
    assert joined.tokens.tolist() == expected
    sentences = [joined.tokens[s] for s in joined.sentence_starts[:-1]]
    assert sentences == [block.tokens[s] for s in block.sentence_starts[:-1]]
    assert joined.sentence_starts[-1] == len(expected)
    assert joined.num_documents == 1

    rules = SequenceRules(max_seq_length, 1.0, nsp=False, pack_documents=True)
    spans = spans_of(joined, rules, pass_number=pass_number)
    assert [t for start, end in spans.a for t in range(start, end)] == list(range(len(expected)))
    lengths = np.diff(spans.a)[:, 0]
    inner = lengths[1:-1] if pass_number else lengths[:-1]
    assert (inner == max_seq_length - 2).all()


def test_assembled_pairs_by_hand():
    block = block_of([[3, 4]])  # tokens 10, 11, 12 and 13, 14, 15, 16
    spans = Spans.from_rows([(0, 3, 3, 6, 1), (1, 2, 0, 1, 0)])
    starts_word = np.ones(20, bool)
    starts_word[[10, 11, 13, 14]] = False
    features = instances.assemble(
        block, spans, SequenceRules(10, 0.0, True), special_ids=SPECIAL, starts_word=starts_word
    )
    expected = {
        "input_ids": [
            [CLS, 10, 11, 12, SEP, 13, 14, 15, SEP, PAD],
            [CLS, 11, SEP, 10, SEP, PAD, PAD, PAD, PAD, PAD],
        ],
        "input_mask": [[1] * 9 + [0], [1] * 5 + [0] * 5],
        "segment_ids": [[0] * 5 + [1] * 4 + [0], [0] * 3 + [1] * 2 + [0] * 5],
        "word_starts": [[1, 1, 0, 1, 1, 1, 0, 1, 1, 0], [1] * 5 + [0] * 5],
        "next_sentence_labels": [[1], [0]],
    }
    assert set(features) == set(expected)
    for name, values in expected.items():
        assert features[name].tolist() == values, name
        assert features[name].dtype == np.int64


def test_assembled_single_segments_by_hand():
    block = block_of([[6]])
    spans = Spans.from_rows([(0, 6, 6, 6, 0), (2, 4, 4, 4, 0)])
    features = instances.assemble(
        block,
        spans,
        SequenceRules(8, 0.0, False),
        special_ids=SPECIAL,
        starts_word=np.ones(20, bool),
    )
    assert features["input_ids"].tolist() == [
        [CLS, 10, 11, 12, 13, 14, 15, SEP],
        [CLS, 12, 13, SEP, PAD, PAD, PAD, PAD],
    ]
    assert features["input_mask"].tolist() == [[1] * 8, [1] * 4 + [0] * 4]
    assert not features["segment_ids"].any()
    assert features["next_sentence_labels"].tolist() == [[0], [0]]
