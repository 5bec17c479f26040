"""The input of evaluations on pre-training records."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.input.batches import dataset_of_positions
from bert_tf.input.order import GlobalBatchSlice
from bert_tf.input.pipeline import EXAMPLE_WEIGHTS, PretrainingRecords, masker, record_reader


def evaluation_dataset(
    records: PretrainingRecords, batch: GlobalBatchSlice, *, seed: int
) -> tf.data.Dataset:
    """Every record once, over all ranks, in the order of the files.

    All ranks have the same number of batches of the same size. The last ones are filled with the
    first record; there, ``example_weights`` (float32 [B], otherwise 1) and ``masked_lm_weights``
    are 0. Masks that are not stored depend only on the seed and the record's number, so every
    evaluation masks the same tokens.

    Arguments and features are as in :func:`~bert_tf.input.pipeline.training_dataset`.
    """
    num_records = records.info.num_records

    def places(number: int) -> np.ndarray:
        return batch.first_sequence(number) + batch.start + np.arange(batch.size)

    def indices(number: int) -> np.ndarray:
        found = places(number)
        return np.where(found < num_records, found, 0)

    def example_weights(number: np.int64) -> np.ndarray:
        return (places(int(number)) < num_records).astype(np.float32)

    def with_weights(number: tf.Tensor, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = tf.numpy_function(example_weights, [number], tf.float32)
        weights.set_shape([batch.size])
        masked_lm_weights = features["masked_lm_weights"] * weights[:, None]
        return {**features, "masked_lm_weights": masked_lm_weights, EXAMPLE_WEIGHTS: weights}

    reader = record_reader(records, indices, batch_size=batch.size)
    masked = masker(records, seed, lambda number: (indices(number),))
    return dataset_of_positions(
        0,
        -(-num_records // batch.global_batch_size),
        lambda number: with_weights(number, masked(number, reader.read(number))),
    )
