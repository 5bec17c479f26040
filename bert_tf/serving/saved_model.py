"""Exports a model of any task as a SavedModel with its signatures, in numbered versions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.inference.graph_tokenizer import GraphTokenizer
from bert_tf.inference.predictor import Predictor
from bert_tf.model.config import INPUTS
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model_directory.writing import write_model_files
from bert_tf.serving import signatures as of_tasks
from bert_tf.serving.server_files import TensorInfo, Written
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.signatures import Signatures, Tensors
from bert_tf.serving.trained import TASKS, TrainedModel
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, atomic_directory, explain_write_errors, make_output_dir

_EXTRA_NAME = "assets.extra"  # SavedModel's directory for files that TensorFlow does not read


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
    with exported_network(trained, settings, export_dir, version, precision) as exported:
        directory = exported.temporary / inside
        inputs, outputs, signatures = _id_signatures(exported)
        if settings.length.text_signature:
            signatures.update(_text_signatures(exported, trained))
        builder = tf.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            exported.predictor.session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            strip_default_attrs=True,
        )
        builder.save()
        write_extra_files(directory, trained)
    return Written(exported.target, sorted(described(inputs)), sorted(described(outputs)))


class Exported(NamedTuple):
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
def exported_network(
    trained: TrainedModel,
    settings: ExportSettings,
    export_dir: PathLike,
    version: int | None,
    precision: str | PrecisionPolicy = "fp32",
) -> Iterator[Exported]:
    """Yields a model's network, and where to write it; see :func:`export_saved_model`."""
    signatures = getattr(of_tasks, TASKS[trained.task].signatures)(trained, settings)
    choose_version(export_dir, version)  # raises its errors before the work
    checkpoint = trained.model.checkpoint
    predictor = Predictor(signatures.task, checkpoint, precision=precision, portable=True)
    writing = new_version(export_dir, version)
    with predictor.graph.as_default(), predictor.session, writing as (target, temporary):
        yield Exported(predictor, signatures, target, temporary)


def described(tensors: Tensors) -> list[TensorInfo]:
    """What a server's configuration says of inputs or outputs."""
    sizes = {name: tensor.shape.as_list()[1:] for name, tensor in tensors.items()}
    return [
        (name, tensor.dtype.name, tuple(-1 if size is None else size for size in sizes[name]))
        for name, tensor in tensors.items()
    ]


def write_extra_files(directory: Path, trained: TrainedModel) -> None:
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


def _id_signatures(exported: Exported) -> tuple[Tensors, Tensors, dict[str, SignatureDef]]:
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


def _text_signatures(exported: Exported, trained: TrainedModel) -> dict[str, SignatureDef]:
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
