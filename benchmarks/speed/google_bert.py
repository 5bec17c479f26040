"""google-research/bert: its own code for a training step and for prediction, unmodified.

It was written for TensorFlow 1: here, its ``import tensorflow`` gets ``tensorflow.compat.v1`` with
those names from ``tf.contrib`` that a step needs and that TensorFlow 2 lacks.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.steps import PRETRAINING, RECIPE, Recipe, StepJob, time_steps
from bert_tf.model.config import INPUTS, BertConfig
from bert_tf.util import environment
from bert_tf.util.errors import UserError

_NORM_EPSILON = 1e-12  # tf.contrib's, for float32


def layer_norm(
    inputs: tf.Tensor, begin_norm_axis: int, begin_params_axis: int, scope: str | None = None
) -> tf.Tensor:
    """``tf.contrib.layers.layer_norm`` over the last axis, the only one that BERT uses.

    Its variables are ``beta`` and ``gamma`` in ``scope`` or ``LayerNorm``.
    """
    if (begin_norm_axis, begin_params_axis) != (-1, -1):
        raise ValueError("only the last axis can be normalised")
    width = inputs.shape[-1:]
    with tf.variable_scope(scope, default_name="LayerNorm"):
        beta = tf.get_variable("beta", width, initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", width, initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, _NORM_EPSILON)


class TensorFlow1(types.ModuleType):
    """``tensorflow.compat.v1`` with ``contrib``."""

    def __init__(self) -> None:
        super().__init__("tensorflow")
        self.contrib = types.SimpleNamespace(
            layers=types.SimpleNamespace(layer_norm=layer_norm),
            tpu=types.SimpleNamespace(TPUEstimatorSpec=types.SimpleNamespace),
            data=tf.data.experimental,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)


@contextlib.contextmanager
def as_tensorflow_1(directory: Path) -> Iterator[None]:
    """Inside, modules of ``directory`` take precedence and import TensorFlow 1."""
    real = sys.modules["tensorflow"]
    sys.modules["tensorflow"] = TensorFlow1()
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.modules["tensorflow"] = real


def google_module(directory: Path, name: str) -> types.ModuleType:
    """A module of the checkout rather than one of ours with the same name."""
    with as_tensorflow_1(directory):
        return importlib.import_module(name)


def google_spec(
    directory: Path,
    program: str,
    network: BertConfig,
    features: Mapping[str, tf.Tensor],
    mode: str,
    *,
    recipe: Recipe = RECIPE,
) -> types.SimpleNamespace:
    """Returns the result of a ``model_fn``: ``loss`` and ``train_op``, or ``predictions``.

    Args:
      directory: the checkout.
      program: ``run_pretraining`` or ``run_squad``.
      network: the architecture.
      features: under the program's names; SQuAD's ``unique_ids`` are added.
      mode: one of tf.estimator.ModeKeys.
      recipe: learning rate and steps.
    """
    modeling = google_module(directory, "modeling")
    model_fn = google_module(directory, program).model_fn_builder(
        bert_config=modeling.BertConfig.from_dict(network.to_dict()),
        init_checkpoint=None,
        learning_rate=recipe.learning_rate,
        num_train_steps=recipe.steps,
        num_warmup_steps=recipe.warmup_steps,
        use_tpu=False,
        use_one_hot_embeddings=False,
    )
    numbers = tf.zeros(tf.shape(features["input_ids"])[:1], tf.int32)
    return model_fn({"unique_ids": numbers, **features}, None, mode, {})


@contextlib.contextmanager
def google_session(threads: int, *, amp: bool, seed: int = 1) -> Iterator[tf.Session]:
    """Yields a session for a graph of TensorFlow 1, with TensorFlow's defaults.

    ``amp`` enables its rewrite to bfloat16 products. Raises UserError if TensorFlow lacks what the
    checkout uses.
    """
    if not hasattr(tf, "estimator"):
        raise UserError(
            f"google-research/bert needs tf.estimator and tf.layers, which TensorFlow "
            f"{tf.version.VERSION} no longer has; run the benchmark with 2.15 (make setup "
            "TENSORFLOW=2.15) and give this environment as --other_python"
        )
    environment.quiet_tensorflow(verbose=False)
    tf.disable_v2_behavior()
    config = tf.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
    )
    if amp:
        config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = (
            rewriter_config_pb2.RewriterConfig.ON
        )
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf.set_random_seed(seed)
        yield session


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the step. This code has no accumulation: each micro batch is an update."""
    job, settings = StepJob.from_json(request), request["settings"]
    with google_session(job.threads, amp=settings["amp"]) as session:
        micro_batches = job.micro_batches()
        fed = {n: tf.placeholder(v.dtype, v.shape, name=n) for n, v in micro_batches[0].items()}
        program = "run_pretraining" if job.task == PRETRAINING else "run_squad"
        mode = tf.estimator.ModeKeys.TRAIN
        spec = google_spec(Path(settings["google_bert_dir"]), program, job.network, fed, mode)
        session.run(tf.global_variables_initializer())
        run = session.make_callable([spec.loss, spec.train_op], feed_list=list(fed.values()))
        values = [[batch[name] for name in fed] for batch in micro_batches]

        def step() -> float:
            return sum(float(run(*of_batch)[0]) for of_batch in values) / len(values)

        return time_steps(job, step, started=request["started"])


def predict(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the logits of its SQuAD model."""
    job, settings = PredictionJob.from_json(request), request["settings"]
    with google_session(job.threads, amp=settings["amp"]) as session:
        fed = {name: tf.placeholder(tf.int32, [None, job.seq_length], name) for name in INPUTS}
        mode = tf.estimator.ModeKeys.PREDICT
        spec = google_spec(Path(settings["google_bert_dir"]), "run_squad", job.network, fed, mode)
        logits = [spec.predictions["start_logits"], spec.predictions["end_logits"]]
        session.run(tf.global_variables_initializer())
        run = session.make_callable(logits, feed_list=list(fed.values()))
        return time_batches(job, lambda batch: run(*(batch[name] for name in fed)))
