"""The span head against transformers' BertForQuestionAnswering; loss and candidates by numpy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import create_variables
from bert_tf.tasks.question_answering.task import POSITION, SpanLogits, SpanTask
from tests.helpers.forward_passes import span_logits
from tests.helpers.torch_networks import torch_inputs, torch_network

FP32 = ForwardOptions(policy_for("fp32"))
B, S = 3, 12
CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=16,
    type_vocab_size=2,
)
# [CLS] question [SEP] context [SEP] and padding: (tokens of the question, of the context).
LENGTHS = [(2, 7), (3, 2), (1, 0)]


def features_of(parts, positions=S):
    """Sequences with these numbers of tokens of question and context."""
    rng = np.random.default_rng(0)
    mask, segments = np.zeros((2, len(parts), positions), np.int32)
    for row, (question, context) in enumerate(parts):
        mask[row, : question + context + 3] = 1
        segments[row, question + 2 : question + context + 3] = 1
    ids = rng.integers(0, CONFIG.vocab_size, mask.shape).astype(np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def session_of(build):
    """Runs the tensors that ``build`` returns in a new graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        wanted = build()
        session.run(tf.global_variables_initializer())
        return session.run(wanted)


def as_constants(features):
    return {name: tf.constant(value) for name, value in features.items()}


def logits_and_weights(features):
    def build():
        variables = create_variables(SpanTask(CONFIG).specs(), initializer_range=0.5, seed=3)
        logits = span_logits(variables, CONFIG, as_constants(features), FP32)
        return logits, {variable.op.name: variable for variable in variables.all()}

    return session_of(build)


def test_logits_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    features = features_of(LENGTHS)
    logits, weights = logits_and_weights(features)
    peer = torch_network("BertForQuestionAnswering", CONFIG, weights)
    with torch.no_grad():
        expected = peer(**torch_inputs(features))
    tokens = features["input_mask"] == 1  # scores at padding are not used
    for ours, theirs in zip(logits, (expected.start_logits, expected.end_logits)):
        np.testing.assert_allclose(ours[tokens], theirs.numpy()[tokens], atol=1e-5)


def log_softmax(row):
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


def sums_of(start, end, features):
    def build():
        logits = SpanLogits(tf.constant(start), tf.constant(end))
        return SpanTask(CONFIG).losses(logits, as_constants(features), FP32)[POSITION]

    return session_of(build)


def test_loss_is_the_mean_of_both_cross_entropies_over_the_tokens():
    features = features_of(LENGTHS)
    rng = np.random.default_rng(1)
    start, end = rng.normal(size=(2, B, S)).astype(np.float32) * 3
    labels = {
        "start_positions": np.int32([[4], [0], [2]]),
        "end_positions": np.int32([[6], [0], [2]]),
    }
    expected, correct = 0.0, 0
    for row, (question, context) in enumerate(LENGTHS):
        length = question + context + 3
        for scores, name in ((start, "start_positions"), (end, "end_positions")):
            label = labels[name][row, 0]
            expected -= log_softmax(scores[row, :length])[label] / 2
            correct += (scores[row, :length].argmax() == label) / 2
    found = sums_of(start, end, {**features, **labels})
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.weight == B
    assert found.metrics == {"accuracy": pytest.approx(correct)}


def as_list(sums):
    return [sums.loss, sums.weight, sums.metrics["accuracy"]]


def test_padding_changes_nothing():
    labels = {"start_positions": np.int32([3, 5, 1]), "end_positions": np.int32([4, 5, 1])}
    rng = np.random.default_rng(2)
    start, end = rng.normal(size=(2, B, S + 4)).astype(np.float32)
    long = sums_of(start, end, {**features_of(LENGTHS, S + 4), **labels})
    short = sums_of(start[:, :S], end[:, :S], {**features_of(LENGTHS), **labels})
    np.testing.assert_allclose(as_list(long), as_list(short), rtol=1e-6)


def candidates_of(start, end, features, k):
    task = SpanTask(CONFIG, num_candidates=k)
    return session_of(
        lambda: task.predictions(
            SpanLogits(tf.constant(start), tf.constant(end)), as_constants(features), FP32
        )
    )


@pytest.mark.parametrize("k", [1, 4, 16])
def test_candidates_are_the_best_positions_of_the_context(k):
    features = features_of(LENGTHS)
    rng = np.random.default_rng(4)
    start, end = rng.integers(-3, 3, (2, B, S)).astype(np.float32)  # with many equal scores
    found = candidates_of(start, end, features, k)
    for row, (question, context) in enumerate(LENGTHS):
        positions = list(range(question + 2, question + 2 + context))
        for scores, indices, logits in (
            (start, found["start_indices"], found["start_logits"]),
            (end, found["end_indices"], found["end_logits"]),
        ):
            best = sorted(positions, key=lambda p: (-scores[row, p], p))[:k]
            assert indices[row, : len(best)].tolist() == best
            np.testing.assert_array_equal(logits[row, : len(best)], scores[row, best])
            assert np.all(np.isneginf(logits[row, len(best) :]))
            assert logits.shape == (B, k)
    np.testing.assert_array_equal(found["null_logits"], start[:, 0] + end[:, 0])
