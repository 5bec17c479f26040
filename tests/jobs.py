"""Contexts and jobs for tests that look at one thing of them: everything else is as in a run."""

from types import SimpleNamespace

from bert_tf.model.options import ForwardOptions
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.train.context import RunContext
from bert_tf.train.job import Job, Model, TrainingData
from bert_tf.train.start_point import StartPoint
from bert_tf.tuning.hardware import Hardware
from bert_tf.tuning.session import SessionSettings
from bert_tf.update.batch_plan import BatchPlan, resolve_step_plan
from bert_tf.update.kernels import TensorFlowKernels
from bert_tf.watch.watch import NoWatch
from tests.support import optimization_settings, runtime_settings


def run_context(**changes):
    """A run of one process that has begun, on a CPU and from scratch."""
    ranks = changes.get("ranks", SingleProcess(1))
    usual = {
        "settings": SimpleNamespace(seed=1),
        "runtime": runtime_settings(),
        "ranks": ranks,
        "watch": NoWatch(ranks),
        "start": StartPoint(None, 0, 0, 0),
        "record": None,
        "hardware": Hardware(),
        "precision": "fp32",
        "options": ForwardOptions(),
        "log": None,
        "kernels": TensorFlowKernels(),
    }
    return RunContext(**{**usual, **changes})


def step_plan(num_train_steps=100, num_warmup_steps=0, learning_rate=1e-3):
    """Steps of a single rank."""
    return resolve_step_plan(
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        learning_rate=learning_rate,
        world_size=1,
        scale_steps_by_ranks=False,
        learning_rate_scaling="none",
    )


def job_of(task, *, context=None, batches=None, max_seq_length=4, **changes):
    """A job of ``task`` that trains on ``batches``, a function without arguments."""
    usual = {
        "model": Model(task, None),
        "evaluation": None,
        "data": TrainingData(lambda *_: batches(), max_seq_length),
        "optimization": optimization_settings(),
        "batch": BatchPlan(2, 1, world_size=1),
        "steps": step_plan(),
        "options": ForwardOptions(),
        "session": SessionSettings(threads=1),
    }
    return Job(context=context or run_context(), **{**usual, **changes})
