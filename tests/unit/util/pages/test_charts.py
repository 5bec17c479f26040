"""Histograms, curves and their axes."""

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bert_tf.util.pages.charts import Labels, Line, Marker, axis_of, histogram, line_chart
from tests.helpers.pages import charts_of

LABELS = Labels("Sizes", "size", "number")


def bars_of(figure):
    """(left, width, height) of each bar, in parts of the drawing."""
    found = re.findall(
        r'<rect class="first" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)" height="([\d.]+)">', figure
    )
    for _, _, top, height in found:
        assert float(top) + float(height) == pytest.approx(1000)
    return [(float(x) / 1000, float(w) / 1000, float(h) / 1000) for x, w, _, h in found]


def test_bars_stand_where_their_values_are():
    bars = bars_of(histogram([0, 2, 4, 10], [5, 0, 10], LABELS))
    assert bars == [(0.0, 0.2, 0.5), (0.4, 0.6, 1.0)]


def test_a_logarithmic_axis():
    figure = histogram([0, 1, 2, 3], [1, 10, 100], LABELS, y_log=True)
    heights = [height for _, _, height in bars_of(figure)]
    span = math.log(1.1 * 100 / 0.5)
    for height, count in zip(heights, (1, 10, 100)):
        assert height == pytest.approx(math.log(count / 0.5) / span, abs=1e-3)


def test_nothing_to_draw():
    assert histogram([0, 1], [0], LABELS) == ""
    assert histogram([], [], LABELS) == ""


NAN, INF = math.nan, math.inf


def test_values_that_are_not_finite_are_left_out():
    points = [(0, NAN), (1, 3.0), (2, INF), (NAN, 1.0), (4, 5.0), (-INF, 2.0)]
    lines = [Line("loss", points), Line("nothing", [(0, NAN)])]
    alone = line_chart([Line("loss", [(1, 3.0), (4, 5.0)])], LABELS)
    assert line_chart(lines, LABELS) == alone
    assert line_chart(lines[1:], LABELS) == ""
    edges = [0, 2, 4, 10]
    assert histogram(edges, [5, NAN, 10], LABELS) == histogram(edges, [5, 0, 10], LABELS)
    assert histogram([0, NAN], [3], LABELS) == histogram([0, INF], [3], LABELS) == ""


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_enclose(low, width):
    high = low + width
    assume(high - low >= 1e-9 * abs(low))  # no curve is narrower than its numbers' precision
    axis = axis_of([low, high])
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert axis.ticks[0] == axis.low <= low + slack
    assert high - slack <= axis.ticks[-1] == axis.high
    assert 3 <= len(axis.ticks) <= 8
    step = axis.ticks[1] - axis.ticks[0]
    factor = step / 10 ** math.floor(math.log10(step) + 1e-6)
    assert any(factor == pytest.approx(round_one, rel=1e-3) for round_one in (1, 2, 5, 10))


@given(st.floats(1e-6, 1e6), st.floats(5, 1e9))
def test_ticks_of_a_logarithmic_axis_are_round_and_inside(low, ratio):
    axis = axis_of([low, low * ratio], log=True)
    assert 1 <= len(axis.ticks) <= max(8, math.log10(ratio) + 1)
    assert all(low <= tick <= low * ratio for tick in axis.ticks)
    assert all(f"{tick:.1e}"[:3] in ["1.0", "2.0", "5.0"] for tick in axis.ticks)
    assert axis.ticks == sorted(axis.ticks)


def test_a_curve_matches_its_axes():
    line = Line("F1", [(0.0, 10.0), (50.0, 20.0), (100.0, 30.0)])
    markers = [Marker("inside", 50.0), Marker("outside", 101.0)]
    chart = line_chart([line], LABELS._replace(title="T & T"), markers=markers, note="a < b")
    [[first, middle, last]] = charts_of(chart)["T & T"]
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2))
    assert first[0] < last[0]
    assert first[1] > last[1], "SVG counts from the top"
    assert f'<line class="marker first" x1="{middle[0]:g}"' in chart
    assert "outside" not in chart
    assert "T &amp; T" in chart
    assert "a &lt; b" in chart


def test_charts_of_one_point_and_of_none():
    assert line_chart([Line("a", [(5, 0.0)])], LABELS).count('class="dot') == 1
    assert line_chart([Line("a", [])], LABELS) == ""
