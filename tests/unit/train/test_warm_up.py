"""Which updates are warm-up, and what it took: against figures made up by hand."""

import pytest

from bert_tf.train.summary import WarmUp


def test_the_first_updates_of_each_shape_are_warm_up():
    warm_up = WarmUp(2)
    shapes = [(8, 32), (8, 32), (8, 64), (8, 32), (8, 64), (8, 64)]
    assert [warm_up.note(shape, 1.0) for shape in shapes] == [False] * 3 + [True, False, True]
    assert warm_up.shapes == 2


def test_what_warm_up_took_is_beyond_the_steady_updates():
    warm_up = WarmUp(2)
    for seconds in (30.0, 5.0, 2.0, 4.0, 2.0):
        warm_up.note([8, 32], seconds)
    for seconds in (10.0, 4.0, 3.0):
        warm_up.note([8, 64], seconds)
    warm_up.note([8, 96], 100.0)  # without a steady update nobody knows
    assert warm_up.extra_seconds == pytest.approx((30 + 5 - 2 * 2) + (10 + 4 - 2 * 3))


def test_a_warm_up_that_cost_nothing():
    warm_up = WarmUp()
    for seconds in (1.0, 2.0, 2.0):
        warm_up.note((), seconds)
    assert warm_up.extra_seconds == 0.0
