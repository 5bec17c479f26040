"""The questions as data for the page's script, and the filters for them."""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bert_tf.tasks.question_answering.report.breakdown import (
    LENGTH_NAMES,
    TYPE_NAMES,
    answer_length,
    question_type,
)
from bert_tf.tasks.question_answering.report.content import OUTCOMES, QuestionRow, Span

_MOST_CANDIDATES = 10  # of the n-best list; with more, pages of large files open slowly
# "<" could end the script element; the two line separators end a line in old JavaScript.
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def page_data(questions: Sequence[QuestionRow]) -> dict[str, Any]:
    """The questions as rows with column names; contexts and titles are stored once.

    Spans are in UTF-16 units, as in JavaScript.
    """
    contexts: dict[str, int] = {}
    titles: dict[str, int] = {}
    rows = []
    for row in questions:
        context = contexts.setdefault(row.context, len(contexts))
        title = titles.setdefault(row.title, len(titles))
        rows.append({"title": title, "context": context, **_fields(row)})
    return {
        "contexts": list(contexts),
        "titles": list(titles),
        "columns": list(rows[0]) if rows else [],
        "rows": [list(row.values()) for row in rows],
    }


def _fields(row: QuestionRow) -> dict[str, Any]:
    offsets = _Utf16Offsets(row.context)
    return {
        "id": row.question_id,
        "question": row.question,
        "answers": list(dict.fromkeys(text for text, _ in row.answers)),
        "trueSpans": [offsets.of(span) for span in row.true_spans],
        "predicted": row.predicted_text,
        "predictedSpan": offsets.of(row.shown_span) if row.shown_span else None,
        "f1": round(row.f1, 4),
        "outcome": row.outcome,
        "answerable": row.answerable,
        "type": question_type(row),
        "length": answer_length(row),
        "nullOdds": _number(row.null_odds),
        "confidence": _number(row.confidence),
        "nbest": [[text, _number(p)] for text, p in row.nbest[:_MOST_CANDIDATES]],
    }


def _number(value: float | None) -> float | None:
    """Rounds to four significant digits; None for NaN and infinity, which JSON lacks."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


class _Utf16Offsets:
    """Converts offsets in code points to UTF-16 units; characters beyond U+FFFF take two."""

    def __init__(self, text: str) -> None:
        self._wide = [index for index, character in enumerate(text) if character > "\uffff"]

    def of(self, span: Span) -> list[int]:
        """The span in UTF-16 units."""
        return [offset + bisect.bisect_left(self._wide, offset) for offset in span]


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, replacement in _ESCAPES.items():
        text = text.replace(character, replacement)
    return text


def filters(questions: Sequence[QuestionRow]) -> str:
    """One select element per filter; filters with only one value are left out.

    Each select is named after the column that it filters.
    """
    answerable = (str(row.answerable).lower() for row in questions)
    answerable_names = {"true": "yes", "false": "no"}
    titles = [row.title for row in questions]
    article_names = {title: title.replace("_", " ") for title in sorted(set(titles))}
    parts = [
        _select("outcome", "Outcome", _same(OUTCOMES), (row.outcome for row in questions)),
        _select("type", "Question type", _same(TYPE_NAMES), map(question_type, questions)),
        _select("length", "Answer length", _same(LENGTH_NAMES), map(answer_length, questions)),
        _select("answerable", "Answerable", answerable_names, answerable),
        _select("title", "Article", article_names, titles),
    ]
    return "".join(parts)


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _select(name: str, label: str, shown: dict[str, str], values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) < 2:
        return ""
    options = "".join(
        f'<option value="{escape(value)}">{escape(text)} ({counts[value]:,})</option>'
        for value, text in shown.items()
        if counts[value]
    )
    return (
        f'<label>{escape(label)}<select name="{name}"><option value="">all</option>{options}'
        "</select></label>"
    )
