"""The report of question answering: its figures against naive counts, and its curves."""

import re
import statistics

import pytest

from bert_tf.tasks.question_answering import report
from bert_tf.tasks.question_answering.examples import Answer
from bert_tf.tasks.question_answering.metrics import ThresholdPoint
from tests.helpers.pages import charts_of, data_of, tables_of
from tests.helpers.squad_answers import answered, write_logs, write_report


def page_of(directory, questions, results=None, **given):
    return write_report(directory, questions, results or {}, **given).read_text(encoding="utf-8")


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
    assert report.question_type(question) == expected


def test_answer_length_is_that_of_the_first_answer():
    names = ["1", "2", "3", "4–5", "4–5", *["6–10"] * 5, "11+", "11+"]
    for num_words, expected in enumerate(names, start=1):
        answers = (Answer("  word\n" * num_words, 0), Answer("other", 0))
        assert answered(answers=answers).shown.filters["Answer length"] == expected
    none = answered(answers=(), answerable=False)
    assert none.shown.filters["Answer length"] == "no answer"


@pytest.mark.parametrize(
    ("f1", "exact", "expected"),
    [
        (0, 0, "wrong"),
        (0.1, 0, "partly right"),
        (1, 0, "partly right"),
        (1, 1, "exact"),
        (0, 1, "exact"),  # an answer without words
    ],
)
def test_outcome(f1, exact, expected):
    assert answered(f1=f1, exact=exact).shown.filters["Outcome"] == expected


def test_groups_equal_a_naive_count(tmp_path):
    texts = ["Who is it?", "What is it?", "How many are there?"]
    questions = [
        answered(f"q{n}", question=texts[n % 7 % 3], f1=n % 5 / 4, exact=float(n % 5 == 4))
        for n in range(60)
    ]
    [heads, *rows] = tables_of(page_of(tmp_path, questions))["Question type, with 95 % intervals"]
    assert heads == ["question type", "questions", "percent", "F1", "95 %", "exact", "95 %"]
    assert [row[0] for row in rows] == ["who", "what", "how many/much"]
    for (_, count, share, f1, f1_range, exact, exact_range), text in zip(rows, texts):
        members = [q.score for q in questions if q.shown.heading == text]
        assert (int(count), share) == (len(members), f"{100 * len(members) / 60:.1f}")
        assert float(f1) == pytest.approx(100 * statistics.mean(s.f1 for s in members), abs=0.051)
        assert float(exact) == pytest.approx(
            100 * statistics.mean(s.exact for s in members), abs=0.051
        )
        for mean, shown in ((f1, f1_range), (exact, exact_range)):
            low, high = map(float, shown.split("–"))
            assert low < float(mean) < high


def test_outcomes_lead_to_their_questions(tmp_path):
    scores = [(1, 1)] * 5 + [(0.5, 0)] * 2 + [(0, 0)]
    questions = [answered(f"q{n}", f1=f1, exact=exact) for n, (f1, exact) in enumerate(scores)]
    page = page_of(tmp_path, questions)
    rows = tables_of(page)["Outcome, with 95 % intervals"][1:]
    assert [row[:3] for row in rows] == [
        ["exact", "5", "62.5"],
        ["partly right", "2", "25.0"],
        ["wrong", "1", "12.5"],
    ]
    assert '<a href="#Outcome=partly+right">partly right</a>' in page


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [  # with z = 1.96: n / (n + z²) and z² / (n + z²) at the ends, 0.2366 to 0.7634 for 5 of 10
        (1, 2, (0.342380, 1)),
        (0, 10, (0, 0.277533)),
        (0.5, 10, (0.236593, 0.763407)),
        (0.5, 2000, (0.478109, 0.521891)),
    ],
)
def test_intervals(share, count, expected):
    assert report.interval(share, count) == pytest.approx(expected, abs=1e-4)


def test_scores_of_both_versions(tmp_path):
    def shown(results):
        page = page_of(tmp_path, [answered()], results)
        return re.findall(r'"tile"><span>(.*?)</span><strong>(.*?)<', page)

    version_1 = shown({"exact_match": 70.126, "f1": 80.5})
    assert version_1 == [("F1", "80.50"), ("Exact match", "70.13")]
    results = {"exact_match": 60, "f1": 61, "HasAns_f1": 63, "NoAns_f1": 64, "best_f1": 66}
    values = [value for _, value in shown(results)]
    assert values == ["61.00", "60.00", "63.00", "64.00", "66.00"]


def test_charts_follow_the_logs(tmp_path):
    steps = [{"step": step, "loss": 2.0} for step in (1, 2)]
    write_logs(tmp_path, steps, [{"step": step, "exact_match": 2.0} for step in (1, 2)])
    page = page_of(tmp_path, [answered()], {"exact_match": 2.0})
    assert list(charts_of(page)) == ["Loss", "Evaluations"]
    write_logs(tmp_path, steps[:1])
    assert not charts_of(page_of(tmp_path, [answered()]))


def test_a_threshold_curve_includes_the_chosen_threshold(tmp_path):
    curve = [ThresholdPoint(x, 20.0 + x, 30.0 + x) for x in (1.0, 2.0, 3.0)]

    def drawn(threshold):
        page = page_of(tmp_path, [answered()], curve=curve, threshold=threshold)
        assert "best F1 at threshold 3.000" in page
        assert f"chosen threshold {threshold:.3f}" in page or threshold == float("inf")
        return charts_of(page)["Threshold of “no answer”"][0]

    assert len(drawn(2.5)) == 3
    (_, low), (_, first), *_ = drawn(0.0)
    assert low == first
    *_, (_, last), (_, high) = drawn(5.0)
    assert last == high
    assert len(drawn(float("inf"))) == 3


def test_marks_are_the_true_answers_and_the_predicted_one(tmp_path):
    answers = tuple(Answer(*one) for one in (("two", 4), ("one", 0), ("two", 4), ("one", 7)))
    row = answered(context="one two one", answers=answers, predicted="one", span=(8, 11))
    none = answered("none", predicted="", span=(10, 14))
    [shown, empty] = data_of(page_of(tmp_path, [row, none]))["rows"]
    assert shown["marks"]["true"] == [[0, 3], [4, 7]], "the last answer is not at its offset"
    assert shown["marks"]["predicted"] == [[8, 11]]
    assert shown["answers"] == {"true": ["two", "one"], "predicted": ["one"]}
    assert empty["marks"]["predicted"] == empty["answers"]["predicted"] == []


def test_confident_wrong_answers_come_first():
    def key(f1, exact, nbest):
        shown = answered(f1=f1, exact=exact, predicted="mill", nbest=nbest).shown
        return shown.orders["most confident wrong first"]

    nbest = [("", 0.5), ("mill", 0.25), ("mill", 0.125)]
    assert key(0, 0, nbest) == -2.25, "the probability of the prediction"
    assert key(0, 0, nbest) < key(0, 0, [("river", 1.0)]) < key(0.5, 0, nbest) < key(1, 1, nbest)
