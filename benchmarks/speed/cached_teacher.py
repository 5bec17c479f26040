"""Distillation from cached targets: several epochs share a single pass of the teacher.

As with --cache_teacher of run_distillation.py: soft targets at masked tokens only, a limited number
of them, and no comparison of hidden states. The time of reading targets (1 KiB per sequence) is not
included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import tensorflow.compat.v1 as tf

from benchmarks.script import start_tensorflow
from benchmarks.speed.ours import Settings, running_step
from benchmarks.speed.steps import StepJob, time_steps
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.task import CLASSES, PROBABILITIES, DistillationTask, SoftTargets
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tuning.arithmetic import SessionSettings, reason_against_native_ops, session_config
from bert_tf.tuning.hardware import probe_hardware

EPOCHS = 3  # as in the published run
TARGETS = 16


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the teacher's pass and the student's updates of all epochs; seconds are per epoch."""
    start_tensorflow()
    job, settings = StepJob.from_json(request), Settings(**request["settings"])
    task = task_of(job)
    with _teacher(job, task, settings) as find_targets:
        found = find_targets()
        shape = [job.sequences, job.predictions, TARGETS]
        targets = {
            CLASSES: found.classes.reshape(shape),
            PROBABILITIES: found.probabilities.reshape(shape),
        }
        with running_step(job, settings, task=task, further=targets) as step:

            def all_epochs() -> float:
                find_targets()
                losses = [step.run() for _ in range(EPOCHS)]
                return losses[0]

            timed = time_steps(job, all_epochs, started=request["started"])
            return {**timed, **step.chosen, "seconds": timed["seconds"] / EPOCHS}


def task_of(job: StepJob) -> DistillationTask:
    """The student's task: to learn from labels and cached targets."""
    networks = (
        PretrainingTask(n, next_sentence=False, whole_scores=True)
        for n in (job.student, job.network)
    )
    settings = DistillationSettings(
        "", restrict_ce_to_mask=True, alpha_cos=0.0, top_k_targets=TARGETS, teacher_cache="kept"
    )
    return DistillationTask(*networks, settings)


@contextlib.contextmanager
def _teacher(
    job: StepJob, task: DistillationTask, settings: Settings
) -> Iterator[Callable[[], SoftTargets]]:
    """The teacher's pass over the sequences of a step; closes its session at the end."""
    ranks = SingleProcess(job.threads)
    reason = reason_against_native_ops(
        settings.native_ops, has_gpu=probe_hardware().has_gpu, ranks=ranks
    )
    options = ForwardOptions(policy_for(settings.precision)).with_native_layers(reason is None)
    config = session_config(SessionSettings(ranks.threads))
    batch = job.batch(job.sequences)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        fed = {name: tf.placeholder(v.dtype, v.shape, name=name) for name, v in batch.items()}
        network = create_network(task.teacher, options, seed=1)
        outputs = task.teacher.outputs(network.variables, fed, options)
        targets = task.soft_targets(outputs, fed, options, most=TARGETS)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        run = session.make_callable(targets, feed_list=list(fed.values()))
        values = [batch[name] for name in fed]
        yield lambda: SoftTargets(*run(*values))
