"""The losses of classification against PyTorch's, and balanced weights against scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.model.options import ForwardOptions
from bert_tf.model_directory.classes import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Classes
from bert_tf.tasks.classification.run import balanced_weights, best_constant, rating_unit
from bert_tf.tasks.classification.task import ClassificationLoss
from bert_tf.tasks.classification.texts import Row, TextFile, TextTask

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(16, 5)).astype(np.float32) * 3
CLASSES = RNG.integers(5, size=16)
SEVERAL = RNG.integers(2, size=(16, 5)).astype(np.float32)
WEIGHTS = (0.5, 1.0, 2.0, 0.25, 3.0)


def mean_and_gradient(loss, logits, labels):
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.constant(logits)
        sums = loss.sums(given, tf.constant(labels), options=ForwardOptions())
        mean = sums.loss / tf.reduce_sum(loss.weights(tf.constant(labels)))
        return session.run([mean, tf.gradients(mean, given)[0]])


def assert_like_torch(loss, labels, reference, logits=LOGITS):
    given = torch.tensor(logits, requires_grad=True)
    expected = reference(given)
    expected.backward()
    mean, gradient = mean_and_gradient(loss, logits, labels)
    np.testing.assert_allclose(mean, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_single_class(weights, smoothing):
    reference = torch.nn.CrossEntropyLoss(
        weight=None if weights is None else torch.tensor(weights), label_smoothing=smoothing
    )
    loss = ClassificationLoss(SINGLE_LABEL, weights, smoothing)
    labels = CLASSES[:, None].astype(np.float32)
    assert_like_torch(loss, labels, lambda given: reference(given, torch.tensor(CLASSES)))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_several_classes(weights):
    reference = torch.nn.BCEWithLogitsLoss(
        pos_weight=None if weights is None else torch.tensor(weights)
    )
    loss = ClassificationLoss(MULTI_LABEL, weights)
    assert_like_torch(loss, SEVERAL, lambda given: reference(given, torch.tensor(SEVERAL)))


def test_smoothed_targets_of_several_classes():
    reference = torch.nn.BCEWithLogitsLoss()
    targets = torch.tensor(SEVERAL * 0.8 + 0.1)
    assert_like_torch(
        ClassificationLoss(MULTI_LABEL, None, 0.2), SEVERAL, lambda given: reference(given, targets)
    )


def test_ratings():
    ratings = RNG.normal(size=(16, 1)).astype(np.float32)
    reference = torch.nn.MSELoss()
    assert_like_torch(
        ClassificationLoss(REGRESSION),
        ratings,
        lambda given: reference(given, torch.tensor(ratings)),
        logits=LOGITS[:, :1],
    )


def file_with(labels, multi_label=False):
    kind = MULTI_LABEL if multi_label else SINGLE_LABEL
    task = TextTask("t", "text", None, "label", (), Classes.of_texts(kind, ("a", "b", "c")))
    return TextFile(Path("t.csv"), task, [Row("text", None, label) for label in labels])


def test_balanced_weights():
    labels = [0.0] * 6 + [1.0] * 3 + [2.0]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=np.array(labels, int))
    np.testing.assert_allclose(balanced_weights(file_with(labels)), expected)


def test_a_class_without_texts_has_weight_one():
    assert balanced_weights(file_with([0.0, 0.0, 1.0]))[2] == 1


def test_balanced_weights_of_several_classes():
    weights = balanced_weights(file_with([(0,), (0, 1), (), (0,)], multi_label=True))
    assert weights == (1 / 3, 3.0, 1.0)


def slope_at(constant, labels, loss, more, more_loss):
    """The gradient of torch's summed losses when all texts have the same outputs.

    ``more`` are the labels of texts without weights of classes.
    """
    outputs = torch.tensor(constant, dtype=torch.float64, requires_grad=True)
    for texts, of_texts in ((labels, loss), (more, more_loss)):
        of_texts(outputs.expand(len(texts), -1), torch.tensor(texts)).backward()
    return outputs.grad.numpy()


# To the texts of the file, one more of each class is added, so that no frequency is 0.
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 4.0)])
def test_the_best_constant_answer(weights):
    constant = best_constant(file_with([0.0] * 6 + [1.0] * 3), weights)
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    loss, plain = (torch.nn.CrossEntropyLoss(weight=w, reduction="sum") for w in (given, None))
    slope = slope_at(constant, [0] * 6 + [1] * 3, loss, [0, 1, 2], plain)
    np.testing.assert_allclose(slope, 0, atol=1e-12)
    np.testing.assert_allclose(np.exp(constant).sum(), 1)


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 4.0)])
def test_the_best_constant_answer_of_several_classes(weights):
    labels = [(0,), (0, 1), (), (0,)]
    constant = best_constant(file_with(labels, multi_label=True), weights)
    rows = [[float(number in row) for number in range(3)] for row in labels]
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    loss, plain = (torch.nn.BCEWithLogitsLoss(pos_weight=w, reduction="sum") for w in (given, None))
    slope = slope_at(constant, rows, loss, [[1.0] * 3, [0.0] * 3], plain)
    np.testing.assert_allclose(slope, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "best"), [([0.0] * 60 + [1.0, 2.0], 1 / 3), ([(0,)] * 60 + [(1, 2), ()], 0.5)]
)
def test_the_best_constant_answer_with_balanced_weights_is_even(labels, best):
    file = file_with(labels, multi_label=best == 0.5)
    constant = np.array(best_constant(file, balanced_weights(file)))
    found = 1 / (1 + np.exp(-constant)) if best == 0.5 else np.exp(constant)
    np.testing.assert_allclose(found, best)


def rated(*ratings):
    task = TextTask("t", "text", None, "label", (), Classes(REGRESSION), highest=5.0)
    return TextFile(Path("t.csv"), task, [Row("text", None, rating) for rating in ratings])


def test_the_best_constant_rating_is_the_mean():
    assert best_constant(rated(1.5, 4.0, 5.0)) == (3.5,)


def test_the_unit_of_ratings_is_their_deviation():
    assert rating_unit(rated(10.0, 30.0)) == 10.0
    assert rating_unit(rated(4.0, 4.0)) == 1.0
    assert rating_unit(file_with([0.0] * 6 + [1.0] * 3)) == 1.0
