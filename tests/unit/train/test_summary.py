"""The totals at the end of a training and of a prediction: the arithmetic by hand."""

import pytest

from bert_tf.train.summary import (
    UpdateTimes,
    prediction_lines,
    training_lines,
    training_totals,
)


def test_a_training_with_and_without_start_up():
    times = UpdateTimes()
    for seconds, is_steady in [(7.0, False), (2.0, True), (3.0, True)]:
        times.note(seconds, sequences=10, is_steady=is_steady)
    totals = training_totals(times, seconds=20.0)
    assert totals == {
        "sequences": 30,
        "seconds": 20.0,
        "sequences_per_second_with_start_up": 1.5,
        "steady_sequences": 20,
        "steady_seconds": 5.0,
        "sequences_per_second": 4.0,
    }
    whole, steady = training_lines(totals)
    assert whole.startswith("training took 20.00 s for 30 sequences: 1.5 sequences/s with start-up")
    assert steady == "training without them took 5.00 s for 20 sequences: 4 sequences/s"


@pytest.mark.parametrize(("has_loss_scale", "skipped"), [(True, 0), (True, 2), (False, 1)])
def test_skipped_updates_are_named(has_loss_scale, skipped):
    times = UpdateTimes()
    for number in range(4):
        times.note(1.0, sequences=2, is_steady=False, is_skipped=number < skipped)
    totals = training_totals(times, seconds=9.0, has_loss_scale=has_loss_scale)
    assert training_lines(totals)[-1] == (
        f"{skipped} of 4 updates were skipped because a gradient was not finite"
    )


def test_one_update_is_all_start_up():
    times = UpdateTimes()
    times.note(7.0, sequences=10, is_steady=False)
    totals = training_totals(times, seconds=20.0)
    assert len(training_lines(totals)) == 1
    assert "sequences_per_second" not in totals


def test_a_prediction_with_and_without_its_first_batch():
    seconds = [9.0, *[0.5] * 9, 1.5]
    whole, steady = prediction_lines(seconds, seconds=15.0, sequences=60, steady_sequences=54)
    assert whole == "prediction took 15.00 s for 60 sequences: 4 sequences/s with start-up"
    assert steady == (
        "prediction without it took 6.00 s for 54 sequences: 9 sequences/s; ms a batch: "
        "p50 500.0, p90 600.0, p95 1050.0, p99 1410.0, p100 1500.0, mean 600.0"
    )
    assert len(prediction_lines([9.0], seconds=9.0, sequences=6, steady_sequences=0)) == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_nothing_is_divided_by_zero(steps):
    times = UpdateTimes(updates=steps, sequences=2 * steps)
    assert training_totals(times, seconds=1.0)["sequences"] == 2 * steps
