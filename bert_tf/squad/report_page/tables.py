"""The report's scores as tiles and tables; everything inserted is escaped."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from bert_tf.squad.report_page.breakdown import Group
from bert_tf.squad.report_page.content import ReportData

_EXACT_NAMES = ("exact_match", "exact")


def facts_list(created_from: Mapping[str, object]) -> str:
    """What the report was made from, as a definition list."""
    pairs = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in created_from.items()
    )
    return f'<dl class="facts">{"".join(pairs)}</dl>' if created_from else ""


def tiles(data: ReportData) -> str:
    """The scores that matter most, in large type; unknown ones are left out."""
    results = data.results
    exact = next((results[name] for name in _EXACT_NAMES if name in results), None)
    shown = [
        _tile("F1", results.get("f1"), f"over {len(data.questions):,} questions"),
        _tile("Exact match", exact, "in percent of the questions"),
        _tile("With an answer: F1", results.get("HasAns_f1"), _part_hint(results, "HasAns")),
        _tile("Without an answer: F1", results.get("NoAns_f1"), _part_hint(results, "NoAns")),
        _tile("Best F1", results.get("best_f1"), _threshold_hint(results)),
    ]
    return f'<div class="tiles">{"".join(shown)}</div>' if any(shown) else ""


def _tile(label: str, value: float | None, hint: str) -> str:
    if value is None:
        return ""
    return (
        f'<div class="tile"><span class="name">{escape(label)}</span>'
        f'<strong>{value:.2f}</strong><span class="hint">{escape(hint)}</span></div>'
    )


def _part_hint(results: Mapping[str, float], part: str) -> str:
    exact, total = results.get(f"{part}_exact"), results.get(f"{part}_total")
    hints = [f"exact {exact:.2f}"] if exact is not None else []
    hints += [f"{total:,.0f} questions"] if total is not None else []
    return ", ".join(hints)


def _threshold_hint(results: Mapping[str, float]) -> str:
    threshold = results.get("best_f1_thresh")
    return "" if threshold is None else f"at threshold {threshold:.3f}"


def group_table(groups: Sequence[Group], *, caption: str, filter_name: str) -> str:
    """A row a group with its scores as bars; the name leads to the group's questions."""
    if not groups:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><a href="#{escape(urlencode({filter_name: group.name}))}">'
        f"{escape(group.name)}</a></th><td>{group.count:,}</td>"
        f"<td>{group.f1:.1f}</td><td>{group.exact:.1f}</td>"
        f'<td class="bars">{_bars(group)}</td></tr>'
        for group in groups
    )
    return (
        f'<div class="card"><table class="groups"><caption>{escape(caption)}</caption><thead><tr>'
        '<th scope="col">group</th><th scope="col">questions</th>'
        '<th scope="col" class="first">F1</th><th scope="col" class="second">exact</th>'
        '<th scope="col" class="scale"><span>0</span><span>50</span><span>100</span></th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _bars(group: Group) -> str:
    return (
        '<svg viewBox="0 0 100 16" preserveAspectRatio="none" role="img" '
        f'aria-label="F1 {group.f1:.1f}, exact {group.exact:.1f}">'
        '<line class="grid" x1="50" x2="50" y1="0" y2="16"/>'
        f'<rect class="first" x="0" y="1" width="{group.f1:.2f}" height="8"/>'
        f'<rect class="second" x="0" y="10" width="{group.exact:.2f}" height="5"/></svg>'
    )


def seeds_table(seed_scores: Mapping[int, Mapping[str, float]]) -> str:
    """A row a seed and their mean and sample standard deviation; empty without seeds."""
    if not seed_scores:
        return ""
    first = next(iter(seed_scores.values()))
    names = [
        name
        for name in (*_EXACT_NAMES, "f1", "HasAns_f1", "NoAns_f1", "best_f1")
        if name in first and all(name in scores for scores in seed_scores.values())
    ]
    rows = [
        _row(str(seed), (f"{scores[name]:.2f}" for name in names))
        for seed, scores in seed_scores.items()
    ]
    columns = [[scores[name] for scores in seed_scores.values()] for name in names]
    foot = [_row("mean", (f"{statistics.mean(column):.2f}" for column in columns))]
    if len(seed_scores) > 1:
        foot.append(_row("± std", (f"{statistics.stdev(column):.2f}" for column in columns)))
    return _table("Scores by seed", ("seed", *names), rows, foot=foot)


def results_table(results: Mapping[str, float]) -> str:
    """Every figure by its official name, folded; empty without results."""
    rows = [_row(name, [f"{value:,.10g}"]) for name, value in results.items()]
    if not rows:
        return ""
    table = _table("Under their official names", ("figure", "value"), rows)
    return f'<details class="figures"><summary>All figures</summary>{table}</details>'


def _row(name: str, cells: Iterable[str]) -> str:
    values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{values}</tr>'


def _table(
    caption: str, columns: Sequence[str], rows: Sequence[str], *, foot: Sequence[str] = ()
) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="card"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"<tfoot>{''.join(foot)}</tfoot></table></div>"
    )
