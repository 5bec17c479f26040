"""The input of pre-training and of its evaluations; draws masks if none are stored.

A training batch is a pure function of its position: its records (order.py) and, if they are not
stored, its masks (masking.py) follow from the seed, the position and the place in the global batch.
So training can resume from any position, with any number of ranks, with the same global batches.

With a length ramp, records are cut first (cutting.py). Batches of records of similar length
(length_buckets.py) are as long as their longest sequence.

Symbols: B sequences in one batch of one rank, S positions, P predictions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.input.batches import BatchReader, Features, dataset_of_positions
from bert_tf.input.order import GlobalBatchSlice, batch_indices
from bert_tf.records.info import RecordInfo
from bert_tf.records.tfrecord import RecordSet

if TYPE_CHECKING:
    from bert_tf.input.length_buckets import LengthBuckets
    from bert_tf.input.masking import IntegerArray, MaskingSettings, MaskShares
    from bert_tf.input.mixture import Mixture

EXAMPLE_WEIGHTS = "example_weights"


@dataclasses.dataclass(frozen=True)
class PretrainingRecords:
    """Records, and what is needed to make batches of them.

    Attributes:
      record_set: the records.
      info: their description from :func:`inspect_records`.
      vocab_size, type_vocab_size: the model's; records with larger values are rejected, but a model
        without segments, 0, ignores segment ids.
      masking: how to draw masks; needed only for records without stored masks.
      mixture: the fractions of their sources; None if all records are equally frequent.
    """

    record_set: RecordSet
    info: RecordInfo
    vocab_size: int
    type_vocab_size: int
    masking: MaskingSettings | None = None
    mixture: Mixture | None = None


def training_dataset(
    records: PretrainingRecords,
    batch: GlobalBatchSlice,
    *,
    start_position: int,
    seed: int,
    lengths: Ramp | None = None,
    shares: MaskShares | None = None,
    buckets: LengthBuckets | None = None,
) -> tf.data.Dataset:
    """This rank's part of the global batches from ``start_position`` on.

    Args:
      records: the records.
      batch: the size of the global batch and this rank's part of it.
      start_position: position of the first global batch; the first of a training is 0.
      seed: determines the order of the records, and the masks if they are not stored.
      lengths: the length, at each position in training, to which records are cut; None keeps them
        whole. S and P are then unknown before a batch is read.
      shares: the fraction of masked tokens at each position in training; None uses that of the
        records' ``masking``. P is then unknown before a batch is read.
      buckets: batches of sequences of similar length, without padding after the longest; None
        keeps them whole in random batches. S is then unknown before a batch is read. Cannot be
        combined with ``lengths``.

    Returns:
      An endless dataset whose element k belongs to global batch ``start_position + k``: int32
      input_ids, input_mask, segment_ids [B, S], masked_lm_positions, masked_lm_ids [B, P],
      next_sentence_labels [B, 1] and float32 masked_lm_weights [B, P], B = ``batch.size`` unless
      global batches differ.
    """

    def counters(position: int) -> tuple[IntegerArray, ...]:
        part = batch.at(position)
        return position, part.start + np.arange(part.size)

    reader = record_reader(
        records,
        record_order(records, batch, seed=seed, buckets=buckets),
        batch_size=batch.constant_size,
        positions_kept=buckets.padded_length if buckets else None,
    )
    read: Callable[[tf.Tensor], Features] = reader.read
    if lengths is not None:
        from bert_tf.input.cutting import cutting_reader

        read = cutting_reader(read, records.info, lengths)
    masked = masker(records, seed, counters, lengths, shares)
    return dataset_of_positions(
        start_position, None, lambda position: masked(position, read(position))
    )


def evaluation_dataset(
    records: PretrainingRecords, batch: GlobalBatchSlice, *, seed: int
) -> tf.data.Dataset:
    """Every record once, over all ranks, in the order of the files.

    All ranks have the same number of batches of the same size. The last ones are filled with the
    first record; there, ``example_weights`` (float32 [B], otherwise 1) and ``masked_lm_weights``
    are 0. Masks that are not stored depend only on the seed and the record's number, so every
    evaluation masks the same tokens.

    Arguments and features are as in :func:`training_dataset`.
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


def record_order(
    records: PretrainingRecords,
    batch: GlobalBatchSlice,
    *,
    seed: int,
    buckets: LengthBuckets | None,
) -> Callable[[int], np.ndarray]:
    """Returns a function from a position to the numbers of this rank's records there.

    Arguments are as in :func:`training_dataset`.
    """
    order, num_records = buckets or records.mixture, records.info.num_records
    if order is not None:
        return lambda position: order.indices(position, batch)
    return lambda position: batch_indices(position, batch, num_records=num_records, seed=seed)


def record_reader(
    records: PretrainingRecords,
    indices: Callable[[int], np.ndarray],
    *,
    batch_size: int | None,
    positions_kept: Callable[[int], int] | None = None,
) -> BatchReader:
    """Reads batches as they are stored, without drawing masks; see :class:`BatchReader`."""
    return BatchReader(
        records.record_set,
        spec=records.info.spec,
        lengths=records.info.lengths,
        vocab_size=records.vocab_size,
        type_vocab_size=records.type_vocab_size,
        batch_size=batch_size,
        indices=indices,
        names=records.info.names,
        positions_kept=positions_kept,
    )


def masker(
    records: PretrainingRecords,
    seed: int,
    counters: Callable[[int], tuple[IntegerArray, ...]],
    lengths: Ramp | None = None,
    shares: MaskShares | None = None,
) -> Callable[[tf.Tensor, Features], Features]:
    """Returns a function of (position, features) that draws masks if the records store none.

    ``counters`` distinguish the examples of a position.
    """
    info, masking = records.info, records.masking
    if info.masked:
        return lambda _, features: features
    if masking is None:
        raise ValueError("records without stored masks need masking settings")

    from bert_tf.input.masking import example_keys, mask_batch

    def settings_for(position: int, length: int) -> MaskingSettings:
        there = masking if shares is None else shares.settings_at(position, masking)
        if lengths is None:  # only padding can be missing then
            return there
        from bert_tf.input.cutting import cut_predictions

        most = there.options.max_predictions_per_seq
        most = cut_predictions(most, info.seq_length, length)
        return there.with_options(max_predictions_per_seq=most)

    def draw(
        position: np.int64, input_ids: np.ndarray, input_mask: np.ndarray, word_starts: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        masked = mask_batch(
            input_ids,
            input_mask.sum(axis=1),
            keys=example_keys(seed, *counters(int(position))),
            settings=settings_for(int(position), input_ids.shape[1]),
            word_starts=word_starts,
            whole_length=info.seq_length if lengths is None else None,
        )
        label_ids = masked.label_ids.astype(np.int32)
        return masked.input_ids, masked.positions.astype(np.int32), label_ids, masked.weights

    def add_masks(position: tf.Tensor, features: Features) -> Features:
        features = dict(features)
        arguments = [position, features["input_ids"], features["input_mask"]]
        input_ids, positions, label_ids, weights = tf.numpy_function(
            draw,
            [*arguments, features.pop("word_starts")],
            [tf.int32, tf.int32, tf.int32, tf.float32],
        )
        shape = features["input_ids"].shape
        input_ids.set_shape(shape)
        is_constant = lengths is None and shares is None
        most = masking.options.max_predictions_per_seq if is_constant else None
        for tensor in (positions, label_ids, weights):
            tensor.set_shape([shape[0], most])
        features["input_ids"] = input_ids
        features["masked_lm_positions"] = positions
        features["masked_lm_ids"] = label_ids
        features["masked_lm_weights"] = weights
        return features

    return add_masks
