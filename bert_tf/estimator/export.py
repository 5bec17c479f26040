"""Writes the model of an Estimator as a SavedModel.

Names and meaning of inputs and outputs are those of ``tf.estimator.export``.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Union

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.estimator.spec import EstimatorSpec

Tensors = Union[tf.Tensor, Mapping[str, tf.Tensor]]


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


@dataclasses.dataclass
class ServingInputReceiver:
    """The return value of a ``serving_input_receiver_fn``.

    Attributes:
      features: passed to the model_fn; a single tensor becomes {"feature": tensor}.
      receiver_tensors: the tensors to feed; a single tensor becomes {"input": tensor}.
      receiver_tensors_alternatives: alternative tensors to feed, by name.
    """

    features: Tensors
    receiver_tensors: Tensors
    receiver_tensors_alternatives: Mapping[str, Tensors] | None = None

    def __post_init__(self) -> None:
        self.features = _named(self.features, "feature")
        self.receiver_tensors = _named(self.receiver_tensors, "input")

    def all_inputs(self) -> dict[str, dict[str, tf.Tensor]]:
        """All inputs: the default tensors as "", then the alternatives by name."""
        alternatives = self.receiver_tensors_alternatives or {}
        named = {name: _named(tensors, "input") for name, tensors in alternatives.items()}
        return {"": self.receiver_tensors, **named}


class TensorServingInputReceiver(ServingInputReceiver):
    """A :class:`ServingInputReceiver` for models with a single feature, without a dict."""

    def __post_init__(self) -> None:
        feature = self.features
        super().__post_init__()
        self.features = feature


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """For a model fed with tensors like ``features``, by default in batches of any size."""
    kinds = {
        name: (tensor.dtype, [default_batch_size, *tensor.shape[1:]], tensor.op.name)
        for name, tensor in features.items()
    }

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = {name: tf.placeholder(*kind) for name, kind in kinds.items()}
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """For a model fed with serialized tf.train.Examples, parsed according to ``feature_spec``."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        features = tf.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def write(
    base: str | os.PathLike,
    receiver: ServingInputReceiver,
    spec: EstimatorSpec,
    *,
    checkpoint: str,
    session_config: tf.ConfigProto,
    assets_extra: Mapping[str, str],
    as_text: bool,
) -> bytes:
    """Writes the model of the current graph to a directory in ``base`` named after the time.

    Args:
      base: created if needed.
      receiver: the inputs.
      spec: the graph, in mode PREDICT.
      checkpoint: the weights.
      session_config: for the session that reads the weights.
      assets_extra: files to copy, by their paths below ``assets.extra``.
      as_text: whether to write the graph as text.

    Returns:
      The path of the directory.
    """
    version = _new_version(Path(base))
    temporary = version.with_name(f"temp-{version.name}")  # servers only look for numbers
    signatures = _signatures(receiver, spec)
    scaffold = spec.scaffold
    local_init_op = scaffold.local_init_op
    if local_init_op is None:
        local_init_op = tf.train.Scaffold.default_local_init_op()
    saver = scaffold.saver or tf.train.Saver(sharded=True)
    with tf.Session(config=session_config) as session:
        saver.restore(session, checkpoint)
        builder = tf.saved_model.Builder(str(temporary))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
            main_op=local_init_op,
            saver=saver,
            strip_default_attrs=True,
        )
    builder.save(as_text)
    for relative, source in assets_extra.items():
        target = temporary / "assets.extra" / relative
        tf.gfile.MakeDirs(str(target.parent))
        tf.gfile.Copy(source, str(target))
    tf.gfile.Rename(str(temporary), str(version))
    return os.fsencode(version)


def _signatures(receiver: ServingInputReceiver, spec: EstimatorSpec) -> dict[str, SignatureDef]:
    """The possible signatures from any alternative of the inputs to any output."""
    default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    outputs = spec.export_outputs
    outputs = {default: PredictOutput(spec.predictions)} if outputs is None else dict(outputs)
    for name, output in outputs.items():
        if not hasattr(output, "as_signature_def"):
            raise TypeError(f"export_outputs[{name!r}] is not an export output: {output!r}.")
    if len(outputs) == 1:
        outputs.setdefault(default, *outputs.values())
    if default not in outputs:
        raise ValueError(f"export_outputs: none of {sorted(outputs)} is named {default!r}.")
    signatures = {}
    for alternative, inputs in receiver.all_inputs().items():
        for output_name, output in outputs.items():
            name = f"{alternative}:{output_name}" if alternative else output_name
            try:
                signature = output.as_signature_def(inputs)
                _check_fed(signature, inputs)
            except ValueError as error:
                tf.logging.warning("Signature %s is left out: %s", name, error)
            else:
                signatures[name] = signature
    return signatures


def _check_fed(signature: SignatureDef, inputs: Mapping[str, tf.Tensor]) -> None:
    """Raises ValueError if an output depends on a placeholder that is not in ``inputs``."""
    graph = tf.get_default_graph()
    seen = {tensor.name for tensor in tf.nest.flatten(dict(inputs), expand_composites=True)}
    waiting = [info.name for info in signature.outputs.values()]
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        operation = graph.get_tensor_by_name(name).op
        if operation.type == "Placeholder":
            raise ValueError(f"it depends on {name}, which is not among its inputs.")
        waiting += [tensor.name for tensor in operation.inputs]


def _new_version(base: Path) -> Path:
    """An unused path in ``base``, named after the time in seconds."""
    seconds = int(time.time())
    while (base / str(seconds)).exists():
        seconds += 1
    return base / str(seconds)


def _named(tensors: Tensors, name: str) -> dict[str, tf.Tensor]:
    """``tensors`` by name; a single tensor gets ``name``, and tuples as keys are joined."""
    if not isinstance(tensors, Mapping):
        tensors = {name: tensors}
    return {"/".join(key) if isinstance(key, tuple) else key: t for key, t in tensors.items()}


def _examples(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    if [tensor.dtype for tensor in inputs.values()] != [tf.string]:
        raise ValueError(
            "it needs serialized examples, a single tensor of strings, as its only input."
        )
    return next(iter(inputs.values()))
