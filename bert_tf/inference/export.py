"""Exports a model of any task as a SavedModel with its signatures, in numbered versions."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.inference.predictor import Predictor
from bert_tf.model.config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, as_policy
from bert_tf.model.task import Features, Network, Task
from bert_tf.model_directory.classes import Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.model_directory.writing import write_model_files
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, atomic_directory, explain_write_errors, make_output_dir

if TYPE_CHECKING:
    from bert_tf.inference.graph_tokenizer import GraphTokenizer

_EXTRA_NAME = "assets.extra"  # SavedModel's directory for files that TensorFlow does not read

Tensors = dict[str, tf.Tensor]


class Exportable(abc.ABC):
    """A network with what its signatures take and return. The first dimension of all is B.

    Attributes:
      classes: the classes of words or texts, which are stored with the model for clients.
      texts: name of a signature that takes strings -> its names of inputs, [B] strings each.
      returned: name of a signature -> a [B] int32 input that it returns besides the others.
    """

    task: Task
    classes: Classes | None = None
    texts: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("text",)}
    returned: ClassVar[Mapping[str, str]] = {}

    @abc.abstractmethod
    def outputs(self, network: Network, features: Features) -> Tensors:
        """The numbers of interest from features ``INPUTS``, [B, S] int32 each."""

    def strings(self, numbers: Tensors) -> Tensors:  # noqa: ARG002
        """Further outputs: the names that these stand for."""
        return {}

    @abc.abstractmethod
    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for strings, and what is not read of them: ``tokens_left_out`` [B]."""


def export_saved_model(
    model: CompleteModel,
    exportable: Exportable,
    export_dir: PathLike,
    *,
    version: int | None = None,
    precision: str | PrecisionPolicy = "fp32",
    max_seq_length: int | None = None,
    text_signatures: bool = False,
    inside: str = "",
) -> Path:
    """Exports a model as a SavedModel, which only TensorFlow is needed to load.

    Args:
      export_dir: the directory of all versions; the new version's is returned.
      version: number of the new version; None for one more than the highest existing.
      precision: ``fp32``, ``bf16`` or ``fp16``, or a data type for each class of operation;
        weights are always float32.
      max_seq_length: maximum length of a sequence of token ids; None for the network's maximum.
      text_signatures: whether to add those that take strings, for which tensorflow-text is needed.
      inside: the SavedModel's directory in that of the version; "" for the version's own.

    Raises UserError if the version exists, the weights do not belong to such a model, a length is
    too large, or tensorflow-text is missing.
    """
    longest = checked_length(model, max_seq_length)
    choose_version(export_dir, version)  # raises its errors before the work
    options = ForwardOptions(as_policy(precision))
    predictor = Predictor(exportable.task, model.checkpoint, options=options, portable=True)
    session = predictor.session
    writing = new_version(export_dir, version)
    with predictor.graph.as_default(), session, writing as (target, temporary):
        directory = temporary / inside
        signatures = _id_signatures(predictor.network, exportable, longest)
        if text_signatures:
            signatures.update(_text_signatures(predictor.network, exportable, model))
        builder = tf.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            strip_default_attrs=True,
        )
        builder.save()
        write_extra_files(directory, model, exportable)
    return target


def write_extra_files(directory: Path, model: CompleteModel, exportable: Exportable) -> None:
    """Writes what clients need that tokenize, and the labels, to ``assets.extra``."""
    extra = directory / _EXTRA_NAME
    extra.mkdir()
    write_model_files(
        extra,
        model.config,
        model.tokenizer_files,
        classes=exportable.classes,
        settings=model.kept,
    )


def checked_length(model: CompleteModel, max_seq_length: int | None) -> int:
    """The length, None being the network's; raises UserError if the network lacks positions."""
    if max_seq_length is None:
        return model.config.max_position_embeddings
    if max_seq_length < 1:
        raise UserError(f"--max_seq_length={max_seq_length} must be at least 1.")
    model.config.check_length(max_seq_length, f"--max_seq_length={max_seq_length} is")
    return max_seq_length


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


def _id_signatures(
    network: Network, exportable: Exportable, max_seq_length: int
) -> dict[str, SignatureDef]:
    """The signatures that take token ids; they share one network."""
    inputs = {name: tf.placeholder(tf.int32, [None, None], f"serving_{name}") for name in INPUTS}
    length = tf.shape(inputs["input_ids"])[1]
    fits = tf.debugging.assert_less_equal(
        length, max_seq_length, message=f"Sequences are longer than {max_seq_length} tokens."
    )
    with tf.control_dependencies([fits]):
        features = {name: tf.identity(tensor) for name, tensor in inputs.items()}
    outputs = exportable.outputs(network, features)
    outputs.update(exportable.strings(outputs))
    predict = tf.saved_model.predict_signature_def
    signatures = {tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict(inputs, outputs)}
    for signature, name in exportable.returned.items():
        given = tf.placeholder(tf.int32, [None], f"serving_{name}")
        returned = tf.identity(given, f"returned_{name}")
        signatures[signature] = predict({name: given, **inputs}, {name: returned, **outputs})
    return signatures


def _text_signatures(
    network: Network, exportable: Exportable, model: CompleteModel
) -> dict[str, SignatureDef]:
    from bert_tf.inference.graph_tokenizer import GraphTokenizer

    tokenizer = GraphTokenizer(model.tokenizer)
    signatures = {}
    for name, names in exportable.texts.items():
        inputs = {given: tf.placeholder(tf.string, [None], f"{name}_{given}") for given in names}
        outputs = exportable.of_texts(network, tokenizer, inputs)
        outputs.update(exportable.strings(outputs))
        signatures[name] = tf.saved_model.predict_signature_def(inputs, outputs)
    return signatures


def names_of(numbers: tf.Tensor, names: tf.Tensor | list[str]) -> tf.Tensor:
    """The strings that integers of any shape stand for; "" for -1."""
    table = tf.concat([tf.constant([""]), tf.convert_to_tensor(names)], axis=0)
    return tf.gather(table, numbers + 1)
