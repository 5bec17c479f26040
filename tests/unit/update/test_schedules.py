import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.update.schedules import SCHEDULES, google, polynomial


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.25),  # the first update learns
        (2, 0.75),
        (3, 1.0),  # the last update of the warm-up has the full rate
        (4, 1.0),  # and the decay starts there
        (5, 0.9),
        (9, 0.5),
        (13, 0.1),  # the last update
        (14, 0.0),
        (1000, 0.0),
    ],
)
def test_warmup_joined_to_linear_decay(step, rate):
    assert polynomial(step, peak_rate=1.0, total_steps=14, warmup_steps=4) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (3, 0.75),
        (4, 0.6),  # drops from what would be 1.0
        (9, 0.1),  # the last update
        (10, 0.0),
        (99, 0.0),
    ],
)
def test_googles_overlaid_warmup(step, rate):
    assert google(step, peak_rate=1.0, total_steps=10, warmup_steps=4) == pytest.approx(rate)


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_without_warmup_both_are_the_plain_decay(schedule):
    rates = schedule(np.arange(6), peak_rate=2.0, total_steps=4, warmup_steps=0)
    np.testing.assert_allclose(rates, [2.0, 1.5, 1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_power_and_end_rate(schedule):
    rates = schedule(np.array([0, 3, 4, 7]), peak_rate=1.0, total_steps=4, end_rate=0.2, power=0.5)
    np.testing.assert_allclose(rates, [1.0, 0.2 + 0.8 * 0.25**0.5, 0.2, 0.2])


def test_a_run_of_warmup_only_and_a_run_of_no_steps():
    rates = polynomial(np.arange(4), peak_rate=1.0, total_steps=3, warmup_steps=3)
    np.testing.assert_allclose(rates, [1 / 3, 2 / 3, 1.0, 1.0])
    assert polynomial(0, peak_rate=1.0, total_steps=0) == 1.0


@settings(max_examples=50, deadline=None)
@given(
    warmup=st.integers(0, 50),
    decay=st.integers(1, 200),
    power=st.sampled_from([0.5, 1.0, 2.0]),
    end=st.floats(0.0, 0.5),
)
def test_joined_schedule_has_no_jump_and_no_wasted_update(warmup, decay, power, end):
    total = warmup + decay
    settings_ = {"total_steps": total, "warmup_steps": warmup, "end_rate": end, "power": power}
    rates = polynomial(np.arange(total + 1), peak_rate=1.0, **settings_)
    assert rates.max() == 1.0
    assert np.all(rates[:total] > 0)
    assert np.all(np.diff(rates[: warmup + 1]) >= 0)
    assert np.all(np.diff(rates[warmup:]) <= 0)
    # No two neighbours differ by more than a step of the warm-up or the steepest of the decay.
    steepest = max(1 / max(warmup, 1) if warmup else 0, *-np.diff(_decay_curve(decay, power)))
    assert np.abs(np.diff(rates)).max() <= steepest + 1e-12


def _decay_curve(steps, power):
    return np.linspace(1, 0, steps + 1) ** power


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_tensors_and_numbers_give_the_same_rates(schedule):
    settings_ = {"peak_rate": 1e-4, "total_steps": 10_000, "warmup_steps": 1_000, "power": 0.5}
    steps = np.array([0, 1, 999, 1_000, 1_001, 9_999, 10_000, 10_001])
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = schedule(step, **settings_)
        assert rate.dtype == tf.float32
        rates = [session.run(rate, {step: value}) for value in steps]
    # float32 holds 1 - 9999/10000 to about 6e-4 of itself.
    np.testing.assert_allclose(rates, schedule(steps, **settings_), rtol=1e-3, atol=1e-12)


def test_tensor_schedule_follows_a_variable():
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        rate = polynomial(step, peak_rate=1.0, total_steps=14, warmup_steps=4)
        session.run(tf.global_variables_initializer())
        assert session.run(rate) == pytest.approx(0.25)
        session.run(step.assign(9))
        assert session.run(rate) == pytest.approx(0.5)
