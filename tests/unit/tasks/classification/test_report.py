"""The report of a classification: its charts and their labels."""

import re
from pathlib import Path

import numpy as np
import pytest

from bert_tf.tasks.classification.answers import Answers, scores
from bert_tf.tasks.classification.glue import GLUE_TASKS
from bert_tf.tasks.classification.report import write_report
from bert_tf.tasks.classification.texts import Row, TextFile
from tests.helpers.pages import charts_of, data_of

LONGEST_LABEL = 40  # characters of a vertical label that fit beside a chart


def page_of(task, logits, labels, directory):
    rows = [Row("a", "b", label) for label in labels]
    answers = Answers(GLUE_TASKS[task].classes, np.array(logits, np.float32))
    results = scores(GLUE_TASKS[task], answers, np.array(labels))
    file = TextFile(Path("dev.tsv"), GLUE_TASKS[task], rows)
    write_report(directory, file, answers, results)
    return (directory / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def ratings(tmp_path):
    labels = np.repeat(np.arange(5.0), [40, 3, 30, 7, 20])
    noise = np.random.RandomState(0).normal(size=len(labels))
    return page_of("sts-b", (labels + noise)[:, None], labels.tolist(), tmp_path)


def test_equal_ratings_are_one_point(ratings):
    found, _ = charts_of(ratings)["Predictions"]
    columns = [x for x, _ in found]
    assert len(columns) == 5
    assert columns == sorted(set(columns))


def test_errors_of_ratings_are_results(ratings):
    assert "mean_absolute_error" in ratings
    assert "root_mean_squared_error" in ratings


@pytest.mark.parametrize("task", ["sts-b", "mrpc"])
def test_labels_of_charts_fit_beside_them(tmp_path, ratings, task):
    page = ratings
    if task == "mrpc":
        logits = np.random.RandomState(0).normal(size=(50, 2))
        page = page_of(task, logits, [0.0, 1.0] * 25, tmp_path)
        assert "Fraction of right predictions, by their probability." in page
    labels = re.findall(r'class="label y">([^<]*)<', page)
    assert labels
    assert all(len(label) <= LONGEST_LABEL for label in labels)


def test_the_worst_texts_come_first(tmp_path):
    page = page_of("mrpc", [[2, 0], [0, 3], [0, 1]], [0.0, 0.0, 1.0], tmp_path)
    worst, middle, best = data_of(page)["rows"]
    assert [row["id"] for row in (worst, middle, best)] == ["2", "3", "1"]
    assert worst["answers"] == {"true": ["0"], "predicted": ["1"]}
    assert worst["filters"] == {"Outcome": "wrong", "True": "0", "Predicted": "1"}
    assert worst["candidates"] == [
        ["1", pytest.approx(1 / (1 + np.exp(-3)))],
        ["0", pytest.approx(1 / (1 + np.exp(3)))],
    ]
    assert middle["filters"]["Outcome"] == "right"
