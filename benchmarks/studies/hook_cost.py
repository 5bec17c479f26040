"""Measures the cost of two hooks: the batch kept for a failure, and summaries of layers.

    python -m benchmarks.studies.hook_cost --bert_config_file=recipes/bert_tiny.json --turns=200

Updates in one session take turns: with neither hook, with the batch, and with both, as in an update
chosen by --layer_summary_steps. Batches come from a tf.data pipeline, as in training.

docs/howto/when_training_fails.md has the results.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks.results import Result, printed, ratio_result, spread_result
from benchmarks.script import run_benchmark, shared_flags, start_tensorflow
from benchmarks.speed.steps import PRETRAINING, RECIPE, StepJob
from bert_tf.update.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

PLAIN, WITH_BATCH, WITH_SUMMARY = "plain", "with_batch", "with_summary"


class Turns:
    """Updates in one session, with or without the hooks."""

    def __init__(self, session: tf.Session, outputs: Any, features: Any, directory: Path) -> None:
        """``outputs`` belong to the update for ``features``; summaries go to ``directory``."""
        from bert_tf.diagnose.guard import NonFiniteGuard
        from bert_tf.diagnose.layer_summaries import LayerSummaries
        from bert_tf.train.run_log import RunLog

        job = types.SimpleNamespace(
            arithmetic=types.SimpleNamespace(scales_loss=False),
            settings=types.SimpleNamespace(
                recovery=types.SimpleNamespace(max_skipped_updates=None)
            ),
        )
        guard = NonFiniteGuard(outputs, job, network=None, features=features)
        summaries = LayerSummaries(outputs, every_steps=1, log=RunLog(directory))
        self._hooks = {PLAIN: [], WITH_BATCH: [guard], WITH_SUMMARY: [guard, summaries]}
        self._session, self._outputs = session, outputs
        self._context = types.SimpleNamespace(session=session, request_stop=self._fail)
        for hook in (guard, summaries):
            hook.begin()

    def seconds(self, variant: str) -> float:
        """The duration of one update."""
        started = time.perf_counter()
        hooks = self._hooks[variant]
        fetches = [hook.before_run(self._context).fetches for hook in hooks]
        plain = {"is_finite": self._outputs.is_finite, "norm": self._outputs.gradient_norm}
        _, results, *found = self._session.run([self._outputs.train_op, plain, *fetches])
        if not results["is_finite"]:
            self._fail()
        for hook, results in zip(hooks, found):
            hook.after_run(self._context, types.SimpleNamespace(results=results))
        return time.perf_counter() - started

    def _fail(self) -> None:
        raise ValueError("an update was skipped, so the times are meaningless")


def measure() -> Iterator[Result]:
    """Times the variants given by the flags in turns."""
    import tensorflow.compat.v1 as tf

    from bert_tf.model.options import ForwardOptions
    from bert_tf.model.precision import policy_for
    from bert_tf.model.task import create_network
    from bert_tf.ranks.ranks import SingleProcess
    from bert_tf.tasks.pretraining.task import PretrainingTask
    from bert_tf.tuning.arithmetic import SessionSettings, session_config
    from bert_tf.update.batch_plan import BatchPlan
    from bert_tf.update.kernels import kernels_for
    from bert_tf.update.loss_scale import LossScale
    from bert_tf.update.optimizer import Optimizer
    from bert_tf.update.train_op import UpdateSettings, build_train_op

    values = flags.FLAGS
    start_tensorflow()
    job = StepJob.from_flags(PRETRAINING)
    batch = job.batch(job.sequences)
    config = {**job.to_json(), "precision": values.precision, "optimizer": values.optimizer_type}
    session_settings = session_config(SessionSettings(job.threads))
    with tf.Graph().as_default(), tf.Session(config=session_settings) as session:
        batches = tf.data.Dataset.from_generator(
            lambda: iter(lambda: batch, None),
            output_types={name: value.dtype for name, value in batch.items()},
            output_shapes={name: value.shape for name, value in batch.items()},
        ).prefetch(2)
        features = tf.data.make_one_shot_iterator(batches).get_next()
        options = ForwardOptions(policy_for(values.precision)).with_native_layers(True)
        network = create_network(PretrainingTask(job.network), options, seed=1)
        tf.train.get_or_create_global_step()
        rate = tf.constant(RECIPE.learning_rate)
        outputs = build_train_op(
            network,
            features,
            plan=BatchPlan(job.batch_size, job.accumulation_steps, world_size=1),
            optimizer=Optimizer(values.optimizer_type, rate, kernels=kernels_for(None)),
            learning_rate=rate,
            loss_scale=LossScale(),
            ranks=SingleProcess(job.threads),
            settings=UpdateSettings(clip_norm=RECIPE.clip_norm, seed=1),
        )
        with tempfile.TemporaryDirectory() as directory:
            turns = Turns(session, outputs, features, Path(directory))
            session.run(tf.global_variables_initializer())
            yield from printed(_results(turns, values.turns, config))


def _results(turns: Turns, number: int, config: dict[str, Any]) -> list[Result]:
    variants = (PLAIN, WITH_BATCH, WITH_SUMMARY)
    first = {variant: turns.seconds(variant) for variant in variants}  # TensorFlow prepares runs
    for variant in variants:
        turns.seconds(variant)
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(number):
        for variant in variants[turn % 3 :] + variants[: turn % 3]:
            found[variant].append(turns.seconds(variant))
    results = [spread_result(variant, found[variant], "s", config) for variant in variants]
    for variant in variants[1:]:
        name = f"{variant}_to_plain"
        results.append(ratio_result(name, found[variant], found[PLAIN], config))
    usual = statistics.median(found[WITH_SUMMARY])
    results.append(spread_result("first_summary_extra", [first[WITH_SUMMARY] - usual], "s", config))
    return results


FLAGS = {
    "optimizer_type": (tuple(OPTIMIZERS), "The optimizer."),
    **shared_flags("accumulation_steps", "batch_size", "bert_config_file", "json", "predictions"),
    **shared_flags("seq_length", "threads", precision="fp32", turns=21),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
