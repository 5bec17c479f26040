"""This project's training step: the update of its tasks, in the session that they use."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.script import start_tensorflow
from benchmarks.speed.predictions import PredictionJob, time_batches
from benchmarks.speed.steps import DISTILLATION, RECIPE, SPANS, StepJob, time_steps
from bert_tf.inference.predictor import Predictor
from bert_tf.model.config import INPUTS
from bert_tf.model.task import Task, create_network
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import DistillationTask
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tuning.arithmetic import SessionSettings, choose, session_config
from bert_tf.update import schedules
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.update.kernels import kernels_for
from bert_tf.update.loss_scale import LossScale
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.train_op import UpdateSettings, build_train_op


@dataclasses.dataclass(frozen=True)
class Settings:
    """How our subjects differ; see ``benchmarks.speed.subjects``.

    Attributes:
      precision: like --precision.
      xla: like --use_xla.
      native: like --native_ops, if they are built.
      recompute: like --recompute.
      optimizer_type: like --optimizer_type, ``adamw`` or ``lamb``.
      by_length: like --length_buckets, in prediction.
      threads: like --num_threads; None for the job's.
    """

    precision: str = "auto"
    xla: bool = False
    native: bool = True
    recompute: bool = False
    optimizer_type: str = "adamw"
    by_length: bool = True
    threads: int | None = None

    @property
    def native_ops(self) -> bool | None:
        """The value of the flag: False, or None as if it was omitted."""
        return None if self.native else False


class RunningStep(NamedTuple):
    """An update and its session.

    Attributes:
      run: runs an update; returns its loss.
      trace: runs an update; takes what to record and returns the record.
      chosen: what ``auto`` chose, and TensorFlow's release.
    """

    run: Callable[[], float]
    trace: Callable[[tf.RunOptions], tf.RunMetadata]
    chosen: dict[str, str]


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the step."""
    start_tensorflow()
    job = StepJob.from_json(request)
    with running_step(job, Settings(**request["settings"])) as step:
        return {**time_steps(job, step.run, started=request["started"]), **step.chosen}


@contextlib.contextmanager
def running_step(
    job: StepJob,
    settings: Settings,
    *,
    one_operation_at_a_time: bool = False,
    task: Task | None = None,
    further: Mapping[str, np.ndarray] | None = None,
) -> Iterator[RunningStep]:
    """Yields an update as in training, ready to run; closes its session at the end.

    ``task`` replaces the job's task, and ``further`` are features that it needs in addition to the
    job's.
    """
    job = dataclasses.replace(job, threads=settings.threads or job.threads)
    ranks = SingleProcess(job.threads)
    choice = choose(
        job.network,
        ranks=ranks,
        precision=settings.precision,
        native_ops=False if settings.xla else settings.native_ops,
    )
    kernels = kernels_for(choice.against_native_ops)
    config = session_config(SessionSettings(ranks.threads))
    if one_operation_at_a_time:
        config.inter_op_parallelism_threads = 1
    batch = {**job.batch(job.sequences), **(further or {})}
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf.set_random_seed(1)
        fed = {n: tf.placeholder(v.dtype, v.shape, name=n) for n, v in batch.items()}
        options = dataclasses.replace(
            choice.options, recompute=settings.recompute, compiled=settings.xla
        )
        network = create_network(task or task_of(job), options, seed=1)
        rate = schedules.polynomial(
            tf.train.get_or_create_global_step().read_value(),
            peak_rate=RECIPE.learning_rate,
            total_steps=RECIPE.steps,
            warmup_steps=RECIPE.warmup_steps,
        )
        optimizer = {"adamw": "adam", "lamb": "lamb"}[settings.optimizer_type]
        outputs = build_train_op(
            network,
            fed,
            plan=BatchPlan(job.batch_size, job.accumulation_steps, world_size=1),
            optimizer=Optimizer(optimizer, rate, weight_decay=RECIPE.weight_decay, kernels=kernels),
            learning_rate=rate,
            loss_scale=LossScale(),
            ranks=ranks,
            settings=UpdateSettings(clip_norm=RECIPE.clip_norm, seed=1),
        )
        loss = tf.add_n([s.loss / s.weight for s in outputs.term_sums.values()])
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        values = [batch[name] for name in fed]
        run = session.make_callable([loss, outputs.train_op], feed_list=list(fed.values()))

        def trace(options: tf.RunOptions) -> tf.RunMetadata:
            metadata = tf.RunMetadata()
            feed = dict(zip(fed.values(), values))
            session.run(outputs.train_op, feed, options=options, run_metadata=metadata)
            return metadata

        chosen = {
            "precision": choice.precision,
            "operations": kernels.description,
            "threads": str(ranks.threads),
            "tensorflow": tf.version.VERSION,
        }
        yield RunningStep(lambda: float(run(*values)[0]), trace, chosen)


def predict(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the logits of a span model."""
    start_tensorflow()
    job, settings = PredictionJob.from_json(request), Settings(**request["settings"])
    choice = choose(
        job.network,
        ranks=SingleProcess(job.threads),
        precision=settings.precision,
        native_ops=settings.native_ops,
    )
    predictor = Predictor(
        _SpanLogits(job.network),
        None,
        options=choice.options,
        threads=job.threads,
    )
    fed = [predictor.inputs[name] for name in INPUTS]
    run = predictor.session.make_callable(list(predictor.predictions.values()), feed_list=fed)
    found = time_batches(
        job, lambda batch: run(*(batch[name] for name in INPUTS)), by_length=settings.by_length
    )
    return {**found, "precision": choice.precision}


def task_of(job: StepJob) -> Task:
    """The task of all benchmarks: words and next sentence, answers, or a teacher's words."""
    if job.task == SPANS:
        return SpanTask(job.network)
    if job.task != DISTILLATION:
        return PretrainingTask(job.network)
    networks = (
        PretrainingTask(
            network,
            next_sentence=False,
            score_all_tokens=not job.restrict_ce_to_mask,
            whole_scores=True,
        )
        for network in (job.student, job.network)
    )
    settings = DistillationSettings("", restrict_ce_to_mask=job.restrict_ce_to_mask)
    return DistillationTask(*networks, settings)


class _SpanLogits(SpanTask):
    """Outputs all logits, like the others."""

    def predictions(self, outputs, features, options):
        """``start_logits`` and ``end_logits``, [B, S] float32."""
        del features, options
        return {"start_logits": outputs.start, "end_logits": outputs.end}
