"""Exports a model of any task as ONNX, and compares it with the network that it was made from."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model_directory.classes import Classes
from bert_tf.serving.saved_model import described, exported_network, write_extra_files
from bert_tf.serving.server_files import Written
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.signatures import Tensors
from bert_tf.serving.trained import TrainedModel
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike

MODEL_NAME = "model.onnx"
OPSET = 17  # of 2022: LayerNormalization's; onnxruntime reads it since 1.12
TOLERANCE = 1e-4

_PACKAGES = "tf2onnx onnx onnxruntime"
_CONVERTERS = ("tf2onnx.tfonnx", "tf2onnx.optimizer")
_MODULES = ("onnx", "onnxruntime", "onnxruntime.quantization", *_CONVERTERS)
# Rows and lengths of the batches that are compared.
_SHAPES = ((3, 24), (1, 128))


def export_onnx(
    trained: TrainedModel,
    settings: ExportSettings,
    export_dir: PathLike,
    *,
    version: int | None = None,
    int8: bool = False,
) -> Written:
    """Exports a model's numbers for token ids as ``model.onnx``, in float32.

    Its inputs and outputs are those of the SavedModel's ``serving_default`` but for strings; the
    labels are in its metadata. ``version`` is as in ``saved_model.export_saved_model``; ``int8``
    stores weights of products as 8-bit integers, and products are those of integers whose scales
    follow from each input (dynamic quantization).

    Raises UserError if a package is missing, the version exists, the weights do not belong to such
    a model, or onnxruntime computes something else in float32.
    """
    _import_packages()
    with exported_network(trained, settings, export_dir, version) as exported:
        session, temporary = exported.predictor.session, exported.temporary
        inputs = {name: tf.placeholder(tf.int32, [None, None], f"onnx_{name}") for name in INPUTS}
        outputs = exported.signatures.outputs(exported.predictor.network, inputs)
        outputs = {name: tf.identity(value, f"onnx_out_{name}") for name, value in outputs.items()}
        with _without_log():
            converted = _converted(session, inputs, outputs)
        _describe(converted, trained.classes)
        temporary.mkdir()
        path = temporary / MODEL_NAME
        path.write_bytes(converted.SerializeToString())
        expected = _expected(session, inputs, outputs, trained.model.config)
        difference = _difference(path, expected)
        if difference > TOLERANCE:
            raise UserError(
                f"onnxruntime's outputs differ from the network's by {difference:.1e}, more than "
                f"{TOLERANCE:.0e}; export a SavedModel, or try other versions of {_PACKAGES}."
            )
        if int8:
            with _without_log():
                _quantize(path)
            difference = _difference(path, expected)
        write_extra_files(temporary, trained)
    return Written(exported.target, described(inputs), described(outputs), difference)


def _import_packages() -> None:
    try:
        for name in _MODULES:
            importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"--format=onnx needs the packages {_PACKAGES} ({first_line(error)}); pip install "
            f"'bert_tf[onnx]', or {_PACKAGES}."
        ) from error


def _converted(session: tf.Session, inputs: Tensors, outputs: Tensors) -> Any:
    """The graph from inputs to outputs with its weights as a ModelProto."""
    names = [tensor.op.name for tensor in outputs.values()]
    frozen = tf.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), names
    )
    tensors = {**inputs, **outputs}
    tfonnx, optimizer = map(importlib.import_module, _CONVERTERS)
    # from_graph_def has TensorFlow rewrite the graph first, after which onnxruntime computes wrong
    # shapes where a shape is taken of what has been reshaped.
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        converted = tfonnx.process_tf_graph(
            graph,
            opset=OPSET,
            input_names=[tensor.name for tensor in inputs.values()],
            output_names=[tensor.name for tensor in outputs.values()],
            tensors_to_rename={tensor.name: name for name, tensor in tensors.items()},
        )
        return optimizer.optimize_graph(converted).make_model("bert_tf")


def _describe(model: Any, classes: Classes | None) -> None:
    """Names the dimensions of batches and sequences, and adds the labels to the metadata."""
    for tensor in (*model.graph.input, *model.graph.output):
        for dimension, name in zip(tensor.type.tensor_type.shape.dim, ("batch", "length")):
            if dimension.dim_param and (name == "batch" or tensor.name in INPUTS):
                dimension.dim_param = name
    stored = {"labels": classes.labels, "thresholds": classes.thresholds} if classes else {}
    described = {name: json.dumps(values) for name, values in stored.items() if values}
    importlib.import_module("onnx").helper.set_model_props(model, described)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Drops what the packages log of graphs that are then compared."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Batch(NamedTuple):
    features: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def _expected(
    session: tf.Session, inputs: Tensors, outputs: Tensors, config: BertConfig
) -> list[_Batch]:
    """Batches of two shapes with random ids and padding, and the network's outputs for them."""
    generator = np.random.default_rng(0)
    batches = []
    for rows, length in _SHAPES:
        length = min(length, config.max_position_embeddings)
        lengths = generator.integers(1, length, [rows, 1], endpoint=True)
        mask = (np.arange(length) < lengths).astype(np.int32)
        ids = generator.integers(config.vocab_size, size=[rows, length]).astype(np.int32)
        segments = (np.arange(length) >= lengths // 2).astype(np.int32)
        given = (ids * mask, mask, segments * mask)
        features = dict(zip(INPUTS, given))
        feed = {tensor: features[name] for name, tensor in inputs.items()}
        batches.append(_Batch(features, session.run(outputs, feed)))
    return batches


def _difference(path: Path, expected: Sequence[_Batch]) -> float:
    """The largest difference of a number from the expected one, relative if that is above 1.

    Raises UserError if a number that differs is not finite.
    """
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = 0.0
    for features, outputs in expected:
        names = [name for name, values in outputs.items() if values.dtype == np.float32]
        for name, found in zip(names, session.run(names, dict(features))):
            wanted = outputs[name]
            unequal = found != wanted  # not where both are infinite; NaN always is
            differences = np.abs(found[unequal] - wanted[unequal])
            differences /= np.maximum(1, np.abs(wanted[unequal]))
            if not np.isfinite(differences).all():
                raise UserError(
                    "outputs of the ONNX model or of the network are NaN or infinite, so they "
                    "cannot be compared; check the model's weights, or leave --int8 out."
                )
            largest = max(largest, float(differences.max(initial=0)))
    return largest


def _quantize(path: Path) -> None:
    """Replaces a model by one whose products are of 8-bit integers."""
    small = path.with_suffix(".int8")
    quantization = importlib.import_module("onnxruntime.quantization")
    quantization.quantize_dynamic(
        path, small, weight_type=quantization.QuantType.QInt8, per_channel=True
    )
    small.replace(path)
