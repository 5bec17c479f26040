"""Words drawn from a softmax, against numpy, and what the random numbers depend on."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.dropout import Dropout
from bert_tf.tasks.replaced_tokens.task import (
    sample_classes,
    uniform_numbers,
    uniform_numbers_of,
    with_tokens_at,
)

B, P, V = 8, 4, 11
LOGITS = np.random.default_rng(0).normal(0, 2, [4_000, V]).astype(np.float32)


def evaluated(tensors):
    with tf.Session() as session:
        return session.run(tensors)


def numbers(first=0, size=B, *, seed=5, position=7, predictions=P):
    """The random numbers of the examples from ``first`` on."""
    with tf.Graph().as_default():
        dropout = Dropout(
            seed,
            data_position=tf.constant(position, tf.int64),
            first_example=tf.constant(first, tf.int64),
        )
        return evaluated(uniform_numbers(dropout, tf.zeros([size, predictions], tf.int32)))


def numbers_of(ids, predictions=P):
    with tf.Graph().as_default():
        like = tf.zeros([len(ids), predictions], tf.int32)
        return evaluated(uniform_numbers_of(tf.constant(ids, tf.int32), like))


def sampled(logits, uniform):
    with tf.Graph().as_default():
        return evaluated(sample_classes(tf.constant(logits), tf.constant(uniform, tf.float32)))


def test_classes_are_those_of_the_cumulative_distribution():
    uniform = numbers(size=len(LOGITS), predictions=1)[:, 0]
    exact = np.exp(LOGITS.astype(np.float64))
    cumulative = np.cumsum(exact / exact.sum(axis=1, keepdims=True), axis=1)
    expected = (cumulative <= uniform[:, None]).sum(axis=1)
    found = sampled(LOGITS, uniform)
    # Where a number is next to a border, rounding decides: each of V sums is off by V roundings.
    near = np.abs(cumulative - uniform[:, None]).min(axis=1) < 4 * V * 2.0**-24
    assert near.sum() < 5
    np.testing.assert_array_equal(found[~near], expected[~near])


def test_each_class_is_as_frequent_as_it_is_probable():
    logits = np.tile(LOGITS[:1], [20_000, 1])
    counts = np.bincount(sampled(logits, numbers(size=20_000, predictions=1)[:, 0]), minlength=V)
    expected = len(logits) * np.exp(logits[0]) / np.exp(logits[0]).sum()
    # Chi-squared with V - 1 degrees of freedom exceeds this once in a million.
    assert (np.square(counts - expected) / expected).sum() < 48


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-23])
def test_the_ends_give_classes_that_are_possible(uniform):
    logits = np.full([1000, 50], -200, np.float32)
    logits[:, 10:20] = np.random.default_rng(1).normal(0, 9, [1000, 10])
    found = sampled(logits, np.full(1000, uniform))
    assert ((found >= 10) & (found < 20)).all()


def test_numbers_follow_the_place_in_the_global_batch():
    whole = numbers()
    assert ((whole >= 0) & (whole < 1)).all()
    assert len(np.unique(whole)) == whole.size
    np.testing.assert_array_equal(np.concatenate([numbers(0, 3), numbers(3, 5)]), whole)
    for other in (numbers(seed=6), numbers(position=8), numbers(first=1)):
        assert not (other == whole).any()


def test_numbers_of_an_evaluation_follow_the_sequences_alone():
    ids = np.random.default_rng(2).integers(0, 30_000, [500, 12])
    whole = numbers_of(ids)
    np.testing.assert_array_equal(numbers_of(ids[[4, 2]]), whole[[4, 2]])
    padded = np.pad(ids, [(0, 0), (0, 3)])
    np.testing.assert_array_equal(numbers_of(padded), whole)
    changed = ids.copy()
    changed[:, 5] += 1
    assert not (numbers_of(changed) == whole).any()
    # Each prediction's numbers are uniform over the sequences.
    for column in np.sort(whole, axis=0).T:
        assert np.abs(column - np.arange(500) / 500).max() < 0.1


def test_numbers_of_long_sequences_do_not_overflow():
    ids = np.full([1, 512], 250_000)
    shift = int((ids * np.arange(1, 513)).sum()) * 5183737 % 2**23
    start = numbers_of(np.zeros([1, 512], np.int32))
    np.testing.assert_array_equal(numbers_of(ids), (start + shift * 2.0**-23) % 1)


def test_tokens_are_put_where_predictions_are_not_padding():
    ids = [[2, 7, 8, 9, 3], [2, 6, 6, 3, 0]]
    with tf.Graph().as_default():
        found = with_tokens_at(
            tf.constant(ids), tf.constant([[3, 1, 0], [0, 0, 0]]), tf.constant([[21, 22, 23]] * 2)
        )
        np.testing.assert_array_equal(evaluated(found), [[2, 22, 8, 21, 3], [2, 6, 6, 3, 0]])
