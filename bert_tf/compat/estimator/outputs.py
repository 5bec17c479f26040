"""The outputs of an exported model, as values of an EstimatorSpec's ``export_outputs``.

Names and meaning follow ``tf.estimator.export``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Union

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

Tensors = Union[tf.Tensor, Mapping[str, tf.Tensor]]

DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


@dataclasses.dataclass(frozen=True)
class PredictOutput:
    """Named outputs; a single tensor is called ``output``."""

    outputs: Tensors

    def as_signature_def(self, inputs: Mapping[str, tf.Tensor]) -> SignatureDef:
        """The signature from ``inputs`` to the outputs."""
        return tf.saved_model.predict_signature_def(inputs, _named(self.outputs, "output"))


@dataclasses.dataclass(frozen=True)
class ClassificationOutput:
    """Float scores and string classes, both [batch, classes]; one of them may be None."""

    scores: tf.Tensor | None = None
    classes: tf.Tensor | None = None

    def as_signature_def(self, inputs: Mapping[str, tf.Tensor]) -> SignatureDef:
        """The signature from serialized tf.train.Examples, the only input, to the outputs."""
        return tf.saved_model.classification_signature_def(
            _examples(inputs), self.classes, self.scores
        )


@dataclasses.dataclass(frozen=True)
class RegressionOutput:
    """A float for each example, [batch]."""

    value: tf.Tensor

    def as_signature_def(self, inputs: Mapping[str, tf.Tensor]) -> SignatureDef:
        """The signature from serialized tf.train.Examples, the only input, to the value."""
        return tf.saved_model.regression_signature_def(_examples(inputs), self.value)


def complete_outputs(outputs: Any, predictions: Tensors) -> dict[str, Any]:
    """The outputs to export, including one named ``DEFAULT``, by default the predictions.

    A single output is also the default one. Raises TypeError for outputs of the wrong type,
    ValueError if there are several, none of which has that name.
    """
    if not outputs:
        return {DEFAULT: PredictOutput(predictions)}
    if not isinstance(outputs, dict):
        raise TypeError(f"export_outputs must be a dict, not {outputs!r}.")
    for name, output in outputs.items():
        if not hasattr(output, "as_signature_def"):
            raise TypeError(f"export_outputs[{name!r}] is not an export output: {output!r}.")
    if len(outputs) == 1:
        return {DEFAULT: next(iter(outputs.values())), **outputs}
    if DEFAULT not in outputs:
        raise ValueError(f"export_outputs: none of {sorted(outputs)} is named {DEFAULT!r}.")
    return dict(outputs)


def _named(tensors: Tensors, name: str) -> dict[str, tf.Tensor]:
    """``tensors`` by name; a single tensor gets ``name``, and tuple keys are joined."""
    if not isinstance(tensors, Mapping):
        tensors = {name: tensors}
    return {"/".join(key) if isinstance(key, tuple) else key: t for key, t in tensors.items()}


def _examples(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    if [tensor.dtype for tensor in inputs.values()] != [tf.string]:
        raise ValueError(
            "it needs serialized examples, a single tensor of strings, as its only input."
        )
    return next(iter(inputs.values()))
