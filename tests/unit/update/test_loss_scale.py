import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.update.kernels import times
from bert_tf.update.loss_scale import DynamicLossScale, LossScale


class ReferenceScale:
    """The state machine in plain Python."""

    def __init__(self, initial, period, floor, ceiling):
        self.scale, self.good = initial, 0
        self.period, self.floor, self.ceiling = period, floor, ceiling

    def update(self, is_finite):
        if not is_finite:
            self.scale, self.good = max(self.scale / 2, self.floor), 0
            return
        self.good += 1
        if self.good == self.period:
            self.scale, self.good = min(self.scale * 2, self.ceiling), 0


@pytest.mark.parametrize(("initial", "period"), [(8.0, 3), (1.0, 1), (64.0, 2)])
def test_state_machine(initial, period):
    outcomes = np.random.RandomState(0).rand(200) < 0.7
    reference = ReferenceScale(initial, period, floor=1.0, ceiling=64.0)
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = DynamicLossScale(initial, period=period, ceiling=64.0)
        is_finite = tf.placeholder(tf.bool, [])
        update = scaling.update(is_finite)
        session.run(tf.global_variables_initializer())
        seen = set()
        for outcome in outcomes:
            session.run(update, {is_finite: outcome})
            reference.update(outcome)
            assert session.run(scaling.current()) == reference.scale
            seen.add(reference.scale)
    assert {1.0, 64.0} <= seen | {initial}  # floor and ceiling were reached


def test_the_usual_scale_and_period():
    """2**16, doubled after a thousand good updates; never more than NVIDIA's 2**32."""
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = DynamicLossScale()
        update = scaling.update(tf.constant(True))
        session.run(tf.global_variables_initializer())
        good_updates = next(v for v in tf.global_variables() if "good_updates" in v.op.name)
        session.run(good_updates.assign(998))
        scales = []
        for _ in range(2):
            session.run(update)
            scales.append(session.run(scaling.current()))
    assert scales == [2.0**16, 2.0**17]


def float16_update(scaling, x):
    """A tiny update: w += the gradient of x * w computed in float16, skipped on overflow."""
    weight = tf.get_variable("weight", initializer=0.0, use_resource=True)
    product = tf.cast(weight, tf.float16) * tf.cast(x, tf.float16)
    loss = scaling.scale(tf.cast(product, tf.float32))
    (scaled,) = tf.gradients(loss, [weight])
    gradient = times(scaled, scaling.inverse())
    is_finite = tf.reduce_all(tf.is_finite(gradient))
    apply = tf.cond(is_finite, lambda: tf.group(weight.assign_add(gradient)), tf.no_op)
    with tf.control_dependencies([apply]):
        return weight, gradient, is_finite, scaling.update(is_finite)


def test_real_float16_overflow_lowers_the_scale_until_the_gradient_fits():
    # The gradient by the weight is 24 * scale in float16, whose largest number is 65504:
    # 24 * 2**16 down to 24 * 2**12 = 98304 overflow, and 24 * 2**11 = 49152 fits.
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = DynamicLossScale(period=3)
        weight, gradient, is_finite, update = float16_update(scaling, tf.constant(24.0))
        session.run(tf.global_variables_initializer())
        history = []
        for _ in range(10):
            scale = session.run(scaling.current())
            finite, value, _ = session.run([is_finite, gradient, update])
            history.append((np.log2(scale), finite))
            assert not finite or value == 24.0
        # Five overflows, then three good updates, a doubling that overflows, and back.
        overflows = [(power, False) for power in (16.0, 15.0, 14.0, 13.0, 12.0)]
        assert history == [*overflows, *[(11.0, True)] * 3, (12.0, False), (11.0, True)]
        assert session.run(weight) == 4 * 24.0


def test_the_scale_saves_a_gradient_that_float16_would_lose():
    tiny = 2.0**-26  # less than half of float16's smallest number
    results = []
    for make in (LossScale, DynamicLossScale):
        with tf.Graph().as_default(), tf.Session() as session:
            scaling = make()
            weight = tf.get_variable("weight", initializer=0.0, use_resource=True)
            half = tf.cast(weight, tf.float16)
            loss = scaling.scale(tf.cast(half, tf.float32) * tiny)
            (scaled,) = tf.gradients(loss, [weight])
            gradient = times(scaled, scaling.inverse())
            session.run(tf.global_variables_initializer())
            results.append(session.run(gradient))
    assert results == [0.0, tiny]


def test_overflow_at_the_floor_keeps_the_floor():
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = DynamicLossScale(2.0)
        _, _, is_finite, update = float16_update(scaling, tf.constant(1e6))
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            finite, _ = session.run([is_finite, update])
            assert not finite
        assert session.run(scaling.current()) == 1.0


def test_state_is_saved(tmp_path):
    def build():
        scaling = DynamicLossScale(16.0, period=5)
        return scaling, scaling.update(tf.constant(True)), scaling.update(tf.constant(False))

    with tf.Graph().as_default(), tf.Session() as session:
        _, good, bad = build()
        session.run(tf.global_variables_initializer())
        for update in (bad, good, good):
            session.run(update)
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    with tf.Graph().as_default(), tf.Session() as session:
        scaling, good, _ = build()
        tf.train.Saver().restore(session, path)
        assert session.run(scaling.current()) == 8.0
        for _ in range(3):
            session.run(good)
        assert session.run(scaling.current()) == 16.0


def test_no_scale_changes_nothing():
    with tf.Graph().as_default(), tf.Session() as session:
        scaling, loss = LossScale(), tf.constant(3.0)
        assert scaling.scale(loss) is loss
        assert scaling.inverse() is None
        session.run(scaling.update(tf.constant(False)))
        assert session.run(scaling.current()) == 1.0
        assert tf.global_variables() == []


@pytest.mark.parametrize("settings", [{"initial": 0.5}, {"initial": 2.0**33}, {"period": 0}])
def test_impossible_settings_are_refused(settings):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="loss scale"):
        DynamicLossScale(**settings)
