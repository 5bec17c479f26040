"""Sums of several terms as one list of numbers, and their means."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.losses import Sums, flatten, means, num_sums, unflatten

TERMS = {"words": ("accuracy", "top5"), "sentences": (), "lengths": ("error",)}
ROW = [6.0, 4.0, 3.0, 2.0, 5.0, 8.0, 1.5, 0.5, 0.25]
SUMS = {
    "words": Sums(6.0, 4.0, {"accuracy": 3.0, "top5": 2.0}),
    "sentences": Sums(5.0, 8.0, {}),
    "lengths": Sums(1.5, 0.5, {"error": 0.25}),
}


def test_a_list_has_every_sum_in_the_order_of_the_terms():
    assert flatten(SUMS, TERMS) == ROW
    assert num_sums(TERMS) == len(ROW)
    assert num_sums({}) == 0


def test_the_order_of_a_task_s_sums_does_not_matter():
    shuffled = {
        term: SUMS[term]._replace(metrics=dict(reversed(SUMS[term].metrics.items())))
        for term in reversed(SUMS)
    }
    assert flatten(shuffled, TERMS) == ROW


def test_unflatten_reverses_flatten():
    found = unflatten(ROW, TERMS)
    assert found == SUMS
    assert list(found) == list(TERMS)
    assert list(found["words"].metrics) == ["accuracy", "top5"]


def test_a_round_trip_of_tensors():
    with tf.Graph().as_default(), tf.Session() as session:
        row = tf.stack(flatten({t: Sums(*map_to_tensors(s)) for t, s in SUMS.items()}, TERMS))
        assert row.shape == [num_sums(TERMS)]
        found = session.run(unflatten(tf.unstack(row + row), TERMS))
    np.testing.assert_array_equal(flatten(found, TERMS), 2 * np.array(ROW))


def map_to_tensors(sums):
    loss, weight, metrics = sums
    return (
        tf.constant(loss),
        tf.constant(weight),
        {name: tf.constant(value) for name, value in metrics.items()},
    )


def test_means():
    assert means(SUMS) == {
        "words": {"loss": 1.5, "accuracy": 0.75, "top5": 0.5},
        "sentences": {"loss": 0.625},
        "lengths": {"loss": 3.0, "error": 0.5},
    }


def test_means_without_any_weight_are_0():
    assert means({"words": Sums(0.0, 0.0, {"accuracy": 0.0})}) == {
        "words": {"loss": 0.0, "accuracy": 0.0}
    }


@pytest.mark.parametrize("weight", [1e-5, 0.5])
def test_small_weights_are_weights(weight):
    assert means({"words": Sums(weight, weight, {})})["words"]["loss"] == 1.0
