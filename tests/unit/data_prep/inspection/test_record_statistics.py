"""Statistics of records against plain loops, and what is unusual about them."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.config.masking import MaskingOptions
from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.records.info import original_ids
from data_prep.inspection import record_statistics
from data_prep.inspection.hash_sample import HashSample, hash_of
from data_prep.inspection.judgement import Making, replacement_shares, unusual
from data_prep.inspection.record_statistics import Conventions, Statistics, count_records

S, P, V = 16, 4, 40
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
CONTINUES = np.arange(V) >= 25
CONVENTIONS = Conventions(SPECIAL, CONTINUES, 0.15)


def make_batch(count, *, seed=0, share=0.15, most=P, **scheme):
    """Records with masks as training data have them, and their ids before these."""
    rng = np.random.default_rng(seed)
    length = rng.integers(5, S + 1, count)
    used = np.arange(S) < length[:, None]
    ids = np.where(used, rng.integers(5, V, (count, S)), 0)
    ids[rng.random((count, S)) < 0.03] = 1
    ids[~used] = 0
    ids[:, 0] = 2
    ids[np.arange(count), length - 1] = 3
    starts = ~CONTINUES[ids]
    starts[:, :2] = True
    settings = MaskingSettings(MaskingOptions(share, most, **scheme), V, SPECIAL)
    keys = example_keys(seed, np.arange(count))
    masked = mask_batch(ids, length, keys=keys, settings=settings, word_starts=starts)
    batch = {
        "input_ids": masked.input_ids,
        "input_mask": used.astype(np.int64),
        "segment_ids": np.zeros((count, S), np.int64),
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.label_ids,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": rng.integers(0, 2, (count, 1)),
    }
    return batch, ids


def counted_by_hand(batch, ids):
    """The figures that do not need expectations, one token after another."""
    found = Counter()
    by_id, by_length, by_masks = Counter(), Counter(), Counter()
    for row in range(len(ids)):
        length = int(batch["input_mask"][row].sum())
        by_length[length] += 1
        found["tokens"] += length
        text = [i for i in ids[row, :length].tolist() if i not in (0, 2, 3)]
        found["text_tokens"] += len(text)
        by_id.update(ids[row, :length].tolist())
        masks = 0
        for place in range(P):
            if not batch["masked_lm_weights"][row, place]:
                continue
            masks += 1
            shown = batch["input_ids"][row, batch["masked_lm_positions"][row, place]]
            label = batch["masked_lm_ids"][row, place]
            found["mask" if shown == 4 else "kept" if shown == label else "random"] += 1
        by_masks[masks] += 1
        found["wanted"] += min(max(1, round(0.15 * length)), P, len(text))
    return found, by_id, by_length, by_masks


def as_counter(array):
    return Counter({index: int(count) for index, count in enumerate(array) if count})


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40))
def test_figures_are_those_counted_by_hand(seed, count):
    batch, ids = make_batch(count, seed=seed)
    np.testing.assert_array_equal(original_ids(batch), ids)
    found = count_records(batch, CONVENTIONS)
    expected, by_id, by_length, by_masks = counted_by_hand(batch, ids)
    assert found.records == count
    assert found.positions == count * S
    for name in ("tokens", "text_tokens", "wanted"):
        assert getattr(found, name) == expected[name], name
    assert found.replaced == Counter({n: expected[n] for n in ("mask", "random", "kept")})
    assert as_counter(found.ids) == by_id
    assert as_counter(found.lengths) == by_length
    assert as_counter(found.predictions) == by_masks
    assert found.num_predictions == sum(n * times for n, times in by_masks.items())
    assert found.labels == Counter(batch["next_sentence_labels"][:, 0].tolist())
    assert found.share_of(1) == by_id[1] / expected["text_tokens"]
    assert not found.repeated + found.on_special + found.empty
    equal = {row.tobytes() for row in np.where(batch["input_mask"], ids, -1)}
    assert len(np.unique(found.hashes)) == len(equal)


@given(cut=st.integers(0, 30))
def test_parts_add_up_to_the_whole(cut):
    batch, _ = make_batch(30)
    whole, total = count_records(batch, CONVENTIONS), Statistics()
    for part in (slice(0, cut), slice(cut, 30)):
        some = {name: values[part] for name, values in batch.items()}
        if len(some["input_ids"]):
            total.add(count_records(some, CONVENTIONS))
    for field in dataclasses.fields(Statistics):
        if field.name != "hashes":
            expected, value = getattr(whole, field.name), getattr(total, field.name)
            np.testing.assert_equal(value, expected, field.name)


def judged(batch, making=None, *, label="next_sentence_labels", conventions=CONVENTIONS):
    found, repeated = count_records(batch, conventions), HashSample()
    repeated.add(found.hashes)
    making = making or Making(next_sentence=True, masks=MaskingOptions(), passes=1, vocab_size=V)
    return list(unusual(found, repeated, making, label=label, unknown_id=1))


SCHEMES = ({}, {"do_whole_word_mask": True}, {"ngram": 3}, {"span_masking": True})


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_masks_as_they_should_be_are_not_unusual(scheme):
    batch, _ = make_batch(4000, **scheme)
    masks = MaskingOptions(**scheme)
    making = Making(next_sentence=True, masks=masks, passes=1, vocab_size=V)
    assert judged(batch, making) == []


def set_masks(batch, name, value):
    rows, places = np.nonzero(batch["masked_lm_weights"])
    batch[name] = batch[name].copy()
    batch[name][rows, places] = value


def unmask(batch):
    """Every fourth mask shows what it hides."""
    rows, places = np.nonzero(batch["masked_lm_weights"])
    chosen = slice(None, None, 4)
    positions = batch["masked_lm_positions"][rows[chosen], places[chosen]]
    batch["input_ids"][rows[chosen], positions] = batch["masked_lm_ids"][
        rows[chosen], places[chosen]
    ]


def drop_masks(batch):
    """Every tenth mask does not count."""
    rows, places = np.nonzero(batch["masked_lm_weights"])
    batch["masked_lm_weights"][rows[::10], places[::10]] = 0


def change(name, value, where=slice(None)):
    def edit(batch):
        batch[name] = batch[name].copy()
        batch[name][where] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "sentences"),
    [
        (unmask, ["replaced by [MASK], but 80.00% should be", "replaced by themselves, but"]),
        (drop_masks, ["tokens are masked, 0.9"]),
        (lambda b: set_masks(b, "masked_lm_positions", 0), ["are on special tokens or padding"]),
        (lambda b: set_masks(b, "masked_lm_positions", 2), ["at an already masked position"]),
        (change("masked_lm_weights", 0), ["no token is masked in any record"]),
        (change("next_sentence_labels", 1), ["all sentence pairs have label 1, so"]),
        (change("next_sentence_labels", 1, slice(20, None)), ["% of the sentence pairs have labe"]),
        (lambda b: [change(n, 0)(b) for n in ("input_mask", "masked_lm_weights")], ["no text"]),
        (change("input_ids", 1), ["of the tokens are unknown to the vocabulary"]),
        (lambda b: b.update({n: v[[*range(9)] * 99] for n, v in b.items()}), ["repeat another"]),
    ],
    ids=["replaced", "few", "special", "twice", "none", "one label", "rare", "empty", "unknown",
         "repeated"],
)  # fmt: skip
def test_what_is_unusual(edit, sentences):
    batch, _ = make_batch(4000)
    edit(batch)
    said = judged(batch)
    for sentence in sentences:
        assert any(sentence in line for line in said), said


def test_words_are_whole_or_not():
    batch, _ = make_batch(500)
    pieces, _ = make_batch(500, do_whole_word_mask=True)
    for scheme in ({"do_whole_word_mask": True}, {"span_masking": True}):
        making = Making(next_sentence=True, masks=MaskingOptions(**scheme), passes=1, vocab_size=V)
        assert any("a piece of a word is masked without" in line for line in judged(batch, making))
    assert count_records(pieces, CONVENTIONS).split_words == 0
    # By hand: two pieces of a word next to each other, one of them masked.
    expected = 0
    ids = original_ids(batch)
    for row, positions, weights in zip(
        ids, batch["masked_lm_positions"], batch["masked_lm_weights"]
    ):
        chosen = {int(p) for p, weight in zip(positions, weights) if weight}
        for place in range(2, S):
            if row[place] >= 25 and row[place - 1] not in (0, 2, 3):
                expected += (place in chosen) != (place - 1 in chosen)
    assert count_records(batch, CONVENTIONS).split_words == expected > 0


def test_repetitions_that_passes_explain():
    batch, _ = make_batch(50)
    twice = {name: np.concatenate([values] * 2) for name, values in batch.items()}
    passes = Making(next_sentence=True, masks=MaskingOptions(), passes=2, vocab_size=V)
    assert not [line for line in judged(twice, passes) if "repeat" in line]
    assert [line for line in judged(twice) if "50.0% of the records repeat" in line]
    unknown = Making(vocab_size=V)
    assert not [line for line in judged(twice, unknown) if "repeat" in line]


def test_labels_that_may_be_equal():
    batch, _ = make_batch(50)
    batch["is_impossible"] = np.zeros((50, 1), np.int64)
    del batch["next_sentence_labels"]
    assert not [line for line in judged(batch, label="is_impossible") if "the same" in line]
    change("is_impossible", 1)(batch)
    assert [line for line in judged(batch, label="is_impossible") if "the same" in line]
    batch, _ = make_batch(50)
    change("next_sentence_labels", 0)(batch)
    single = Making(next_sentence=False, masks=MaskingOptions(), passes=1, vocab_size=V)
    assert not [line for line in judged(batch, single) if "the same" in line]


def test_padding():
    batch, _ = make_batch(50)
    for name in ("input_ids", "input_mask"):
        batch[name] = np.pad(batch[name], ((0, 0), (0, 40)))
    assert any("of all positions are padding" in line for line in judged(batch))
    assert not any("are padding" in line for line in judged(batch, label="is_impossible"))


def test_answers_in_padding():
    batch, _ = make_batch(5)
    length = batch["input_mask"].sum(axis=1, keepdims=True)
    batch["start_positions"] = np.array([[1], [3], [2], [0], [1]])
    batch["end_positions"] = np.array([[1], [2], [3], [0], [0]])
    batch["end_positions"][4] = length[4]
    assert count_records(batch, CONVENTIONS).answers_outside == 2
    assert any("2 answers end before they start" in line for line in judged(batch))


def test_the_band_of_replacements():
    found = Statistics(predictions=np.array([0, 10_000]))
    found.replaced = Counter(mask=8000, random=1000, kept=1000)
    shares = replacement_shares(found, Making(vocab_size=50))
    assert shares["mask"] == (0.8, pytest.approx(0.8), pytest.approx(4 * 0.004))
    assert shares["random"][1] == pytest.approx(0.1 * 49 / 50)
    assert shares["kept"][1] == pytest.approx(0.1 + 0.1 / 50)
    assert sum(expected for _, expected, _ in shares.values()) == pytest.approx(1)


def test_the_band_of_replacements_of_whole_spans():
    """Runs of 1, 3 and 2 predictions: 6 of them, but three draws, of 6**2 / (1 + 9 + 4)."""
    batch, _ = make_batch(2)
    batch["masked_lm_positions"] = np.array([[1, 3, 4, 5], [2, 3, 0, 0]])
    batch["masked_lm_weights"] = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.float32)
    batch["masked_lm_ids"] = np.full((2, 4), 7)
    found = count_records(batch, CONVENTIONS)
    assert found.squared_runs == 14
    spans = replacement_shares(found, Making(masks=MaskingOptions(span_masking=True)))
    singly = replacement_shares(found, Making(masks=MaskingOptions()))
    assert spans["mask"][:2] == singly["mask"][:2]
    assert singly["mask"][2] == pytest.approx(4 * (0.8 * 0.2 / 6) ** 0.5)
    assert spans["mask"][2] == pytest.approx(4 * (0.8 * 0.2 / 36 * 14) ** 0.5)


def test_ids_that_are_too_large_to_count_one_by_one(monkeypatch):
    batch, _ = make_batch(5)
    batch["input_ids"][0, 1] = 2**31 - 1
    batch["masked_lm_weights"][0] = 0
    found = count_records(batch, Conventions())
    assert len(found.ids) == record_statistics._COUNTED_IDS + 1
    assert found.ids[-1] == 1


@given(st.lists(st.integers(0, 50), max_size=300), st.integers(4, 64))
def test_equal_things_are_found(contents, most):
    hashes = np.array([hash_of(b"%d" % content) for content in contents], np.uint64)
    whole, part = HashSample(), HashSample(most)
    for start in range(0, len(hashes), 7):
        whole.add(hashes[start : start + 7])
        part.add(hashes[start : start + 7])
    numbers = sorted(Counter(contents).values(), reverse=True)
    assert whole.counts().tolist() == numbers
    assert whole.one_in == 1
    repetitions = len(contents) - len(numbers)
    assert whole.repeated_share() == pytest.approx(repetitions / max(len(contents), 1))
    assert len(part.counts()) <= most
    kept = [h for h in hashes.tolist() if h % part.one_in == 0]
    assert part.counts().tolist() == sorted(Counter(kept).values(), reverse=True)
