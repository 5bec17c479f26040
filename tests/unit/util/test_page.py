"""Pages with hostile text, charts and their axes, and the data of examples."""

import errno
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bert_tf.util.errors import UserError
from bert_tf.util.page import (
    Chart,
    Example,
    Examples,
    Section,
    Table,
    axis_of,
    mark,
    write_page,
)
from tests.helpers.pages import charts_of, data_of

HOSTILE = (
    "</script><script>alert(1)</script> <b>&amp; \"quoted\" 'single' \u2028\u2029 \\u003c $page"
)


def example(number=0, **changes):
    fields = {
        "id": f"q{number}",
        "heading": "What?",
        "text": "A \U0001f600 text",
        "marks": {"true": [(2, 3)], "predicted": []},
        "answers": {"true": ["\U0001f600"], "predicted": []},
        "facts": ["wrong"],
        "filters": {"Outcome": "wrong"},
        "orders": {"worst first": 0.0},
        "candidates": [("", 0.5)],
    }
    return Example(**{**fields, **changes})


def page_of(tmp_path, *parts, title="A page"):
    write_page(tmp_path / "page.html", title, parts)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each element by tag."""

    def __init__(self, page):
        super().__init__()
        self.found, self.texts, self._open = [], {}, ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        self.texts.setdefault(self._open, []).append(data)


def test_hostile_text_stays_text(tmp_path):
    section = Section(
        HOSTILE,
        scores={HOSTILE: HOSTILE},
        details={HOSTILE: HOSTILE},
        sentences=[HOSTILE],
        tables=[Table(HOSTILE, (HOSTILE,), [(HOSTILE, HOSTILE)], filter_name=HOSTILE)],
        charts=[Chart(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: [(0, 1)]}, note=HOSTILE)],
        cards=[mark(HOSTILE, "hidden")],
    )
    row = example(
        id=HOSTILE,
        heading=HOSTILE,
        text=HOSTILE,
        answers={"true": [HOSTILE], "predicted": []},
        facts=[HOSTILE],
        filters={HOSTILE: HOSTILE},
        orders={HOSTILE: 0},
        candidates=[(HOSTILE, 0.5)],
    )
    page = page_of(tmp_path, section, Examples(HOSTILE, [row], [HOSTILE]), title=HOSTILE)
    assert "\u2028" not in page.split('id="data">')[1].split("</script>")[0]
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 2  # the data and the page's script
    tags = ("title", "h1", "dt", "dd", "caption", "th", "a", "td", "mark", "strong", "option")
    tags += ("figcaption", "p")
    for tag in tags:
        assert HOSTILE in elements.texts[tag], tag
    assert elements.texts["h2"] == [HOSTILE] * 2
    assert elements.texts["li"].count(HOSTILE) == 2  # a sentence, a curve
    assert elements.texts["span"].count(HOSTILE) == 3  # a tile and the labels of both axes
    data = data_of(page)
    assert data["texts"] == [HOSTILE]
    [found] = data["rows"]
    assert [found["id"], found["heading"], *found["facts"], *found["answers"]["true"]] == (
        [HOSTILE] * 4
    )
    assert found["filters"] == {HOSTILE: HOSTILE}
    assert found["candidates"] == [[HOSTILE, 0.5]]


def test_texts_are_stored_once(tmp_path):
    rows = [example(n, text=f"text {n % 3}", marks={"true": [(0, n % 4)]}) for n in range(12)]
    data = data_of(page_of(tmp_path, Examples("Questions", rows, ["mixed"])))
    assert data["texts"] == ["text 0", "text 1", "text 2"]
    for row, found in zip(rows, data["rows"]):
        assert data["texts"][found["text"]] == row.text
        assert found["id"] == row.id
        assert found["marks"] == {"true": [list(row.marks["true"][0])]}


def test_a_lone_surrogate_is_replaced(tmp_path):
    examples = Examples("Questions", [example(heading="\udc00?")], ["mixed"])
    page = page_of(tmp_path, examples, title="a\ud800b")
    assert '<h1 dir="auto">a?b</h1>' in page
    assert data_of(page)["rows"][0]["heading"] == "??"


def test_numbers_that_json_cannot_express(tmp_path):
    row = example(candidates=[("mill", math.nan)], orders={"first": math.inf})
    [found] = data_of(page_of(tmp_path, Examples("Questions", [row], ["mixed"])))["rows"]
    assert found["candidates"] == [["mill", None]]
    assert found["orders"] == {"first": None}


def test_nothing_is_fetched(tmp_path):
    table = Table("Outcome", ("outcome",), [("wrong",)], filter_name="Outcome")
    page = page_of(
        tmp_path, Section("Results", tables=[table]), Examples("Q", [example()], ["mixed"])
    )
    for _, attributes in Elements(page).found:
        for name in ("src", "href", "action", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))
    assert not re.search(r"url\(|@import|https?://|\bimport\b|fetch\(", page)
    assert "default-src 'none'" in page
    assert re.search(r"script-src 'sha256-[\w+/]+=*'", page)


def test_an_empty_section_is_its_heading(tmp_path):
    page = page_of(tmp_path, Section("Nothing"))
    tags = [tag for tag, _ in Elements(page).found]
    assert tags[-3:] == ["main", "section", "h2"]
    assert "script" not in page


def test_the_page_is_written_atomically(tmp_path, monkeypatch):
    page_of(tmp_path, title="first")

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="no space"):
        page_of(tmp_path, title="second")
    assert "first" in (tmp_path / "page.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def curves(lines, **options):
    return Chart("Sizes", "size", "number", lines, **options).html()


def bars(edges, counts, **options):
    return Chart("Sizes", "size", "number", edges=edges, counts=counts, **options).html()


def bars_of(figure):
    """(left, width, height) of each bar, in parts of the drawing."""
    found = re.findall(
        r'<rect class="first" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)" height="([\d.]+)">', figure
    )
    for _, _, top, height in found:
        assert float(top) + float(height) == pytest.approx(1000)
    return [(float(x) / 1000, float(w) / 1000, float(h) / 1000) for x, w, _, h in found]


def test_bars_stand_where_their_values_are():
    found = bars_of(bars([0, 2, 4, 10], [5, 0, 10]))
    assert found == [(0.0, 0.2, 0.5), (0.4, 0.6, 1.0)]


def test_a_logarithmic_axis():
    figure = bars([0, 1, 2, 3], [1, 10, 100], y_log=True)
    heights = [height for _, _, height in bars_of(figure)]
    span = math.log(1.1 * 100 / 0.5)
    for height, count in zip(heights, (1, 10, 100)):
        assert height == pytest.approx(math.log(count / 0.5) / span, abs=1e-3)


def test_nothing_to_draw():
    assert bars([0, 1], [0]) == bars([], []) == curves({}) == curves({"a": []}) == ""


NAN, INF = math.nan, math.inf


def test_values_that_are_not_finite_are_left_out():
    points = [(0, NAN), (1, 3.0), (2, INF), (NAN, 1.0), (4, 5.0), (-INF, 2.0)]
    alone = curves({"loss": [(1, 3.0), (4, 5.0)]})
    assert curves({"nothing": [(0, NAN)], "loss": points}) == alone
    assert curves({"nothing": [(0, NAN)]}) == ""
    edges = [0, 2, 4, 10]
    assert bars(edges, [5, NAN, 10]) == bars(edges, [5, 0, 10])
    assert bars([0, NAN], [3]) == bars([0, INF], [3]) == ""


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
    lines = {"F1": [(0.0, 10.0), (50.0, 20.0), (100.0, 30.0)]}
    chart = curves(lines, markers=[("inside", 50.0), ("outside", 101.0)])
    [[first, middle, last]] = charts_of(chart)["Sizes"]
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2))
    assert first[0] < last[0]
    assert first[1] > last[1], "SVG counts from the top"
    assert f'<line class="marker first" x1="{middle[0]:g}"' in chart
    assert "outside" not in chart


def test_a_chart_of_one_point():
    assert curves({"a": [(5, 0.0)]}).count('class="dot') == 1
