"""Perplexities of masked language models: definitions, arithmetic, and the files with them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf.tasks.scoring.sequences import Sequences
from bert_tf.tasks.scoring.settings import MASKED, METRICS, PSEUDO, ScoringSettings
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, write_json
from bert_tf.util.pictures import picture

RESULTS_NAME = "perplexity.json"
TABLE_NAME = "perplexity.tsv"
PICTURE_NAME = "perplexity.png"
TEXTS_NAME = "texts.tsv"
TEXTS_PICTURE_NAME = "texts.png"

Result = Mapping[str, Any]

CONFIDENCE = 0.95
WORDS = "whole words"  # the pseudo-perplexity whose pieces of a word are masked together

_PER_WORD = "Per word, the same total is divided by the number of words (text between white space)."
DEFINITIONS = {
    PSEUDO: (
        "Pseudo-perplexity (Salazar et al. 2020, section 2): each token in turn is replaced by "
        "[MASK], and log P(token | all other tokens of its sequence) is summed up over all tokens; "
        f"exp(-sum / number of tokens). {_PER_WORD}"
    ),
    WORDS: (
        "Pseudo-perplexity of whole words (Kauf and Ivanova 2023): all pieces of each word in turn "
        "are replaced by [MASK], and log P(piece | all other words of its sequence) is summed up "
        f"over all tokens; exp(-sum / number of tokens). {_PER_WORD}"
    ),
    MASKED: (
        "Masked perplexity: {share:.0%} of a sequence's tokens, without [CLS] and [SEP], are "
        "chosen, at least one; as in pre-training (Devlin et al. 2019), 80% of these become "
        "[MASK], 10% a random token, 10% stay. -log P(token) is averaged over the chosen tokens; "
        "exp of the mean over {draws}. Per word, the mean is multiplied by tokens per word."
    ),
    "interval": (
        "The interval is for the mean over draws, at 95% by Student's t: it covers the choice of "
        "masks, not of texts."
    ),
}

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


def definitions(settings: ScoringSettings) -> dict[str, str]:
    """The definitions of the metrics, for users."""
    draws = "1 draw" if settings.num_draws == 1 else f"{settings.num_draws} draws"
    defined = {name: DEFINITIONS[name] for name in settings.metrics}
    if settings.whole_words:
        defined[PSEUDO] = DEFINITIONS[WORDS]
    if MASKED in defined:
        share = settings.masks.masked_lm_prob
        defined[MASKED] = DEFINITIONS[MASKED].format(share=share, draws=draws)
        if settings.num_draws > 1:
            defined["interval"] = DEFINITIONS["interval"]
    return defined


class Scores(NamedTuple):
    """The scores of a metric's copies.

    Attributes:
      sequence, variant: int64 [C], as in ``work.Work``.
      losses: float64 [C], the sum of each copy's losses (nats).
      counts: int64 [C], the number of tokens in that sum.
    """

    sequence: np.ndarray
    variant: np.ndarray
    losses: np.ndarray
    counts: np.ndarray


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """A perplexity; per-word values are None if words are unknown.

    Attributes:
      per_token, per_word: the perplexities.
      nats_per_token: the mean loss, which is the logarithm of the perplexity.
      tokens: number of scored tokens, counting repetitions in several draws.
      interval_per_token, interval_per_word: confidence intervals; None for a single draw.
      draws: the mean loss of each draw; empty for the pseudo-perplexity.
    """

    per_token: float
    per_word: float | None
    nats_per_token: float
    tokens: int
    interval_per_token: tuple[float, float] | None = None
    interval_per_word: tuple[float, float] | None = None
    draws: tuple[float, ...] = ()


def pseudo_perplexity(scores: Scores, sequences: Sequences) -> Perplexity:
    """The pseudo-perplexity, from the losses of all tokens."""
    total, words = math.fsum(scores.losses), sequences.words
    tokens = int(scores.counts.sum())
    nats = total / tokens
    return Perplexity(_exp(nats), words and _exp(total / words), nats, tokens)


def masked_perplexity(scores: Scores, sequences: Sequences) -> Perplexity:
    """The masked perplexity, from the losses of all draws.

    Raises UserError if a draw has no token to score.
    """
    draws = []
    for draw in range(int(scores.variant.max()) + 1):
        of_draw = scores.variant == draw
        tokens = int(scores.counts[of_draw].sum())
        if not tokens:
            raise UserError(
                f"draw {draw} of masks chose unknown tokens only, which are not scored; give more "
                "text, or --score_unknown."
            )
        draws.append(math.fsum(scores.losses[of_draw]) / tokens)
    nats = statistics.fmean(draws)
    tokens_per_word = sequences.tokens / sequences.words if sequences.words else None
    ends = confidence_interval(draws)
    return Perplexity(
        per_token=_exp(nats),
        per_word=tokens_per_word and _exp(nats * tokens_per_word),
        nats_per_token=nats,
        tokens=int(scores.counts.sum()),
        interval_per_token=ends and _interval(ends),
        interval_per_word=_interval(ends, tokens_per_word) if ends and tokens_per_word else None,
        draws=tuple(draws),
    )


def log_likelihoods(scores: Scores, sequences: Sequences) -> np.ndarray:
    """The pseudo-log-likelihood of each scored text, float64 [texts]."""
    text_of = np.array([sequence.text for sequence in sequences.sequences])
    numbers = np.array([text.number for text in sequences.texts])
    places = np.searchsorted(numbers, text_of[scores.sequence])
    return -np.bincount(places, weights=scores.losses, minlength=len(numbers))


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The confidence interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    margin = student_t(len(values) - 1) * error
    mean = statistics.fmean(values)
    return mean - margin, mean + margin


def student_t(degrees: int) -> float:
    """The t with P(-t < T < t) = ``CONFIDENCE`` for Student's distribution, by bisection."""
    low, high = 0.0, 16.0  # for one degree, with the largest t, it is 12.7
    for _ in range(64):
        middle = (low + high) / 2
        if _central_probability(middle, degrees) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _central_probability(t: float, degrees: int) -> float:
    """P(-t < T < t) (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for index in range(2 + odd, degrees, 2):
        term *= cosine * cosine * (index - 1) / index
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _interval(ends: tuple[float, float], factor: float = 1.0) -> tuple[float, float]:
    return _exp(ends[0] * factor), _exp(ends[1] * factor)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


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
            drawn = [r for r in results if r["step"] is not None and r[metric]]
            drawn = [r for r in drawn if r[metric]["per_token"] is not None]
            steps = [result["step"] for result in drawn]
            values = [result[metric]["per_token"] for result in drawn]
            if not drawn:
                continue
            axes.plot(steps, values, marker="o", label=_TITLES[metric])
            intervals = [result[metric]["interval_per_token"] for result in drawn]
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
