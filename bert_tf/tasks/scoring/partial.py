"""Stores scores on disk while they are computed, so that a run that was killed can resume.

In ``scores/`` of the output directory, ``plan.json`` identifies the evaluation. Each checkpoint has
a directory there, to which a file is added for every round of finished batches; ``result.json`` is
written once all are done. Files get their names only when complete, and carry a digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.tasks.scoring.work import Batch, CopyScores
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

DIRECTORY = "scores"
RESULT_NAME = "result.json"
_SCORES = "scores-"


class PartialScores:
    """The scores of one checkpoint."""

    def __init__(self, output_dir: Path, name: str, *, weights_sha256: str) -> None:
        """Opens the scores that exist, and drops them if they belong to other weights.

        Args:
          output_dir: the evaluation's; its plan has been written.
          name: the checkpoint's name.
          weights_sha256: a digest of its weights.
        """
        self._directory = output_dir / DIRECTORY / name
        known = self._directory / "weights.json"
        weights = {"weights_sha256": weights_sha256}
        if self._directory.exists() and _read(known) != weights:
            shutil.rmtree(self._directory)
        self._directory.mkdir(exist_ok=True)
        remove_partial_files(self._directory)
        if not known.is_file():
            write_sealed_json(known, weights)
        self._found: dict[int, CopyScores] = {}

    def result(self) -> dict[str, Any] | None:
        """The checkpoint's finished result; None if it does not exist or is damaged.

        Drops scores that a killed run left next to it.
        """
        result = _read(self._directory / RESULT_NAME)
        if result is not None:
            self._drop_scores()
        return result

    def load(self, batches: Sequence[Batch]) -> set[int]:
        """Reads the stored scores; returns the numbers of the batches that have them.

        Scores in a damaged file are ignored, and therefore computed again.
        """
        for path in sorted(self._directory.glob(f"{_SCORES}*.json")):
            content = _read(path)
            if content is None:
                continue
            numbers = content["numbers"]
            ends = np.cumsum([batches[n].stop - batches[n].start for n in numbers])[:-1]
            losses = np.split(np.array(content["losses"], np.float64), ends)
            counts = np.split(np.array(content["counts"], np.int64), ends)
            self._found.update(zip(numbers, map(CopyScores, losses, counts)))
        return set(self._found)

    def add(self, scores: Mapping[int, CopyScores]) -> None:
        """Adds the scores of batches, by number, and writes them to disk."""
        if not scores:
            return
        self._found.update(scores)
        losses, counts = (np.concatenate(arrays).tolist() for arrays in zip(*scores.values()))
        content = {"numbers": list(scores), "losses": losses, "counts": counts}
        write_sealed_json(self._directory / f"{_SCORES}{min(scores):08d}.json", content)

    def of_metric(self, batches: Sequence[Batch], metric: str) -> CopyScores:
        """The scores of all copies for a metric, in order; all must exist."""
        found = [self._found[n] for n, batch in enumerate(batches) if batch.metric == metric]
        return CopyScores(*(np.concatenate(arrays) for arrays in zip(*found)))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result, and drops the scores that it was computed from."""
        write_sealed_json(self._directory / RESULT_NAME, result)
        self._drop_scores()

    def _drop_scores(self) -> None:
        for path in self._directory.glob(f"{_SCORES}*.json"):
            path.unlink()


def finished_results(output_dir: Path) -> list[dict[str, Any]]:
    """The results of all finished checkpoints, by step and name."""
    paths = (output_dir / DIRECTORY).glob(f"*/{RESULT_NAME}")
    found = [result for result in map(_read, paths) if result is not None]
    return sorted(found, key=lambda result: (result["step"] or 0, result["checkpoint"]))


def kept_scores(output_dir: Path) -> Iterator[Path]:
    """The files with scores or results of any checkpoint."""
    directory = output_dir / DIRECTORY
    for name in (RESULT_NAME, f"{_SCORES}*.json"):
        yield from directory.glob(f"*/{name}")


def _read(path: Path) -> dict[str, Any] | None:
    """A file in a checkpoint's directory; None if it is missing or, with a notice, damaged."""
    if not path.is_file():
        return None
    advice = "it is ignored, and written again when its checkpoint is evaluated"
    try:
        return read_sealed_json(path, what="evaluation", advice=advice)
    except UserError as error:
        say(str(error))
        return None
