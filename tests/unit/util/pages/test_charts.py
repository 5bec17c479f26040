"""Histograms, and pages of plain sections."""

import math
import re

import pytest

from bert_tf.util.pages.charts import Line, histogram, line_chart
from bert_tf.util.pages.plain_page import Section, write_page

LABELS = {"title": "Sizes", "x_label": "size", "y_label": "number"}


def bars_of(figure):
    """(left, width, height) of each bar, in parts of the drawing."""
    found = re.findall(
        r'<rect class="first" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)" height="([\d.]+)">', figure
    )
    for _, _, top, height in found:
        assert float(top) + float(height) == pytest.approx(1000)
    return [(float(x) / 1000, float(w) / 1000, float(h) / 1000) for x, w, _, h in found]


def test_bars_stand_where_their_values_are():
    bars = bars_of(histogram([0, 2, 4, 10], [5, 0, 10], **LABELS))
    assert bars == [(0.0, 0.2, 0.5), (0.4, 0.6, 1.0)]


def test_a_logarithmic_axis():
    figure = histogram([0, 1, 2, 3], [1, 10, 100], **LABELS, y_log=True)
    heights = [height for _, _, height in bars_of(figure)]
    span = math.log(1.1 * 100 / 0.5)
    for height, count in zip(heights, (1, 10, 100)):
        assert height == pytest.approx(math.log(count / 0.5) / span, abs=1e-3)


def test_nothing_to_draw():
    assert histogram([0, 1], [0], **LABELS) == ""
    assert histogram([], [], **LABELS) == ""


NAN, INF = math.nan, math.inf


def test_values_that_are_not_finite_are_left_out():
    points = [(0, NAN), (1, 3.0), (2, INF), (NAN, 1.0), (4, 5.0), (-INF, 2.0)]
    lines = [Line("loss", points, "first"), Line("nothing", [(0, NAN)], "second")]
    alone = line_chart([Line("loss", [(1, 3.0), (4, 5.0)], "first")], **LABELS)
    assert line_chart(lines, **LABELS) == alone
    assert line_chart(lines[1:], **LABELS) == ""
    edges = [0, 2, 4, 10]
    assert histogram(edges, [5, NAN, 10], **LABELS) == histogram(edges, [5, 0, 10], **LABELS)
    assert histogram([0, NAN], [3], **LABELS) == histogram([0, INF], [3], **LABELS) == ""


def test_sections_are_escaped(tmp_path):
    section = Section(
        "<heading>",
        details={"<name>": "<value>"},
        sentences=["<sentence>", "<text> \ud800"],
        charts=["<figure></figure>"],
        tables=[("<caption>", ("<a>", "b"), [("<c>", "<d>")])],
        cards=["<b>card</b>"],
    )
    write_page(tmp_path / "page.html", "<title>", [section])
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    for word in ("title", "heading", "name", "value", "sentence", "caption", "a", "c", "d", "text"):
        assert f"&lt;{word}&gt;" in html
    assert "<figure></figure>" in html
    assert "<b>card</b>" in html
    assert "&lt;text&gt; ?" in html
    assert "script" not in html
