"""The report's scores as tiles and tables; all inserted text is escaped."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from bert_tf.tasks.question_answering.report.breakdown import Group, interval
from bert_tf.tasks.question_answering.report.content import OUTCOMES, QuestionRow, ReportData
from bert_tf.util.pages.tables import details_list, table, table_row

_EXACT_NAMES = ("exact_match", "exact")
_OUTCOME_LABELS = {"exact": "exactly right", "partly right": "partly right", "wrong": "wrong"}

# The thickness of a group's bars is the square root of its size relative to the largest group's,
# but at least this.
_THINNEST = 0.2
_FEW = 10  # scores of fewer questions are printed in a lighter style


def settings_list(settings: Mapping[str, object]) -> str:
    """The run's settings in a collapsed element; empty if there are none."""
    if not settings:
        return ""
    return (
        f'<details class="settings"><summary>Settings</summary>{details_list(settings)}</details>'
    )


def shares(questions: Sequence[QuestionRow]) -> str:
    """A bar with fractions of right, partly right and wrong answers; empty without questions."""
    counts = {name: sum(row.outcome == name for row in questions) for name in OUTCOMES}
    parts = [(name, count, 100 * count / len(questions)) for name, count in counts.items() if count]
    if not parts:
        return ""
    bar = "".join(
        f'<i class="{name.split()[0]}" style="width:{share:.3f}%"></i>' for name, _, share in parts
    )
    entries = "".join(
        f'<li><i class="{name.split()[0]}"></i><a href="#{escape(urlencode({"outcome": name}))}">'
        f"{_OUTCOME_LABELS[name]}</a> <strong>{share:.1f} %</strong> "
        f'<span class="hint">{count:,}</span></li>'
        for name, count, share in parts
    )
    return (
        f'<div class="card shares"><div class="stack" aria-hidden="true">{bar}</div>'
        f'<ul class="legend">{entries}</ul></div>'
    )


def tiles(data: ReportData) -> str:
    """The most important scores in large type; missing scores are left out."""
    results, best = data.results, data.best_threshold
    exact = next((results[name] for name in _EXACT_NAMES if name in results), None)
    shown = [
        _tile("F1", results.get("f1"), f"over {len(data.questions):,} questions"),
        _tile("Exact match", exact, "percent of the questions"),
        _tile("With an answer: F1", results.get("HasAns_f1"), _subset_hint(results, "HasAns")),
        _tile("Without an answer: F1", results.get("NoAns_f1"), _subset_hint(results, "NoAns")),
    ]
    if best is not None:
        shown.append(_tile("Best F1", best.f1, f"at threshold {best.threshold:.3f}"))
    return f'<div class="tiles">{"".join(shown)}</div>' if any(shown) else ""


def _tile(label: str, value: float | None, hint: str) -> str:
    if value is None:
        return ""
    return (
        f'<div class="tile"><span class="name">{escape(label)}</span>'
        f'<strong>{value:.2f}</strong><span class="hint">{escape(hint)}</span></div>'
    )


def _subset_hint(results: Mapping[str, float], prefix: str) -> str:
    exact, total = results.get(f"{prefix}_exact"), results.get(f"{prefix}_total")
    hints = [f"exact {exact:.2f}"] if exact is not None else []
    hints += [f"{total:,.0f} questions"] if total is not None else []
    return ", ".join(hints)


def group_table(groups: Sequence[Group], *, caption: str, filter_name: str) -> str:
    """One row per group with its scores as bars; names link to the group's questions."""
    if not groups:
        return ""
    largest = max(group.size for group in groups)
    rows = "".join(
        f"<tr{_few(group)}>"
        f'<th scope="row"><a href="#{escape(urlencode({filter_name: group.name}))}">'
        f"{escape(group.name)}</a></th><td>{group.size:,}</td>"
        f"<td>{group.f1:.1f}</td><td>{group.exact:.1f}</td>"
        f'<td class="bars">{_bars(group, largest)}</td></tr>'
        for group in groups
    )
    return (
        f'<div class="card"><table class="groups"><caption>{escape(caption)}</caption><thead><tr>'
        '<th scope="col">group</th><th scope="col">questions</th>'
        '<th scope="col" class="first">F1</th><th scope="col" class="second">exact</th>'
        '<th scope="col" class="scale"><span>0</span><span>50</span><span>100</span></th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _few(group: Group) -> str:
    return ' class="few"' if group.size < _FEW else ""


def _bars(group: Group, largest: int) -> str:
    thickness = max(_THINNEST, math.sqrt(group.size / largest))
    return (
        '<svg viewBox="0 0 100 16" preserveAspectRatio="none" role="img" '
        f'aria-label="F1 {group.f1:.1f}, exact {group.exact:.1f}">'
        '<line class="grid" x1="50" x2="50" y1="0" y2="16"/>'
        + _bar("F1", "first", group.f1, group.size, middle=5, height=8 * thickness)
        + _bar("exact", "second", group.exact, group.size, middle=12.5, height=5 * thickness)
        + "</svg>"
    )


def _bar(name: str, style: str, score: float, count: int, *, middle: float, height: float) -> str:
    """A bar, with the confidence interval of its score as a thin line."""
    low, high = interval(score, count)
    questions = f"{count:,} question{'s' * (count != 1)}"
    title = f"{name} {score:.1f} over {questions}; 95 % interval {low:.1f} to {high:.1f}"
    return (
        f'<g><title>{title}</title><rect class="{style}" x="0" y="{middle - height / 2:.2f}" '
        f'width="{score:.2f}" height="{height:.2f}"/>'
        f'<line class="interval" x1="{low:.2f}" x2="{high:.2f}" y1="{middle:g}" y2="{middle:g}"/>'
        "</g>"
    )


def seeds_table(seed_scores: Mapping[int, Mapping[str, float]]) -> str:
    """One row per seed, plus mean and sample standard deviation; empty without seeds."""
    if not seed_scores:
        return ""
    first = next(iter(seed_scores.values()))
    names = [
        name
        for name in (*_EXACT_NAMES, "f1", "HasAns_f1", "NoAns_f1", "best_f1")
        if name in first and all(name in scores for scores in seed_scores.values())
    ]
    rows = [
        table_row(str(seed), (f"{scores[name]:.2f}" for name in names))
        for seed, scores in seed_scores.items()
    ]
    columns = [[scores[name] for scores in seed_scores.values()] for name in names]
    foot = [table_row("mean", (f"{statistics.mean(column):.2f}" for column in columns))]
    if len(seed_scores) > 1:
        foot.append(table_row("± std", (f"{statistics.stdev(column):.2f}" for column in columns)))
    return table("Scores by seed", ("seed", *names), rows, foot=foot)


def results_table(results: Mapping[str, float]) -> str:
    """All metrics under their official names, collapsed; empty without results."""
    rows = [table_row(name, [f"{value:,.10g}"]) for name, value in results.items()]
    if not rows:
        return ""
    figures = table("Official names", ("metric", "value"), rows)
    return f'<details class="figures"><summary>All metrics</summary>{figures}</details>'
