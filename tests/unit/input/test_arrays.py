"""Batches of arrays: the order of the records' numbers, and each rank's part of it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.input.arrays import batches_of_arrays
from bert_tf.input.order import GlobalBatchSlice

COLUMNS = {"x": np.arange(30, dtype=np.float32).reshape(10, 3), "y": np.arange(10)}


def read(batch, *, start=0, number=5):
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = batches_of_arrays(COLUMNS, batch, start_position=start, seed=7)
        shapes = {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()}
        assert shapes == {"x": [batch.size, 3], "y": [batch.size]}
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        return [session.run(following) for _ in range(number)]


def test_an_epoch_has_every_record_once_and_rows_stay_together():
    epochs = np.concatenate([batch["y"] for batch in read(GlobalBatchSlice(4))]).reshape(2, 10)
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
    assert epochs[0].tolist() != epochs[1].tolist()
    for batch in read(GlobalBatchSlice(4)):
        np.testing.assert_array_equal(batch["x"][:, 0], 3 * batch["y"])


def test_a_start_further_on_and_ranks_see_what_a_single_run_sees():
    whole = read(GlobalBatchSlice(4))
    np.testing.assert_array_equal(
        read(GlobalBatchSlice(4), start=2, number=1)[0]["y"], whole[2]["y"]
    )
    parts = [read(GlobalBatchSlice(4, rank, 2)) for rank in range(2)]
    for batch, *of_ranks in zip(whole, *parts):
        np.testing.assert_array_equal(np.concatenate([b["y"] for b in of_ranks]), batch["y"])


@pytest.mark.parametrize("columns", [{"x": [1, 2], "y": [1]}, {"x": []}])
def test_columns_that_are_no_records(columns):
    arrays = {name: np.array(values) for name, values in columns.items()}
    with pytest.raises(ValueError, match="equally many records"):
        batches_of_arrays(arrays, GlobalBatchSlice(1), start_position=0, seed=0)
