"""Answers from scores, against a slow, literal implementation of google-research/bert's rules."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.tasks.question_answering.answers import (
    Answered,
    Predictions,
    SpanCandidates,
    Spans,
    decode_answers,
    rank_answers,
    write_predictions,
)
from bert_tf.tasks.question_answering.examples import Example, SquadFile, read_squad
from bert_tf.tasks.question_answering.settings import AnswerSettings, WindowSettings
from bert_tf.text.tokenizer import Encoding
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT
from tests.helpers.small_vocabulary import load_tokenizer
from tests.helpers.squad_files import write_model, write_squad

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["a", "b", "e", "##a", "##b", "##e", "##ab", "東", ".", "'"]
PLAIN = AnswerSettings()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in SPECIAL + PIECES), encoding="utf-8")
    return load_tokenizer(vocab_file=path)


def squad_of(*contexts, questions=1):
    examples = [
        Example(f"q{paragraph}.{number}", "b " * (number + 1), context, "t", paragraph, (), False)
        for paragraph, context in enumerate(contexts)
        for number in range(questions)
    ]
    return SquadFile(Path("squad.json"), tuple(examples))


# The network's output and the rules, both position by position.


def naive_windows(num_question, num_context, lengths):
    """The published windows: steps of doc_stride until the end of the paragraph is inside."""
    room = lengths.max_seq_length - min(num_question, lengths.max_query_length) - 3
    windows, first = [], 0
    while first < num_context:
        windows.append(range(first, min(first + room, num_context)))
        if first + room >= num_context:
            break
        first += min(room, lengths.doc_stride)
    return windows


def naive_owner(windows, token):
    """The window with the most context for a token."""
    scores = [
        min(token - window[0], window[-1] - token) + 0.01 * len(window)
        if token in window
        else -math.inf
        for window in windows
    ]
    return scores.index(max(scores))


def candidates_of(logits, k):
    """The arrays for windows of ``(offset of the context, start [T], end [T], null)``."""
    rows = []
    for offset, start, end, null in logits:
        row = []
        for scores in (start, end):
            best = sorted(range(len(scores)), key=lambda i, s=scores: -s[i])[:k]
            unused = k - len(best)
            row.append([offset + i for i in best] + [0] * unused)
            row.append([scores[i] for i in best] + [-math.inf] * unused)
        rows.append((*row, null))
    columns = list(zip(*rows)) or [[], [], [], [], []]
    shape = (len(rows), k)
    return SpanCandidates(
        np.array(columns[0], np.int32).reshape(shape),
        np.array(columns[1], np.float32).reshape(shape),
        np.array(columns[2], np.int32).reshape(shape),
        np.array(columns[3], np.float32).reshape(shape),
        np.array(columns[4], np.float32),
    )


def naive_decode(context, encoding, windows, logits, choice, k):
    """One question: (answer, n-best of (text, score), null odds)."""
    found = []
    for index, (window, (_, start, end, _)) in enumerate(zip(windows, logits)):
        places = range(len(window))
        best_starts = sorted(places, key=lambda i, s=start: -s[i])[:k]
        best_ends = sorted(places, key=lambda i, s=end: -s[i])[:k]
        for i, j in itertools.product(best_starts, best_ends):
            is_own = naive_owner(windows, window[i]) == index
            if is_own and i <= j and j - i + 1 <= choice.max_answer_length:
                characters = encoding.starts[window[i]], encoding.ends[window[j]]
                found.append((context[slice(*characters)], start[i] + end[j]))
    null = min((null for *_, null in logits), default=0.0)
    if choice.version_2_with_negative:
        found.append(("", null))
    found.sort(key=lambda pair: -pair[1])
    unique = []
    for text, score in found:
        if text not in [known for known, _ in unique]:
            unique.append((text, score))
    nbest = unique[: choice.n_best_size]
    spans = [pair for pair in unique if pair[0]]
    if not choice.version_2_with_negative:
        nbest = nbest or [("empty", 0.0)]
        return nbest[0][0], nbest, None
    nbest += [pair for pair in (*spans[:1], ("", null)) if pair not in nbest]
    odds = null - (spans[0][1] if spans else 0.0)
    is_null = not spans or odds > choice.null_score_diff_threshold
    return "" if is_null else spans[0][0], nbest, odds


LENGTHS = st.builds(
    WindowSettings,
    max_seq_length=st.integers(8, 14),
    doc_stride=st.integers(1, 8),
    max_query_length=st.integers(1, 4),
)
CHOICES = st.builds(
    AnswerSettings,
    n_best_size=st.integers(1, 6),
    max_answer_length=st.integers(1, 6),
    version_2_with_negative=st.booleans(),
    null_score_diff_threshold=st.sampled_from([-3.0, 0.0, 0.5, 2.0]),
)
CONTEXTS = st.lists(
    st.text(alphabet=[*"abeAB.'", " ", "\t", "\u00e9", "É", "東", "\u0301", "x"], max_size=14),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), contexts=CONTEXTS, lengths=LENGTHS, choice=CHOICES, k=st.integers(1, 5))
def test_rules(tokenizer, data, contexts, lengths, choice, k):
    """Few different scores make ties common; sums of quarters are exact."""
    squad = squad_of(*contexts, questions=2)
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    all_logits, expected = [], {}
    for question in squad.examples:
        encoding = tokenizer.encode_with_offsets(question.context)
        num_question = min(len(tokenizer.encode(question.question)), lengths.max_query_length)
        windows = naive_windows(num_question, len(encoding.ids), lengths)
        logits = [
            (
                num_question + 2,
                data.draw(st.lists(quarters, min_size=len(window), max_size=len(window))),
                data.draw(st.lists(quarters, min_size=len(window), max_size=len(window))),
                data.draw(quarters),
            )
            for window in windows
        ]
        all_logits += logits
        expected[question.question_id] = naive_decode(
            question.context, encoding, windows, logits, choice, k
        )
    found = decode_answers(squad, tokenizer, lengths, candidates_of(all_logits, k), choice)
    assert list(found.answers) == list(expected)
    for question in squad.examples:
        answer, nbest, odds = expected[question.question_id]
        entries = found.of_question[question.question_id].nbest
        assert found.answers[question.question_id] == answer
        scored = [(entry["text"], entry["start_logit"] + entry["end_logit"]) for entry in entries]
        assert scored == nbest
        assert found.null_odds.get(question.question_id) == odds
        weights = [math.exp(score) for _, score in nbest]
        probabilities = [weight / sum(weights) for weight in weights]
        assert [entry["probability"] for entry in entries] == pytest.approx(probabilities)
        for entry in entries:
            if "start" in entry:
                assert question.context[entry["start"] : entry["end"]] == entry["text"]


def decode_span(tokenizer, context, first, last, choice=PLAIN, null=0.0):
    """Decodes a context in which tokens ``first`` to ``last`` have the scores 3 and 4."""
    squad = squad_of(context)
    count = len(tokenizer.encode(context))
    start, end = [0.0] * count, [0.0] * count
    start[first], end[last] = 3.0, 4.0
    candidates = candidates_of([(1 + 2, start, end, null)], k=20)
    return decode_answers(squad, tokenizer, WindowSettings(), candidates, choice)


@pytest.mark.parametrize(
    ("context", "first", "last", "answer"),
    [
        ("a  b   a.", 0, 2, "a  b   a"),
        ("É東é b", 0, 2, "É東é"),
        ("E\u0301 b", 0, 0, "E\u0301"),
        ("b Beab's", 1, 3, "Beab"),
        ("b Beab's", 2, 3, "eab"),  # from inside a word
        (" \t b\n", 0, 0, "b"),
        ("xyz b", 0, 0, "xyz"),  # an unknown word
        ("b b", 1, 1, "b"),
    ],
)
def test_answers_are_extracted_from_the_context(tokenizer, context, first, last, answer):
    found = decode_span(tokenizer, context, first, last)
    assert found.answers == {"q0.0": answer}
    start, end = found.of_question["q0.0"].span
    assert context[start:end] == answer


def test_an_answer_is_found_where_it_is(tokenizer):
    """The same text occurs twice."""
    assert decode_span(tokenizer, "b a b", 2, 2).of_question["q0.0"].span == (4, 5)


def test_tokens_that_include_blanks():
    """As with SentencePiece: a piece without characters, and one for a blank."""
    encoding = Encoding([7, 8, 9], starts=[0, 0, 1], ends=[0, 1, 2])
    zeros = np.zeros(3)
    spans = Spans(np.array([0, 0, 0]), np.array([0, 1, 2]), zeros, zeros)
    (entry,) = rank_answers(spans, encoding, " b", None)
    assert (entry.text, entry.span) == ("b", (1, 2))


def test_max_answer_length(tokenizer):
    context = "a b e a"
    for length, answer in ((4, context), (3, "a b e")):
        choice = AnswerSettings(max_answer_length=length)
        squad = squad_of(context)
        logits = [(3, [9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 6.0], 0.0)]
        candidates = candidates_of(logits, k=4)
        found = decode_answers(squad, tokenizer, WindowSettings(), candidates, choice)
        assert found.answers == {"q0.0": answer}


def test_only_used_slots_in_the_context(tokenizer):
    """[CLS], question, [SEP], "a", "b", [SEP], padding; the last candidate is an unused slot."""
    indices = np.array([[1, 5, 0, 6, 3, 4]], np.int32)
    logits = np.array([[9, 8, 7, 6, 1, -np.inf]], np.float32)
    candidates = SpanCandidates(indices, logits, indices, logits, np.zeros(1, np.float32))
    found = decode_answers(squad_of("a b"), tokenizer, WindowSettings(), candidates, PLAIN)
    assert [entry["text"] for entry in found.of_question["q0.0"].nbest] == ["a"]


@pytest.mark.parametrize("side", [-1, 0, 1])
def test_the_threshold_itself_is_still_an_answer(tokenizer, side):
    null = 7.0 + 1.5
    threshold = np.nextafter(1.5, 1.5 + side) if side else 1.5
    choice = AnswerSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
    found = decode_span(tokenizer, "a b", 0, 1, choice, null)
    assert found.null_odds == {"q0.0": 1.5}
    assert found.answers == {"q0.0": "" if side < 0 else "a b"}
    assert found.of_question["q0.0"].span == (0, 3)
    assert found.span_texts(squad_of("a b")) == {"q0.0": "a b"}


def test_null_score_is_the_smallest_over_the_windows(tokenizer):
    """One window with a confident answer is enough."""
    squad = squad_of("a b e a b e")
    lengths = WindowSettings(max_seq_length=7, doc_stride=3, max_query_length=1)
    logits = [(3, [1.0] * 3, [1.0] * 3, null) for null in (9.0, 1.0)]
    choice = AnswerSettings(version_2_with_negative=True)
    found = decode_answers(squad, tokenizer, lengths, candidates_of(logits, 3), choice)
    assert found.null_odds == {"q0.0": 1.0 - 2.0}
    assert found.answers["q0.0"]


def test_one_entry_with_no_answer_first(tokenizer):
    """The best other answer is also listed, since the threshold may select it."""
    for threshold, answer in ((0.0, ""), (5.0, "a")):
        choice = AnswerSettings(
            n_best_size=1, version_2_with_negative=True, null_score_diff_threshold=threshold
        )
        found = decode_span(tokenizer, "a b", 0, 0, choice, null=10.0)
        assert [entry["text"] for entry in found.of_question["q0.0"].nbest] == ["", "a"]
        assert found.null_odds == {"q0.0": 3.0}
        assert found.answers == {"q0.0": answer}
        assert found.of_question["q0.0"].span == (0, 1)


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("context", ["", " ", "a b"])
def test_no_possible_span(tokenizer, context, is_v2):
    """No token, or an end before the only start."""
    squad = squad_of(context)
    row = SpanCandidates(
        *(
            np.array([values], np.float32)
            for values in ([4, 0], [1, -np.inf], [3, 0], [1, -np.inf])
        ),
        null_logits=np.array([-5.0], np.float32),
    )
    candidates = row if context == "a b" else SpanCandidates(*(values[:0] for values in row))
    choice = AnswerSettings(version_2_with_negative=is_v2)
    found = decode_answers(squad, tokenizer, WindowSettings(), candidates, choice)
    assert found.answers == {"q0.0": "" if is_v2 else "empty"}
    assert [entry["probability"] for entry in found.of_question["q0.0"].nbest] == [1.0]
    assert set(found.null_odds) == ({"q0.0"} if is_v2 else set())
    assert all(map(math.isfinite, found.null_odds.values()))
    assert found.span_texts(squad) == {"q0.0": ""}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(["start_logits", "end_logits"], [np.nan, np.inf]),
        *itertools.product(["null_logits"], [np.nan, np.inf, -np.inf]),
    ],
)
def test_scores_that_are_not_finite(tokenizer, field, value):
    candidates = candidates_of([(3, [0.0, 1.0], [0.0, 1.0], 0.0)], k=3)
    getattr(candidates, field)[0, ...] = value
    with pytest.raises(UserError, match=r"not finite numbers in 1 of 1 windows; .* checkpoint"):
        decode_answers(squad_of("a b"), tokenizer, WindowSettings(), candidates, PLAIN)


@pytest.mark.parametrize("field", ["start_logits", "end_logits"])
def test_a_window_without_any_position(tokenizer, field):
    candidates = candidates_of([(3, [0.0, 1.0], [0.0, 1.0], 0.0)], k=3)
    getattr(candidates, field)[0, ...] = -np.inf
    found = decode_answers(squad_of("a b"), tokenizer, WindowSettings(), candidates, PLAIN)
    assert found.answers == {"q0.0": "empty"}


@pytest.mark.parametrize("given_windows", [0, 1, 3])
def test_candidates_of_other_windows(tokenizer, given_windows):
    candidates = candidates_of([(3, [0.0], [0.0], 0.0)] * given_windows, k=1)
    with pytest.raises(UserError, match=f"for {given_windows} windows, .* have 2 .* records again"):
        decode_answers(
            squad_of("a", "b"), tokenizer, WindowSettings(), candidates, AnswerSettings()
        )


@pytest.mark.parametrize(
    "wrong",
    [{"n_best_size": 0}, {"max_answer_length": 0}, {"null_score_diff_threshold": math.nan}],
)
def test_invalid_settings(wrong):
    with pytest.raises(UserError, match=f"--{next(iter(wrong))}="):
        AnswerSettings(**wrong)
    AnswerSettings()


def test_a_paragraph_is_tokenized_once(tokenizer, monkeypatch):
    seen = []
    encode = type(tokenizer).encode_with_offsets
    monkeypatch.setattr(
        type(tokenizer),
        "encode_with_offsets",
        lambda self, text: seen.append(text) or encode(self, text),
    )
    squad = squad_of("a", "b", questions=3)
    logits = [(len(e.question.split()) + 2, [0.0], [0.0], 0.0) for e in squad.examples]
    candidates = candidates_of(logits, k=1)
    found = decode_answers(squad, tokenizer, WindowSettings(), candidates, PLAIN)
    assert seen == ["a", "b"]
    assert list(found.answers.values()) == ["a"] * 3 + ["b"] * 3


def test_files(tmp_path):
    """Google's layout, also for text that is not valid Unicode."""
    entry = {"text": "é", "probability": 1.0, "start_logit": 0.5, "end_logit": 0.25}
    answers = {"2": Answered("é", [entry], -1.5), "1": Answered("\ud800", [entry], 0.0)}
    predictions = Predictions(answers)
    write_predictions(tmp_path, predictions, version_2_with_negative=True)
    names = ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    text = (tmp_path / "predictions.json").read_text()
    assert text == '{\n    "2": "\\u00e9",\n    "1": "\\ud800"\n}\n'
    assert (tmp_path / "null_odds.json").read_text() == '{\n    "2": -1.5,\n    "1": 0.0\n}\n'
    assert json.loads((tmp_path / "nbest_predictions.json").read_text()) == {
        "2": [entry],
        "1": [entry],
    }


def test_files_of_an_earlier_run_are_removed(tmp_path):
    predictions = Predictions({"1": Answered("a", [], 0.0)})
    write_predictions(tmp_path, predictions, version_2_with_negative=True)
    write_predictions(tmp_path, predictions, version_2_with_negative=False)
    names = ["nbest_predictions.json", "predictions.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def released_data(directory):
    del directory
    data = ROOT.parent / "shared/data"
    vocabulary = data / "vocab/bert-uncased-vocab.txt"
    file = data / "squad/dev-v1.1-part-a.json"
    if not (vocabulary.is_file() and file.is_file()):
        pytest.skip("needs SQuAD's development data and BERT's vocabulary")
    return vocabulary, file


def made_up_data(directory):
    write_squad(directory / "dev.json", 60, seed=5)
    return write_model(directory) / "vocab.txt", directory / "dev.json"


@pytest.mark.parametrize("data", [released_data, made_up_data])
def test_true_answers_of_real_data_come_back(data, tmp_path):
    """With perfect scores, nearly every true answer is predicted literally."""
    vocabulary, file = data(tmp_path)
    tokenizer = load_tokenizer(vocab_file=vocabulary)
    squad = read_squad(file, flag="data", version_2_with_negative=False, needs_answers=False)
    squad = dataclasses.replace(squad, examples=squad.examples[:800])
    lengths = WindowSettings(max_seq_length=128, doc_stride=40)
    logits = []
    for question in squad.examples:
        encoding = tokenizer.encode_with_offsets(question.context)
        gold = question.answers[0]
        num_question = min(len(tokenizer.encode(question.question)), lengths.max_query_length)
        for window in naive_windows(num_question, len(encoding.ids), lengths):
            start = [float(encoding.starts[token] == gold.start) for token in window]
            gold_end = gold.start + len(gold.text)
            end = [float(encoding.ends[token] == gold_end) for token in window]
            logits.append((num_question + 2, start, end, 0.0))
    choice = AnswerSettings(max_answer_length=60)
    found = decode_answers(squad, tokenizer, lengths, candidates_of(logits, k=2), choice)
    right = [found.answers[e.question_id] == e.answers[0].text for e in squad.examples]
    assert len(right) > 100
    assert np.mean(right) > 0.99
