"""Records to tensors: the trainer's and the evaluation's ``tf.data`` input.

A training batch is a pure function of its position: which records it has (order.py), and which
masks are drawn where they are not stored (masking.py), follow from the seed, the position and the
place in the global batch. So training can go on from any position, with any number of ranks, on the
same global batches. Python finds the records and reads them; TensorFlow parses them in C++.

Symbols: B sequences of one rank in one batch, S positions, P predictions.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.data.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.data.order import GlobalBatchSlice, batch_indices
from bert_tf.data.record_info import RecordInfo, check_records, inspect_records
from bert_tf.data.tfrecord import RecordSet
from bert_tf.errors import UserError

__all__ = [
    "RecordInfo",
    "check_records",
    "evaluation_dataset",
    "inspect_records",
    "training_dataset",
    "user_errors",
]

EXAMPLE_WEIGHTS = "example_weights"

_DEFAULT_PREFETCH = 4
_ENDLESS = np.iinfo(np.int64).max

# An error in a Python function reaches the session as text, with the exception's class and message
# on a line; an error of the parser begins with the name that the record was given.
_PYTHON_ERROR = re.compile(r"UserError: (.+)")
_PARSER_ERROR = re.compile(r"Name: (record \d+ of .+?), (?:Key|Feature): (\w+)")


def training_dataset(
    record_set: RecordSet,
    *,
    info: RecordInfo,
    batch: GlobalBatchSlice,
    start_position: int,
    end_position: int | None = None,
    seed: int,
    masking: MaskingSettings | None = None,
    prefetch: int = _DEFAULT_PREFETCH,
) -> tf.data.Dataset:
    """This rank's part of the global batches from ``start_position`` on.

    Args:
      record_set: the records.
      info: what :func:`inspect_records` found out about them.
      batch: the size of the global batch and this rank's part of it.
      start_position: number of the first global batch; the first of a training is 0.
      end_position: number of the global batch to stop before; None goes on without end.
      seed: decides the order of the records and the masks that are not stored.
      masking: how to draw masks; needed for records without stored masks, else not used.
      prefetch: batches to have ready.

    Returns:
      A dataset whose element k belongs to global batch ``start_position + k``: int32 input_ids,
      input_mask, segment_ids [B, S], masked_lm_positions, masked_lm_ids [B, P],
      next_sentence_labels [B, 1] and float32 masked_lm_weights [B, P], B = ``batch.size``.
    """

    def indices(position: int) -> np.ndarray:
        return batch_indices(position, batch, num_records=info.num_records, seed=seed)

    def keys(position: int) -> np.ndarray:
        return example_keys(seed, position, batch.start + np.arange(batch.size))

    end = _ENDLESS if end_position is None else end_position
    reader = _BatchReader(record_set, info, indices, batch_size=batch.size)
    return _dataset(
        tf.data.Dataset.range(start_position, end),
        reader.read,
        _masker(info, masking, keys, batch_size=batch.size),
        prefetch=prefetch,
    )


def evaluation_dataset(
    record_set: RecordSet,
    *,
    info: RecordInfo,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int,
    masking: MaskingSettings | None = None,
    prefetch: int = _DEFAULT_PREFETCH,
) -> tf.data.Dataset:
    """Every record once, over all ranks, in the order of the files.

    All ranks have the same number of batches of the same size. Where the records run out, places
    are filled with the first record; ``example_weights`` (float32 [B], otherwise 1) and
    ``masked_lm_weights`` are 0 there. Masks that are not stored depend on the seed and the number
    of the record alone, so every evaluation asks for the same words.

    Arguments and features are as in :func:`training_dataset`, with B = ``batch_size``.
    """

    def places(number: int) -> np.ndarray:
        first = (number * world_size + rank) * batch_size
        return np.arange(first, first + batch_size)

    def indices(number: int) -> np.ndarray:
        found = places(number)
        return np.where(found < info.num_records, found, 0)

    def keys(number: int) -> np.ndarray:
        return example_keys(seed, indices(number))

    def example_weights(number: np.int64) -> np.ndarray:
        return (places(int(number)) < info.num_records).astype(np.float32)

    def with_weights(number: tf.Tensor, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        weights = tf.numpy_function(example_weights, [number], tf.float32)
        weights.set_shape([batch_size])
        masked_lm_weights = features["masked_lm_weights"] * weights[:, None]
        return {**features, "masked_lm_weights": masked_lm_weights, EXAMPLE_WEIGHTS: weights}

    masked = _masker(info, masking, keys, batch_size=batch_size)
    num_batches = -(-info.num_records // (batch_size * world_size))
    reader = _BatchReader(record_set, info, indices, batch_size=batch_size)
    return _dataset(
        tf.data.Dataset.range(num_batches),
        reader.read,
        lambda number, features: with_weights(number, masked(number, features)),
        prefetch=prefetch,
    )


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns a damaged record, met while a session runs, into the UserError that names it.

    TensorFlow wraps what fails inside a dataset in an error of its own with a long text. Other
    errors pass unchanged.
    """
    try:
        yield
    except tf.errors.OpError as error:
        sentence = _sentence_in(error.message)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def _sentence_in(message: str) -> str | None:
    python_error = _PYTHON_ERROR.search(message)
    if python_error:
        return python_error.group(1)
    parser_error = _PARSER_ERROR.search(message)
    if parser_error:
        record, feature = parser_error.groups()
        return (
            f"{record} is not like the first ones: its feature {feature} is missing or has another "
            "length; make the file again."
        )
    return None


class _BatchReader:
    """The records of a batch as parsed features."""

    def __init__(
        self,
        record_set: RecordSet,
        info: RecordInfo,
        indices: Callable[[int], np.ndarray],
        *,
        batch_size: int,
    ):
        self._record_set = record_set
        self._indices = indices
        self._parse_spec = info.spec.parse_spec(info.lengths)
        self._batch_size = batch_size

    def read(self, position: tf.Tensor) -> dict[str, tf.Tensor]:
        """Features of the batch at ``position`` with static shapes, integers as int32."""
        serialized, names = tf.numpy_function(
            self._read_records, [position], [tf.string, tf.string]
        )
        for tensor in (serialized, names):
            tensor.set_shape([self._batch_size])
        features = tf.io.parse_example(serialized, self._parse_spec, example_names=names)
        return {
            name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor
            for name, tensor in features.items()
        }

    def _read_records(self, position: np.int64) -> tuple[np.ndarray, np.ndarray]:
        """Serialized examples, and a name for each for errors; object arrays [B]."""
        indices = self._indices(int(position)).tolist()
        # Object arrays: numpy's own strings would lose zero bytes at the end of a record.
        serialized = np.array(self._record_set.read(indices), dtype=object)
        names = []
        for index in indices:
            file, number = self._record_set.locate(index)
            names.append(f"record {number} of {file.path}".encode())
        return serialized, np.array(names, dtype=object)


def _masker(
    info: RecordInfo,
    masking: MaskingSettings | None,
    keys: Callable[[int], np.ndarray],
    *,
    batch_size: int,
) -> Callable[[tf.Tensor, dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """A function of (position, features) that draws the masks where the records store none."""
    if info.masked:
        return lambda _, features: features
    if masking is None:
        raise ValueError("records without stored masks need masking settings")

    def draw(position, input_ids, input_mask, word_starts):
        masked = mask_batch(
            input_ids,
            input_mask.sum(axis=1),
            keys=keys(int(position)),
            settings=masking,
            word_starts=word_starts,
        )
        label_ids = masked.label_ids.astype(np.int32)
        return masked.input_ids, masked.positions.astype(np.int32), label_ids, masked.weights

    def add_masks(position: tf.Tensor, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = dict(features)
        arguments = [position, features["input_ids"], features["input_mask"]]
        input_ids, positions, label_ids, weights = tf.numpy_function(
            draw,
            [*arguments, features.pop("word_starts")],
            [tf.int32, tf.int32, tf.int32, tf.float32],
        )
        input_ids.set_shape([batch_size, info.seq_length])
        for tensor in (positions, label_ids, weights):
            tensor.set_shape([batch_size, masking.max_predictions_per_seq])
        features["input_ids"] = input_ids
        features["masked_lm_positions"] = positions
        features["masked_lm_ids"] = label_ids
        features["masked_lm_weights"] = weights
        return features

    return add_masks


def _dataset(
    positions: tf.data.Dataset,
    read: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    finish: Callable[[tf.Tensor, dict[str, tf.Tensor]], dict[str, tf.Tensor]],
    *,
    prefetch: int,
) -> tf.data.Dataset:
    """Maps positions to features on several threads, keeping their order."""

    @tf.autograph.experimental.do_not_convert
    def features_at(position: tf.Tensor) -> dict[str, tf.Tensor]:
        return finish(position, read(position))

    return positions.map(
        features_at, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).prefetch(prefetch)
