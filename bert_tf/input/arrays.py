"""Batches of records that are held in memory: the data of tasks without files of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import dataset_of_positions
from bert_tf.input.order import GlobalBatchSlice, batch_indices


def batches_of_arrays(
    columns: Mapping[str, np.ndarray],
    batch: GlobalBatchSlice,
    *,
    start_position: int,
    seed: int,
) -> tf.data.Dataset:
    """This rank's part of every global batch, each epoch in another order, without end.

    The order depends on the seed and on the position alone, so a resumed run and a run on other
    ranks see the records that a run without a stop would see.

    Args:
      columns: feature -> [records, ...].
      batch: the rank's part, as ``Run.batch_slice`` makes it.
      start_position: the first batch's, as in ``StartPoint.data_position``.
      seed: decides the order.

    Raises ValueError for columns of unequal length, and without any record.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        raise ValueError(f"columns need as many records each, and at least one: {lengths}")
    names, num_records = list(columns), next(iter(lengths.values()))

    def read(position: np.int64) -> list[np.ndarray]:
        rows = batch_indices(int(position), batch, num_records=num_records, seed=seed)
        return [columns[name][rows] for name in names]

    def features_at(position: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.numpy_function(read, [position], [columns[name].dtype for name in names])
        for name, tensor in zip(names, found):
            tensor.set_shape([batch.constant_size, *columns[name].shape[1:]])
        return dict(zip(names, found))

    return dataset_of_positions(start_position, None, features_at)
