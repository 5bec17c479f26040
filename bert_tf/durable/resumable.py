"""Computations whose parts are kept on disk, so that a later start resumes a killed one.

A directory has ``plan.json``, the identity of the computation: everything that its results depend
on. Results of different settings, texts or weights are never mixed: a start with another identity
is refused with a sentence that names the differences. Each finished part is a file, which gets its
name once its bytes are on the disk.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.util.digest import digest_of, digest_of_json
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, remove_partial_files

IDENTITY_NAME = "plan.json"
PART_NAMES = "part-*.npz"

_LONGEST_SHOWN = 40  # characters of two values; longer ones, such as hashes, tell users nothing
_DIGEST_BYTES = 32

Identity = Mapping[str, Any]
Result = TypeVar("Result")
Contra = TypeVar("Contra", contravariant=True)


class Workers(Protocol):
    """The ranks of a job, as far as dividing work among them needs to know them."""

    rank: int
    world_size: int

    @property
    def is_chief(self) -> bool:
        """Whether this rank prints, and writes what all ranks gather."""

    def gather(self, value: Any) -> list[Any]:
        """Gathers one value from each rank, in order of rank, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""


class Parts(Protocol[Contra]):
    """Where the results of all parts are kept."""

    def missing(self) -> list[int]:
        """The parts that have no result yet, in ascending order."""

    def write(self, part: int, result: Contra) -> None:
        """Keeps the result of a part."""


class ArrayParts:
    """Parts whose results are arrays by name; a file begins with a digest of its content.

    The digest also covers the identity, so the parts of another computation count as missing.
    """

    def __init__(self, directory: Path, count: int, identity: Identity) -> None:
        """``count`` is the number of parts."""
        self._directory = directory
        self._count = count
        self._identity = digest_of_json(identity).encode()

    def __len__(self) -> int:
        return self._count

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self._directory / PART_NAMES.replace("*", f"{part:06d}")

    def missing(self) -> list[int]:
        """The parts without an intact file."""
        return [part for part in range(self._count) if self._content(part) is None]

    def write(self, part: int, result: Mapping[str, np.ndarray]) -> None:
        """Writes the file of a part; UserError if the disk is full."""
        buffer = io.BytesIO()
        # Any: NumPy's types take each keyword for a possible allow_pickle.
        arrays: Mapping[str, Any] = result
        np.savez(buffer, **arrays)
        content = buffer.getvalue()
        self._directory.mkdir(parents=True, exist_ok=True)
        with atomic_open(self.path(part), "wb", durable=True) as file:
            file.write(self._digest(content))
            file.write(content)

    def read(self, part: int) -> dict[str, np.ndarray]:
        """The result of a part; UserError if it is missing or damaged."""
        content = self._content(part)
        if content is None:
            raise UserError(
                f"{self.path(part)} is missing or damaged; start again to have it computed again, "
                "in a directory that all ranks see."
            )
        with np.load(io.BytesIO(content)) as arrays:
            return dict(arrays)

    def read_all(self) -> Iterator[dict[str, np.ndarray]]:
        """The results of all parts, in order, one in memory at a time."""
        yield from map(self.read, range(self._count))

    def _content(self, part: int) -> bytes | None:
        try:
            found = self.path(part).read_bytes()
        except OSError:
            return None
        digest, content = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        return content if digest == self._digest(content) else None

    def _digest(self, content: bytes) -> bytes:
        return bytes.fromhex(digest_of(self._identity, content))


def resumable_map(
    missing: Sequence[int],
    compute: Callable[[Sequence[int]], Iterable[Result]],
    parts: Parts[Result],
    ranks: Workers,
    *,
    through_chief: bool = False,
) -> None:
    """Computes the results of missing parts on all ranks and keeps each one. Collective.

    On return, all parts are written.

    Args:
      missing: the parts without a result, the same on all ranks.
      compute: yields the results of a rank's parts, in their order.
      parts: keeps them.
      ranks: the ranks, which take turns to take a part.
      through_chief: whether rank 0 writes all results, so that others need not see its disk;
        otherwise each rank writes its own.
    """
    own = missing[ranks.rank :: ranks.world_size]
    # The computation comes first in zip, which so asks for one result more and lets it finish.
    results = zip(compute(own), own) if missing else iter(())
    for _ in range(0, len(missing), ranks.world_size):
        computed = next(results, None)
        for item in ranks.gather(computed) if through_chief else [computed]:
            if item is not None and (ranks.is_chief or not through_chief):
                result, part = item
                parts.write(part, result)
    next(results, None)
    ranks.gather(None)  # a barrier


def earlier_identity(directory: Path, *, what: str) -> Identity | None:
    """The identity of the computation that filled a directory; None if there is none.

    ``what`` names the computation in messages, such as "evaluation".
    """
    path = directory / IDENTITY_NAME
    if not path.is_file():
        return None
    advice = f"delete {path.parent} to start the {what} again"
    return read_sealed_json(path, what=f"{what} plan", advice=advice)


def settle_identity(
    directory: Path, identity: Identity, *, what: str, results: str, found: Iterable[Path]
) -> None:
    """Writes the identity of a new computation, also over one that has no results yet.

    Raises UserError if the directory has results of a different one: the files ``found``, which
    ``results`` names.
    """
    earlier = earlier_identity(directory, what=what)
    changed = "" if earlier is None else differences(earlier, identity)
    if changed and any(True for _ in found):
        raise UserError(
            f"--output_dir: {directory} has {results} of another {what} ({changed}); repeat that "
            "one, choose another directory, or delete this one to start again."
        )
    if changed or earlier is None:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial_files(directory)
        write_sealed_json(directory / IDENTITY_NAME, identity)


def differences(earlier: Identity, identity: Identity) -> str:
    """The entries in which two identities differ, with short values; empty if there are none."""
    values = {name: (earlier.get(name), identity.get(name)) for name in {**earlier, **identity}}
    differing = ((name, *both) for name, both in values.items() if both[0] != both[1])
    return ", ".join(itertools.starmap(_difference, differing))


def _difference(name: str, earlier: Any, now: Any) -> str:
    values = f" {earlier}, not {now}"
    return name if len(values) > _LONGEST_SHOWN else name + values
