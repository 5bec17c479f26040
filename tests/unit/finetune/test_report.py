"""Parts of reports that fine-tuning tasks share."""

import math
import re

import numpy as np
import pytest

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.finetune.report import (
    averaged,
    results_section,
    run_charts,
    values_over_steps,
)
from bert_tf.train.run_log import RunLog
from tests.helpers.pages import charts_of


def test_charts_end_with_the_evaluation_that_is_reported(tmp_path):
    RunLog(tmp_path).evaluation(10, {"eval_accuracy": 0.25, "eval_loss": 0.75})
    write_checkpoint(str(tmp_path / "model.ckpt-20"), {"global_step": np.int64(20)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    results = {"eval_accuracy": 0.5, "eval_loss": 0.625}
    section = results_section(tmp_path, {}, results, charted=["eval_accuracy"])
    found = [re.findall(r"<title>.* at (\d+): ([\d.]+)</title>", each) for each in section.charts]
    assert found == [[("10", "0.75"), ("20", "0.625")], [("10", "0.25"), ("20", "0.5")]]


def test_values_over_steps():
    log = [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 4.0},
        {"step": 3, "loss": math.nan},
        {"step": 2, "loss": 3.0},  # a resumed run repeats a step
        {"step": 4},
    ]
    assert values_over_steps(log, "loss") == [(1, 5.0), (2, 3.0)]
    assert values_over_steps(log, "absent") == []
    assert values_over_steps([], "loss") == []


def test_averaged_points():
    points = [(step, float(step % 2)) for step in range(10)]
    assert averaged(points, most=10) == (points, 1)
    assert averaged(points, most=5) == ([(0.5 + 2 * i, 0.5) for i in range(5)], 2)
    assert averaged([], most=5) == ([], 1)


def loss_chart(log, **options):
    return run_charts(log, [], charted=[], y_label="", **options)[0]


def test_the_loss_has_its_unit():
    log = [{"step": step, "loss": 2.0 / step} for step in range(1, 9)]
    assert "loss (nats)" in loss_chart(log)
    assert "loss (squared error)" in loss_chart(log, unit="squared error")


def y_labels(chart):
    return re.findall(r'class="tick y".*?>(.*?)<', chart)


def test_a_loss_that_falls_far_does_not_leave_half_of_its_chart_empty():
    log = [{"step": s, "loss": 6 * math.exp(-s / 400) + 0.4} for s in range(10, 5000, 10)]
    chart = loss_chart(log)
    [curve] = charts_of(chart)["Loss"]
    heights = [1000 - y for _, y in curve]
    assert 0 <= min(heights) < 100
    assert 900 < max(heights) <= 1000
    assert 0 <= curve[0][0] < 50
    assert curve[-1][0] == pytest.approx(1000, abs=5)
    assert y_labels(chart) == ["0.5", "1", "2", "5"]
    assert y_labels(loss_chart([{"step": s, "loss": 10.0 - s} for s in range(11)])) == [
        *("0", "2", "4", "6", "8", "10")
    ]
