"""The report's figures against naive counts, and its page with hostile text."""

import errno
import html
import json
import math
import random
import re
import statistics
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bert_tf.tasks.finetuning.log_charts import loss_chart
from bert_tf.tasks.question_answering.report import breakdown, curves, examples, tables
from bert_tf.tasks.question_answering.report.page import QuestionRow, ReportData, write_report
from bert_tf.tasks.question_answering.thresholds import ThresholdPoint
from bert_tf.util.errors import UserError
from bert_tf.util.pages import charts

HOSTILE = (
    "</script><script>alert(1)</script> <b>&amp; \"quoted\" 'single' \u2028\u2029 \\u003c $page"
)


def make_row(number=0, **changes):
    context = "The <old> mill & the \U0001f600 river \u05e0\u05d4\u05e8 stood still."
    fields = {
        "question_id": f"q{number}",
        "title": "Mills",
        "question": "What stood still?",
        "context": context,
        "answers": [("river", context.index("river"))],
        "predicted_text": "mill",
        "predicted_span": (10, 14),
        "f1": 0.0,
        "exact": 0.0,
        "answerable": True,
    }
    return QuestionRow(**{**fields, **changes})


def points(*rows):
    return [ThresholdPoint(*row) for row in rows]


def make_data(**changes):
    fields = {"title": "A run", "created_from": {}, "results": {}, "questions": []}
    return ReportData(**{**fields, **changes})


def page_of(tmp_path, data):
    write_report(tmp_path / "report.html", data)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def embedded(page):
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    data = json.loads(text)
    data["rows"] = [dict(zip(data["columns"], values)) for values in data["rows"]]
    return data


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


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who built the mill?", "who"),
        ("By whom was it built?", "who"),
        ("Whose mill was it?", "who"),
        ("In WHAT year did he say when?", "what"),
        ("What's that?", "what"),
        ("The mill stood where?", "where"),
        ("How many mills were there?", "how many/much"),
        ("For how much was it sold?", "how many/much"),
        ("How long did many mills stand?", "how"),
        ("And how", "how"),
        ("Since when? Why?", "when"),
        ("Why?", "why"),
        ("To which town?", "which"),
        ("Whatever somehow happened", "other"),
        ("", "other"),
    ],
)
def test_question_type(question, expected):
    assert breakdown.question_type(make_row(question=question)) == expected


def test_answer_length_is_that_of_the_first_answer():
    sizes = {
        1: "1",
        2: "2",
        3: "3",
        4: "4–5",
        5: "4–5",
        6: "6–10",
        10: "6–10",
        11: "11+",
        40: "11+",
    }
    for num_words, expected in sizes.items():
        answers = [("  word\n" * num_words, 0), ("other", 0)]
        assert breakdown.answer_length(make_row(answers=answers)) == expected
    assert breakdown.answer_length(make_row(answers=[], answerable=False)) == "no answer"


def test_groups_equal_a_naive_count():
    draw = random.Random(5)
    rows = [
        make_row(i, title=draw.choice("abc"), f1=draw.random(), exact=float(draw.random() < 0.3))
        for i in range(200)
    ]
    groups = breakdown.groups_by(lambda row: row.title, ["c", "unused", "a", "b"], rows)
    assert [group.name for group in groups] == ["c", "a", "b"]
    assert sum(group.size for group in groups) == 200
    for group in groups:
        members = [row for row in rows if row.title == group.name]
        assert group.size == len(members)
        assert group.f1 == pytest.approx(100 * statistics.mean(row.f1 for row in members))
        assert group.exact == pytest.approx(100 * statistics.mean(row.exact for row in members))


@pytest.mark.parametrize(
    ("f1", "exact", "expected"),
    [(0, 0, "wrong"), (0.1, 0, "partly right"), (1, 0, "partly right"), (1, 1, "exact")],
)
def test_outcome(f1, exact, expected):
    assert make_row(f1=f1, exact=exact).outcome == expected


def test_an_answer_without_words_is_exact_though_it_has_no_f1():
    assert make_row(f1=0.0, exact=1.0).outcome == "exact"


def test_confidence_is_the_probability_of_the_prediction():
    nbest = [("", 0.5), ("mill", 0.25), ("mill", 0.125)]
    assert make_row(nbest=nbest).confidence == 0.25
    assert make_row(nbest=nbest, predicted_text="").confidence == 0.5
    assert make_row(nbest=nbest, predicted_text="river").confidence == 0
    assert make_row(nbest=[("mill", math.nan)]).confidence == 0


def test_spans_of_true_answers():
    answers = [("two", 4), ("one", 0), ("two", 4), ("one", 7)]
    row = make_row(context="one two one", answers=answers, predicted_span=None)
    assert row.true_spans == [(0, 3), (4, 7)], "the last answer is not at its offset"


def test_a_span_outside_the_context_is_rejected():
    with pytest.raises(ValueError, match=r"question q7 is outside its context of 3 characters"):
        make_row(7, context="abc", answers=[], predicted_span=(1, 4))


@given(st.text(st.sampled_from("ab \U0001f600\U00010348\u05e0é"), max_size=30), st.data())
def test_spans_in_the_page_count_utf16_units(context, data):
    start = data.draw(st.integers(0, len(context)))
    end = data.draw(st.integers(start, len(context)))
    text = context[start:end]
    row = make_row(
        context=context,
        answers=[(text, start)],
        predicted_text="something",
        predicted_span=(start, end),
    )
    [values] = examples.page_data([row])["rows"]
    found = dict(zip(examples.page_data([row])["columns"], values))
    units = context.encode("utf-16-le")
    for first, last in [*found["trueSpans"], found["predictedSpan"]]:
        assert units[2 * first : 2 * last].decode("utf-16-le") == text


def test_contexts_and_titles_are_stored_once(tmp_path):
    rows = [make_row(i, title=f"t{i % 2}", context=f"c{i % 3}", answers=[], predicted_span=None)
            for i in range(12)]  # fmt: skip
    data = embedded(page_of(tmp_path, make_data(questions=rows)))
    assert data["titles"] == ["t0", "t1"]
    assert data["contexts"] == ["c0", "c1", "c2"]
    for row, found in zip(rows, data["rows"]):
        assert data["titles"][found["title"]] == row.title
        assert data["contexts"][found["context"]] == row.context
        assert found["id"] == row.question_id


def test_a_prediction_of_no_answer_has_no_span(tmp_path):
    row = make_row(predicted_text="", predicted_span=(10, 14))
    [found] = embedded(page_of(tmp_path, make_data(questions=[row])))["rows"]
    assert found["predictedSpan"] is None


def test_hostile_text_stays_text(tmp_path):
    row = make_row(
        question_id=HOSTILE,
        title=HOSTILE,
        question=HOSTILE,
        context=HOSTILE,
        answers=[(HOSTILE, 0)],
        predicted_text=HOSTILE,
        predicted_span=(0, len(HOSTILE)),
        nbest=[(HOSTILE, 0.5)],
    )
    data = make_data(
        title=HOSTILE,
        created_from={HOSTILE: HOSTILE},
        results={HOSTILE: 1.0},
        questions=[row, make_row(1)],
        seed_scores={HOSTILE: {"f1": 1.0}},
        settings={HOSTILE: HOSTILE},
    )
    page = page_of(tmp_path, data)
    assert "\u2028" not in page.split('id="data">')[1].split("</script>")[0]
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 2  # the data and the page's script
    assert elements.texts["title"][0] == HOSTILE  # bars also have titles
    assert HOSTILE in elements.texts["h1"]
    assert elements.texts["dd"] == [HOSTILE] * 2
    assert [attributes["value"] for tag, attributes in elements.found
            if tag == "option" and "alert" in attributes["value"]] == [HOSTILE]  # fmt: skip
    found = embedded(page)
    assert found["contexts"][0] == HOSTILE
    first = found["rows"][0]
    assert [first["id"], first["question"], first["predicted"]] == [HOSTILE] * 3
    assert first["nbest"] == [[HOSTILE, 0.5]]


def test_a_lone_surrogate_is_replaced(tmp_path):
    page = page_of(tmp_path, make_data(title="a\ud800b", questions=[make_row(question="\udc00?")]))
    assert '<h1 dir="auto">a?b</h1>' in page
    assert embedded(page)["rows"][0]["question"] == "??"


def test_numbers_that_json_cannot_express(tmp_path):
    row = make_row(null_odds=math.inf, nbest=[("mill", math.nan)])
    [found] = embedded(page_of(tmp_path, make_data(questions=[row])))["rows"]
    assert found["nullOdds"] is None
    assert found["nbest"] == [["mill", None]]


def test_nothing_is_fetched(tmp_path):
    rows = [make_row(i, title=str(i), answerable=bool(i % 2)) for i in range(4)]
    log = [{"step": step, "loss": 1.0 / step, "f1": step} for step in (1, 2, 3)]
    page = page_of(
        tmp_path,
        make_data(
            questions=rows,
            training_log=log,
            evaluation_log=log,
            threshold_curve=points(*[(0, 1, 2)] * 2),
        ),
    )
    for _, attributes in Elements(page).found:
        for name in ("src", "href", "action", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))
    assert not re.search(r"url\(|@import|https?://|\bimport\b|fetch\(", page)
    assert "default-src 'none'" in page


def test_a_report_of_nothing_has_no_empty_sections(tmp_path):
    page = page_of(tmp_path, make_data())
    tags = [tag for tag, _ in Elements(page).found]
    assert "h1" in tags
    for absent in ("h2", "table", "svg", "figure", "form", "dl", "details"):
        assert absent not in tags


def test_sections_follow_the_data(tmp_path):
    def captions(**changes):
        page = page_of(tmp_path, make_data(**changes))
        found = re.findall(r"<(?:fig)?caption>(.*?)</", page)
        return [html.unescape(caption) for caption in found]

    log = [{"step": step, "loss": 2.0, "time": 5.0} for step in (1, 2)]
    assert captions(training_log=log) == ["Loss"]
    evaluations = [{"step": step, "exact_match": 2.0} for step in (1, 2)]
    assert captions(evaluation_log=evaluations) == ["Evaluations"]
    assert captions(training_log=log[:1], evaluation_log=evaluations[:1]) == []
    assert captions(threshold_curve=points((0, 1, 2), (1, 1, 2))) == ["Threshold of “no answer”"]
    assert captions(seed_scores={1: {"f1": 2.0}}) == ["Scores by seed"]


def test_a_filter_without_a_choice_is_left_out():
    names = re.findall(r'select name="(\w+)"', examples.filters([make_row(0), make_row(1, f1=1)]))
    assert names == ["outcome"]


def test_tiles_of_both_versions():
    version_1 = tables.tiles(make_data(results={"exact_match": 70.126, "f1": 80.5}))
    assert re.findall(r"<strong>(.*?)<", version_1) == ["80.50", "70.13"]
    results = {"exact": 60, "f1": 61, "HasAns_exact": 62, "HasAns_f1": 63, "HasAns_total": 1200}
    # The official threshold is 0 where it is best to answer nothing, which 0 does not do.
    results.update({"NoAns_f1": 64, "NoAns_exact": 65, "best_f1": 66, "best_f1_thresh": 0.0})
    data = make_data(results=results, threshold_curve=points((-1.5, 65, 66), (0, 2, 3)))
    version_2 = tables.tiles(data)
    expected = ["61.00", "60.00", "63.00", "64.00", "66.00"]
    assert re.findall(r"<strong>(.*?)<", version_2) == expected
    assert "exact 62.00, 1,200 questions" in version_2
    assert "at threshold -1.500" in version_2
    assert "best F1 at threshold -1.500" in curves.threshold_chart(data)


def test_seeds_have_mean_and_sample_deviation():
    pairs = {1: (70.0, 80.0), 2: (71.0, 83.0), 5: (75.0, 81.5)}
    scores = {seed: {"exact": exact, "f1": f1} for seed, (exact, f1) in pairs.items()}
    table = tables.seeds_table(scores)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)<", row) for row in table.split("<tr>")[1:]]
    assert rows == [
        ["seed", "exact", "f1"],
        ["1", "70.00", "80.00"],
        ["2", "71.00", "83.00"],
        ["5", "75.00", "81.50"],
        ["mean", "72.00", "81.50"],
        ["± std", "2.65", "1.50"],
    ]
    assert "± std" not in tables.seeds_table({1: {"f1": 80.0}})


def test_thinned_points_keep_ends_and_peak():
    points = [(x, 1.0 if x == 37 else 0.0) for x in range(100)]
    assert curves.thinned(points, most=100) == points
    few = curves.thinned(points, most=4)
    assert [x for x, _ in few] == [0, 25, 37, 50, 75, 99]
    assert curves.thinned([]) == []


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_enclose(low, width):
    high = low + width
    assume(high - low >= 1e-9 * abs(low))  # no curve is narrower than its numbers' precision
    inside, outside = charts.ticks(low, high), charts.ticks(low, high, outside=True)
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in inside)
    assert outside[0] <= low + slack
    assert high - slack <= outside[-1]
    assert 2 <= len(inside) <= 7
    step = outside[1] - outside[0]
    factor = step / 10 ** math.floor(math.log10(step) + 1e-6)
    assert any(factor == pytest.approx(round_one, rel=1e-3) for round_one in (1, 2, 5, 10))


@given(st.floats(1e-6, 1e6), st.floats(5, 1e9))
def test_log_ticks_are_round_and_inside(low, factor):
    found = charts.log_ticks(low, low * factor)
    assert 1 <= len(found) <= max(6, math.log10(factor) + 1)
    assert all(low <= tick <= low * factor for tick in found)
    assert all(f"{tick:.1e}"[:3] in ["1.0", "1.5", "2.0", "3.0", "5.0", "7.0"] for tick in found)
    assert found == sorted(found)


def places_in(chart):
    """The points of the curves, from 0 to 1, to the right and upwards."""
    return [
        [(float(x) / 1000, 1 - float(y) / 1000) for x, y in (p.split(",") for p in drawn.split())]
        for drawn in re.findall(r'points="(.*?)"', chart)
    ]


def test_a_loss_that_falls_far_does_not_leave_half_of_its_chart_empty():
    log = [{"step": s, "loss": 6 * math.exp(-s / 400) + 0.4} for s in range(10, 5000, 10)]
    page = loss_chart(log, [])
    [curve] = places_in(page)
    heights = [y for _, y in curve]
    assert 0 <= min(heights) < 0.1
    assert 0.9 < max(heights) <= 1
    assert 0 <= curve[0][0] < 0.05
    assert curve[-1][0] == pytest.approx(1)
    labels = re.findall(r'class="tick (\w)".*?>(.*?)<', page)
    assert [text for axis, text in labels if axis == "y"] == ["0.5", "1", "2", "5"]
    assert [text for axis, text in labels if axis == "x"] == [
        "0",
        "1,000",
        "2,000",
        "3,000",
        "4,000",
    ]


def test_a_log_axis_needs_positive_numbers():
    log = [{"step": s, "loss": 10.0 - s} for s in range(11)]
    labels = re.findall(r'class="tick y".*?>(.*?)<', loss_chart(log, []))
    assert labels == ["0", "2", "4", "6", "8", "10"]


def test_the_flat_ends_of_a_threshold_curve_are_left_out():
    def score(threshold):
        return 50 + 10 * math.tanh(threshold)

    curve = [(x / 2, score(x / 2), 100.0) for x in range(-60, 61)]
    shown = [x for x, _, _ in curves.without_flat_ends(curve, [])]
    assert -4 <= shown[0] <= -1.5
    assert 1.5 <= shown[-1] <= 4
    kept = [x for x, _, _ in curves.without_flat_ends(curve, [-10.0, 0.0])]
    assert (kept[0], kept[-1]) == (-10, shown[-1])
    flat = [(x, 1.0, 2.0) for x in range(5)]
    assert curves.without_flat_ends(flat, []) == flat


def test_a_threshold_curve_includes_the_marked_thresholds():
    curve = [(-50.0, 20.0, 30.0), (1.0, 25.0, 35.0), (2.0, 26.0, 36.0), (3.0, 10.0, 12.0)]
    assert curves.extended(curve, []) == [(0.8, 20.0, 30.0), *curve[1:]]
    assert curves.extended(curve, [0.0, 5.0]) == [
        (0.0, 20.0, 30.0),
        (0.8, 20.0, 30.0),
        *curve[1:],
        (5.0, 10.0, 12.0),
    ]
    chart = curves.threshold_chart(make_data(threshold_curve=points(*curve), chosen_threshold=0.0))
    assert "chosen threshold 0.000" in chart
    assert [x for x, _ in places_in(chart)[0]] == pytest.approx(
        [0, 0.8 / 3, 1 / 3, 2 / 3, 1], abs=0.001
    )


@pytest.mark.parametrize(
    ("score", "count", "expected"),
    [  # with z = 1.96: n / (n + z²) and z² / (n + z²) at the ends, 0.2366 to 0.7634 for 5 of 10
        (100, 2, (34.2380, 100)),
        (0, 10, (0, 27.7533)),
        (50, 10, (23.6593, 76.3407)),
        (50, 2000, (47.8109, 52.1891)),
    ],
)
def test_intervals(score, count, expected):
    assert breakdown.interval(score, count) == pytest.approx(expected, abs=0.01)


def test_bars_show_few_questions_as_few():
    groups = [breakdown.Group("many", 2000, 60.0, 70.0), breakdown.Group("few", 2, 100.0, 100.0)]
    table = tables.group_table(groups, caption="", filter_name="type")
    heights = [float(h) for h in re.findall(r'<rect.*?height="(.*?)"', table)]
    assert heights[0] > 4 * heights[2] > 0
    intervals = [
        float(high) - float(low)
        for low, high in re.findall(r'class="interval" x1="(.*?)" x2="(.*?)"', table)
    ]
    assert intervals[0] < 5
    assert intervals[2] > 60
    assert re.findall(r'<tr class="few">.*?>(\w+)</a>', table) == ["few"]


def test_shares_of_right_partly_right_and_wrong():
    rows = [make_row(i, f1=f1, exact=exact) for i, (f1, exact) in enumerate(
        [(1, 1)] * 5 + [(0.5, 0)] * 2 + [(0, 0)])]  # fmt: skip
    shown = tables.shares(rows)
    assert re.findall(r'<i class="(\w+)" style="width:(.*?)%', shown) == [
        ("exact", "62.500"),
        ("partly", "25.000"),
        ("wrong", "12.500"),
    ]
    text = re.sub(r"<.*?>", " ", shown).split()
    assert " ".join(text) == "exactly right 62.5 % 5 partly right 25.0 % 2 wrong 12.5 % 1"
    assert "wrong" not in tables.shares(rows[:5])
    assert tables.shares([]) == ""


def test_settings_are_folded(tmp_path):
    page = page_of(tmp_path, make_data(settings={"seed": 7}))
    assert "<summary>Settings</summary>" in page
    assert "<dt>seed</dt><dd>7</dd>" in page


def test_a_curve_matches_its_axes():
    line = charts.Line("F1", [(0.0, 10.0), (50.0, 20.0), (100.0, 30.0)], "first")
    marker = charts.Marker("chosen", 50.0, "chosen")
    beyond = charts.Marker("outside", 101.0, "best")
    chart = charts.line_chart(
        [line], title="T & T", x_label="x", y_label="y", markers=[marker, beyond]
    )
    [drawn] = re.findall(r'points="(.*?)"', chart)
    points = [tuple(map(float, pair.split(","))) for pair in drawn.split()]
    assert points[1] == pytest.approx(
        ((points[0][0] + points[2][0]) / 2, (points[0][1] + points[2][1]) / 2)
    )
    assert points[0][0] < points[2][0]
    assert points[0][1] > points[2][1], "SVG counts from the top"
    assert f'<line class="marker chosen" x1="{points[1][0]:g}"' in chart
    assert "outside" not in chart
    assert "T &amp; T" in chart


def test_charts_of_one_point_and_of_none():
    one = charts.line_chart(
        [charts.Line("a", [(5, 0.0)], "first")], title="", x_label="", y_label=""
    )
    assert one.count('class="dot') == 1
    assert (
        charts.line_chart([charts.Line("a", [], "first")], title="", x_label="", y_label="") == ""
    )


def test_the_report_is_written_atomically(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_report(path, make_data(title="first"))

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="no space"):
        write_report(path, make_data(title="second"))
    assert "first" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
