"""Evaluation of the span task, from the network's scores to files and metrics."""

import json
import types
from pathlib import Path

import numpy as np
import pytest

from bert_tf.config.settings import CommandLine
from bert_tf.finetune.evaluation import RATE, FileEvaluation
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.records.layouts import SQUAD_PREDICTION
from bert_tf.records.sequences import SequenceRecords
from bert_tf.tasks.question_answering.examples import Answer, Example, SquadFile
from bert_tf.tasks.question_answering.run import QuestionAnswering
from bert_tf.tasks.question_answering.settings import AnswerSettings, WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.naive_squad_metric import naive_result
from tests.helpers.settings import run_settings
from tests.helpers.small_span_model import CONFIG

WORDS = ["the", "red", "barn", "stands", "on", "a", "hill", "who"]
CONTEXT = " ".join(WORDS[:7])
QUESTION_TOKENS = 1
GOLDS = [["hill"], ["red barn", "barn"], ["the"], ["barn"]]
# For each question: first and last token of the best span, its score, the score of "no answer".
SCORES = [(6, 6, 5.0, 1.0), (2, 2, 1.0, 5.0), (3, 3, 1.0, 5.0), (4, 4, 5.0, 1.0)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return TokenizerFiles(path)


CONTEXT_START = QUESTION_TOKENS + 2
# The network's outputs: one batch, with ``SCORES`` for one window per question.
OUTPUTS = [
    {
        "start_indices": np.array([[CONTEXT_START + first] for first, *_ in SCORES], np.int32),
        "start_logits": np.array([[score] for *_, score, _ in SCORES], np.float32),
        "end_indices": np.array([[CONTEXT_START + last] for _, last, *_ in SCORES], np.int32),
        "end_logits": np.zeros((len(SCORES), 1), np.float32),
        "null_logits": np.array([null for *_, null in SCORES], np.float32),
    }
]


def evaluation(vocabulary, golds, **settings):
    examples = [
        Example(str(i), "who", CONTEXT, "t", 0, tuple(Answer(t, 0) for t in texts), not texts)
        for i, texts in enumerate(golds)
    ]
    lengths = np.full(len(golds), len(WORDS) + QUESTION_TOKENS + 2, np.int32)
    given = types.SimpleNamespace(
        answers=AnswerSettings(**settings),
        windows=WindowSettings(max_seq_length=32, max_query_length=8),
        tune_threshold=False,
        run=run_settings(Path(), command=CommandLine({}, defaulted={"null_score_diff_threshold"})),
    )
    squad = SquadFile(Path("squad.json"), tuple(examples))
    return FileEvaluation(
        QuestionAnswering(given, {"predict": squad}),
        "predict",
        SequenceRecords([], lengths, "", SQUAD_PREDICTION, 32, {}),
        types.SimpleNamespace(config=CONFIG, tokenizer_files=vocabulary),
        ranks=SingleProcess(),
        batch_size=len(golds),
    )


def test_a_prediction_reports_its_time(vocabulary, tmp_path, capsys):
    evaluation(vocabulary, GOLDS).run(OUTPUTS, tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("prediction took ")] == [
        line for line in said if " s for 4 sequences: " in line
    ]
    assert len(said) == 1, "one batch is all start-up"


@pytest.mark.parametrize("threshold", [-10.0, 0.0, 10.0])
@pytest.mark.parametrize("golds", [GOLDS, [*GOLDS[:3], []]], ids=["answerable", "mixed"])
def test_the_scores_are_those_of_the_written_predictions(vocabulary, tmp_path, golds, threshold):
    """With "no answer" allowed, even if every question in the file has an answer."""
    measured = evaluation(
        vocabulary, golds, version_2_with_negative=True, null_score_diff_threshold=threshold
    ).run(OUTPUTS, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert list(written.values()).count("") == {-10.0: 4, 0.0: 2, 10.0: 0}[threshold]
    expected = naive_result(golds, written, None, 0.0, is_v2=True)
    assert {name: measured[name] for name in expected} == expected
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    spans = dict(enumerate(["hill", "barn", "stands", "on"]))
    spans = {str(number): text for number, text in spans.items()}
    best = naive_result(golds, spans, odds, 0.0, is_v2=True)
    best = {name: value for name, value in best.items() if name.startswith("best_")}
    assert measured.keys() == expected.keys() | best.keys() | {RATE, "global_step"}
    assert {name: measured[name] for name in best} == best


def test_without_no_answer_the_metric_of_version_1_applies(vocabulary, tmp_path):
    measured = evaluation(vocabulary, GOLDS).run(OUTPUTS, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    expected = naive_result(GOLDS, written, None, 0.0, is_v2=False)
    assert measured.keys() == expected.keys() | {RATE, "global_step"}
    assert {name: measured[name] for name in expected} == expected
