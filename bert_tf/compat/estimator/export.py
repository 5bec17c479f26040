"""Inputs and outputs of exported models, like ``tf.estimator.export``.

Outputs come from the modules of TensorFlow that ``tf.estimator`` itself is built on; what describes
the inputs left with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Union

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
)

__all__ = [
    "ClassificationOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]

Tensors = Union[tf.Tensor, Mapping[str, tf.Tensor]]


class _Receiver(NamedTuple):
    features: Mapping[str | int, tf.Tensor]
    receiver_tensors: Mapping[str, tf.Tensor]


class ServingInputReceiver(_Receiver):
    """The return value of a ``serving_input_receiver_fn``.

    Attributes:
      features: passed to the model_fn; a single tensor becomes {"feature": tensor}.
      receiver_tensors: the tensors to feed; a single tensor becomes {"input": tensor}.

    Raises ValueError for anything except tensors by name.
    """

    def __new__(cls, features: Tensors, receiver_tensors: Tensors) -> ServingInputReceiver:
        """Takes the fields in order or by name."""
        fed = _by_name(receiver_tensors, "input", "receiver_tensors")
        return super().__new__(cls, _by_name(features, "feature", "features"), fed)


def _by_name(tensors: Tensors, single: str, field: str) -> dict[Any, tf.Tensor]:
    named = dict(tensors) if isinstance(tensors, dict) else {single: tensors}
    for name, tensor in named.items():
        if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
            raise ValueError(f"{field}[{name!r}] must be a tensor, not {tensor!r}.")
    return named


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """For models fed with tensors like ``features``, by default in batches of any size."""
    kinds = {
        name: (tensor.dtype, _batch_shape(tensor, default_batch_size), tensor.op.name)
        for name, tensor in features.items()
    }

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = {name: tf.placeholder(*kind) for name, kind in kinds.items()}
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def _batch_shape(tensor: tf.Tensor, batch_size: int | None) -> list[int | None] | None:
    """The shape of a tensor in batches of another size; None if its rank is unknown."""
    return None if tensor.shape.rank is None else [batch_size, *tensor.shape[1:]]


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """For models fed with serialized tf.train.Examples, parsed according to ``feature_spec``."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        features = tf.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn
