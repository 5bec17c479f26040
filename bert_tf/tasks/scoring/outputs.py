"""The output files of an evaluation: results, a table, scores of texts, and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.tasks.scoring.perplexity import CONFIDENCE
from bert_tf.tasks.scoring.sequences import Sequences
from bert_tf.tasks.scoring.settings import MASKED, METRICS, PSEUDO
from bert_tf.util.files import atomic_open, write_json
from bert_tf.util.pictures import picture

RESULTS_NAME = "perplexity.json"
TABLE_NAME = "perplexity.tsv"
PICTURE_NAME = "perplexity.png"
TEXTS_NAME = "texts.tsv"
TEXTS_PICTURE_NAME = "texts.png"

_INTERVAL = f"{CONFIDENCE:.0%} interval"
# Column of a table -> metric and its statistic. An interval has two values.
_COLUMNS = {
    "masked perplexity per token": (MASKED, "per_token"),
    f"masked, {_INTERVAL}": (MASKED, "interval_per_token"),
    "masked perplexity per word": (MASKED, "per_word"),
    "pseudo-perplexity per token": (PSEUDO, "per_token"),
    "pseudo-perplexity per word": (PSEUDO, "per_word"),
}
_TITLES = {MASKED: "masked perplexity", PSEUDO: "pseudo-perplexity"}
_BINS = 30
_INCHES = (7, 4)

Result = Mapping[str, Any]


def write_results(output_dir: Path, about: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Writes ``perplexity.json`` and ``perplexity.tsv``; ``about`` is the same for all results."""
    write_json(output_dir / RESULTS_NAME, {**about, "results": list(results)})
    columns = _columns_of(results)
    with atomic_open(output_dir / TABLE_NAME) as file:
        for row in (("checkpoint", *columns), *_rows(results, columns)):
            file.write("\t".join(row) + "\n")


def write_texts(path: Path, sequences: Sequences, scores: np.ndarray | None) -> None:
    """Writes a row per scored text, with its pseudo-log-likelihood if ``scores`` [texts]."""
    with atomic_open(path) as file:
        file.write("text\ttokens\twords")
        file.write("\n" if scores is None else "\tpseudo_log_likelihood\n")
        for place, text in enumerate(sequences.texts):
            words = "" if text.words is None else text.words
            score = "" if scores is None else f"\t{float(scores[place])!r}"
            file.write(f"{text.number}\t{text.tokens}\t{words}{score}\n")


def table(results: Sequence[Result]) -> list[str]:
    """The lines of a table of all checkpoints, aligned for a terminal."""
    columns = _columns_of(results)
    rows = [("checkpoint", *columns), *_rows(results, columns, digits=4)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def _columns_of(results: Sequence[Result]) -> list[str]:
    """The columns that have a value."""
    return [
        name
        for name, (metric, statistic) in _COLUMNS.items()
        if any(result[metric] and result[metric][statistic] is not None for result in results)
    ]


def _rows(
    results: Iterable[Result], columns: Sequence[str], *, digits: int = 8
) -> Iterable[tuple[str, ...]]:
    for result in results:
        cells = [result[_COLUMNS[name][0]][_COLUMNS[name][1]] for name in columns]
        yield (result["checkpoint"], *(_show(cell, digits) for cell in cells))


def _show(value: float | Sequence[float] | None, digits: int) -> str:
    if value is None:  # infinite, in a result read from a file
        return "inf"
    if isinstance(value, (list, tuple)):
        return " to ".join(_show(end, digits) for end in value)
    return f"{value:.{digits}g}"


def draw_training(path: Path, results: Sequence[Result]) -> None:
    """Plots the checkpoints' perplexities per token over their steps."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    x, y = "step (optimizer updates)", "perplexity per token"
    with picture(path, x=x, y=y, inches=_INCHES) as axes:
        for metric in METRICS:
            found = [r for r in results if r["step"] is not None and r[metric]]
            found = [r for r in found if r[metric]["per_token"] is not None]
            steps = [result["step"] for result in found]
            values = [result[metric]["per_token"] for result in found]
            if not found:
                continue
            axes.plot(steps, values, marker="o", label=_TITLES[metric])
            intervals = [result[metric]["interval_per_token"] for result in found]
            if all(ends and None not in ends for ends in intervals):
                axes.fill_between(steps, *zip(*intervals), alpha=0.2)
        axes.set_yscale("log")
        # Also label 2,000 and 5,000 between powers of ten, and even steps in a narrow range.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend()


def draw_texts(path: Path, sequences: Sequences, scores: np.ndarray) -> None:
    """Draws a histogram of the texts' pseudo-perplexities per token; ``scores`` is [texts]."""
    tokens = np.array([text.tokens for text in sequences.texts])
    nats = -scores / np.maximum(tokens, 1)
    x = "pseudo-perplexity of a text, per token"
    with picture(path, x=x, y="texts", inches=_INCHES) as axes:
        bounds = np.linspace(nats.min(), max(nats.max(), nats.min() + 0.1), _BINS + 1)
        axes.hist(np.exp(bounds[:-1]), np.exp(bounds), weights=np.histogram(nats, bounds)[0])
        axes.axvline(math.exp(-scores.sum() / tokens.sum()), color="grey", linestyle="--")
        axes.set_xscale("log")
