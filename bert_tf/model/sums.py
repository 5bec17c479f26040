"""Losses and metrics as sums: whoever knows the whole global batch divides by its weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# The terms of a loss, in the order in which they are shown, each with the names of its metrics.
Terms = Mapping[str, Sequence[str]]

# What a sum is divided by at least: a term without any weight has a mean of 0, not of 0 by 0.
_LEAST_WEIGHT = 1e-5


class Sums(NamedTuple):
    """Scalar sums of one term, which add up over micro batches, ranks and evaluation batches.

    float32 tensors in a graph, floats outside.

    Attributes:
      loss: of weight times loss.
      weight: of the weights.
      metrics: name -> of weight times metric.
    """

    loss: Any
    weight: Any
    metrics: Mapping[str, Any]


def num_sums(terms: Terms) -> int:
    """How many scalars the sums of all terms are."""
    return sum(2 + len(metrics) for metrics in terms.values())


def flatten(sums: Mapping[str, Sums], terms: Terms) -> list[Any]:
    """All scalars in a row: of each term loss, weight and metrics."""
    return [
        value
        for term, metrics in terms.items()
        for value in (sums[term].loss, sums[term].weight, *map(sums[term].metrics.get, metrics))
    ]


def unflatten(values: Sequence[Any], terms: Terms) -> dict[str, Sums]:
    """The sums that :func:`flatten` put in a row."""
    row = iter(values)
    return {term: _next_sums(row, metrics) for term, metrics in terms.items()}


def _next_sums(row: Iterator[Any], metrics: Sequence[str]) -> Sums:
    return Sums(next(row), next(row), {name: next(row) for name in metrics})


def means(sums: Mapping[str, Sums]) -> dict[str, dict[str, float]]:
    """Of each term ``loss`` and its metrics by name, divided by its weight."""
    found = {}
    for term, (loss, weight, metrics) in sums.items():
        divisor = max(weight, _LEAST_WEIGHT)
        found[term] = {name: value / divisor for name, value in {"loss": loss, **metrics}.items()}
    return found
