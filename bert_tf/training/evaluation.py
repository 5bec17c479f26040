"""Evaluation over a whole held-out set, shared by all ranks."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.files import atomic_open, read_json, write_json
from bert_tf.model.losses import ClassificationSums
from bert_tf.training.distribution import SingleProcess

RESULTS = "eval_results"
BEST_DIRECTORY = "best"


def term_metrics(
    sums: Mapping[str, ClassificationSums], ranks: SingleProcess
) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Estimator metrics: each term's loss and accuracy over every batch of every rank.

    Sums are kept in float64, so that the result does not depend on how the set was cut into
    batches and ranks. Ranks may have different numbers of batches: they communicate once, when the
    values are read at the end.
    """
    metrics = {}
    for term, values in sums.items():
        batch = tf.cast(
            tf.stack([values.loss_sum, values.weight_sum, values.correct_sum]), "double"
        )
        total = tf.get_variable(
            f"evaluation/{term}",
            initializer=tf.zeros([3], tf.float64),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES],
            use_resource=True,
        )
        update = total.assign_add(batch).op
        loss, weight, correct = tf.unstack(ranks.sum_over_ranks(total, f"evaluation_{term}"), num=3)
        weight = tf.maximum(weight, 1e-5)
        metrics[f"{term}_loss"] = (loss / weight, update)
        metrics[f"{term}_accuracy"] = (correct / weight, update)
    return metrics


def with_derived_results(
    metrics: Mapping[str, float], *, terms: Sequence[str], perplexity_of: str | None
) -> dict[str, float]:
    """Estimator's metrics as plain numbers, with the total loss and a term's perplexity."""
    results = {
        f"{term}_{figure}": float(metrics[f"{term}_{figure}"])
        for term in terms
        for figure in ("loss", "accuracy")
    }
    results["loss"] = sum(results[f"{term}_loss"] for term in terms)
    if perplexity_of is not None:
        results[f"{perplexity_of}_perplexity"] = _exp(results[f"{perplexity_of}_loss"])
    results["global_step"] = int(metrics["global_step"])
    return results


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def write_results(output_dir: Path, results: Mapping[str, float]) -> None:
    """Writes ``eval_results.txt`` (``key = value`` lines) and ``eval_results.json``."""
    with atomic_open(output_dir / f"{RESULTS}.txt") as file:
        for name in sorted(results):
            file.write(f"{name} = {results[name]}\n")
    write_json(output_dir / f"{RESULTS}.json", dict(results))


def keep_if_best(output_dir: Path, checkpoint: str, results: Mapping[str, float]) -> bool:
    """Copies a checkpoint to ``output_dir/best`` when its loss is the lowest so far.

    The copy is complete before it replaces the one before. Returns whether it was the best.
    """
    best = output_dir / BEST_DIRECTORY
    previous = best / f"{RESULTS}.json"
    if not math.isfinite(results["loss"]):
        return False
    if (
        previous.is_file()
        and read_json(previous, what="best checkpoint")["loss"] <= results["loss"]
    ):
        return False
    incoming, outgoing = output_dir / ".best.incoming", output_dir / ".best.outgoing"
    for leftover in (incoming, outgoing):
        shutil.rmtree(leftover, ignore_errors=True)
    incoming.mkdir()
    for path in Path(checkpoint).parent.glob(Path(checkpoint).name + ".*"):
        shutil.copy2(path, incoming / path.name)
    write_results(incoming, results)
    name = Path(checkpoint).name
    (incoming / "checkpoint").write_text(
        f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n', encoding="utf-8"
    )
    if best.exists():
        best.rename(outgoing)
    incoming.rename(best)
    shutil.rmtree(outgoing, ignore_errors=True)
    return True
