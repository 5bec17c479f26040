"""Values and gradients of the whole network against transformers' BertForPreTraining."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.bert import bert_output
from bert_tf.model.config import BertConfig
from bert_tf.model.dropout import Dropout
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import create_variables
from bert_tf.util.errors import UserError
from tests.helpers import rounding
from tests.helpers.forward_passes import (
    pretraining_outputs,
    pretraining_specs,
    sums_of,
    sums_of_heads,
)
from tests.helpers.tensors import set_variables
from tests.helpers.torch_networks import (
    random_values,
    relative_errors,
    torch_gradients,
    torch_inputs,
    torch_network,
)

TOLERANCE = 1e-5
# Of two ways to compute the same: some 32 products, forwards and backwards, of sums of 64 terms.
ROUNDING = rounding.of_products(32, 64)
FP32 = ForwardOptions(policy_for("fp32"))


def constants(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def mean_loss(sums):
    masked, sentence = sums
    return masked.loss / masked.weight + sentence.loss / sentence.weight


def run_ours(config, batch, values):
    """Outputs and the gradient of every variable, as numpy."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = create_variables(pretraining_specs(config), initializer_range=0.02)
        features = constants(batch)
        encoded = bert_output(variables, config, features, FP32)
        output = pretraining_outputs(variables, config, features, FP32)
        loss = mean_loss(sums_of(output, config, features, FP32))
        gradients = tf.gradients(loss, variables.all())
        set_variables(session, variables.all(), values)
        outputs = {
            "loss": loss,
            "masked_lm_logits": output.words.logits(FP32.policy),
            "next_sentence_logits": output.next_sentence,
            "embeddings": encoded.embedding_output,
            **{f"layer {i}": layer for i, layer in enumerate(encoded.layer_outputs)},
        }
        names = [variable.op.name for variable in variables.all()]
        dense_gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return session.run((outputs, dict(zip(names, dense_gradients))))


def run_theirs(config, batch, values):
    """The same in float64, so that any difference is due to our float32 arithmetic."""
    model = torch_network("BertForPreTraining", config, values)
    torch = pytest.importorskip("torch")
    labels = np.full(batch["input_ids"].shape, -100)
    for row, column in zip(*np.nonzero(batch["masked_lm_weights"])):
        labels[row, batch["masked_lm_positions"][row, column]] = batch["masked_lm_ids"][row, column]
    result = model(
        **torch_inputs(batch),
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(batch["next_sentence_labels"][:, 0], dtype=torch.long),
        output_hidden_states=True,
    )
    result.loss.backward()
    rows = np.arange(len(labels))[:, None]
    logits = result.prediction_logits.detach().numpy()[rows, batch["masked_lm_positions"]]
    hidden = [state.detach().numpy() for state in result.hidden_states]
    outputs = {
        "loss": result.loss.item(),
        "masked_lm_logits": logits.reshape(-1, config.vocab_size),
        "next_sentence_logits": result.seq_relationship_logits.detach().numpy(),
        "embeddings": hidden[0],
        **{f"layer {i}": layer for i, layer in enumerate(hidden[1:])},
    }
    return outputs, torch_gradients(model, values)


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "relu"])
def test_outputs_and_gradients_agree_with_transformers(config, batch, activation):
    config = dataclasses.replace(config, hidden_act=activation)
    values = random_values(pretraining_specs(config))
    our_outputs, our_gradients = run_ours(config, batch, values)
    their_outputs, their_gradients = run_theirs(config, batch, values)
    errors = relative_errors(our_gradients, their_gradients)
    assert errors.keys() == values.keys()
    for name, theirs in their_outputs.items():
        errors[name] = np.max(np.abs(our_outputs[name] - theirs)) / np.max(np.abs(theirs))
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


def test_padding_and_unused_slots_do_not_change_the_loss(config, batch):
    values = random_values(pretraining_specs(config))
    outputs, gradients = run_ours(config, batch, values)
    padded = batch["input_mask"] == 0
    unused = batch["masked_lm_weights"] == 0
    other = {
        **batch,
        "input_ids": np.where(padded, 36 - batch["input_ids"], batch["input_ids"]),
        "segment_ids": np.where(padded, 0, batch["segment_ids"]),
        "masked_lm_ids": np.where(unused, 11, batch["masked_lm_ids"]),
        "masked_lm_positions": np.where(unused, 8, batch["masked_lm_positions"]),
    }
    other_outputs, other_gradients = run_ours(config, other, values)
    np.testing.assert_allclose(other_outputs["loss"], outputs["loss"], rtol=ROUNDING)
    whole = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients.values()))
    for name, gradient in gradients.items():
        difference = np.linalg.norm(other_gradients[name] - gradient)
        assert difference <= ROUNDING * whole, name


def test_sums_are_those_of_the_logits(session, config, batch):
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)
    features = {
        **constants(batch),
        "masked_lm_weights": tf.constant(batch["masked_lm_weights"] * [0.5, 2.0, 1.0], tf.float32),
        "example_weights": tf.constant([1.0, 1.0, 0.0, 1.0]),
    }
    output = pretraining_outputs(variables, config, features, FP32)
    sums = sums_of(output, config, features, FP32)
    words = output.words.logits(FP32.policy), sums.masked_lm
    sentences = output.next_sentence, sums.next_sentence
    session.run(tf.global_variables_initializer())
    words, sentences, weights = session.run((words, sentences, features["masked_lm_weights"]))

    def expected(logits, labels, weights):
        logits = logits.astype(np.float64)
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses = -log_probabilities[np.arange(len(labels)), labels]
        correct = logits.argmax(-1) == labels
        return (weights * losses).sum(), weights.sum(), (weights * correct).sum()

    for (logits, sums), labels, of_examples in (
        (words, batch["masked_lm_ids"], weights.ravel()),
        (sentences, batch["next_sentence_labels"], np.array([1, 1, 0, 1])),
    ):
        np.testing.assert_allclose(
            [sums.loss, sums.weight, sums.metrics["accuracy"]],
            expected(logits, labels.ravel(), of_examples),
            rtol=1e-5,
        )


def test_correct_predictions_are_counted(session, config, batch):
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)
    first = pretraining_outputs(variables, config, constants(batch), FP32)
    session.run(tf.global_variables_initializer())
    best = session.run(tf.argmax(first.words.logits(FP32.policy), -1)).reshape([4, 3])
    best[0, 0] += 1  # one of the six masked positions is now wrong
    features = constants({**batch, "masked_lm_ids": best.astype(np.int32)})
    sums = sums_of_heads(variables, config, features, FP32).masked_lm
    assert session.run(sums.metrics["accuracy"]) == 5.0
    assert session.run(sums.weight) == 6.0


@pytest.mark.parametrize(
    ("heads", "used"),
    [
        ({"next_sentence": False}, "masked_lm"),
        ({"masked_lm": False}, "next_sentence"),
    ],
)
def test_every_variable_of_a_single_head_is_trained(session, config, batch, heads, used):
    variables = create_variables(pretraining_specs(config, **heads), initializer_range=0.3)
    sums = sums_of_heads(variables, config, constants(batch), FP32, **heads)
    assert [name for name, found in sums._asdict().items() if found is not None] == [used]
    gradients = tf.gradients(getattr(sums, used).loss, variables.all())
    unused = [v.name for v, gradient in zip(variables.all(), gradients) if gradient is None]
    assert unused == []


def test_unknown_batch_and_length_give_the_same_logits(session, config, batch):
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)
    placeholders = {
        name: tf.placeholder(value.dtype, [None] * value.ndim) for name, value in batch.items()
    }
    known, unknown = [], []
    for found, features in ((known, constants(batch)), (unknown, placeholders)):
        output = pretraining_outputs(variables, config, features, FP32)
        found.append(output.words.logits(FP32.policy))
        found.append(sums_of(output, config, features, FP32).next_sentence)
    session.run(tf.global_variables_initializer())
    feed = {placeholders[name]: value for name, value in batch.items()}
    (ours, our_sums), (theirs, their_sums) = session.run((unknown, known), feed)
    assert np.linalg.norm(ours - theirs) <= ROUNDING * np.linalg.norm(theirs)
    assert our_sums.loss == pytest.approx(their_sums.loss, rel=ROUNDING)
    assert our_sums.weight == pytest.approx(their_sums.weight, rel=ROUNDING)
    assert our_sums.metrics == pytest.approx(their_sums.metrics, rel=ROUNDING)


def test_too_long_sequences_are_refused(session, config, batch):
    short = BertConfig(**{**config.to_dict(), "max_position_embeddings": 8})
    variables = create_variables(pretraining_specs(short), initializer_range=0.3)
    with pytest.raises(UserError, match=r"9 tokens, more than .* max_position_embeddings=8"):
        pretraining_outputs(variables, short, constants(batch), FP32)


@pytest.mark.parametrize("micro", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_loop_over_micro_batches_sums_to_the_gradients_of_the_batch(
    session, config, batch, micro
):
    """Forward and backward pass are built in the body of a while_loop, with dropout."""
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)
    features = constants(batch)

    def gradients_of(first, size):
        dropout = Dropout(
            7, data_position=tf.constant(3, tf.int64), first_example=tf.cast(first, tf.int64)
        )
        slices = {name: value[first : first + size] for name, value in features.items()}
        sums = sums_of_heads(variables, config, slices, FP32.with_dropout(dropout))
        loss = sums.total_loss()
        return [tf.convert_to_tensor(g) for g in tf.gradients(loss, variables.all())]

    def body(index, sums):
        gradients = gradients_of(index * micro, micro)
        return index + 1, [total + gradient for total, gradient in zip(sums, gradients)]

    zeros = [tf.zeros(variable.shape) for variable in variables.all()]
    _, looped = tf.while_loop(lambda index, _: index < 4 // micro, body, [0, zeros])
    whole = gradients_of(0, 4)
    session.run(tf.global_variables_initializer())
    names = [variable.op.name for variable in variables.all()]
    looped_values, whole_values = session.run((dict(zip(names, looped)), dict(zip(names, whole))))
    assert max(relative_errors(looped_values, whole_values).values()) <= TOLERANCE


def test_dropout_changes_the_loss_and_repeats(session, config, batch):
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)

    def loss_at(position):
        zero, position = tf.constant(0, tf.int64), tf.constant(position, tf.int64)
        dropout = Dropout(7, data_position=position, first_example=zero)
        options = FP32.with_dropout(dropout)
        return mean_loss(sums_of_heads(variables, config, constants(batch), options))

    plain = mean_loss(sums_of_heads(variables, config, constants(batch), FP32))
    losses = [plain, loss_at(0), loss_at(1), loss_at(0)]
    session.run(tf.global_variables_initializer())
    none, first, second, again = session.run(losses)
    assert first == again
    assert len({none, first, second}) == 3


class RecordingDropout(Dropout):
    """Records what it is applied to, without changing it."""

    def __init__(self):
        self.calls = []

    def apply(self, x, rate, *, site):
        self.calls.append((site, rate, x.shape.as_list()))
        return x


@pytest.mark.usefixtures("session")
def test_every_call_of_dropout_has_a_different_site(config, batch):
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    config = dataclasses.replace(config, **rates)
    variables = create_variables(pretraining_specs(config), initializer_range=0.3)
    dropout = RecordingDropout()
    pretraining_outputs(variables, config, constants(batch), FP32.with_dropout(dropout))
    hidden, scores = (0.2, [4, 9, 12]), (0.3, [4, 3, 9, 9])
    expected = [hidden, *[scores, hidden, hidden] * 2]
    assert dropout.calls == [(site, *call) for site, call in enumerate(expected)]
