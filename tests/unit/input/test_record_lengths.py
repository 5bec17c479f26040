"""Lengths of pre-training records: what is counted, kept and counted again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.input import pipeline, record_lengths
from bert_tf.input.batches import user_errors
from bert_tf.input.length_buckets import LengthBuckets
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.record_lengths import keep_missing_lengths, lengths_of_records
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.lengths import lengths_path
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.util.errors import UserError

S, P, V = 24, 2, 30
COUNTS = 5, 0, 9
LENGTHS = np.array([3, 24, 8, 9, 12, 5, 4, 20, 17, 7, 6, 23, 3, 10])


def write(path, lengths, seed=1):
    """Records with stored masks, the second of which is the last token."""
    rng = np.random.default_rng(seed)
    within = np.arange(S) < np.asarray(lengths)[:, None]
    examples = {
        "input_ids": np.where(within, rng.integers(5, V, within.shape), 0),
        "input_mask": within.astype(np.int64),
        "segment_ids": np.zeros(within.shape, np.int64),
        "masked_lm_positions": np.stack([np.ones_like(lengths), np.asarray(lengths) - 1], axis=1),
        "masked_lm_ids": rng.integers(5, V, [len(lengths), P]),
        "masked_lm_weights": np.ones([len(lengths), P], np.float32),
        "next_sentence_labels": rng.integers(0, 2, [len(lengths), 1]),
    }
    with TFRecordWriter(path) as writer:
        for record in PRETRAINING_MASKED.encode_batch(examples) if len(lengths) else []:
            writer.write(record)
    return path


def opened(paths):
    records = RecordSet(paths)
    return pipeline.PretrainingRecords(records, inspect_records(records), V, 2)


@pytest.fixture(name="paths")
def three_files(tmp_path):
    parts = np.split(LENGTHS, np.cumsum(COUNTS)[:-1])
    return [write(tmp_path / f"{n}.tfrecord", part) for n, part in enumerate(parts)]


def count(paths):
    return lengths_of_records(opened(paths), shows_progress=False)


def test_all_records_are_counted(paths, tmp_path):
    many = np.random.default_rng(2).integers(3, S + 1, 2100)  # 1024 are counted at a time
    paths.append(write(tmp_path / "3.tfrecord", many))
    assert count(paths).dtype == np.uint16
    np.testing.assert_array_equal(count(paths), [*LENGTHS, *many])
    assert not any(lengths_path(path).exists() for path in paths)


def test_a_stored_mask_counts_as_a_token(tmp_path):
    [record] = RecordSet([write(tmp_path / "a.tfrecord", [9])]).read([0])
    example = PRETRAINING_MASKED.decode(record)
    example["masked_lm_positions"][1] = 14  # in the padding
    with TFRecordWriter(tmp_path / "b.tfrecord") as writer:
        writer.write(PRETRAINING_MASKED.encode(example))
    assert count([tmp_path / "b.tfrecord"]).tolist() == [15]


@pytest.mark.parametrize("begin_at", [0, 0.5])
def test_what_is_kept_is_not_counted_again(paths, monkeypatch, begin_at):
    keep_missing_lengths(opened(paths), begin_at=begin_at, shows_progress=False)
    monkeypatch.setattr(record_lengths, "BatchReader", None)
    np.testing.assert_array_equal(count(paths), LENGTHS)


def test_hosts_on_one_disk_begin_with_other_files(paths, monkeypatch):
    counted = []
    monkeypatch.setattr(
        record_lengths, "keep_lengths", lambda _, file, lengths: counted.append(file.path.name)
    )
    keep_missing_lengths(opened(paths), begin_at=0.4, shows_progress=False)
    assert counted == ["1.tfrecord", "2.tfrecord", "0.tfrecord"]


def test_another_file_of_the_name_is_counted_anew(paths):
    keep_missing_lengths(opened(paths), shows_progress=False)
    write(paths[0], LENGTHS[:5][::-1], seed=2)
    expected = [*LENGTHS[:5][::-1], *LENGTHS[5:]]
    assert count(paths).tolist() == expected


def test_directories_that_cannot_be_written_are_left_alone(paths, monkeypatch):
    monkeypatch.setattr(record_lengths, "can_keep_lengths", lambda _: False)
    monkeypatch.setattr(record_lengths, "BatchReader", None)
    keep_missing_lengths(opened(paths), shows_progress=False)


def trained(records, buckets, number, batch=None):
    with tf.Graph().as_default(), tf.Session() as session, user_errors():
        batches = pipeline.training_dataset(
            records, batch or GlobalBatchSlice(4), start_position=0, seed=5, buckets=buckets
        )
        following = tf.data.make_one_shot_iterator(batches).get_next()
        return [session.run(following) for _ in range(number)]


def buckets_of(lengths):
    return LengthBuckets(lengths, global_batch_size=4, seed=5, max_length=S)


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_are_whole_records_without_padding(paths, ranks):
    records, buckets = opened(paths), buckets_of(LENGTHS)
    whole = [PRETRAINING_MASKED.decode(r) for r in records.record_set.read(range(len(LENGTHS)))]
    parts = [trained(records, buckets, 5, GlobalBatchSlice(4, r, ranks)) for r in range(ranks)]
    for position, batch in enumerate(zip(*parts)):
        rows = buckets.indices(position, GlobalBatchSlice(4))
        kept = buckets.padded_length(position)
        assert LENGTHS[rows].max() <= kept
        for name in whole[0]:
            found = np.concatenate([part[name] for part in batch])
            expected = np.stack([whole[row][name] for row in rows])
            if expected.shape[1] == S:
                assert not expected[:, kept:].any(), "only padding is cut"
                expected = expected[:, :kept]
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_record_longer_than_its_count_is_named(paths):
    records = opened(paths)
    keep_missing_lengths(records, shows_progress=False)
    sentence = (
        r"^record \d of .* cannot be used: it has more tokens than the 8 that were counted in it; "
        r"delete \d\.tfrecord\.lengths\.$"
    )
    with pytest.raises(UserError, match=sentence):
        trained(records, buckets_of(np.full(len(LENGTHS), 8)), 4)
