"""The files of an evaluation."""

import contextlib
import json

import numpy as np
import pytest

from bert_tf.tasks.scoring import outputs
from bert_tf.util.pictures import picture
from tests.unit.tasks.scoring.counted_sequences import sequences_of

PSEUDO = {"per_token": 9.5, "per_word": 20.25, "interval_per_token": None}
MASKED = {"per_token": 8.0, "per_word": 16.0, "interval_per_token": [7.5, 8.5]}
RESULTS = [
    {"checkpoint": "model.ckpt-5", "step": 5, "masked": MASKED, "pseudo": PSEUDO},
    {"checkpoint": "model.ckpt-10", "step": 10, "masked": MASKED,
     "pseudo": {**PSEUDO, "per_token": None}},
]  # fmt: skip


def test_results_and_their_table(tmp_path):
    outputs.write_results(tmp_path, {"counts": {"tokens": 3}}, RESULTS)
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
    shown = outputs.table(RESULTS)
    assert len({len(line) for line in shown}) == 1
    assert shown[1].split()[0] == "model.ckpt-5"


def test_columns_without_figures_are_left_out(tmp_path):
    pseudo = {"per_token": 2.0, "per_word": None, "interval_per_token": None}
    result = {"checkpoint": "model", "step": None, "masked": None, "pseudo": pseudo}
    outputs.write_results(tmp_path, {}, [result])
    lines = (tmp_path / "perplexity.tsv").read_text().splitlines()
    assert lines == ["checkpoint\tpseudo-perplexity per token", "model\t2"]


def test_scores_of_texts(tmp_path):
    sequences = sequences_of([(0, [3], 2), (4, [1], None)])
    outputs.write_texts(tmp_path / "texts.tsv", sequences, np.array([-1 / 3, -2.0]))
    rows = [line.split("\t") for line in (tmp_path / "texts.tsv").read_text().splitlines()]
    assert rows[0] == ["text", "tokens", "words", "pseudo_log_likelihood"]
    assert [row[:3] for row in rows[1:]] == [["0", "3", "2"], ["4", "1", ""]]
    assert [float(row[3]) for row in rows[1:]] == [-1 / 3, -2.0]


def test_pictures(tmp_path):
    outputs.draw_training(tmp_path / "training.png", RESULTS)
    sequences = sequences_of([(0, [3], 2), (4, [1], 1)])
    outputs.draw_texts(tmp_path / "texts.png", sequences, np.array([-6.0, -2.0]))
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

    monkeypatch.setattr(outputs, "picture", noting)
    pseudo = [{**PSEUDO, "per_token": value} for value in values]
    results = [{"step": i, "masked": None, "pseudo": found} for i, found in enumerate(pseudo)]
    outputs.draw_training(tmp_path / "training.png", results)
    assert expected <= set(shown)
    assert len(shown) < 12
