"""Fine-tuning without training: the batches with which a resumed run continues."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.finetune.records import BatchOrder
from bert_tf.input.length_buckets import LengthBuckets
from bert_tf.input.order import GlobalBatchSlice, epoch_permutation
from bert_tf.records.layouts import SQUAD_TRAINING
from bert_tf.records.sequences import SequenceRecords
from bert_tf.records.tfrecord import TFRecordWriter
from bert_tf.train.start_point import StartPoint
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.jobs import begun, plan_of
from tests.helpers.settings import optimization_settings
from tests.helpers.small_span_model import CONFIG

NUM_RECORDS, LENGTH, SEED = 10, 24, 3
LENGTHS = np.array([9, 24, 4, 17, 22, 5, 12, 7, 20, 3], np.int32)


@pytest.fixture(name="records")
def written_records(tmp_path):
    """The start position of record i is i."""
    numbers = np.arange(NUM_RECORDS)[:, None]
    within = np.arange(LENGTH) < LENGTHS[:, None]
    examples = {
        "unique_ids": numbers,
        "input_ids": np.where(within, 5, 0),
        "input_mask": within.astype(np.int64),
        "segment_ids": np.zeros_like(within, np.int64),
        "start_positions": numbers,
        "end_positions": numbers,
        "is_impossible": np.zeros_like(numbers),
    }
    path = tmp_path / "train.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in SQUAD_TRAINING.encode_batch(examples):
            writer.write(record)
    return SequenceRecords([path], LENGTHS, "ab", SQUAD_TRAINING, LENGTH, counts={})


def numbers_of(batches, count):
    with tf.Graph().as_default(), tf.Session() as session:
        following = tf.data.make_one_shot_iterator(batches()).get_next()
        found = [session.run(following)["start_positions"][:, 0] for _ in range(count)]
    return np.concatenate(found).tolist()


@pytest.mark.parametrize("length_buckets", [False, True])
def test_another_global_batch_resumes_where_the_data_stopped(records, length_buckets):
    """Two updates of six records, then updates of four: in the middle of the second epoch's."""
    order = BatchOrder(records, CONFIG, LENGTH, SEED, length_buckets, len(LENGTHS))
    run = begun(start=StartPoint("model.ckpt-2", 2, 2, consumed_sequences=12))
    plan = plan_of(optimization_settings(), batch=BatchPlan(4, 1, world_size=1))
    found = numbers_of(lambda: order.batches(run, plan), 3)
    if length_buckets:
        order = LengthBuckets(LENGTHS, global_batch_size=4, seed=SEED, max_length=LENGTH)
        # Batches of four from the start on: the fourth is the first with none of the twelve.
        batches = [order.indices(number, GlobalBatchSlice(4)) for number in (3, 4, 5)]
        expected = np.concatenate(batches)
    else:
        epochs = [epoch_permutation(SEED, epoch, NUM_RECORDS) for epoch in range(3)]
        expected = np.concatenate(epochs)[12:24]
    assert found == expected.tolist()
