"""Processes the results of predictions and evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError


def select_predictions(predictions: Any, keys: Sequence[str] | None) -> Any:
    """The predictions named by ``keys``, by default all; ValueError if there are none."""
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys are given, but the predictions are not named.")
    selected = {name: tensor for name, tensor in predictions.items() if name in keys}
    if not selected:
        raise ValueError(f"predict_keys {keys} match none of the predictions {list(predictions)}.")
    return selected


def split_examples(batch: Any) -> Iterator[Any]:
    """Splits predictions along their first dimension; ValueError if it is not the same for all."""
    if not isinstance(batch, dict):
        yield from batch
        return
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"predictions of a batch must have equal sizes to be split, not {sizes}.")
    for values in zip(*batch.values()):
        yield dict(zip(batch, values))


def write_summaries(directory: str, results: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes metrics and their checkpoint as summaries for the checkpoint's step.

    A metric may itself be a serialized tf.Summary, whose values are named ``METRIC/0`` and so on.
    Metrics of other types are left out.
    """
    step = results[tf.GraphKeys.GLOBAL_STEP]
    summary = tf.Summary()
    for name, value in results.items():
        if name == tf.GraphKeys.GLOBAL_STEP:
            continue
        if isinstance(value, (int, float, np.integer, np.floating)):
            summary.value.add(tag=name, simple_value=float(value))
        elif isinstance(value, np.ndarray):
            summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
        elif isinstance(value, bytes) and (found := _read_summary(value)) is not None:
            for number, inner in enumerate(found.value):
                inner.tag = f"{name}/{number}"
            summary.value.extend(found.value)
        else:
            tf.logging.warning(
                "No summary is written for %s: it is not a number, an array or a summary.", name
            )
    writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    if checkpoint:
        path = tf.Summary.Value(tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint))
        writer.add_summary(tf.Summary(value=[path]), step)
    writer.flush()


def _read_summary(content: bytes) -> tf.Summary | None:
    try:
        return tf.Summary.FromString(content)
    except DecodeError:
        return None
