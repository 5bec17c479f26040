"""Reading SQuAD files, and one-sentence errors for all invalid files."""

from __future__ import annotations

import json

import pytest

from bert_tf.tasks.question_answering.examples import Answer, read_squad
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT

SHARED_SQUAD = ROOT.parent / "shared/data/squad"
CONTEXT = "The red barn stands on the hill above Elm Lake."


def _question(question_id="q1", answers=(("hill", 27),), **others):
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": question_id, "question": "Where?", "answers": listed, **others}


def _file(*questions, version="1.1", context=CONTEXT):
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": version, "data": [{"title": "Barn", "paragraphs": [paragraph]}]}


@pytest.fixture
def read(tmp_path):
    def read_content(content, *, v2=False, needs_answers=True):
        path = tmp_path / "squad.json"
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text)
        return read_squad(
            path, flag="train_file", version_2_with_negative=v2, needs_answers=needs_answers
        )

    return read_content


def test_questions_in_order_with_shared_contexts(read):
    paragraphs = [
        {"context": CONTEXT, "qas": [_question("a"), _question("b", [("red", 4), ("The red", 0)])]},
        {"context": "Nothing.", "qas": []},
        {"context": "It rains.", "qas": [_question("c", [("rains", 3)])]},
    ]
    articles = [
        {"title": "One", "paragraphs": paragraphs},
        {"paragraphs": [{"context": "Four.", "qas": [_question("d", [("Four", 0)])]}]},
    ]
    squad = read({"version": "1.1", "data": articles})
    assert [e.question_id for e in squad.examples] == ["a", "b", "c", "d"]
    assert [e.paragraph for e in squad.examples] == [0, 0, 2, 3]
    assert [e.title for e in squad.examples] == ["One", "One", "One", ""]
    first, second = squad.examples[:2]
    assert first.context is second.context
    assert second.answers == (Answer("red", 4), Answer("The red", 0))
    assert (first.question, first.is_impossible) == ("Where?", False)
    assert (squad.unusable, squad.has_unanswerable) == ((), False)


def test_unanswerable_questions_need_the_flag(read):
    content = _file(_question("a"), _question("b", [], is_impossible=True), version="v2.0")
    squad = read(content, v2=True)
    assert squad.has_unanswerable
    assert [e.is_impossible for e in squad.examples] == [False, True]
    with pytest.raises(UserError, match=r"without an answer.*give --version_2_with_negative"):
        read(content)


@pytest.mark.parametrize("needs_answers", [True, False])
def test_an_impossible_question_may_have_an_answer_of_empty_text(read, needs_answers):
    """As NOT_GIVEN in the exports of annotation tools."""
    for text in ("", " \n"):
        content = _file(_question("a"), _question("b", [(text, 0)] * 2, is_impossible=True))
        squad = read(content, v2=True, needs_answers=needs_answers)
        assert [(e.is_impossible, len(e.answers)) for e in squad.examples] == [
            (False, 1),
            (True, 0),
        ]
        assert squad.unusable == ()
        assert not any(e.is_moved for e in squad.examples)
    mixed = _file(_question("a"), _question("b", [("", 0), ("hill", 27)], is_impossible=True))
    with pytest.raises(UserError, match=r"\(b\) is_impossible but has answers"):
        read(mixed, v2=True, needs_answers=needs_answers)


def test_an_empty_list_of_answers_is_unanswerable_with_the_flag(read):
    content = _file(_question("a"), _question("b", []), _question("c", []))
    for needs_answers in (True, False):
        squad = read(content, v2=True, needs_answers=needs_answers)
        assert [e.is_impossible for e in squad.examples] == [False, True, True]
    squad = read(content, needs_answers=False)
    assert not squad.has_unanswerable
    with pytest.raises(
        UserError, match=r"\(b\) has no answer; training needs one, or --version_2_"
    ):
        read(content)
    with pytest.raises(UserError, match=r"\(b\) has no answer; training needs one"):
        read(_file(_question("a"), _question("b", [], is_impossible=False)), v2=True)


def test_a_file_without_any_answer_is_not_taken_for_unanswerable_questions(read):
    """Such as a test set whose answers are kept back; nothing in it can be scored."""
    content = _file(_question("a", []), _question("b", []))
    squad = read(content, v2=True, needs_answers=False)
    assert not squad.has_unanswerable
    assert not squad.is_scored
    with pytest.raises(
        UserError, match=r"--train_file: no question of .*squad\.json has an answer"
    ):
        read(content, v2=True)


def test_a_file_without_unanswerable_questions_works_with_the_flag(read):
    assert not read(_file(_question()), v2=True).has_unanswerable
    assert not read(_file(_question(is_impossible=False)), v2=False).has_unanswerable


@pytest.mark.parametrize(
    ("text", "start", "is_usable"),
    [
        ("hill", 27, True),
        ("hill", 23, False),
        ("hill", 31, False),
        ("Hill", 27, False),
        ("Lake.", 42, True),
        ("Lake. ", 42, True),
        ("Lake.", 420, False),
        ("Lake.", -5, False),
        ("red\u00a0barn", 4, True),
        ("", 4, False),
        (" ", 3, False),
    ],
)
def test_answers_must_be_at_their_offset(read, text, start, is_usable):
    squad = read(_file(_question("good"), _question("odd", [(text, start)])))
    assert squad.unusable == (() if is_usable else ("odd",))


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("hill", 24, 27),
        ("hill", 30, 27),
        ("The", -3, 0),
        ("Elm Lake.", 41, 38),
        ("red\u00a0barn", 6, 4),
        ("l", 27, 29),  # nearest of "hill above"
        ("l", 28, 29),
        ("l", 29, 29),
        ("ll", 27, 29),
        ("n", 11, 11),  # where it should be, although others are near
        ("o", 18, 20),
        ("n", 19, 21),  # behind by two, before by three
    ],
)
def test_answers_near_their_offset_are_found(read, text, start, expected):
    """The nearest; of two equally near ones the earlier."""
    squad = read(_file(_question("good"), _question("near", [(text, start), ("hill", 26)])))
    assert squad.unusable == ()
    assert squad.examples[1].answers == (Answer(text, expected), Answer("hill", 27))
    assert [e.is_moved for e in squad.examples] == [False, start != expected]
    found = CONTEXT[expected : expected + len(text)]
    assert found.split() == text.split()
    assert min(
        abs(start - at)
        for at in range(len(CONTEXT))
        if CONTEXT[at : at + len(text)].split() == text.split()
    ) == abs(start - expected)


def test_the_earlier_of_two_equally_near_answers_counts(read):
    content = _file(_question("near", [("b", 2)]), context="ab b")
    assert read(content).examples[0].answers == (Answer("b", 1),)


def test_integer_ids_are_converted_to_text(read):
    squad = read(_file(_question(262), _question("q"), _question(-7)))
    assert [example.question_id for example in squad.examples] == ["262", "q", "-7"]


def test_only_the_first_answer_counts(read):
    squad = read(_file(_question("a", [("hill", 27), ("hill", 1)])))
    assert squad.unusable == ()


def test_no_usable_answer_at_all_is_an_error(read):
    shifted = _file(_question("a", [("hill", 31)]), _question("b", [], is_impossible=True))
    with pytest.raises(UserError, match=r"no answer in .* is at or near its answer_start"):
        read(shifted, v2=True)
    assert read(shifted, v2=True, needs_answers=False).unusable == ("a",)
    assert len(read(_file(_question("b", [], is_impossible=True)), v2=True).examples) == 1


def test_questions_without_answers_can_be_predicted(read):
    content = _file({"id": "a", "question": "Where?"}, _question("b", []))
    assert [e.answers for e in read(content, needs_answers=False).examples] == [(), ()]
    for place, name in ((0, "has no 'answers'"), (1, r"\(b\) has no answer")):
        one = _file(content["data"][0]["paragraphs"][0]["qas"][place])
        with pytest.raises(UserError, match=rf"data\[0\].paragraphs\[0\].qas\[0\] ?{name}"):
            read(one)


PLACE = r"data\[0\]\.paragraphs\[0\]\.qas\[1\]"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"id": 7.0}, rf"'id' of {PLACE} is not text"),
        ({"id": True}, rf"'id' of {PLACE} is not text"),
        ({"id": None}, rf"'id' of {PLACE} is not text"),
        ({"question": ["Who?"]}, rf"'question' of {PLACE} is not text"),
        ({"answers": {"text": "a"}}, rf"'answers' of {PLACE} is not a list"),
        ({"answers": ["hill"]}, rf"{PLACE}\.answers\[0\] is not an object"),
        ({"answers": [{"text": "hill"}]}, rf"{PLACE}\.answers\[0\] has no 'answer_start'"),
        (
            {"answers": [{"text": "hill", "answer_start": "27"}]},
            rf"'answer_start' of {PLACE}\.answers\[0\] is not an integer",
        ),
        (
            {"answers": [{"text": "hill", "answer_start": True}]},
            rf"'answer_start' of {PLACE}\.answers\[0\] is not an integer",
        ),
        ({"is_impossible": "no"}, rf"'is_impossible' of {PLACE} is not true or false"),
        ({"is_impossible": True}, rf"{PLACE} \(q2\) is_impossible but has answers"),
        ({"id": "262"}, rf"qas\[0\] and {PLACE} have the same id '262'"),
    ],
)
def test_errors_name_the_question(read, changes, expected):
    content = _file(_question(262), {**_question("q2"), **changes})
    with pytest.raises(UserError, match=expected) as caught:
        read(content, v2=True)
    assert str(caught.value).startswith("--train_file: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("{", "is not valid JSON"),
        ("The red barn", "is not valid JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "is not an object with 'data'"),
        ("{}", "the file has no 'data'"),
        ('{"data": {}}', "'data' of the file is not a list"),
        ('{"data": []}', "has no questions"),
        ('{"data": [7]}', r"data\[0\] is not an object"),
        ('{"data": [{"title": "a"}]}', r"data\[0\] has no 'paragraphs'"),
        ('{"data": [{"title": 1, "paragraphs": []}]}', r"'title' of data\[0\] is not text"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"paragraphs\[0\] has no 'context'"),
        ('{"data": [{"paragraphs": [{"context": ""}]}]}', r"paragraphs\[0\] has no 'qas'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_files_that_are_not_squad_files(read, content, expected):
    with pytest.raises(UserError, match=expected) as caught:
        read(content)
    assert "squad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_bytes_that_are_not_text(tmp_path):
    options = {"flag": "predict_file", "version_2_with_negative": False, "needs_answers": False}
    with pytest.raises(UserError, match=r"--predict_file: .*none\.json does not exist"):
        read_squad(tmp_path / "none.json", **options)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"--predict_file: .*bytes is not valid JSON"):
        read_squad(tmp_path / "bytes", **options)


@pytest.mark.parametrize(
    ("name", "questions", "paragraphs", "impossible"),
    [
        ("train-v1.1-part", 4370, 678, 0),
        ("train-v2.0-part", 4719, 694, 348),
        ("dev-v1.1-part-a", 2975, 653, 0),
        ("dev-v2.0-part-a", 6078, 646, 3168),
    ],
)
def test_real_files(name, questions, paragraphs, impossible):
    path = SHARED_SQUAD / f"{name}.json"
    if not path.exists():
        pytest.skip("../shared/data is not here")
    squad = read_squad(path, flag="f", version_2_with_negative="v2" in name, needs_answers=True)
    assert len(squad.examples) == questions
    assert squad.examples[-1].paragraph == paragraphs - 1
    assert sum(example.is_impossible for example in squad.examples) == impossible
    assert squad.unusable == ()
    assert not any(e.is_moved for e in squad.examples)
