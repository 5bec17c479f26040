"""What charts of logs show."""

import math

from bert_tf.tasks.finetuning import log_charts


def test_values_over_steps():
    log = [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 4.0},
        {"step": 3, "loss": math.nan},
        {"step": 2, "loss": 3.0},  # a resumed run repeats a step
        {"step": 4},
    ]
    assert log_charts.values_over_steps(log, "loss") == [(1, 5.0), (2, 3.0)]
    assert log_charts.values_over_steps(log, "absent", "loss") == [(1, 5.0), (2, 3.0)]
    assert log_charts.values_over_steps(log, "absent") == []
    assert log_charts.values_over_steps([], "loss") == []


def test_averaged_points():
    points = [(step, float(step % 2)) for step in range(10)]
    assert log_charts.averaged(points, most=10) == (points, 1)
    assert log_charts.averaged(points, most=5) == ([(0.5 + 2 * i, 0.5) for i in range(5)], 2)
    assert log_charts.averaged([], most=5) == ([], 1)


def test_the_loss_has_its_unit():
    log = [{"step": step, "loss": 2.0 / step} for step in range(1, 9)]
    assert "loss (nats)" in log_charts.loss_chart(log, [])
    assert "loss (squared error)" in log_charts.loss_chart(log, [], unit="squared error")
