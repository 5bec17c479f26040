"""Writes an Estimator's model as a SavedModel.

Names and meaning of inputs and outputs follow ``tf.estimator.export``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.compat.estimator.outputs import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
    Tensors,
)
from bert_tf.compat.estimator.spec import EstimatorSpec

__all__ = [
    "ClassificationOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: Mapping[str, tf.Tensor]
    receiver_tensors_alternatives: Mapping[str, Mapping[str, tf.Tensor]] | None


class ServingInputReceiver(_Receiver):
    """The return value of a ``serving_input_receiver_fn``.

    Attributes:
      features: passed to the model_fn; a single tensor becomes {"feature": tensor}.
      receiver_tensors: the tensors to feed; a single tensor becomes {"input": tensor}.
      receiver_tensors_alternatives: alternative tensors to feed, by name.

    Raises ValueError for anything except tensors by name; names must be strings or, for features,
    integers.
    """

    def __new__(
        cls,
        features: Tensors,
        receiver_tensors: Tensors,
        receiver_tensors_alternatives: Mapping[str, Tensors] | None = None,
    ) -> ServingInputReceiver:
        """Takes the fields in order or by name."""
        alternatives = receiver_tensors_alternatives
        if alternatives is not None:
            if not isinstance(alternatives, dict):
                raise ValueError(
                    f"receiver_tensors_alternatives must be a dict, not {alternatives!r}."
                )
            alternatives = {
                name: _checked(tensors, "input", "receiver_tensors_alternatives")
                for name, tensors in alternatives.items()
            }
        return super().__new__(
            cls,
            cls._checked_features(features),
            _checked(receiver_tensors, "input", "receiver_tensors"),
            alternatives,
        )

    @staticmethod
    def _checked_features(features: Tensors) -> Tensors:
        return _checked(features, "feature", "features", names=(str, int))

    def all_inputs(self) -> dict[str, Mapping[str, tf.Tensor]]:
        """All inputs: the default tensors as "", then the alternatives by name."""
        return {"": self.receiver_tensors, **(self.receiver_tensors_alternatives or {})}


class TensorServingInputReceiver(ServingInputReceiver):
    """A :class:`ServingInputReceiver` for models with a single feature, without a dict."""

    @staticmethod
    def _checked_features(features: tf.Tensor) -> tf.Tensor:
        _check_tensor(features, "features")
        return features


def _checked(
    tensors: Tensors, single: str, field: str, *, names: tuple[type, ...] = (str,)
) -> dict[str, tf.Tensor]:
    """``tensors`` by name, a single one as ``single``; ValueError for anything else."""
    found = dict(tensors) if isinstance(tensors, dict) else {single: tensors}
    for name, tensor in found.items():
        if not isinstance(name, names):
            kinds = " or ".join(kind.__name__ for kind in names)
            raise ValueError(f"{field}: the name {name!r} of a tensor must be {kinds}.")
        _check_tensor(tensor, f"{field}[{name!r}]")
    return found


def _check_tensor(tensor: object, name: str) -> None:
    if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise ValueError(f"{name} must be a tensor, not {tensor!r}.")


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


def write(
    base: str | bytes | os.PathLike,
    receiver: ServingInputReceiver,
    spec: EstimatorSpec,
    *,
    checkpoint: str,
    session_config: tf.ConfigProto,
    assets_extra: Mapping[str, str],
    as_text: bool,
) -> bytes:
    """Writes the model in the current graph to a directory in ``base`` named after the time.

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
    version = _new_version(Path(os.fsdecode(base)))
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
    """The possible signatures, from each alternative of the inputs to each output."""
    signatures = {}
    for alternative, inputs in receiver.all_inputs().items():
        for output_name, output in (spec.export_outputs or {}).items():
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
