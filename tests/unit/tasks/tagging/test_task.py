"""Labels of words: the loss, its gradient and predictions against torch, with the same weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.loading import check_initial, missing_heads
from bert_tf.model.losses import means
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.tasks.tagging.task import LABEL, TAGGING_HEAD, TaggingTask
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.small_span_model import CONFIG, VOCABULARY, write_model
from tests.helpers.torch_networks import (
    random_values,
    relative_errors,
    torch_gradients,
    torch_inputs,
    torch_network,
)

TOLERANCE = 1e-5
B, S, C = 3, 9, 5
FP32 = ForwardOptions(policy_for("fp32"))
SKIPPING = dataclasses.replace(FP32.with_native_layers(), skip_padding=True)
# Weights are random and large, as in the other comparisons with torch.
TASK = TaggingTask(
    dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), C
)


def batch():
    """Sequences of different lengths, of words with one to three pieces; one has a single word."""
    rng = np.random.RandomState(3)
    lengths = np.array([9, 7, 3])
    starts = np.int32([
        [0, 1, 0, 1, 0, 0, 1, 1, 0],
        [0, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 0, 0],
    ])  # fmt: skip
    return {
        "input_ids": rng.randint(0, len(VOCABULARY), [B, S]).astype(np.int32),
        "input_mask": (np.arange(S) < lengths[:, None]).astype(np.int32),
        "segment_ids": np.zeros([B, S], np.int32),
        "word_starts": starts,
        "label_ids": rng.randint(0, C, [B, S]).astype(np.int32) * starts,
    }


BATCH = batch()


def computed(build, options=FP32):
    """What ``build(network, features)`` returns, with random values for the variables."""
    values = random_values(TASK.specs())
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(TASK, options)
        fetches = build(network, {name: tf.constant(value) for name, value in BATCH.items()})
        given = {v.initializer.inputs[1]: values[v.op.name] for v in network.variables.all()}
        session.run([v.initializer for v in network.variables.all()], given)
        return session.run(fetches)


def network_in_torch():
    return torch_network(
        "BertForTokenClassification", TASK.config, random_values(TASK.specs()), num_labels=C
    )


@pytest.mark.parametrize("options", [FP32, pytest.param(SKIPPING, marks=requires_native_ops)])
def test_the_loss_and_its_gradient(options):
    """The other positions are those that transformers' programs mark by -100."""
    torch = pytest.importorskip("torch")

    def build(network, features):
        sums = network.losses(features)[LABEL]
        variables = network.variables.trainable()
        gradients = tf.gradients(sums.loss / sums.weight, variables)
        return sums, {v.op.name: tf.convert_to_tensor(g) for v, g in zip(variables, gradients)}

    sums, gradients = computed(build, options)
    network = network_in_torch()
    labels = torch.tensor(np.where(BATCH["word_starts"], BATCH["label_ids"], -100)).long()
    output = network(**torch_inputs(BATCH), labels=labels)
    output.loss.backward()
    is_word = labels != -100
    correct = (output.logits.argmax(-1) == labels)[is_word].sum().item()
    assert sums.weight == is_word.sum().item() == 9
    found = means({LABEL: sums})[LABEL]
    assert found["loss"] == pytest.approx(output.loss.item(), rel=TOLERANCE)
    assert found["accuracy"] == pytest.approx(correct / 9)
    errors = relative_errors(gradients, torch_gradients(network, gradients))
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


def test_predictions():
    torch = pytest.importorskip("torch")
    found = computed(lambda network, features: network.predictions(features))
    logits = network_in_torch()(**torch_inputs(BATCH)).logits.detach()
    is_word = BATCH["word_starts"] > 0
    np.testing.assert_array_equal(found["word_starts"], BATCH["word_starts"])
    np.testing.assert_array_equal(found["labels"][is_word], logits.argmax(-1).numpy()[is_word])
    losses = torch.nn.functional.cross_entropy(
        logits.view(-1, C), torch.tensor(BATCH["label_ids"]).long().view(-1), reduction="none"
    )
    losses = losses.view(B, S).numpy()[is_word]
    np.testing.assert_allclose(found["cross_entropies"][is_word], losses, rtol=1e-4)


def test_words_without_labels_have_no_loss():
    def build(network, features):
        return network.predictions({n: f for n, f in features.items() if n != "label_ids"})

    assert computed(build).keys() == {"labels", "word_starts"}


def test_the_weight_is_known_before_the_forward_pass():
    weights = computed(lambda network, features: TASK.weights(features))
    assert weights == {LABEL: 9}


def test_a_pretrained_network_lacks_the_head_as_a_whole(tmp_path):
    directory = write_model(tmp_path / "model", span_head=False)
    shapes = {spec.name: spec.shape for spec in TASK.specs()}
    _, report = check_initial(directory, shapes, heads=TASK.heads, config=CONFIG)
    assert missing_heads(report, TASK.heads) == [TAGGING_HEAD]
    assert sorted(report.fresh) == ["output_bias", "output_weights"]
