"""The demo's figures are compared with results calculated by hand."""

import math

import numpy as np
import pytest

from tests.helpers.small_vocabulary import load_tokenizer
from tools.demo import report as demo_report

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
PAD, UNK, CLS, SEP, MASK, A, B, C = range(len(ENTRIES))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return load_tokenizer(vocab_file=path)


def records(*sequences):
    ids = np.array(sequences)
    return {"input_ids": ids, "input_mask": (ids != PAD).astype(np.int64)}


TRAIN = records([CLS, A, A, SEP, A, SEP, PAD], [CLS, B, UNK, SEP, PAD, PAD, PAD])


def test_token_counts():
    counts = demo_report.token_counts(TRAIN, len(ENTRIES))
    assert counts.dtype == np.float64
    assert dict(zip(ENTRIES, counts)) == {
        "[PAD]": 0,  # padding is no token
        "[UNK]": 1,
        "[CLS]": 2,
        "[SEP]": 3,
        "[MASK]": 0,
        "a": 3,
        "b": 1,
        "c": 0,
    }


def test_unigram_perplexity(tokenizer):
    counts = demo_report.token_counts(TRAIN, len(ENTRIES))
    # One is added to each count of a maskable token: [UNK] 2, a 4, b 2, c 1, together 9.
    held_out = records([CLS, A, C, SEP, UNK, SEP, PAD])
    expected = (4 / 9 * 1 / 9 * 2 / 9) ** (-1 / 3)
    found = demo_report.unigram_perplexity(counts, held_out, tokenizer)
    assert found == pytest.approx(expected, rel=1e-12)
    assert counts[A] == 3, "the counts given are left alone"


def test_perplexity_of_identical_words(tokenizer):
    # Without training, each of the four maskable tokens has a probability of a quarter.
    found = demo_report.unigram_perplexity(
        np.zeros(len(ENTRIES)), records([CLS, A, B, SEP]), tokenizer
    )
    assert found == pytest.approx(4.0)


def test_the_curve_shows_what_was_logged(tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    steps = [{"step": 1, "masked_lm_loss": 5.0}, {"step": 2, "masked_lm_loss": 4.0}]
    evaluations = [{"step": 0, "masked_lm_loss": 6.0}, {"step": 2, "masked_lm_loss": 3.5}]
    path = tmp_path / "loss.png"
    demo_report.plot_curve(steps, evaluations, 20.0, path=path)
    monkeypatch.undo()
    [figure] = drawn
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    training, held_out, unigram = lines.values()
    assert [list(training.get_xdata()), list(training.get_ydata())] == [[1, 2], [5.0, 4.0]]
    assert [list(held_out.get_xdata()), list(held_out.get_ydata())] == [[0, 2], [6.0, 3.5]]
    assert set(unigram.get_ydata()) == {math.log(20.0)}
    assert "unigram model" in lines
    pyplot.close(figure)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_lines_of_a_log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 1.0}\n')
    assert [line["loss"] for line in demo_report._read_lines(path)] == [2.5, 1.0]
