"""The masked copies of sequences, in batches."""

import collections

import numpy as np
import pytest

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.masking import MaskingSettings
from bert_tf.tasks.scoring import work as work_module
from bert_tf.tasks.scoring.sequences import TokenSequence
from bert_tf.tasks.scoring.work import BatchInputs, Work

CLS, SEP, MASK = 2, 3, 4
MASKING = MaskingSettings(
    MaskingOptions(),
    vocab_size=50,
    special_ids={"pad": 0, "unk": 1, "cls": CLS, "sep": SEP, "mask": MASK},
)
LENGTHS = (7, 40, 7, 17, 3, 40)


@pytest.fixture
def sequences():
    rng = np.random.default_rng(0)
    made = []
    for number, length in enumerate(LENGTHS):
        ids = np.array([CLS, *rng.integers(5, 50, length - 2), SEP], np.int32)
        segment_ids = np.full(length, number % 2, np.int32)
        made.append(TokenSequence(number, ids, segment_ids, (ids != CLS) & (ids != SEP)))
    made[3].is_scored[5] = False
    return made


def test_all_pieces_of_a_word_are_masked_together(sequences):
    begins_word = np.arange(50) % 3 != 0
    begins_word[[CLS, SEP]] = True
    work = work_of(sequences, batch_tokens=60, num_draws=1, begins_word=begins_word)
    seen = collections.defaultdict(list)
    for batch in work.batches:
        inputs = work.inputs(batch)
        for row, copy in enumerate(range(batch.start, batch.stop)):
            original = sequences[work.text_of(copy)]
            masked = np.flatnonzero(inputs.features["input_ids"][row] != original.ids).tolist()
            assert masked == list(range(masked[0], masked[-1] + 1))
            first, *others = masked
            assert begins_word[original.ids[first]] or original.ids[first - 1] == CLS
            assert not begins_word[original.ids[others]].any()
            assert begins_word[original.ids[masked[-1] + 1]]
            assert (inputs.features["input_ids"][row][masked] == MASK).all()
            places = inputs.features["masked_lm_positions"][row][inputs.is_scored[row]].tolist()
            assert places == [place for place in masked if original.is_scored[place]]
            labels = inputs.features["masked_lm_ids"][row][inputs.is_scored[row]]
            np.testing.assert_array_equal(labels, original.ids[places])
            seen[original.text] += places
    for sequence in sequences:
        assert sorted(seen[sequence.text]) == np.flatnonzero(sequence.is_scored).tolist()


def work_of(sequences, **changes):
    settings = {"metrics": ("pseudo",), "batch_tokens": 30, "num_draws": 3, "seed": 9, **changes}
    return Work(sequences, MASKING, **settings)


def test_every_scored_position_is_masked_once(sequences):
    work = work_of(sequences)
    seen = collections.Counter()
    for batch in work.batches:
        inputs = work.inputs(batch)
        rows, length = inputs.features["input_ids"].shape
        assert rows * length == batch.tokens
        assert rows == 1 or batch.tokens <= 30
        assert inputs.is_scored.all()
        for row, copy in enumerate(range(batch.start, batch.stop)):
            original = sequences[work.text_of(copy)]
            [place], [label] = (
                inputs.features["masked_lm_positions"][row],
                inputs.features["masked_lm_ids"][row],
            )
            expected = original.ids.copy()
            assert label == expected[place]
            expected[place] = MASK
            np.testing.assert_array_equal(inputs.features["input_ids"][row], expected)
            np.testing.assert_array_equal(inputs.features["segment_ids"][row], original.segment_ids)
            seen[original.text, int(place)] += 1
    wanted = {(s.text, int(p)) for s in sequences for p in np.flatnonzero(s.is_scored)}
    assert seen == dict.fromkeys(wanted, 1)


def test_longest_first_and_sequences_of_a_length_share_batches(sequences):
    work = work_of(sequences, batch_tokens=70)
    lengths = [batch.length for batch in work.batches]
    assert lengths == sorted(lengths, reverse=True)
    # Two sequences of 7 tokens have 10 copies, and 10 fit into 70 tokens.
    assert [batch.stop - batch.start for batch in work.batches if batch.length == 7] == [10]


def test_parts_are_consecutive_batches_of_about_as_many_tokens(sequences, monkeypatch):
    monkeypatch.setattr(work_module, "PART_TOKENS", 300)
    work = work_of(sequences, metrics=("masked", "pseudo"))
    assert [batch for part in work.parts for batch in part] == work.batches
    sizes = [sum(batch.tokens for batch in part) for part in work.parts]
    assert len(sizes) > 5
    assert max(sizes) <= 300 + 40


def test_draws_are_those_of_pretraining(sequences):
    work = work_of(sequences, metrics=("masked",), num_draws=40)
    chosen, kinds = collections.Counter(), collections.Counter()
    for batch in work.batches:
        inputs = work.inputs(batch)
        # round(0.15 x n), at least 1, where [CLS] and [SEP] are not among the n
        assert inputs.features["masked_lm_positions"].shape[1] == max(
            1, round(0.15 * (batch.length - 2))
        )
        for row, copy in enumerate(range(batch.start, batch.stop)):
            original = sequences[work.text_of(copy)]
            changed = inputs.features["input_ids"][row] != original.ids
            places = inputs.features["masked_lm_positions"][row]
            assert set(np.flatnonzero(changed)) <= set(places)
            np.testing.assert_array_equal(
                inputs.features["masked_lm_ids"][row], original.ids[places]
            )
            np.testing.assert_array_equal(inputs.is_scored[row], original.is_scored[places])
            chosen.update((original.text, int(place)) for place in places)
            for place in places:
                now = inputs.features["input_ids"][row][place]
                kinds["mask" if now == MASK else "other" if changed[place] else "kept"] += 1
    assert kinds["mask"] / kinds.total() == pytest.approx(0.8, abs=0.05)
    assert kinds["other"]
    assert kinds["kept"]
    assert len(chosen) > 0.9 * sum(LENGTHS) - 2 * len(LENGTHS)


def test_masks_depend_on_seed_and_draw_but_not_on_batches(sequences):
    def masks(**changes):
        work = work_of(sequences, metrics=("masked",), **changes)
        found = {}
        for batch in work.batches:
            rows = work.inputs(batch).features["input_ids"]
            for row, copy in zip(rows, range(batch.start, batch.stop)):
                found[work.sequence[copy], work.variant[copy]] = row.tolist()
        return found

    one, other = masks(), masks(batch_tokens=1000)
    assert one == other
    assert len(one) == 3 * len(LENGTHS)
    assert one[1, 0] != one[1, 1]
    assert masks(seed=10) != one


def test_sequences_of_a_batch_may_have_unequal_numbers_of_words():
    ids = np.full((2, 20), 7, np.int32)
    ids[0, 1:] = SEP  # 1 word
    ids[1, [0, 9, 19]] = CLS, SEP, SEP  # 17 words
    sequences = [TokenSequence(0, row, np.zeros_like(row), row == 7) for row in ids]
    [batch] = (
        work := work_of(sequences, metrics=("masked",), num_draws=1, batch_tokens=40)
    ).batches
    is_scored = work.inputs(batch).is_scored
    assert is_scored.tolist() == [[True, False, False], [True] * 3]


def test_unscored_losses_do_not_count():
    inputs = BatchInputs({}, np.array([[True, False], [True, True]]))
    losses, counts = inputs.summed(np.array([[1.0, np.nan], [2.0, 3.0]], np.float32))
    assert losses.tolist() == [1.0, 5.0]
    assert counts.tolist() == [1, 2]
