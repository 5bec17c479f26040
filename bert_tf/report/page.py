"""A SQuAD run as a single HTML file: scores, curves and every question with its answer."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path
from string import Template

from bert_tf.files import PathLike, atomic_open
from bert_tf.report import curves, examples, tables
from bert_tf.report.breakdown import (
    LENGTH_NAMES,
    TYPE_NAMES,
    answer_length,
    groups_by,
    question_type,
)
from bert_tf.report.content import QuestionRow, ReportData

__all__ = ["QuestionRow", "ReportData", "write_report"]

_GROUPS_NOTE = (
    '<p class="note">Groups with more questions have thicker bars. Thin lines are 95 % confidence '
    "intervals, which are wide for groups with few questions.</p>"
)
_FILES = Path(__file__).parent


def write_report(path: PathLike, data: ReportData) -> None:
    """Writes ``data`` as a self-contained page, atomically."""
    # UTF-8 cannot encode lone surrogates, which JSON may contain; "?" keeps later offsets right.
    page = _page(data).encode("utf-8", errors="replace")
    with atomic_open(path, "wb") as file:
        file.write(page)


def _page(data: ReportData) -> str:
    script = _file("page.js")
    return Template(_file("page.html")).substitute(
        title=escape(data.title),
        style=_file("page.css"),
        script=script,
        # In the page's security policy, so that no other script can run.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        details=tables.details_list(data.created_from),
        settings=tables.settings_list(data.settings),
        tiles=tables.tiles(data),
        shares=tables.shares(data.questions),
        seeds=tables.seeds_table(data.seed_scores),
        groups=_groups(data),
        groups_note=_GROUPS_NOTE if data.questions else "",
        charts=_charts(data),
        examples=_examples(data),
        results=tables.results_table(data.results),
    )


def _file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _groups(data: ReportData) -> str:
    lengths = groups_by(answer_length, LENGTH_NAMES, data.questions)
    types = groups_by(question_type, TYPE_NAMES, data.questions)
    return tables.group_table(
        lengths, caption="By words of the true answer", filter_name="length"
    ) + tables.group_table(types, caption="By type of question", filter_name="type")


def _charts(data: ReportData) -> str:
    return curves.threshold_chart(data) + curves.loss_chart(data) + curves.evaluation_chart(data)


def _examples(data: ReportData) -> str:
    if not data.questions:
        return ""
    return Template(_file("examples.html")).substitute(
        filters=examples.filters(data.questions),
        data=examples.script_json(examples.page_data(data.questions)),
    )
