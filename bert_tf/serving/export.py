"""Exports a model of any task with its signatures, as a SavedModel or ONNX in numbered versions.

An ONNX model is compared with the network that it was made from.
"""

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
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.inference.graph_tokenizer import GraphTokenizer
from bert_tf.inference.predictor import Predictor
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, as_policy
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.record import write_model_files
from bert_tf.serving import signatures as of_tasks
from bert_tf.serving.server_files import TensorInfo, Written
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.signatures import Signatures, Tensors
from bert_tf.serving.trained import TASKS, TrainedModel
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, atomic_directory, explain_write_errors, make_output_dir

_EXTRA_NAME = "assets.extra"  # SavedModel's directory for files that TensorFlow does not read

MODEL_NAME = "model.onnx"
OPSET = 17  # of 2022: LayerNormalization's; onnxruntime reads it since 1.12
TOLERANCE = 1e-4

_PACKAGES = "tf2onnx onnx onnxruntime"
_CONVERTERS = ("tf2onnx.tfonnx", "tf2onnx.optimizer")
_MODULES = ("onnx", "onnxruntime", "onnxruntime.quantization", *_CONVERTERS)
# Rows and lengths of the batches that are compared.
_SHAPES = ((3, 24), (1, 128))


def export_saved_model(
    trained: TrainedModel,
    settings: ExportSettings,
    export_dir: PathLike,
    *,
    version: int | None = None,
    precision: str | PrecisionPolicy = "fp32",
    inside: str = "",
) -> Written:
    """Exports a model as a SavedModel, which only TensorFlow is needed to load.

    Args:
      trained: the model and its task.
      settings: what it takes and returns.
      export_dir: the directory of all versions.
      version: number of the new version; None for one more than the highest existing.
      precision: ``fp32``, ``bf16`` or ``fp16``, or a data type for each class of operation;
        weights are always float32.
      inside: the SavedModel's directory in that of the version; "" for the version's own.

    Raises UserError if the version exists, the weights do not belong to such a model, settings do
    not fit it, or tensorflow-text is missing.
    """
    with _exported_network(trained, settings, export_dir, version, precision) as exported:
        directory = exported.temporary / inside
        inputs, outputs, signatures = _id_signatures(exported)
        if settings.text_signature:
            signatures.update(_text_signatures(exported, trained))
        builder = tf.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            exported.predictor.session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            strip_default_attrs=True,
        )
        builder.save()
        _write_extra_files(directory, trained)
    return Written(exported.target, sorted(_described(inputs)), sorted(_described(outputs)))


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
    labels are in its metadata. ``version`` is as in ``export_saved_model``; ``int8``
    stores weights of products as 8-bit integers, and products are those of integers whose scales
    follow from each input (dynamic quantization).

    Raises UserError if a package is missing, the version exists, the weights do not belong to such
    a model, or onnxruntime computes something else in float32.
    """
    _import_packages()
    with _exported_network(trained, settings, export_dir, version) as exported:
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
        _write_extra_files(temporary, trained)
    return Written(exported.target, _described(inputs), _described(outputs), difference)


class _Exported(NamedTuple):
    """A network that is being exported.

    Attributes:
      predictor: its graph, which is the default one, and its session.
      signatures: what it takes and returns.
      target: the directory of the new version.
      temporary: where to make that directory.
    """

    predictor: Predictor
    signatures: Signatures
    target: Path
    temporary: Path


@contextlib.contextmanager
def _exported_network(
    trained: TrainedModel,
    settings: ExportSettings,
    export_dir: PathLike,
    version: int | None,
    precision: str | PrecisionPolicy = "fp32",
) -> Iterator[_Exported]:
    """Yields a model's network, and where to write it; see :func:`export_saved_model`."""
    signatures = getattr(of_tasks, TASKS[trained.task].signatures)(trained, settings)
    choose_version(export_dir, version)  # raises its errors before the work
    checkpoint, options = trained.model.checkpoint, ForwardOptions(as_policy(precision))
    predictor = Predictor(signatures.task, checkpoint, options=options, portable=True)
    writing = new_version(export_dir, version)
    with predictor.graph.as_default(), predictor.session, writing as (target, temporary):
        yield _Exported(predictor, signatures, target, temporary)


def _described(tensors: Tensors) -> list[TensorInfo]:
    """What a server's configuration says of inputs or outputs."""
    sizes = {name: tensor.shape.as_list()[1:] for name, tensor in tensors.items()}
    return [
        (name, tensor.dtype.name, tuple(-1 if size is None else size for size in sizes[name]))
        for name, tensor in tensors.items()
    ]


def _write_extra_files(directory: Path, trained: TrainedModel) -> None:
    """Writes what clients need that tokenize, and the labels, to ``assets.extra``."""
    model = trained.model
    extra = directory / _EXTRA_NAME
    extra.mkdir()
    write_model_files(
        extra,
        model.config,
        model.tokenizer_files,
        classes=trained.classes,
        settings=model.kept,
    )


def choose_version(export_dir: PathLike, version: int | None) -> Path:
    """Returns the directory for a new version in ``export_dir``, which is created if needed.

    ``version`` is None for one more than the highest existing version. Raises UserError if it is
    below 1, its directory is not empty, or ``export_dir`` is not writable.
    """
    export_dir = make_output_dir(export_dir, flag="export_dir")
    if version is None:
        taken = [int(path.name) for path in export_dir.iterdir() if path.name.isdecimal()]
        return export_dir / str(max(taken, default=0) + 1)
    if version < 1:
        raise UserError(f"--version={version} must be at least 1.")
    target = export_dir / str(version)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(
            f"--version={version}: {target} already exists; give another number, or leave the "
            "flag out for the next one."
        )
    return target


@contextlib.contextmanager
def new_version(export_dir: PathLike, version: int | None) -> Iterator[tuple[Path, Path]]:
    """Yields the directory for a new version, and where to make it meanwhile.

    A server that watches ``export_dir`` sees only complete versions, because the temporary name is
    not a number. Several exports wait for each other. Raises UserError as :func:`choose_version`,
    and if the version cannot be written.
    """
    directory = make_output_dir(export_dir, flag="export_dir")
    try:
        with hold_directory(directory, flag="export_dir", wait=True):
            target = choose_version(directory, version)
            with explain_write_errors(directory), atomic_directory(target, directory) as temporary:
                yield target, temporary
    except tf.errors.OpError as error:
        raise UserError(
            f"cannot write to {export_dir} ({first_line(error)}); free space there, or choose "
            "another --export_dir."
        ) from error


def _id_signatures(exported: _Exported) -> tuple[Tensors, Tensors, dict[str, SignatureDef]]:
    """The inputs and outputs for token ids, and the signatures, which share one network."""
    signatures, longest = exported.signatures, exported.signatures.max_seq_length
    inputs = {name: tf.placeholder(tf.int32, [None, None], f"serving_{name}") for name in INPUTS}
    length = tf.shape(inputs["input_ids"])[1]
    fits = tf.debugging.assert_less_equal(
        length, longest, message=f"Sequences are longer than {longest} tokens."
    )
    with tf.control_dependencies([fits]):
        features = {name: tf.identity(tensor) for name, tensor in inputs.items()}
    outputs = signatures.outputs(exported.predictor.network, features)
    outputs.update(signatures.strings(outputs))
    predict = tf.saved_model.predict_signature_def
    defined = {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict(inputs, outputs)}
    for name, returned in signatures.returned.items():
        given = tf.placeholder(tf.int32, [None], f"serving_{returned}")
        again = tf.identity(given, f"returned_{returned}")
        defined[name] = predict({returned: given, **inputs}, {returned: again, **outputs})
    return inputs, outputs, defined


def _text_signatures(exported: _Exported, trained: TrainedModel) -> dict[str, SignatureDef]:
    """The signatures that take strings."""
    tokenizer = GraphTokenizer(trained.model.tokenizer)
    signatures, network = exported.signatures, exported.predictor.network
    defined = {}
    for name, names in signatures.texts.items():
        inputs = {given: tf.placeholder(tf.string, [None], f"{name}_{given}") for given in names}
        outputs = signatures.of_texts(network, tokenizer, inputs)
        outputs.update(signatures.strings(outputs))
        defined[name] = tf.saved_model.predict_signature_def(inputs, outputs)
    return defined


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
