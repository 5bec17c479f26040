"""Losses and metrics as sums, to be divided by the weight of the whole global batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# The terms of a loss, in display order, each with the names of its metrics.
Terms = Mapping[str, Sequence[str]]

# Smallest divisor, so that a term of zero weight has a mean of 0, not 0/0.
LEAST_WEIGHT = 1e-5


class Sums(NamedTuple):
    """Sums of one term as scalars, additive over micro batches, ranks and evaluation batches.

    float32 tensors in a graph, floats outside.

    Attributes:
      loss: sum of weight times loss.
      weight: sum of the weights.
      metrics: name -> sum of weight times metric.
    """

    loss: Any
    weight: Any
    metrics: Mapping[str, Any]


def num_sums(terms: Terms) -> int:
    """The number of scalars in the sums of all terms."""
    return sum(2 + len(metrics) for metrics in terms.values())


def flatten(sums: Mapping[str, Sums], terms: Terms) -> list[Any]:
    """All sums as one list of scalars: loss, weight and metrics of each term."""
    return [
        value
        for term, metrics in terms.items()
        for value in (sums[term].loss, sums[term].weight, *map(sums[term].metrics.get, metrics))
    ]


def unflatten(values: Sequence[Any], terms: Terms) -> dict[str, Sums]:
    """The inverse of :func:`flatten`."""
    scalars = iter(values)
    return {term: _next_sums(scalars, metrics) for term, metrics in terms.items()}


def _next_sums(scalars: Iterator[Any], metrics: Sequence[str]) -> Sums:
    return Sums(next(scalars), next(scalars), {name: next(scalars) for name in metrics})


def means(sums: Mapping[str, Sums]) -> dict[str, dict[str, float]]:
    """Each term's ``loss`` and metrics by name, divided by its weight."""
    found = {}
    for term, (loss, weight, metrics) in sums.items():
        divisor = max(weight, LEAST_WEIGHT)
        found[term] = {name: value / divisor for name, value in {"loss": loss, **metrics}.items()}
    return found
