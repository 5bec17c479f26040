"""Which updates are warm-up, and what they took: against times made up by hand."""

from bert_tf.train.summary import WarmUp


def test_the_first_update_of_each_shape_is_warm_up():
    warm_up = WarmUp()
    shapes = [(8, 32), (8, 32), (8, 64), (8, 32), (8, 64)]
    assert [warm_up.note(shape, 1.0) for shape in shapes] == [False, True, False, True, True]
    assert warm_up.shapes == 2


def test_the_seconds_of_warm_up_are_the_first_ones_of_each_shape():
    warm_up = WarmUp()
    for shape, seconds in [((8, 32), 30.0), ((8, 32), 2.0), ((8, 64), 10.0), ((8, 64), 3.0)]:
        warm_up.note(shape, seconds)
    assert warm_up.warm_up_seconds == 40.0
