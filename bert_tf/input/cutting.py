"""Cuts records to fewer positions, for a ramp of sequence lengths.

The result depends on the record alone. The last token of every segment, its [SEP], is kept, and so
is [CLS]. A single segment loses its end. Of a pair, the longer segment is shortened first, as in
google-research/bert (``truncate_seq_pair``); the first segment loses its beginning and the second
its end, so the text around the border, which identifies next sentences, is kept.

Stored masks in the remaining part are predicted, up to a proportional number of predictions; the
last masks beyond it are undone. So the fraction of masked tokens does not grow.

Symbols: B sequences, S positions, P predictions, L remaining positions, Q remaining predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.input.batches import Features
from bert_tf.records.info import RecordInfo

_OF_POSITIONS = ("input_ids", "input_mask", "segment_ids", "word_starts")


def cut_predictions(max_predictions: int, length: int, cut_length: int) -> int:
    """Predictions of a record of ``length`` positions after a cut: proportional, rounded up."""
    return -(-max_predictions * cut_length // length)


def kept_positions(tokens: np.ndarray, first_tokens: np.ndarray, length: int) -> np.ndarray:
    """The positions kept in each sequence, in ascending order: int64 [B, L].

    Args:
      tokens: integers [B], number of tokens in each sequence before its padding.
      first_tokens: number of tokens in its first segment, with [CLS] and [SEP]; ``tokens`` without
        a second segment.
      length: L, at least 8.
    """
    places = np.arange(length)
    second = tokens - first_tokens - 1
    first = first_tokens - 2
    # Tokens of both segments that fit between [CLS] and two [SEP]: half for each, unless one
    # segment is shorter.
    room = length - 3
    kept_second = np.minimum(second, np.maximum(room // 2, room - first))
    dropped = np.where(second >= 0, first - (room - kept_second), 0)
    kept = places + np.maximum(dropped, 0)[:, None]
    kept[:, 0] = 0
    kept[:, -1] = tokens - 1
    return np.where((tokens > length)[:, None], kept, places)


def cut_records(
    features: Mapping[str, np.ndarray], length: int, predictions: int
) -> dict[str, np.ndarray]:
    """Cuts a batch of pre-training records; returns features of the same types.

    Args:
      features: as in ``layouts.PRETRAINING_MASKED`` or ``PRETRAINING_UNMASKED``, [B, S], [B, P] and
        [B, 1].
      length: L.
      predictions: Q, at most P, for records that store their masks.
    """
    mask = features["input_mask"]
    first_tokens = np.sum((mask != 0) & (features["segment_ids"] == 0), axis=1)
    kept = kept_positions(np.sum(mask, axis=1), first_tokens, length)
    names = [name for name in _OF_POSITIONS if name in features]
    left = {name: np.take_along_axis(features[name], kept, axis=1) for name in names}
    cut = {**features, **left}
    if "masked_lm_positions" in features:
        cut.update(_cut_masks(cut, kept, predictions, num_positions=mask.shape[1]))
    return cut


def _cut_masks(
    features: Mapping[str, np.ndarray], kept: np.ndarray, predictions: int, *, num_positions: int
) -> dict[str, np.ndarray]:
    """``input_ids`` [B, L] and the remaining predictions [B, Q] of those in ``features``."""
    place_of = np.full((len(kept), num_positions), -1)
    np.put_along_axis(place_of, kept, np.arange(kept.shape[1])[None], axis=1)
    places = np.take_along_axis(place_of, features["masked_lm_positions"], axis=1)
    is_left = (features["masked_lm_weights"] > 0) & (places >= 0)
    # Remaining predictions come first, in their order.
    order = np.argsort(~is_left, axis=1, kind="stable")
    columns = {"masked_lm_positions": places}
    columns.update({name: features[name] for name in ("masked_lm_ids", "masked_lm_weights")})
    columns = {name: np.take_along_axis(v, order, axis=1) for name, v in columns.items()}
    is_left = np.take_along_axis(is_left, order, axis=1)
    input_ids = features["input_ids"].copy()
    rows, beyond = np.nonzero(is_left[:, predictions:])
    undone = rows, beyond + predictions
    input_ids[rows, columns["masked_lm_positions"][undone]] = columns["masked_lm_ids"][undone]
    cut = {
        name: np.where(is_left, values, 0)[:, :predictions].astype(features[name].dtype)
        for name, values in columns.items()
    }
    return {**cut, "input_ids": input_ids}


def cutting_reader(
    read: Callable[[tf.Tensor], Features], info: RecordInfo, lengths: Ramp
) -> Callable[[tf.Tensor], Features]:
    """Returns ``read``, whose records are cut to the length at their position in training."""

    def read_and_cut(position: tf.Tensor) -> Features:
        features = read(position)
        names = list(features)

        def cut(position: np.int64, *columns: np.ndarray) -> list[np.ndarray]:
            length = lengths.at(int(position))
            if length == info.seq_length:
                return list(columns)
            predictions = 0  # not stored
            if info.max_predictions is not None:
                predictions = cut_predictions(info.max_predictions, info.seq_length, length)
            left = cut_records(dict(zip(names, columns)), length, predictions)
            return [left[name] for name in names]

        types = [features[name].dtype for name in names]
        found = tf.numpy_function(cut, [position, *features.values()], types)
        for name, tensor in zip(names, found):
            rows, columns = features[name].shape
            tensor.set_shape([rows, columns if name == "next_sentence_labels" else None])
        return dict(zip(names, found))

    return read_and_cut
