"""Evaluation on a held-out set, divided among all ranks, and keeping the best checkpoint."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Callable, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_without_optimizer
from bert_tf.model.losses import Sums, flatten, means, unflatten
from bert_tf.model.task import Features, Network, Task
from bert_tf.model_directory.directory import MODEL_FILES
from bert_tf.model_directory.record import read_record, write_record
from bert_tf.ranks.ranks import Ranks
from bert_tf.train.run_log import EVALUATIONS, read_history
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, read_json, write_json

RESULTS = "eval_results"
BEST_DIRECTORY = "best"
_INCOMING, _OUTGOING = ".best.incoming", ".best.outgoing"

Results = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Figure:
    """The metric by which checkpoints are compared."""

    name: str
    higher_is_better: bool = False

    def is_better(self, value: float | None, than: float) -> bool:
        """Whether ``value`` is better than ``than``; false if it is None or not finite."""
        if value is None or not math.isfinite(value):
            return False
        return value > than if self.higher_is_better else value < than


LOSS = Figure("loss")


class Evaluation(Protocol):
    """How a job is evaluated, during training and at the end.

    Attributes:
      figure: the metric that decides which checkpoint is the best.
      at_start: whether a run with evaluations during training also has one before the first update.
    """

    figure: Figure
    at_start: bool

    def dataset(self) -> tf.data.Dataset:
        """Returns this rank's batches; called in the graph of the evaluation."""

    def outputs(self, network: Network, features: Features) -> dict[str, tf.Tensor]:
        """What to compute for a batch; called in the graph, which has the network's variables."""

    def run(self, outputs: Iterable[Mapping[str, np.ndarray]], output_dir: Path) -> Results:
        """Computes the results from the ``outputs`` of each of this rank's batches.

        Outputs are computed as they are requested. Request all of them, even if there are no
        batches, because the ranks start together. Collective; all ranks return equal results, which
        include ``global_step``. Rank 0 may write files to ``output_dir`` in addition to
        ``eval_results.json``.
        """


class LossEvaluation:
    """Loss and metrics of each term of a task over a whole held-out set.

    The set is divided among ranks, yet results are bit-equal to those of a single process: a batch
    has the same records in the same order for any number of ranks, so its float32 sums are the same
    wherever they are computed; and their total does not depend on the order of summation, because
    :func:`exact_sums` rounds only once, at the end.
    """

    figure = LOSS
    at_start = True  # a baseline for later results

    def __init__(
        self,
        input_fn: Callable[[], tf.data.Dataset],
        *,
        ranks: Ranks,
        task: Task,
        max_steps: int | None = None,
    ) -> None:
        """Evaluates ``task`` on this rank's batches, which are as many as on the other ranks.

        ``max_steps`` is their maximum number; None for all.
        """
        self._input_fn = input_fn
        self._ranks = ranks
        self._task = task
        self._max_steps = max_steps

    def dataset(self) -> tf.data.Dataset:
        """See :class:`Evaluation`."""
        return self._input_fn().take(-1 if self._max_steps is None else self._max_steps)

    def outputs(self, network: Network, features: Features) -> dict[str, tf.Tensor]:
        """The sums of all terms, and the checkpoint's step (see :class:`Evaluation`)."""
        terms = self._task.terms
        return {
            _SUMS: network.forward(lambda n: tf.stack(flatten(n.losses(features), terms))),
            tf.GraphKeys.GLOBAL_STEP: tf.train.get_global_step().read_value(),
        }

    def run(self, outputs: Iterable[Mapping[str, np.ndarray]], output_dir: Path) -> Results:
        """See :class:`Evaluation`."""
        del output_dir
        batches = list(outputs)
        local_sums = np.stack([batch[_SUMS] for batch in batches])
        totals = exact_sums(np.concatenate(self._ranks.gather(local_sums)))
        sums = unflatten(totals, self._task.terms)
        step = int(batches[0][tf.GraphKeys.GLOBAL_STEP])
        return {**evaluation_results(sums, self._task), "global_step": step}


_SUMS = "sums"


def exact_sums(batches: np.ndarray) -> list[float]:
    """[batches, sums] -> [sums]: totals over the batches, whatever their order.

    Each result is the exact sum rounded to float64: ``math.fsum`` keeps all intermediate digits
    (Shewchuk 1997).
    """
    return [math.fsum(column) for column in batches.T]


def evaluation_results(sums: Mapping[str, Sums], task: Task) -> Results:
    """The losses and metrics of each term, the total loss, and the task's scores.

    ``sums`` are over the whole set; a term without any weight has loss 0.
    """
    by_term = means(sums)
    results = {f"{t}_{name}": v for t, found in by_term.items() for name, v in found.items()}
    results["loss"] = sum(found["loss"] for found in by_term.values())
    return {**results, **task.scores(sums)}


def write_results(output_dir: Path, results: Mapping[str, float]) -> None:
    """Writes ``eval_results.txt`` (``key = value`` lines) and ``eval_results.json``.

    Results that are not finite are ``inf`` or ``nan`` in the first file, null in the second.
    """
    with atomic_open(output_dir / f"{RESULTS}.txt") as file:
        for name in sorted(results):
            file.write(f"{name} = {results[name]}\n")
    write_json(output_dir / f"{RESULTS}.json", dict(results))


def evaluations_since_best(output_dir: Path, figure: Figure) -> int:
    """The number of evaluations logged in ``output_dir`` after the best one."""
    best, since = None, 0
    for results in read_history(output_dir, EVALUATIONS):
        value = results.get(figure.name)  # None if nothing was scored
        if best is None or figure.is_better(value, best):
            best, since = value, 0
        else:
            since += 1
    return since


def keep_if_best(
    output_dir: Path,
    checkpoint: str,
    results: Mapping[str, float],
    figure: Figure = LOSS,
    *,
    evaluated_data: str | None = None,
) -> bool:
    """Keeps a checkpoint's weights in ``output_dir/best`` if its metric is the best so far.

    That is a model directory, completed before it replaces the previous one. Without optimizer
    state it has a third of the checkpoint's size. One that was chosen on other data than those with
    the digest ``evaluated_data`` stays. Returns whether the checkpoint was the best.

    Raises:
      UserError: if the results of the previous best cannot be read, or there is no space.
    """
    finish_exchange(output_dir)
    best = output_dir / BEST_DIRECTORY
    previous = best / f"{RESULTS}.json"
    value = results.get(figure.name, math.nan)  # without reference answers nothing is scored
    if not math.isfinite(value):
        return False
    if previous.is_file():
        record = read_record(best)
        chosen_on = record and record.chosen_on
        if chosen_on and evaluated_data and chosen_on != evaluated_data:
            say(f"{best} was chosen on other data and stays; move it away to choose on these")
            return False
        if not figure.is_better(value, _value_of_best(previous, figure.name)):
            return False
    incoming, outgoing = output_dir / _INCOMING, output_dir / _OUTGOING
    incoming.mkdir()
    for path in map(output_dir.joinpath, MODEL_FILES):
        if path.exists():
            shutil.copy2(path, incoming / path.name)
    record = read_record(incoming)
    if record is not None:
        write_record(dataclasses.replace(record, chosen_on=evaluated_data))
    write_results(incoming, results)
    write_without_optimizer(checkpoint, incoming)
    if best.exists():
        best.rename(outgoing)
    incoming.rename(best)
    shutil.rmtree(outgoing, ignore_errors=True)
    return True


def _value_of_best(path: Path, name: str) -> float:
    """The metric of the best checkpoint; UserError if its two files of results disagree."""
    advice = f"move {path.parent} away to keep the best checkpoint from now on"
    before = read_json(path, what="best checkpoint")
    if not isinstance(before, dict) or not isinstance(before.get(name), (int, float)):
        raise UserError(f"{path} contains no {name} to compare with; {advice}.")
    lines = path.with_suffix(".txt")
    if lines.is_file():
        text = lines.read_text(encoding="utf-8", errors="replace").splitlines()
        # Values that are not finite are null in JSON.
        finite = [line for line in text if line.split(" = ")[-1] not in ("inf", "-inf", "nan")]
        if finite != [f"{n} = {before[n]}" for n in sorted(before) if before[n] is not None]:
            raise UserError(f"{path} and {lines.name} next to it differ; {advice}.")
    return before[name]


def finish_exchange(output_dir: Path) -> None:
    """Completes a replacement of ``best`` by :func:`keep_if_best` that a kill interrupted.

    The old directory is moved away only once the new one is complete. Until then the new one is
    discarded: its evaluation is not in the log yet, and will be repeated.
    """
    best, incoming = output_dir / BEST_DIRECTORY, output_dir / _INCOMING
    outgoing = output_dir / _OUTGOING
    if outgoing.exists() and not best.exists():
        (incoming if incoming.exists() else outgoing).rename(best)
    for leftover in (incoming, outgoing):
        shutil.rmtree(leftover, ignore_errors=True)
