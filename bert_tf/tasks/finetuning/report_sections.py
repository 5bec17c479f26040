"""Parts that reports of fine-tuning tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.tasks.finetuning.log_charts import chart_over_steps, loss_chart, values_over_steps
from bert_tf.train.run_log import EVALUATIONS, STEPS, read_history
from bert_tf.train.start_point import find_start
from bert_tf.util.pages.charts import Line
from bert_tf.util.pages.plain_page import Section, Table

_MOST_CLASSES = 20  # of a confusion matrix; more are listed by pairs
_MOST_CONFUSIONS = 40
_STYLES = ("first", "second", "third")


def results_section(
    output_dir: Path,
    details: Mapping[str, object],
    results: Mapping[str, float],
    *,
    charted: Sequence[str],
    unit: str = "nats",
) -> Section:
    """The results of an evaluation after ``details``, and charts of the run's logs.

    ``charted`` are the names of results to draw over steps, ``unit`` that of the loss.
    """
    training, evaluations = (read_history(output_dir, name) for name in (STEPS, EVALUATIONS))
    # This evaluation is logged only after its report is written.
    evaluations.append({**results, "step": find_start(output_dir).step})
    lines = [
        Line(name.removeprefix("eval_"), values_over_steps(evaluations, name), style)
        for name, style in zip(charted, _STYLES)
    ]
    shown = {name.removeprefix("eval_"): f"{value:.4f}" for name, value in results.items()}
    return Section(
        "Results",
        details={**details, **shown},
        charts=[
            loss_chart(training, evaluations, evaluated="eval_loss", unit=unit),
            chart_over_steps(lines, title="Evaluations", y_label="metric"),
        ],
    )


def confusion_table(
    classes: Sequence[str], labels: np.ndarray, predicted: np.ndarray, *, unit: str
) -> Table:
    """The confusion matrix; of many classes, the pairs that are most often confused.

    Args:
      classes: names of the classes.
      labels, predicted: numbers of classes, [N] integers.
      unit: what is counted.
    """
    matrix = np.zeros((len(classes), len(classes)), int)
    np.add.at(matrix, (labels, predicted), 1)
    if len(classes) <= _MOST_CLASSES:
        rows = [(name, *map(str, row)) for name, row in zip(classes, matrix)]
        return "Confusion matrix: label in rows, prediction in columns", ("label", *classes), rows
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    pairs = (np.unravel_index(place, matrix.shape) for place in order)
    rows = [(classes[a], classes[b], str(matrix[a, b])) for a, b in pairs if matrix[a, b]]
    return "Most frequent confusions", ("label", "predicted as", unit), rows
