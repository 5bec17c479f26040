"""Batches of records in memory, for tasks that bring arrays instead of files."""

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
    """This rank's part of every global batch, endlessly, each epoch in a different order.

    The order depends only on the seed and the position, so a resumed run, or a run on other ranks,
    sees the same records as an uninterrupted run.

    Args:
      columns: feature -> [records, ...].
      batch: the rank's part, as returned by ``Run.batch_slice``.
      start_position: position of the first batch, as in ``StartPoint.data_position``.
      seed: determines the order.

      Raises ValueError if columns have unequal lengths or no records.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()):
        raise ValueError(f"columns need equally many records, at least one: {lengths}")
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
