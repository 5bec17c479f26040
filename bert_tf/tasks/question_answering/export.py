"""Exports a span model as a SavedModel with its signatures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.inference.predictor import Predictor
from bert_tf.inference.versions import choose_version, written_atomically
from bert_tf.model.config import INPUTS
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.model_directory.writing import write_model_files
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.text_signature import text_features
from bert_tf.tasks.question_answering.windows import WindowSettings
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, explain_write_errors

UNIQUE_IDS_SIGNATURE = "with_unique_ids"
TEXT_SIGNATURE = "text"

_EXTRA_NAME = "assets.extra"  # SavedModel's directory for files that TensorFlow does not read


def export_squad(
    model: CompleteModel,
    export_dir: PathLike,
    *,
    version: int | None = None,
    precision: str | PrecisionPolicy = "fp32",
    max_seq_length: int | None = None,
    num_candidates: int = 20,
    text_windows: WindowSettings | None = None,
) -> Path:
    """Exports a model as a SavedModel.

    Args:
      model: the model.
      export_dir: the directory with all versions.
      version: number of the new version; None for one more than the highest existing.
      precision: ``fp32``, ``bf16`` or ``fp16``, or a data type for each class of operation;
        weights are always float32.
      max_seq_length: maximum length of a sequence; None for the network's maximum.
      num_candidates: number of best positions to return.
      text_windows: lengths for the signature that takes strings; None to leave it out.

    Returns: the version's directory.

    Raises:
      UserError: if the version exists, the weights do not belong to such a model, or a length is
        too large.
    """
    positions = model.config.max_position_embeddings
    longest = positions if max_seq_length is None else max_seq_length
    for length in (longest, text_windows.max_seq_length if text_windows else longest):
        if length < 1:
            raise UserError(f"--max_seq_length={length} must be at least 1.")
        model.config.check_length(length, f"--max_seq_length={length} is")
    target = choose_version(export_dir, version)
    predictor = Predictor(
        SpanTask(model.config, num_candidates=num_candidates),
        model.checkpoint,
        precision=precision,
        portable=True,
    )
    session = predictor.session
    with predictor.graph.as_default(), session, _new_directory(target) as temporary:
        signatures = _id_signatures(predictor.network, longest)
        if text_windows is not None:
            signatures[TEXT_SIGNATURE] = _text_signature(predictor.network, model, text_windows)
        builder = tf.saved_model.Builder(str(temporary))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signature_def_map=signatures,
            strip_default_attrs=True,
        )
        builder.save()
        extra = temporary / _EXTRA_NAME
        extra.mkdir()
        write_model_files(extra, model.config, model.tokenizer_files)
    return target


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """Like ``written_atomically``; raises UserError if it cannot be written."""
    try:
        with explain_write_errors(target.parent), written_atomically(target) as temporary:
            yield temporary
    except tf.errors.OpError as error:
        raise UserError(
            f"cannot write {target} ({first_line(error)}); free space there, or choose another "
            "--export_dir."
        ) from error


def _id_signatures(network: Network, max_seq_length: int) -> dict[str, SignatureDef]:
    """The two signatures that take token ids; they share one network."""
    inputs = {name: tf.placeholder(tf.int32, [None, None], f"serving_{name}") for name in INPUTS}
    length = tf.shape(inputs["input_ids"])[1]
    fits = tf.debugging.assert_less_equal(
        length, max_seq_length, message=f"Sequences are longer than {max_seq_length} tokens."
    )
    with tf.control_dependencies([fits]):
        features = {name: tf.identity(tensor) for name, tensor in inputs.items()}
    outputs = _outputs(network, features)
    unique_ids = tf.placeholder(tf.int32, [None], "serving_unique_ids")
    returned = tf.identity(unique_ids, "returned_unique_ids")
    predict = tf.saved_model.predict_signature_def
    return {
        tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict(inputs, outputs),
        UNIQUE_IDS_SIGNATURE: predict(
            {"unique_ids": unique_ids, **inputs}, {"unique_ids": returned, **outputs}
        ),
    }


def _text_signature(
    network: Network, model: CompleteModel, windows: WindowSettings
) -> SignatureDef:
    question = tf.placeholder(tf.string, [None], "serving_question")
    context = tf.placeholder(tf.string, [None], "serving_context")
    features, left_out = text_features(question, context, model.tokenizer, windows)
    outputs = {**_outputs(network, features), **features, "tokens_left_out": left_out}
    return tf.saved_model.predict_signature_def({"question": question, "context": context}, outputs)


def _outputs(network: Network, features: Features) -> dict[str, tf.Tensor]:
    """Logits and candidates; -inf becomes the lowest float32, since JSON has no infinity.

    ``start_logits`` and ``end_logits`` are [B, S] float32, ``top_start_indices`` and
    ``top_end_indices`` [B, K] int32, ``top_start_logits`` and ``top_end_logits`` [B, K] float32,
    ``null_logits`` [B] float32.
    """
    task = network.task
    logits = task.outputs(network.variables, features, network.options)
    best = task.predictions(logits, features, network.options)
    null = {"null_logits": best.pop("null_logits")}
    outputs = {
        "start_logits": logits.start,
        "end_logits": logits.end,
        **{f"top_{name}": tensor for name, tensor in best.items()},
        **null,
    }
    lowest = tf.float32.min
    return {
        name: tf.maximum(tensor, lowest) if tensor.dtype == tf.float32 else tensor
        for name, tensor in outputs.items()
    }
