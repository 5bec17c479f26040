"""Scores kept on disk while they are computed, so that a run that was killed continues.

In ``scores/`` of the output directory ``plan.json`` says what is computed. Each checkpoint has a
directory there, to which files of finished batches are added; ``result.json`` is written when all
are, and ends it. Every file appears under its name only when it is complete, and carries a digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.tasks.scoring.work import Batch, CopyScores
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json

DIRECTORY = "scores"
PLAN_NAME = "plan.json"
RESULT_NAME = "result.json"
_SCORES = "scores-"

_LONGEST_SHOWN = 40  # of two values; hashes tell nothing

Plan = Mapping[str, Any]


def read_plan(output_dir: Path) -> Plan | None:
    """What an earlier evaluation in the directory computes, None if there is none."""
    path = output_dir / DIRECTORY / PLAN_NAME
    if not path.is_file():
        return None
    advice = f"delete {path.parent} to evaluate anew"
    return read_sealed_json(path, what="evaluation plan", advice=advice)


def settle_plan(output_dir: Path, plan: Plan) -> None:
    """Writes the plan of a new evaluation.

    Raises UserError if the directory has scores of another one.
    """
    directory = output_dir / DIRECTORY
    earlier = read_plan(output_dir)
    if earlier is None:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial_files(directory)
        write_sealed_json(directory / PLAN_NAME, plan)
        return
    differing = [name for name in {**earlier, **plan} if earlier.get(name) != plan.get(name)]
    if differing:
        shown = ", ".join(
            _difference(name, earlier.get(name), plan.get(name)) for name in differing
        )
        raise UserError(
            f"--output_dir: {directory} has scores of another evaluation ({shown}); repeat that "
            "one, choose another directory, or delete this one to start anew."
        )


def _difference(name: str, earlier: Any, now: Any) -> str:
    values = f" {earlier}, not {now}"
    return name if len(values) > _LONGEST_SHOWN else name + values


class PartialScores:
    """The scores of one checkpoint."""

    def __init__(self, output_dir: Path, name: str, *, weights_sha256: str) -> None:
        """Opens what is there, and drops it if it is of other weights.

        Args:
          output_dir: that of the evaluation, whose plan is settled.
          name: the checkpoint's.
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
        """The checkpoint's finished result, None if there is none or it is damaged.

        Scores that a kill left beside it are dropped.
        """
        result = _read(self._directory / RESULT_NAME)
        if result is not None:
            self._drop_scores()
        return result

    def load(self, batches: Sequence[Batch]) -> set[int]:
        """Reads the scores that are there; returns the numbers of the batches that have them.

        Scores in a damaged file are left out, and so computed again.
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
        """The scores of all copies of a metric, in their order; all must be there."""
        found = [self._found[n] for n, batch in enumerate(batches) if batch.metric == metric]
        return CopyScores(*(np.concatenate(arrays) for arrays in zip(*found)))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result and drops the scores that it was made from."""
        write_sealed_json(self._directory / RESULT_NAME, result)
        self._drop_scores()

    def _drop_scores(self) -> None:
        for path in self._directory.glob(f"{_SCORES}*.json"):
            path.unlink()


def finished_results(output_dir: Path) -> list[dict[str, Any]]:
    """The results of all checkpoints with one, by step and name."""
    paths = (output_dir / DIRECTORY).glob(f"*/{RESULT_NAME}")
    found = [result for result in map(_read, paths) if result is not None]
    return sorted(found, key=lambda result: (result["step"] or 0, result["checkpoint"]))


def _read(path: Path) -> dict[str, Any] | None:
    """A file in a checkpoint's directory; None without it and, with a notice, for a damaged one."""
    if not path.is_file():
        return None
    advice = "it does not count, and is written again when its checkpoint is evaluated"
    try:
        return read_sealed_json(path, what="evaluation", advice=advice)
    except UserError as error:
        say(str(error))
        return None
