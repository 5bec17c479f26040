"""The SQuAD metric against a second, naive writing of the published rules, digit by digit."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.metrics import (
    best_threshold,
    evaluate,
    normalize_answer,
    question_scores,
    questions_without_answer,
    read_answers,
    scored_by,
    threshold_curve,
)
from bert_tf.util.errors import UserError
from tests.helpers.naive_squad_metric import (
    naive_best,
    naive_characters,
    naive_result,
    naive_scores,
    naive_words,
    squad_of,
)
from tests.helpers.programs import ROOT

DATA = ROOT.parent / "shared/data/squad"


WORDS = "a an the A The THE an. a's a-b the_end _ a_ anthem theatre tom Tom cat cat's 1 1,000"
ODD = "! -- , ( … “ ” ’ ‘ 東 京都 。 é É e\u0301 İ ß ﬁ ſ ½ ٣ ª a²"
FRAGMENTS = [*WORDS.split(), *ODD.split()]
BLANKS = [" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2009", "\u200b", "\x1c", "\ufeff", "", "-"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS + BLANKS), max_size=8).map("".join) | st.text(max_size=8)
SHORT = st.sampled_from(["", "the", "!", "cat", "Tom cat", "cat, cat tom", "the cat", "東 cat"])


@settings(max_examples=150, deadline=None)
@given(TEXTS)
@example("The_a-the an\u00a0a")
@example("a\u200ban")
def test_normalization(text):
    assert normalize_answer(text).split() == naive_words(text)
    assert normalize_answer(text) == " ".join(naive_words(text))


@settings(max_examples=200, deadline=None)
@given(golds=st.lists(SHORT | TEXTS, min_size=1, max_size=4), answer=SHORT | TEXTS)
@example(golds=["the"], answer="a")
@example(golds=["the", "cat"], answer="")
@example(golds=["cat cat tom"], answer="cat tom tom")
def test_scores_of_a_question(golds, answer):
    for is_v2 in (False, True):
        (score,) = question_scores(squad_of([golds], is_v2=is_v2), {"0": answer}, version_2=is_v2)
        assert (score.exact, score.f1) == naive_scores(golds, answer, is_v2=is_v2)
        assert score.answerable
        assert score.question_id == "0"


# No kana: MLQA has no Japanese, and its script leaves them together.
CHINESE = st.lists(
    st.sampled_from(
        [*"海淀区北京大学的〇々，。《》“・", "1898", "the", "BERT", "café", "㐀", *BLANKS]
    ),
    max_size=10,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(golds=st.lists(CHINESE, min_size=1, max_size=3), answer=CHINESE, is_v2=st.booleans())
@example(golds=["李明先生"], answer="李明", is_v2=False)
def test_scores_of_characters(golds, answer, is_v2):
    squad = scored_by(squad_of([golds], is_v2=is_v2), "characters")
    (score,) = question_scores(squad, {"0": answer}, version_2=is_v2)
    expected = naive_scores(golds, answer, is_v2=is_v2, split=naive_characters)
    assert (score.exact, score.f1) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "exact", "f1"),
    [
        ("海淀区", "于海淀区", 0, 6 / 7),  # precision 3/4, recall 1
        ("李明先生", "李明", 0, 2 / 3),
        ("1898年", "1898 年。", 1, 1),
        ("《红楼梦》", "红楼梦", 1, 1),
        ("BERT模型", "bert", 0, 1 / 2),
        ("The 猫", "猫", 0, 2 / 3),  # Chinese has no articles
        ("東京タワー", "タワー", 0, 3 / 4),
        ("佐々木", "佐木", 0, 4 / 5),
        ("กรุงเทพ", "กรุง", 0, 8 / 11),
    ],
)
def test_scores_of_characters_by_hand(gold, answer, exact, f1):
    squad = scored_by(squad_of([[gold]], is_v2=False), "auto")
    (score,) = question_scores(squad, {"0": answer}, version_2=False)
    assert (score.exact, score.f1) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("golds", "expected"),
    [
        ([["北京大学", "BERT模型"], ["The Beatles"], ["1898", "42"]], True),
        ([["東京タワー"], []], True),
        ([["กรุงเทพ"]], True),
        ([["Denver Broncos"], ["北京"]], False),
        ([["서울 특별시"]], False),
        ([["Đà Nẵng"], ["दिल्ली"]], False),
        ([["1898"], []], False),
        ([[]], False),
    ],
)
def test_the_unit_follows_from_the_answers(golds, expected):
    squad = squad_of(golds, is_v2=True)
    assert scored_by(squad, "auto").by_characters is expected
    assert scored_by(squad, "characters").by_characters
    assert not scored_by(squad, "words").by_characters


def test_only_articles():
    """Both are empty: equal everywhere, but without a common word in v1.1."""
    squad = squad_of([["The"]], is_v2=False)
    (score,) = question_scores(squad, {"0": "an"}, version_2=False)
    assert (score.exact, score.f1) == (1.0, 0.0)
    (score,) = question_scores(squad, {"0": "an"}, version_2=True)
    assert (score.exact, score.f1) == (1.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), is_v2=st.booleans(), with_odds=st.booleans())
def test_evaluate(data, is_v2, with_odds):
    least = 0 if is_v2 else 1
    golds = data.draw(st.lists(st.lists(SHORT, min_size=least, max_size=3), min_size=1, max_size=9))
    answers = {str(i): data.draw(SHORT) for i in range(len(golds)) if data.draw(st.integers(0, 9))}
    if not answers:
        return
    numbers = st.sampled_from([-2.5, -1, 0, 0.5, 1.0, 1.5, 3])
    keys = data.draw(st.permutations([*map(str, range(len(golds))), "unknown"]))
    odds = {key: data.draw(numbers) for key in keys} if with_odds and is_v2 else None
    limit = data.draw(numbers)
    squad = squad_of(golds, is_v2=is_v2)
    given = {**answers, "unknown": "cat"}
    expected = naive_result(golds, answers, odds, limit, is_v2=is_v2)
    assert evaluate(squad, given, odds, na_prob_thresh=limit, version_2=is_v2) == expected
    if odds is not None or is_v2 == (not all(golds)):
        assert evaluate(squad, given, odds, na_prob_thresh=limit) == expected


def test_keys():
    assert list(evaluate(squad_of([["a"]], is_v2=False), {"0": "a"})) == [
        "exact_match",
        "f1",
        "total",
    ]
    squad = squad_of([["cat"], []], is_v2=True)
    groups = [f"{group}{name}" for group in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")]
    totals = ["exact_match", "total", "HasAns_total", "NoAns_total"]
    best = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    answers = {"0": "cat", "1": ""}
    assert sorted(evaluate(squad, answers)) == sorted(groups + totals)
    assert sorted(evaluate(squad, answers, {"0": 0, "1": 1})) == sorted(groups + totals + best)


def test_questions_without_prediction():
    squad = squad_of([["cat"], ["tom"]], is_v2=False)
    assert evaluate(squad, {"0": "cat"}) == {"exact_match": 50.0, "f1": 50.0, "total": 2}
    assert questions_without_answer(squad, {"0": "cat"}) == ["1"]
    squad = squad_of([["cat"], ["tom"], []], is_v2=True)
    found = evaluate(squad, {"0": "cat"})
    assert (found["exact"], found["total"], found["HasAns_total"]) == (100.0, 1, 1)
    assert "NoAns_total" not in found


def test_what_cannot_be_scored():
    squad = squad_of([["cat"], []], is_v2=True)
    with pytest.raises(UserError, match=r"none of the predictions .* squad\.json"):
        evaluate(squad, {"other": "cat"})
    with pytest.raises(UserError, match=r"lack 1 questions .* such as 0"):
        evaluate(squad, {"0": "cat"}, {"1": 0.0})
    with pytest.raises(UserError, match=r"no question of squad\.json has a prediction"):
        threshold_curve(squad, {}, {})
    with pytest.raises(UserError, match=r"squad\.json has no answer to question '1'"):
        evaluate(squad_of([["cat"], []], is_v2=False), {"0": "cat"})


# Thresholds.


def squad_golds(squad, key):
    [example] = [example for example in squad.examples if example.question_id == key]
    return [answer.text for answer in example.answers]


def with_threshold(answers, odds, threshold):
    return {key: "" if odds[key] > threshold else answer for key, answer in answers.items()}


SWEEPS = st.lists(
    st.tuples(
        st.sampled_from([[], [], ["cat"], ["tom cat", "cat"]]),
        st.sampled_from(["cat", "tom", "tom cat tom"]),
        st.floats(-20, 20) | st.sampled_from([-1.0, 0.0, 2.0]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(SWEEPS)
def test_every_point_of_the_curve_holds(rows):
    golds, texts, numbers = zip(*rows)
    squad = squad_of([*golds, []], is_v2=True)
    answers = {str(i): text for i, text in enumerate([*texts, "cat"])}
    odds = {str(i): number for i, number in enumerate([*numbers, 0.25])}
    points = threshold_curve(squad, answers, odds)
    assert [point.threshold for point in points[1:]] == sorted(set(odds.values()))
    assert points[0].threshold < min(odds.values())
    for point in points:
        scored = evaluate(squad, with_threshold(answers, odds, point.threshold))
        assert point.exact == pytest.approx(scored["exact"], abs=1e-9)
        assert point.f1 == pytest.approx(scored["f1"], abs=1e-9)
    advised = best_threshold(points)
    assert advised in points
    assert advised.f1 == max(point.f1 for point in points)


@settings(max_examples=200, deadline=None)
@given(SWEEPS.filter(lambda rows: len({odds for *_, odds in rows}) == len(rows)))
@example([(["cat"], "cat", -1.0), ([], "tom", 2.0)])
@example([([], "cat", -1.0), (["tom cat", "cat"], "tom", 0.0)])
@example([([], "cat", 1.0), (["cat"], "cat", 2.0)])
def test_the_advice_is_the_official_best(rows):
    """Where no two odds are equal. The official script has 0.0 for to answer nothing at all."""
    golds, texts, numbers = zip(*rows)
    squad = squad_of([*golds, []], is_v2=True)
    answers = {str(i): text for i, text in enumerate([*texts, ""])}
    odds = {str(i): number for i, number in enumerate([*numbers, 30.0])}
    official = evaluate(squad, answers, odds)
    advised = best_threshold(threshold_curve(squad, answers, odds))
    assert advised.f1 == pytest.approx(official["best_f1"], abs=1e-9)
    _, official_threshold = naive_best(
        {key: naive_scores(squad_golds(squad, key), text, is_v2=True)[1]
         for key, text in answers.items()},
        answers,
        odds,
        {key: bool(squad_golds(squad, key)) for key in answers},
    )  # fmt: skip
    assert official["best_f1_thresh"] == official_threshold
    of_nothing = 100.0 * sum(not example.answers for example in squad.examples) / len(answers)
    if advised.threshold >= min(odds.values()):
        assert advised.threshold == official_threshold
        assert advised.f1 > of_nothing
    else:
        assert official_threshold == 0.0
        assert (advised.exact, advised.f1) == (of_nothing, of_nothing)
        nothing = with_threshold(answers, odds, advised.threshold)
        assert set(nothing.values()) == {""}


def test_a_long_curve_is_thinned():
    count = 1000
    golds = [["cat"] if i < 330 else [] for i in range(count)]
    squad = squad_of(golds, is_v2=True)
    answers = {str(i): "cat" for i in range(count)}
    odds = {str(i): float(i) for i in range(count)}
    points = threshold_curve(squad, answers, odds)
    assert 150 < len(points) <= 200
    assert points[0] == (-1.0, 67.0, 67.0)
    assert (points[-1].threshold, points[-1].f1) == (999.0, pytest.approx(33.0))
    assert best_threshold(points) == (329.0, 100.0, 100.0)
    thresholds = [point.threshold for point in points]
    assert thresholds == sorted(set(thresholds))
    assert max(b - a for a, b in zip(thresholds, thresholds[1:])) < 7


# Published predictions.


def published(version):
    file = DATA / f"dev-v{version}-part-a.json"
    predictions = DATA / f"predictions-v{version}-part-a.json"
    if not (file.is_file() and predictions.is_file()):
        pytest.skip("needs SQuAD's development data and published predictions")
    squad = read_squad(file, flag="data", version_2_with_negative=True, needs_answers=False)
    return squad, read_answers(predictions, flag="predictions")


def test_published_predictions_v1():
    found = evaluate(*published("1.1"))
    assert found["total"] == 2975
    assert round(found["exact_match"], 4) == 69.4118
    assert round(found["f1"], 4) == 78.2017


def test_published_predictions_v2():
    found = evaluate(*published("2.0"))
    assert found == {
        "exact_match": 65.43270812767358,
        "exact": 65.43270812767358,
        "f1": 67.58550604191517,
        "total": 6078,
        "HasAns_exact": 63.71134020618557,
        "HasAns_f1": 68.20780265386972,
        "HasAns_total": 2910,
        "NoAns_exact": 67.01388888888889,
        "NoAns_f1": 67.01388888888889,
        "NoAns_total": 3168,
    }


def test_the_naive_rules_agree_on_published_predictions():
    for version in ("1.1", "2.0"):
        squad, answers = published(version)
        golds = [[gold.text for gold in example.answers] for example in squad.examples]
        by_number = {str(i): answers[e.question_id] for i, e in enumerate(squad.examples)}
        naive = naive_result(golds, by_number, None, math.inf, is_v2=squad.has_unanswerable)
        assert evaluate(squad, answers) == naive
