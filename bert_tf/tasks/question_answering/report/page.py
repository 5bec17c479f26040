"""A SQuAD run as a single HTML file: scores, curves and every question with its answer."""

from __future__ import annotations

from pathlib import Path
from string import Template

from bert_tf.tasks.finetuning.log_charts import loss_chart
from bert_tf.tasks.question_answering.report import curves, examples, tables
from bert_tf.tasks.question_answering.report.breakdown import (
    LENGTH_NAMES,
    TYPE_NAMES,
    answer_length,
    groups_by,
    question_type,
)
from bert_tf.tasks.question_answering.report.content import QuestionRow, ReportData
from bert_tf.util.files import PathLike
from bert_tf.util.pages.frame import read_part, write_framed

__all__ = ["QuestionRow", "ReportData", "write_report"]

_FILES = Path(__file__).parent
_GROUPS_NOTE = (
    '<p class="note">Groups with more questions have thicker bars. Thin lines are 95 % confidence '
    "intervals, which are wide for groups with few questions.</p>"
)


def write_report(path: PathLike, data: ReportData) -> None:
    """Writes ``data`` as a self-contained page, atomically."""
    write_framed(
        path,
        data.title,
        header=f"{tables.details_list(data.created_from)}\n{tables.settings_list(data.settings)}",
        main=_main(data),
        script=read_part("page.js", _FILES),
    )


def _main(data: ReportData) -> str:
    return Template(read_part("page.html", _FILES)).substitute(
        tiles=tables.tiles(data),
        shares=tables.shares(data.questions),
        seeds=tables.seeds_table(data.seed_scores),
        groups=_groups(data),
        groups_note=_GROUPS_NOTE if data.questions else "",
        charts=_charts(data),
        examples=_examples(data),
        results=tables.results_table(data.results),
    )


def _groups(data: ReportData) -> str:
    lengths = groups_by(answer_length, LENGTH_NAMES, data.questions)
    types = groups_by(question_type, TYPE_NAMES, data.questions)
    return tables.group_table(
        lengths, caption="By words of the true answer", filter_name="length"
    ) + tables.group_table(types, caption="By type of question", filter_name="type")


def _charts(data: ReportData) -> str:
    return (
        curves.threshold_chart(data)
        + loss_chart(data.training_log, data.evaluation_log)
        + curves.evaluation_chart(data)
    )


def _examples(data: ReportData) -> str:
    if not data.questions:
        return ""
    return Template(read_part("examples.html", _FILES)).substitute(
        filters=examples.filters(data.questions),
        data=examples.script_json(examples.page_data(data.questions)),
    )
