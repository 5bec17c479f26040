"""Training records from several sources, each with a fixed fraction of the sequences.

``--input_file=a:0.8,b:0.2`` takes four of five sequences from ``a``. Position p of the endless
sequence of training (order.py) belongs to the source that a periodic pattern names; the source's
own positions are then epochs of all of its records in random order. Both are pure functions of p
and the seed, so a run with any number of ranks has the same batches and resumes at any of them.

The pattern is a chairman assignment (Tijdeman: The chairman assignment problem, Discrete
Mathematics 32, 1980): among the first p sequences, the number from a source differs from p times
its fraction by less than one, for every p. A global batch that contains whole periods has exactly
the fractions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.durable.manifest import require_listed_files
from bert_tf.input.order import GlobalBatchSlice, sequence_indices
from bert_tf.input.stateless_random import derive_keys
from bert_tf.records.info import RecordInfo, inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files, parts_of, paths_named

_SOURCE_STREAM = 0x736F75726365  # separates these draws from others with the same seed
_WEIGHTED = re.compile(r"(?P<pattern>.+):(?P<weight>\d+(\.\d*)?|\.\d+)")
_MOST_DIGITS = 4  # after a weight's decimal point; the pattern is at most 10,000 positions long


@dataclasses.dataclass(frozen=True)
class Source:
    """One of the sources of a mixture.

    Attributes:
      pattern: a file, a glob or a directory.
      weight: the fraction of all sequences that come from it.
    """

    pattern: str
    weight: Fraction

    def files(self, flag: str) -> list[Path]:
        """The record files, sorted; raises UserError if there are none."""
        return expand_record_files(self.pattern, flag=flag)


def weighted_sources(patterns: str, *, flag: str) -> list[Source]:
    """The sources of a list such as ``a:0.8,b:0.2``; empty for a list without weights.

    A part that names existing files, ``:0.8`` included, has no weight. Raises UserError if only
    some parts have weights, or weights do not add up to 1.
    """
    parts = parts_of(patterns)
    found = [None if paths_named(part) else _WEIGHTED.fullmatch(part) for part in parts]
    matches = [match for match in found if match is not None]
    if not matches:
        return []
    if len(matches) < len(parts):
        raise UserError(
            f"--{flag}: {parts[found.index(None)]!r} has no weight, but {matches[0][0]!r} has one; "
            "give every source its fraction of the sequences, as in a:0.8,b:0.2, or none."
        )
    sources = [Source(match["pattern"], Fraction(match["weight"])) for match in matches]
    shown = " + ".join(match["weight"] for match in matches)
    if any(10**_MOST_DIGITS * source.weight % 1 for source in sources):
        raise UserError(
            f"--{flag}: the weights {shown} have more than {_MOST_DIGITS} digits after the point; "
            "round them."
        )
    if sum(source.weight for source in sources) != 1 or not all(s.weight for s in sources):
        total = float(sum(source.weight for source in sources))
        raise UserError(
            f"--{flag}: the weights {shown} add up to {total:g}; give every source its fraction of "
            "the sequences, above 0, so that they add up to 1."
        )
    return sources


def files_of_sources(patterns: str, *, flag: str) -> list[Path]:
    """The record files of a list with or without weights, those of each source together.

    Raises UserError if a source has no file, or two sources have the same one.
    """
    sources = weighted_sources(patterns, flag=flag)
    if not sources:
        return expand_record_files(patterns, flag=flag)
    owners: dict[Path, Source] = {}
    for source in sources:
        for path in source.files(flag):
            other = owners.setdefault(path.resolve(), source)
            if other is not source:
                raise UserError(
                    f"--{flag}: {path} is in two sources, {other.pattern} and {source.pattern}; "
                    "name it in one of them."
                )
    return [path for source in sources for path in source.files(flag)]


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Which source, and which of its records, each position of the endless sequence has.

    Attributes:
      sources: the sources; their weights add up to 1.
      sizes: the number of records of each. Records are numbered through, the first source's first.
      seed: determines the order of each source's records; the first source's is that of a run on
        it alone.
    """

    sources: tuple[Source, ...]
    sizes: tuple[int, ...]
    seed: int

    @property
    def epoch(self) -> int:
        """Number of sequences until each record of the first source was used once, rounded up."""
        return math.ceil(self.sizes[0] / self.sources[0].weight)

    def counts(self, number: int) -> list[int]:
        """How many of the first ``number`` sequences each source has."""
        periods, rest = divmod(number, len(self._pattern))
        before = np.bincount(self._pattern[:rest], minlength=len(self.sizes))
        return (periods * self._counts_of_a_period + before).tolist()

    def sequence(self, start: int, count: int) -> np.ndarray:
        """Record numbers of elements [start, start + count) of the sequence: int64 [count]."""
        places = start % len(self._pattern) + np.arange(count)
        source_at = self._pattern[places % len(self._pattern)]
        found = np.empty(count, np.int64)
        firsts = np.cumsum([0, *self.sizes])
        for number, (size, done) in enumerate(zip(self.sizes, self.counts(start))):
            own = np.flatnonzero(source_at == number)
            order = sequence_indices(done, len(own), num_records=size, seed=self._seed_of(number))
            found[own] = firsts[number] + order
        return found

    def indices(self, position: int, batch: GlobalBatchSlice) -> np.ndarray:
        """Record numbers of a rank's part of the global batch at ``position``: int64 [size]."""
        part = batch.at(position)
        return self.sequence(batch.first_sequence(position) + part.start, part.size)

    def rows(self, number: int) -> list[tuple[Source, int, int]]:
        """Each source, its number of records, and its part of the first ``number`` sequences."""
        return list(zip(self.sources, self.sizes, self.counts(number)))

    def ledger_entry(self) -> str:
        """What ranks compare, and a resumed run reports if it changes; paths may differ."""
        return ", ".join(
            f"{float(source.weight):g} from {size} records"
            for source, size in zip(self.sources, self.sizes)
        )

    def ledger_sections(self, consumed: int) -> dict[str, dict[str, Any]]:
        """A section of the ledger for each source, with its part of the consumed sequences."""
        return {
            f"source_{number}": {
                "files": source.pattern,
                "fraction": float(source.weight),
                "records": size,
                "sequences": count,
                "epochs": round(count / size, 3),
            }
            for number, (source, size, count) in enumerate(self.rows(consumed), start=1)
        }

    def _seed_of(self, number: int) -> int:
        return int(derive_keys(self.seed, _SOURCE_STREAM, number)[0]) if number else self.seed

    @functools.cached_property
    def _pattern(self) -> np.ndarray:
        return assign([source.weight for source in self.sources])

    @functools.cached_property
    def _counts_of_a_period(self) -> np.ndarray:
        return np.bincount(self._pattern, minlength=len(self.sizes))


def assign(weights: Sequence[Fraction]) -> np.ndarray:
    """A period of Tijdeman's assignment of positions to sources with weights that add up to 1.

    Returns: int64 [D], the source at each position, D being the lowest common denominator.
    """
    period = math.lcm(*(weight.denominator for weight in weights))
    if len(weights) == 1:
        return np.zeros(period, np.int64)
    slack = Fraction(1, 2 * len(weights) - 2)
    counts, found = [0] * len(weights), []
    for number in range(1, period + 1):
        owed = [weight * number - count for weight, count in zip(weights, counts)]
        # The source that would be the first to fall behind by 1 - slack.
        left = {k: (1 - slack - owed[k]) / weights[k] for k in range(len(owed)) if owed[k] >= slack}
        chosen = min(left, key=left.__getitem__)
        counts[chosen] += 1
        found.append(chosen)
    return np.array(found)


def open_sources(
    patterns: str, *, flag: str = "input_file", seed: int, keep_offsets: bool
) -> tuple[RecordSet, RecordInfo, Mixture | None]:
    """Opens records that may have weights; without any, the mixture is None.

    Raises UserError if records are damaged, or those of two sources do not go together.
    """
    sources = weighted_sources(patterns, flag=flag)
    for pattern in [source.pattern for source in sources] or [patterns]:
        require_listed_files(pattern)
    records = RecordSet(files_of_sources(patterns, flag=flag), keep_offsets=keep_offsets)
    if not sources:
        return records, inspect_records(records), None
    sets = [RecordSet(source.files(flag), keep_offsets=keep_offsets) for source in sources]
    infos = [inspect_records(of_source) for of_source in sets]
    for source, info in zip(sources[1:], infos[1:]):
        _require_same_kind(sources[0], infos[0], source, info)
    sizes = tuple(info.num_records for info in infos)
    return records, inspect_records(records), Mixture(tuple(sources), sizes, seed)


def _require_same_kind(
    first: Source, expected: RecordInfo, other: Source, info: RecordInfo
) -> None:
    """Raises UserError, with the names of both sources, if their records differ in kind."""

    def kinds(info: RecordInfo) -> dict[str, Any]:
        return {
            "sequence length": info.seq_length,
            "masking": "stored" if info.masked else "at training time",
            "predictions per sequence": info.max_predictions,
            "sentence pairs": ", ".join(info.pair_tasks),
        }

    for what, value in kinds(info).items():
        if value != kinds(expected)[what]:
            raise UserError(
                f"the records of {first.pattern} and {other.pattern} differ in their {what} "
                f"({kinds(expected)[what]} and {value}); make both with the same settings."
            )
    known = [found for found in (expected.vocabulary, info.vocabulary) if found is not None]
    if len({found.entry.digest for found in known}) > 1:
        raise UserError(
            f"the records of {first.pattern} and {other.pattern} were made with different "
            "vocabularies; make both with the vocabulary of the model."
        )
