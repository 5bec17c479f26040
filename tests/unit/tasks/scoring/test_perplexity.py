"""The arithmetic of perplexities, and the files of an evaluation."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_tf.config.masking import MaskingOptions
from bert_tf.config.settings import RunSettings, RuntimeSettings
from bert_tf.tasks.scoring import perplexity
from bert_tf.tasks.scoring.perplexity import (
    Scores,
    confidence_interval,
    definitions,
    log_likelihoods,
    masked_perplexity,
    pseudo_perplexity,
    student_t,
)
from bert_tf.tasks.scoring.sequences import ScoredText, Sequences, TokenSequence
from bert_tf.tasks.scoring.settings import ScoringSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.pictures import picture


def sequences_of(texts):
    """Sequences of which only the numbers matter.

    ``texts`` are (number, tokens of each sequence, words).
    """
    return Sequences(
        [
            ScoredText(number, [_sequence(number, tokens) for tokens in sizes], words, 0)
            for number, sizes, words in texts
        ],
        skipped={},
    )


def _sequence(number, tokens):
    nothing = np.zeros(tokens)
    return TokenSequence(number, nothing, nothing, np.ones(tokens, bool))


def test_pseudo_perplexity_per_token_and_word():
    sequences = sequences_of([(0, [2, 1], 2), (4, [1], 1)])
    copies = np.array([2, 1, 0, 0]), np.array([1, 1, 1, 2])
    scores = Scores(*copies, np.array([4.0, 1.0, 2.0, 0.5]), np.ones(4, np.int64))
    found = pseudo_perplexity(scores, sequences)
    assert found.per_token == pytest.approx(math.exp(7.5 / 4))
    assert found.per_word == pytest.approx(math.exp(7.5 / 3))
    assert log_likelihoods(scores, sequences).tolist() == [-3.5, -4.0]


def test_masked_perplexity_is_of_the_mean_over_draws():
    copies = np.zeros(4, np.int64), np.array([0, 1, 0, 1])
    scores = Scores(*copies, np.array([2.0, 9.0, 4.0, 3.0]), np.array([1, 2, 2, 2]))
    found = masked_perplexity(scores, sequences_of([(0, [10], 5)]))
    assert found.draws == (2.0, 3.0)
    assert found.per_token == pytest.approx(math.exp(2.5))
    assert found.per_word == pytest.approx(math.exp(2.5 * 10 / 5))
    # t for one degree of freedom times stdev / sqrt(2)
    margin = 12.7062 * math.sqrt(0.5) / math.sqrt(2)
    low, high = found.interval_per_token
    assert math.log(low) == pytest.approx(2.5 - margin, rel=1e-4)
    assert math.log(high) == pytest.approx(2.5 + margin, rel=1e-4)
    assert math.log(found.interval_per_word[1]) == pytest.approx(2 * math.log(high))


def test_one_draw_has_no_interval_and_records_no_words():
    scores = Scores(*np.zeros((2, 1), np.int64), np.ones(1), np.ones(1, np.int64))
    found = masked_perplexity(scores, sequences_of([(0, [10], None)]))
    assert (found.per_word, found.interval_per_token, found.interval_per_word) == (None,) * 3


def test_a_draw_without_a_scored_token():
    scores = Scores(np.zeros(2, np.int64), np.arange(2), np.ones(2), np.array([1, 0]))
    with pytest.raises(UserError, match="draw 1 of masks chose unknown tokens only"):
        masked_perplexity(scores, sequences_of([(0, [1], 1)]))


def test_more_than_a_float_holds():
    scores = Scores(*np.zeros((2, 1), np.int64), np.array([2000.0]), np.ones(1, np.int64))
    assert pseudo_perplexity(scores, sequences_of([(0, [1], 1)])).per_token == math.inf


# Published tables, for a two-sided 95%.
@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_students_t(degrees, t):
    assert student_t(degrees) == pytest.approx(t, abs=5e-4)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for values in rng.normal(3, 2, (2000, 4)):
        low, high = confidence_interval(values.tolist())
        hits += low <= 3 <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


def settings_of(**changes):
    return ScoringSettings(
        None, TokenizerFiles(), RunSettings(Path("out")), RuntimeSettings(), (Path("a"),), **changes
    )


def test_definitions_name_what_was_done():
    found = definitions(settings_of(num_draws=3, masks=MaskingOptions(masked_lm_prob=0.2)))
    assert "20% of" in found["masked"]
    assert "3 draws" in found["masked"]
    assert "interval" in found
    assert "interval" not in definitions(settings_of(num_draws=1))
    assert list(definitions(settings_of(metrics=("pseudo",)))) == ["pseudo"]


PSEUDO = {"per_token": 9.5, "per_word": 20.25, "interval_per_token": None}
MASKED = {"per_token": 8.0, "per_word": 16.0, "interval_per_token": [7.5, 8.5]}
RESULTS = [
    {"checkpoint": "model.ckpt-5", "step": 5, "masked": MASKED, "pseudo": PSEUDO},
    {"checkpoint": "model.ckpt-10", "step": 10, "masked": MASKED,
     "pseudo": {**PSEUDO, "per_token": None}},
]  # fmt: skip


def test_results_and_their_table(tmp_path):
    perplexity.write_results(tmp_path, {"counts": {"tokens": 3}}, RESULTS)
    content = json.loads((tmp_path / "perplexity.json").read_text())
    assert content == {"counts": {"tokens": 3}, "results": RESULTS}
    header, first, second = [
        line.split("\t") for line in (tmp_path / "perplexity.tsv").read_text().splitlines()
    ]
    assert header == [
        "checkpoint",
        "masked perplexity per token",
        "masked, 95% interval",
        "masked perplexity per word",
        "pseudo-perplexity per token",
        "pseudo-perplexity per word",
    ]
    assert first == ["model.ckpt-5", "8", "7.5 to 8.5", "16", "9.5", "20.25"]
    assert second[4] == "inf"
    shown = perplexity.table(RESULTS)
    assert len({len(line) for line in shown}) == 1
    assert shown[1].split()[0] == "model.ckpt-5"


def test_columns_without_figures_are_left_out(tmp_path):
    pseudo = {"per_token": 2.0, "per_word": None, "interval_per_token": None}
    result = {"checkpoint": "model", "step": None, "masked": None, "pseudo": pseudo}
    perplexity.write_results(tmp_path, {}, [result])
    lines = (tmp_path / "perplexity.tsv").read_text().splitlines()
    assert lines == ["checkpoint\tpseudo-perplexity per token", "model\t2"]


def test_scores_of_texts(tmp_path):
    sequences = sequences_of([(0, [3], 2), (4, [1], None)])
    perplexity.write_texts(tmp_path / "texts.tsv", sequences, np.array([-1 / 3, -2.0]))
    rows = [line.split("\t") for line in (tmp_path / "texts.tsv").read_text().splitlines()]
    assert rows[0] == ["text", "tokens", "words", "pseudo_log_likelihood"]
    assert [row[:3] for row in rows[1:]] == [["0", "3", "2"], ["4", "1", ""]]
    assert [float(row[3]) for row in rows[1:]] == [-1 / 3, -2.0]


def test_pictures(tmp_path):
    perplexity.draw_training(tmp_path / "training.png", RESULTS)
    sequences = sequences_of([(0, [3], 2), (4, [1], 1)])
    perplexity.draw_texts(tmp_path / "texts.png", sequences, np.array([-6.0, -2.0]))
    for name in ("training.png", "texts.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([9000.0, 500.0], {500, 1000, 2000, 5000}), ([18.5, 15.5], {16, 17, 18})],
)
def test_perplexities_can_be_read_off(tmp_path, monkeypatch, values, expected):
    shown = []

    @contextlib.contextmanager
    def noting(*arguments, **options):
        with picture(*arguments, **options) as axes:
            yield axes
            axes.figure.canvas.draw()
            least, most = axes.get_ylim()
            for axis_tick in axes.yaxis.get_major_ticks():
                if least <= axis_tick.get_loc() <= most:
                    shown.append(float(axis_tick.label1.get_text()))

    monkeypatch.setattr(perplexity, "picture", noting)
    pseudo = [{**PSEUDO, "per_token": value} for value in values]
    results = [{"step": i, "masked": None, "pseudo": found} for i, found in enumerate(pseudo)]
    perplexity.draw_training(tmp_path / "training.png", results)
    assert expected <= set(shown)
    assert len(shown) < 12
