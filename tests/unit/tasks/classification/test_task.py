"""Classification and regression of sequences, compared with numpy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.loading import check_initial, missing_heads
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.model.config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model_directory.classes import REGRESSION, SINGLE_LABEL, Classes
from bert_tf.model_directory.record import write_model_files
from bert_tf.tasks.classification.task import (
    CLASSIFICATION_HEAD,
    LABEL,
    LABELS,
    ClassificationLoss,
    ClassificationTask,
)
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.small_span_model import CONFIG, VOCABULARY, write_model


@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_losses_and_metrics_are_those_of_the_logits(num_classes, shape):
    labels = np.array([1.0, 0.0, 2.0], np.float32)
    ids = np.random.default_rng(1).integers(len(VOCABULARY), size=[3, 8])
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(np.minimum(ids, 1), tf.int32) for name in INPUTS}
        features["input_ids"] = tf.constant(ids)
        loss = ClassificationLoss(SINGLE_LABEL if num_classes > 1 else REGRESSION)
        task = ClassificationTask(CONFIG, num_classes, loss=loss)
        network = create_network(task, ForwardOptions(), seed=3)
        predictions = network.predictions(features)
        given = {**features, LABELS: tf.constant(labels.reshape(shape))}
        fetches = predictions, network.losses(given), task.weights(given)
        session.run(tf.global_variables_initializer())
        predictions, sums, weights = session.run(fetches)
    logits = predictions["logits"]
    if num_classes == 1:
        expected, metrics = np.sum((logits[:, 0] - labels) ** 2), {}
    else:
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = -np.log(shares[np.arange(3), labels.astype(int)]).sum()
        metrics = {"accuracy": (logits.argmax(axis=1) == labels).sum()}
    assert {LABEL: tuple(metrics)} == dict(task.terms)
    assert sums[LABEL].loss == pytest.approx(expected, rel=1e-5)
    assert sums[LABEL].metrics == metrics
    assert sums[LABEL].weight == weights[LABEL] == 3


def test_a_pretrained_network_lacks_the_head_as_a_whole(tmp_path):
    """Weights and bias are one head, and the pooler is missing with it."""
    directory = write_model(tmp_path / "model", span_head=False)
    task = ClassificationTask(CONFIG, 2)
    shapes = {spec.name: spec.shape for spec in task.specs()}
    _, report = check_initial(directory, shapes, heads=task.heads, config=CONFIG)
    assert missing_heads(report, task.heads) == [CLASSIFICATION_HEAD]
    assert sorted(report.fresh) == [
        "bert/pooler/dense/bias",
        "bert/pooler/dense/kernel",
        "output_bias",
        "output_weights",
    ]
    allowed = ("output_weights", "output_bias")
    assert missing_heads(report, task.heads, allowed) == []
    assert missing_heads(report, task.heads, allowed[:1]) == [CLASSIFICATION_HEAD]


@pytest.mark.parametrize("trained", [3, 2])
def test_a_head_for_another_number_of_classes_starts_fresh(tmp_path, trained):
    task = ClassificationTask(CONFIG, 2)
    specs = ClassificationTask(CONFIG, trained).specs()
    values = {spec.name: np.zeros(spec.shape, np.float32) for spec in specs}
    write_checkpoint(str(tmp_path / "model.ckpt"), values)
    shapes = {spec.name: spec.shape for spec in task.specs()}
    _, report = check_initial(tmp_path / "model.ckpt", shapes, heads=task.heads, config=CONFIG)
    assert missing_heads(report, task.heads) == ([CLASSIFICATION_HEAD] if trained == 3 else [])
    assert "bert/pooler/dense/kernel" in report.restored
    assert not report.mismatched


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("a", "c"), None])
def test_a_head_for_classes_of_other_names_starts_fresh(tmp_path, names):
    task = ClassificationTask(CONFIG, 2, classes=names)
    shapes = {spec.name: spec.shape for spec in task.specs()}
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    write_checkpoint(str(tmp_path / "model.ckpt"), values)
    write_model_files(
        tmp_path, CONFIG, TokenizerFiles(), Classes.of_texts(SINGLE_LABEL, ("a", "b"))
    )
    _, report = check_initial(tmp_path / "model.ckpt", shapes, heads=task.heads, config=CONFIG)
    lacks_head = names not in (None, ("a", "b"))
    assert missing_heads(report, task.heads) == (list(task.heads) if lacks_head else [])
    assert "bert/pooler/dense/kernel" in report.restored
