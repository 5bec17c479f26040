"""Scores of choices: the loss, its gradient and predictions against torch, with equal weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.loading import check_initial, missing_heads
from bert_tf.model.dropout import Dropout
from bert_tf.model.losses import means
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.model_directory.classes import CHOICE, REGRESSION, Classes
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import DistillationTask
from bert_tf.tasks.multiple_choice.task import CHOICE_HEAD, LABEL, ChoiceTask
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.small_span_model import CONFIG, VOCABULARY, write_model, write_weights
from tests.helpers.torch_networks import (
    random_values,
    relative_errors,
    torch_gradients,
    torch_inputs,
    torch_network,
)

TOLERANCE = 1e-5
B, C, S = 4, 3, 9
FP32 = ForwardOptions(policy_for("fp32"))
SKIPPING = dataclasses.replace(FP32.with_native_layers(), skip_padding=True)
EACH_OPTION = pytest.mark.parametrize(
    "options", [FP32, pytest.param(SKIPPING, marks=requires_native_ops)]
)
PLAIN = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
TASK = ChoiceTask(PLAIN)


def batch():
    """Choices of different lengths."""
    rng = np.random.RandomState(3)
    lengths = rng.randint(3, S + 1, [B, C, 1])
    mask = (np.arange(S) < lengths).astype(np.int32)
    return {
        "input_ids": rng.randint(1, len(VOCABULARY), [B, C, S]).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(S) > 1).astype(np.int32) * mask,
        "labels": np.int32([[2], [0], [1], [2]]),
    }


BATCH = batch()


def computed(build, *, options=FP32, features=BATCH, task=TASK):
    """What ``build(network, features)`` returns, with random values for the variables."""
    values = random_values(task.specs())
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(task, options)
        fetches = build(network, {name: tf.constant(value) for name, value in features.items()})
        given = {v.initializer.inputs[1]: values[v.op.name] for v in network.variables.all()}
        session.run([v.initializer for v in network.variables.all()], given)
        return session.run(fetches)


def network_in_torch():
    return torch_network("BertForMultipleChoice", TASK.config, random_values(TASK.specs()))


def scores_of(features, **options):
    return computed(lambda n, given: n.predictions(given), features=features, **options)["scores"]


def loss_and_gradients(network, features):
    sums = network.losses(features)[LABEL]
    variables = network.variables.trainable()
    gradients = tf.gradients(sums.loss / sums.weight, variables)
    return sums, {v.op.name: tf.convert_to_tensor(g) for v, g in zip(variables, gradients)}


@EACH_OPTION
def test_the_loss_and_its_gradient(options):
    torch = pytest.importorskip("torch")
    sums, gradients = computed(loss_and_gradients, options=options)
    network, labels = network_in_torch(), torch.tensor(BATCH["labels"][:, 0]).long()
    output = network(**torch_inputs(BATCH), labels=labels)
    output.loss.backward()
    assert sums.weight == B
    found = means({LABEL: sums})[LABEL]
    assert found["loss"] == pytest.approx(output.loss.item(), rel=TOLERANCE)
    correct = (output.logits.argmax(-1) == labels).sum().item()
    assert found["accuracy"] == pytest.approx(correct / B)
    # It is zero in theory: a bias of all choices changes none of their probabilities.
    assert abs(gradients.pop("output_bias")).max() < 1e-6
    errors = relative_errors(gradients, torch_gradients(network, gradients))
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


@EACH_OPTION
def test_scores_of_choices_together_and_alone(options):
    expected = network_in_torch()(**torch_inputs(BATCH)).logits.detach().numpy()
    np.testing.assert_allclose(scores_of(BATCH, options=options), expected, rtol=1e-4)
    alone = {name: BATCH[name].reshape(-1, S) for name in TASK.inputs}
    np.testing.assert_allclose(scores_of(alone, options=options), expected.ravel(), rtol=1e-4)


@EACH_OPTION
def test_a_choice_that_an_example_lacks_changes_nothing(options):
    """The place of a fourth choice, [CLS] alone, is never chosen and learns nothing."""
    more = {name: BATCH[name] for name in ("labels",)}
    for name in TASK.inputs:
        more[name] = np.concatenate([BATCH[name], np.zeros([B, 1, S], np.int32)], axis=1)
    more["input_ids"][:, C, 0] = 2
    more["input_mask"][:, C, 0] = 1
    found, expected = (
        computed(loss_and_gradients, options=options, features=features)
        for features in (more, BATCH)
    )
    assert found[0].loss == pytest.approx(expected[0].loss, rel=1e-6)
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(found[1][name], gradient, atol=1e-6, err_msg=name)
    scores = scores_of(more, options=options)
    assert (scores[:, C] == -10_000).all()


def test_dropout_does_not_depend_on_micro_batches():
    """Every sequence of every example has masks of its own."""
    task = ChoiceTask(CONFIG)
    same = {name: np.tile(BATCH[name][:1, :1], [B, C, 1]) for name in TASK.inputs}

    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(task, FP32)
        parts = []
        for first, stop in ((0, B), (0, 1), (1, 3), (3, B)):
            position, place = (tf.constant(value, tf.int64) for value in (5, first))
            features = {name: tf.constant(value[first:stop]) for name, value in same.items()}
            features["labels"] = tf.zeros([stop - first, 1], tf.int32)
            dropout = Dropout(1, data_position=position, first_example=place)
            parts.append(network.losses(features, dropout=dropout)[LABEL].loss)
        session.run(tf.global_variables_initializer())
        whole, *some = session.run(parts)
    assert whole == pytest.approx(sum(some), rel=1e-5)


def test_a_student_of_the_same_task():
    """A student with its teacher's weights has no loss but that of labels."""
    settings = DistillationSettings("teacher", alpha_cos=1.0, alpha_ce=1.0, alpha_label=1.0)
    task = DistillationTask(TASK, TASK, settings)
    names = [spec.name for spec in TASK.specs()]
    values = random_values(TASK.specs())
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(task, FP32)
        sums = network.losses({name: tf.constant(value) for name, value in BATCH.items()})
        variables = {v.op.name: v for v in network.variables.all()}
        for name in names:
            for own in (name, f"teacher/{name}"):
                variables[own].load(values[name], session)
        found = session.run(sums)
    assert found["soft_targets"].loss == pytest.approx(0, abs=1e-4)
    assert found["cosine"].loss == pytest.approx(0, abs=1e-4)
    assert found["soft_targets"].weight == B
    assert found["cosine"].weight == BATCH["input_mask"].sum()
    assert found[LABEL].loss > 0.1


@pytest.mark.parametrize(("stored", "lacks"), [(CHOICE, False), (REGRESSION, True), (None, True)])
def test_a_head_of_ratings_is_not_taken_for_one_of_choices(tmp_path, stored, lacks):
    """Both have one output and the same names."""
    if stored is None:
        directory = write_model(tmp_path / "model", span_head=False)
    else:
        specs = ClassificationTask(CONFIG, 1).specs()
        directory = write_weights(tmp_path / "model", specs, classes=Classes(stored))
    shapes = {spec.name: spec.shape for spec in TASK.specs()}
    _, report = check_initial(directory, shapes, heads=TASK.heads, config=CONFIG)
    assert missing_heads(report, TASK.heads) == [CHOICE_HEAD] * lacks
