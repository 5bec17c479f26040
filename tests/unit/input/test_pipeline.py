from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.masking import MaskingOptions
from bert_tf.config.ramps import Ramp
from bert_tf.input import pipeline
from bert_tf.input.batches import user_errors
from bert_tf.input.cutting import cut_records
from bert_tf.input.masking import MaskingSettings, MaskShares, example_keys, mask_batch
from bert_tf.input.order import GlobalBatchSlice, batch_indices, sequence_indices
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED, PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError

NUM_RECORDS = 22
MODEL = {"vocab_size": 50, "type_vocab_size": 2}
FEATURES = {
    "input_ids": ([12], tf.int32),
    "input_mask": ([12], tf.int32),
    "segment_ids": ([12], tf.int32),
    "masked_lm_positions": ([3], tf.int32),
    "masked_lm_ids": ([3], tf.int32),
    "masked_lm_weights": ([3], tf.float32),
    "next_sentence_labels": ([1], tf.int32),
}


class Data:
    """Records of one form in three files, and how to read them back."""

    def __init__(self, record_maker, directory, *, masked, compression="none", **scheme):
        options = {"masked": masked, "compression": compression}
        counts = [9, 0, NUM_RECORDS - 9]
        firsts = [0, 9, 9]
        paths = [
            record_maker.write(directory / f"{i}.tfrecord", count, first=first, **options)
            for i, (count, first) in enumerate(zip(counts, firsts))
        ]
        record_maker.write_manifest(directory)
        self.maker = record_maker
        self.info = inspect_records(paths)
        parts = [record_maker.examples(c, first=f, masked=masked) for c, f in zip(counts, firsts)]
        self.examples = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        self.scheme, self.masking = scheme, None
        if not masked:
            self.masking = MaskingSettings(
                MaskingOptions(0.3, 3, **scheme), 50, self.info.special_ids
            )
        self.described = pipeline.PretrainingRecords(
            RecordSet(paths), self.info, **MODEL, masking=self.masking
        )

    def train(
        self,
        *,
        batch=4,
        rank=0,
        world_size=1,
        start=0,
        seed=7,
        sizes=None,
        lengths=None,
        shares=None,
    ):
        return pipeline.training_dataset(
            self.described,
            GlobalBatchSlice(batch, rank, world_size, sizes=sizes),
            start_position=start,
            seed=seed,
            lengths=lengths,
            shares=shares,
        )

    def evaluate(self, *, batch_size=4, rank=0, world_size=1, seed=7):
        batch = GlobalBatchSlice(batch_size * world_size, rank, world_size)
        return pipeline.evaluation_dataset(self.described, batch, seed=seed)


@pytest.fixture(
    scope="module",
    params=[
        "stored masks",
        "drawn spans",
        pytest.param("drawn masks", marks=pytest.mark.exhaustive),
    ],
)
def data(request, record_maker, tmp_path_factory):
    masked = request.param == "stored masks"
    spans = request.param == "drawn spans"
    directory = tmp_path_factory.mktemp("records")
    return Data(record_maker, directory, masked=masked, span_masking=spans)


@pytest.fixture(scope="module")
def unmasked(record_maker, tmp_path_factory):
    return Data(record_maker, tmp_path_factory.mktemp("unmasked"), masked=False)


def batches(make_dataset, limit=None, **options):
    """The elements of ``make_dataset(**options)``, in a graph of its own."""
    found = []
    with tf.Graph().as_default(), tf.Session() as session:
        following = tf.data.make_one_shot_iterator(make_dataset(**options)).get_next()
        while limit is None or len(found) < limit:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                break
    return found


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def joined(parts):
    """Batches of several ranks put together in the order of the ranks."""
    return [
        {name: np.concatenate([batch[name] for batch in same]) for name in same[0]}
        for same in zip(*parts)
    ]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_shapes_and_types_are_static(data, kind):
    with tf.Graph().as_default():
        spec = getattr(data, kind)().element_spec
    expected = {name: (tf.TensorShape([4, *s]), t) for name, (s, t) in FEATURES.items()}
    if kind == "evaluate":
        expected["example_weights"] = (tf.TensorShape([4]), tf.float32)
    assert {name: (s.shape, s.dtype) for name, s in spec.items()} == expected


def with_masks(data, records, position, predictions=3):
    """Records with the masks of the batch at a position, unless they store their own."""
    if data.masking is None:
        return records
    size, length = records["input_ids"].shape
    masked = mask_batch(
        records["input_ids"],
        np.full(size, length),
        keys=example_keys(7, position, np.arange(size)),
        settings=data.masking.with_options(max_predictions_per_seq=predictions),
        word_starts=records["word_starts"],
    )
    return {
        **{name: values for name, values in records.items() if name != "word_starts"},
        "input_ids": masked.input_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.label_ids,
        "masked_lm_weights": masked.weights,
    }


def test_a_batch_is_the_records_at_its_position(data):
    for position, batch in enumerate(batches(data.train, 12)):
        indices = batch_indices(position, GlobalBatchSlice(4), num_records=NUM_RECORDS, seed=7)
        expected = {name: values[indices] for name, values in data.examples.items()}
        assert_equal([batch], [with_masks(data, expected, position)])


def test_compressed_records_give_the_same_batches(data, record_maker, tmp_path):
    options = {"masked": data.masking is None, "compression": "gzip", **data.scheme}
    compressed = Data(record_maker, tmp_path, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0.tfrecord", "0.tfrecord.offsets", "1.tfrecord", "1.tfrecord.offsets", "2.tfrecord",
        "2.tfrecord.offsets", "manifest.json",
    ]  # fmt: skip
    assert (tmp_path / "0.tfrecord").read_bytes().startswith(b"\x1f\x8b")
    assert_equal(batches(compressed.train, 12), batches(data.train, 12))
    assert_equal(batches(compressed.evaluate), batches(data.evaluate))


def test_resuming_anywhere_equals_an_uninterrupted_run(data):
    whole = batches(data.train, 15)
    for start in (1, 6, 14):
        assert_equal(batches(data.train, 15 - start, start=start), whole[start:])


def test_a_share_of_masks_that_changes(unmasked):
    """At each position as if its share were that of all; nothing depends on where it started."""
    shares = MaskShares(0.3, 0.1, positions=5)
    whole = batches(unmasked.train, 7, shares=shares)
    assert [batch["masked_lm_ids"].shape for batch in whole] == [
        (4, 3), (4, 3), (4, 2), (4, 2), (4, 1), (4, 1), (4, 1)
    ]  # fmt: skip
    assert_equal(batches(unmasked.train, 4, shares=shares, start=3), whole[3:])
    first = batches(unmasked.train, 1)
    assert_equal(whole[:1], first)


def test_nothing_is_tuned_in_the_background(data):
    # TensorFlow's tuning thread can hold up the closing of a dataset for a minute.
    assert data.train().options().autotune.enabled is False


def test_the_global_batch_does_not_depend_on_the_ranks(data):
    whole = batches(data.train, 8, start=2)
    for world_size in (2, 4):
        parts = [
            batches(data.train, 8, start=2, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        assert parts[0][0]["input_ids"].shape == (4 // world_size, 12)
        assert_equal(joined(parts), whole)


RAMPS = {"sizes": Ramp((2, 4), (2,)), "lengths": Ramp((8, 12), (3,))}


def test_batches_grow_and_their_records_are_cut_before_they_are_masked(data):
    found = batches(data.train, 5, **RAMPS)
    begin = 0
    for position, (batch, (size, length)) in enumerate(
        zip(found, [(2, 8), (2, 8), (4, 8), (4, 12), (4, 12)])
    ):
        indices = sequence_indices(begin, size, num_records=NUM_RECORDS, seed=7)
        begin += size
        expected = {name: values[indices] for name, values in data.examples.items()}
        predictions = 3 if length == 12 else 2
        expected = cut_records(expected, length, predictions) if length < 12 else expected
        assert_equal([batch], [with_masks(data, expected, position, predictions)])
    for world_size in (1, 2):
        parts = [
            batches(data.train, 4, start=1, rank=rank, world_size=world_size, **RAMPS)
            for rank in range(world_size)
        ]
        assert_equal(joined(parts), found[1:])


def numbers(data, found):
    """The numbers of the records in batches, by which they are known."""
    return np.concatenate([numbers_of(data.maker, batch) for batch in found])


def numbers_of(maker, batch):
    return maker.numbers(batch["segment_ids"])


def test_an_epoch_has_every_record_once_across_batches(data):
    found = numbers(data, batches(data.train, 11))
    for epoch in (found[:NUM_RECORDS], found[NUM_RECORDS : 2 * NUM_RECORDS]):
        assert sorted(epoch) == list(range(NUM_RECORDS))
    assert found[:NUM_RECORDS].tolist() != found[NUM_RECORDS : 2 * NUM_RECORDS].tolist()


def test_seeds_give_other_orders(data):
    one, other = (batches(data.train, 1, seed=seed) for seed in (7, 8))
    assert numbers(data, one).tolist() != numbers(data, other).tolist()


def test_drawn_masks_differ_between_epochs(unmasked):
    seen = {}
    found = batches(unmasked.train, 33)
    positions = np.concatenate([batch["masked_lm_positions"] for batch in found])
    for number, places in zip(numbers(unmasked, found), positions):
        seen.setdefault(int(number), set()).add(tuple(places))
    assert np.mean([len(masks) for masks in seen.values()]) > 4  # of 6 epochs


@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 1), (3, 2), (5, 3), (40, 2), (22, 1)])
def test_evaluation_has_every_record_once(data, batch_size, world_size):
    parts = [
        batches(data.evaluate, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert {len(part) for part in parts} == {-(-NUM_RECORDS // (batch_size * world_size))}
    everything = joined(parts)
    found = numbers(data, everything)
    weights = np.concatenate([b["example_weights"] for b in everything])
    masked_weights = np.concatenate([b["masked_lm_weights"] for b in everything])
    assert found[weights == 1].tolist() == list(range(NUM_RECORDS))
    assert set(weights) <= {0.0, 1.0}
    assert not masked_weights[weights == 0].any()
    if data.masking is None:
        np.testing.assert_array_equal(
            masked_weights[weights == 1], data.examples["masked_lm_weights"]
        )
    else:
        # Words that do not fit are skipped.
        least = 1 if data.masking.options.span_masking else 3
        counts = masked_weights[weights == 1].sum(axis=1)
        assert ((least <= counts) & (counts <= 3)).all()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_take_the_batches_of_one_process_in_turn(data, world_size):
    # To the last place: what a network makes of a batch may depend on all that is in it.
    whole = batches(data.evaluate, batch_size=4)
    parts = [
        batches(data.evaluate, batch_size=4, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    in_turn = [batch for same in zip(*parts) for batch in same]
    assert_equal(in_turn[: len(whole)], whole)
    assert not any(batch["example_weights"].any() for batch in in_turn[len(whole) :])


@pytest.mark.parametrize("training", [True, False])
def test_masks_are_drawn_from_a_record_without_its_padding(record_maker, tmp_path, training):
    lengths = np.array([12, 4, 9, 2, 7, 6, 12, 3])
    examples = record_maker.examples(8, masked=False)
    within = np.arange(12) < lengths[:, None]
    examples["input_mask"] = within.astype(np.int64)
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in PRETRAINING_UNMASKED.encode_batch(examples):
            writer.write(record)
    record_maker.write_manifest(tmp_path)
    info = inspect_records([path])
    found = batches(dataset_of, 2, path=path, info=info, training=training)
    found = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    order = numbers_of(record_maker, found)
    assert sorted(order) == list(range(8))
    # A share of 0.3 of each one's own tokens: of padding that looks like words, none.
    counts = found["masked_lm_weights"].sum(axis=1)
    np.testing.assert_array_equal(counts, np.clip(np.round(0.3 * lengths[order]), 1, 3))
    used = found["masked_lm_weights"] > 0
    assert (found["masked_lm_positions"] < lengths[order][:, None])[used].all()
    unchanged = found["input_ids"] == examples["input_ids"][order]
    assert unchanged[~within[order]].all()


def test_evaluation_always_asks_for_the_same_words(unmasked):
    def masks(**options):
        found = batches(unmasked.evaluate, **options)
        return np.concatenate([b["masked_lm_positions"] for b in found])[:NUM_RECORDS]

    np.testing.assert_array_equal(masks(), masks(batch_size=22))
    assert (masks() != masks(seed=8)).any()


def test_records_of_googles_script_are_read(record_maker, tmp_path):
    path = record_maker.write_like_google(tmp_path / "a.tfrecord", 10)
    found = batches(
        dataset_of, path=path, info=inspect_records([path]), training=False, batch_size=10
    )
    examples = record_maker.examples(10)
    del found[0]["example_weights"]
    assert_equal(found, [examples])


TF2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}


@pytest.mark.parametrize("renamed", [[TF2_NAMES], [TF2_NAMES, None], [None, TF2_NAMES]])
def test_records_with_tensorflow_2s_names_are_read(record_maker, tmp_path, renamed):
    paths = [
        record_maker.write_like_google(
            tmp_path / f"{place}.tfrecord", 5, first=5 * place, renamed=names
        )
        for place, names in enumerate(renamed)
    ]
    records = pipeline.PretrainingRecords(RecordSet(paths), inspect_records(paths), **MODEL)
    found = batches(pipeline.evaluation_dataset, records=records, batch=GlobalBatchSlice(5), seed=1)
    for batch in found:
        del batch["example_weights"]
    assert_equal(found, [record_maker.examples(5, first=5 * n) for n in range(len(paths))])


def test_a_record_with_neither_name_is_named(record_maker, tmp_path):
    plain = record_maker.write_like_google(tmp_path / "a", 3)
    other = record_maker.write_like_google(tmp_path / "b", 3, renamed=TF2_NAMES)
    info = inspect_records([plain, other])
    record_maker.write_like_google(other, 3, renamed={"segment_ids": "type_ids"})
    info = dataclasses.replace(info, num_records=3)
    with pytest.raises(UserError, match=r"^record 0 of .*b cannot be used: its segment_ids .* -1"):
        read_everything(other, info)


def test_unmasked_records_need_masking_settings(unmasked):
    records = dataclasses.replace(unmasked.described, masking=None)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="masking settings"):
        pipeline.training_dataset(records, GlobalBatchSlice(4), start_position=0, seed=1)


def read_everything(path, info):
    with user_errors():
        batches(dataset_of, path=path, info=info, training=False)


def test_a_damaged_record_ends_in_one_sentence(record_maker, tmp_path):
    path = record_maker.write(tmp_path / "a b.tfrecord", 30)
    info = inspect_records([path])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_everything(path, info)
    sentence = str(error.value)
    assert sentence.startswith("record 1")
    assert "a b.tfrecord is damaged" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize("change", ["another length", "a missing feature"])
def test_a_record_of_another_form_ends_in_one_sentence(record_maker, tmp_path, change):
    path = tmp_path / "a.tfrecord"
    spec, options = PRETRAINING_MASKED, {"seq_length": 16}
    if change == "a missing feature":
        spec, options = PRETRAINING_UNMASKED, {"masked": False}
    records = PRETRAINING_MASKED.encode_batch(record_maker.examples(8))
    with TFRecordWriter(path) as writer:
        for record in records[:5]:
            writer.write(record)
    info = inspect_records([path])
    with TFRecordWriter(path) as writer:
        for record in [records[0], spec.encode(first_row(record_maker.examples(1, **options)))] * 2:
            writer.write(record)
    with pytest.raises(UserError, match=r"^record 1 of .*a\.tfrecord differs from .*\.$"):
        read_everything(path, info)


@pytest.mark.parametrize("record", [b"x", b"\x0a\xff\xff"])
def test_a_record_that_is_no_example_ends_in_one_sentence(record_maker, tmp_path, record):
    path = record_maker.write(tmp_path / "a.tfrecord", 5)
    info = inspect_records([path])
    with TFRecordWriter(path) as writer:
        for _ in range(5):
            writer.write(record)
    with pytest.raises(UserError, match=r"^a record .* is not a tf.train.Example.*\.$"):
        read_everything(path, info)


def first_row(examples):
    return {name: values[0] for name, values in examples.items()}


# A feature, a value that it cannot have, and what the sentence says beside these two.
OUT_OF_RANGE = [
    ("input_ids", 50, "ids in the model's vocabulary are 0 to 49"),
    ("input_ids", -1, "ids in the model's vocabulary are 0 to 49"),
    ("input_ids", 2**40 + 7, "ids in the model's vocabulary are 0 to 49"),
    ("input_ids", -(2**63), "ids in the model's vocabulary are 0 to 49"),
    ("input_mask", 2, "it must be 0 or 1"),
    ("input_mask", 2**32 + 1, "it must be 0 or 1"),
    ("segment_ids", 2, "the model's segments are 0 to 1"),
    ("segment_ids", -1, "the model's segments are 0 to 1"),
    ("next_sentence_labels", 2, "it must be 0 or 1"),
    ("masked_lm_positions", 12, "positions in the sequence are 0 to 11"),
    ("masked_lm_positions", -1, "positions in the sequence are 0 to 11"),
    ("masked_lm_ids", 50, "ids in the model's vocabulary are 0 to 49"),
    ("masked_lm_ids", 2**32, "ids in the model's vocabulary are 0 to 49"),
    ("masked_lm_weights", -0.5, "it must be finite, and not negative"),
    ("masked_lm_weights", np.nan, "it must be finite, and not negative"),
    ("masked_lm_weights", np.inf, "it must be finite, and not negative"),
    ("word_starts", 2, "it must be 0 or 1"),
]


def write_with(record_maker, directory, feature, value, *, masked, number=7):
    """Ten records of which one has ``value`` in the last place of a feature, and their info.

    The info is that of good records: what is found at the start is not what is tested.
    """
    path = record_maker.write(directory / "a b.tfrecord", 10, masked=masked)
    record_maker.write_manifest(directory)
    info = inspect_records([path])
    examples = record_maker.examples(10, masked=masked)
    examples[feature][number, -1] = value
    with TFRecordWriter(path) as writer:
        for record in info.spec.encode_batch(examples):
            writer.write(record)
    return path, info


def dataset_of(path, info, *, training, batch_size=4):
    masking = None
    if not info.masked:
        masking = MaskingSettings(MaskingOptions(0.3, 3), 50, info.special_ids)
    records = pipeline.PretrainingRecords(RecordSet([path]), info, **MODEL, masking=masking)
    batch = GlobalBatchSlice(batch_size)
    if not training:
        return pipeline.evaluation_dataset(records, batch, seed=1)
    return pipeline.training_dataset(records, batch, start_position=0, seed=1)


@pytest.mark.parametrize(("feature", "value", "said"), OUT_OF_RANGE)
def test_a_value_out_of_range_ends_in_one_sentence(record_maker, tmp_path, feature, value, said):
    masked = feature != "word_starts"
    path, info = write_with(record_maker, tmp_path, feature, value, masked=masked)
    with pytest.raises(UserError) as error, user_errors():
        batches(dataset_of, 3, path=path, info=info, training=feature != "input_ids")
    assert str(error.value) == (
        f"record 7 of {path} cannot be used: its {feature} contains {value}, but {said}; "
        "delete the file and make it again."
    )


def test_records_without_masks_are_checked_before_masks_are_drawn(record_maker, tmp_path):
    path, info = write_with(record_maker, tmp_path, "input_ids", 2**40, masked=False, number=0)
    with (
        pytest.raises(UserError, match=r"^record 0 of .* contains 1099511627776, but"),
        user_errors(),
    ):
        batches(dataset_of, path=path, info=info, training=False)


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("input_ids", (0, 49)),
        ("segment_ids", (0, 1)),
        ("masked_lm_positions", (0, 11)),
        ("masked_lm_ids", (0, 49)),
        ("masked_lm_weights", (0.0, 1e30)),
    ],
)
def test_the_ends_of_a_range_are_read(record_maker, tmp_path, feature, values):
    for value in values:
        path, info = write_with(record_maker, tmp_path, feature, value, masked=True)
        found = batches(dataset_of, path=path, info=info, training=False)
        assert found[1][feature][3, -1] == np.float32(value)


def test_other_errors_pass_unchanged():
    with pytest.raises(tf.errors.NotFoundError), user_errors():
        raise tf.errors.NotFoundError(None, None, "no such file")
    with pytest.raises(KeyError), user_errors():
        raise KeyError("x")
