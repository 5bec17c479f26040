"""Averages of checkpoints: each weight is the mean of what it was at several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import ArrayFile, Entry
from bert_tf.checkpoint.formats import Source, StoredArray
from bert_tf.util.errors import UserError


def average_sources(sources: Sequence[Source]) -> Source:
    """The mean of several checkpoints of a network (Vaswani et al. 2017, section 6.1).

    The sums are float64, so the order of the checkpoints does not matter in practice. Files and
    notes are the last one's; the state of a run, such as the optimizer's slots, is left out. Raises
    UserError if the checkpoints have different variables.
    """
    weights = [
        {name: shape for name, shape in source.shapes.items() if not names.is_run_state(name)}
        for source in sources
    ]
    last = sources[-1]
    for source, found in zip(sources, weights):
        different = found.items() ^ weights[-1].items()
        if different:
            name, _ = min(different)
            raise UserError(
                f"{source.path} and {last.path} are not checkpoints of the same network: {name} "
                "differs; give checkpoints of one run."
            )
    stored = {name: StoredArray(_Mean(sources, name), name) for name in weights[-1]}
    return dataclasses.replace(last, stored=stored)


class _Mean(ArrayFile):
    """The mean of a variable over checkpoints."""

    def __init__(self, sources: Sequence[Source], name: str) -> None:
        self.path = sources[-1].path
        self.entries = {name: Entry(sources[-1].shapes[name], "float32")}
        self._sources = sources

    def read(self, name: str) -> np.ndarray:
        """The mean as float32; UserError if a checkpoint cannot be read."""
        total = np.zeros(self.entries[name].shape, np.float64)
        for source in self._sources:
            total += source.read(name)
        return np.asarray(total / len(self._sources), np.float32)
