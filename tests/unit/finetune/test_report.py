"""Parts of reports that fine-tuning tasks share."""

import math
import re

import numpy as np
import pytest

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.finetune.report import Report, averaged, values_over_steps, worst_examples
from bert_tf.train.run_log import RunLog
from bert_tf.util.page import Example, Examples
from tests.helpers.pages import charts_of, tables_of
from tests.helpers.squad_answers import write_logs


def page_of(directory, results, **options):
    shown = {name: name for name in results if name != "eval_loss"}
    example = Example("1", "A text", "text", {}, {}, [], {})
    examples = Examples("Texts", [example], ["mixed"])
    Report("A run", results, shown, {}, examples, **options).write(directory)
    return (directory / "report.html").read_text(encoding="utf-8")


def test_charts_end_with_the_evaluation_that_is_reported(tmp_path):
    RunLog(tmp_path).evaluation(10, {"eval_accuracy": 0.25, "eval_loss": 0.75})
    write_checkpoint(str(tmp_path / "model.ckpt-20"), {"global_step": np.int64(20)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    page = page_of(tmp_path, {"eval_accuracy": 0.5, "eval_loss": 0.625})
    figures = page.split("</figure>")[:-1]
    found = [re.findall(r"<title>.* at (\d+): ([\d.]+)</title>", figure) for figure in figures]
    assert found == [[("10", "0.75"), ("20", "0.625")], [("10", "0.25"), ("20", "0.5")]]
    assert re.findall(r"<strong>(.*?)</strong>", page) == ["0.5000"]
    assert tables_of(page)["By the names in eval_results.json"][1:] == [
        ["eval_accuracy", "0.5"],
        ["eval_loss", "0.625"],
    ]


def test_the_worst_examples():
    def example(number):
        return Example(str(number), "", "", {}, {}, [], {})

    worst = worst_examples("Texts", [3.0, 1.0, 2.0], example)
    assert [one.id for one in worst.examples] == ["0", "2", "1"]
    assert worst.heading == "Texts"
    many = worst_examples("Texts", range(2000), example)
    assert (many.examples[0].id, len(many.examples)) == ("1999", 1000)
    assert many.heading == "Texts: the 1,000 worst of 2,000"


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


def test_the_loss_has_its_unit(tmp_path):
    write_logs(tmp_path, [{"step": step, "loss": 2.0 / step} for step in range(1, 9)])
    assert "loss (nats)" in page_of(tmp_path, {})
    assert "loss (squared error)" in page_of(tmp_path, {}, loss_unit="squared error")


def y_labels(chart):
    return re.findall(r'class="tick y".*?>(.*?)<', chart)


def test_a_loss_that_falls_far_does_not_leave_half_of_its_chart_empty(tmp_path):
    log = [{"step": s, "loss": 6 * math.exp(-s / 400) + 0.4} for s in range(10, 5000, 10)]
    write_logs(tmp_path, log)
    page = page_of(tmp_path, {})
    [curve] = charts_of(page)["Loss"]
    heights = [1000 - y for _, y in curve]
    assert 0 <= min(heights) < 100
    assert 900 < max(heights) <= 1000
    assert 0 <= curve[0][0] < 50
    assert curve[-1][0] == pytest.approx(1000, abs=5)
    assert y_labels(page) == ["0.5", "1", "2", "5"]
    write_logs(tmp_path, [{"step": s, "loss": 10.0 - s} for s in range(11)])
    assert y_labels(page_of(tmp_path, {})) == ["0", "2", "4", "6", "8", "10"]
