"""Runs, plans and jobs for tests that look at one thing of them: everything else is as in a run."""

import contextlib
import dataclasses
from pathlib import Path

from bert_tf.model.options import ForwardOptions
from bert_tf.ranks.ranks import PlannedRanks, SingleProcess
from bert_tf.train.execute import GivenBatches
from bert_tf.train.job import Job, JobData, RunModel
from bert_tf.train.ledger import training_ledger
from bert_tf.train.plan import resolve
from bert_tf.train.run import Run
from bert_tf.train.start_point import NEW
from bert_tf.tuning.arithmetic import Arithmetic, SessionSettings
from bert_tf.tuning.hardware import Hardware
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.watch.interface import NoWatch
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings, run_settings, runtime_settings
from tests.helpers.small_span_model import CONFIG


def begun(**changes):
    """A run of one process that has begun, on a CPU and from scratch."""
    ranks, record = changes.get("ranks", SingleProcess(1)), changes.pop("record", None)
    usual = {
        "settings": run_settings(Path("out"), seed=1, do_train=True),
        "runtime": runtime_settings(),
        "ranks": ranks,
        "watch": NoWatch(ranks),
        "start": dataclasses.replace(NEW, record=record),
        "hardware": Hardware(),
        "log": None,
        "until_end": contextlib.ExitStack(),
    }
    return Run(**{**usual, **changes})


def arithmetic(**changes):
    """Float32 and TensorFlow's operations on one thread."""
    usual = {
        "precision": "fp32",
        "options": ForwardOptions(),
        "session": SessionSettings(threads=1),
        "against_native_ops": "requested",
    }
    return Arithmetic(**{**usual, **changes})


def resolve_on(requested, world_size, record_count=1, *, scaled=False, trains=True, start=NEW):
    """The plan of a run on planned ranks, whose steps are ``scaled`` unless it says otherwise."""
    run = begun(
        ranks=PlannedRanks(world_size, num_threads=1),
        settings=run_settings(Path("out"), do_train=trains),
        runtime=runtime_settings(library="horovod" if scaled else None),
        start=start,
    )
    return resolve(run, requested, record_count)


def steps_of(num_train_steps, *, num_warmup_steps=0):
    """The plan for ``num_train_steps`` updates on one rank."""
    return resolve_on(
        optimization_settings(num_train_steps=num_train_steps, num_warmup_steps=num_warmup_steps), 1
    )


def plan_of(optimization, *, batch=None, steps=None):
    """A plan for one process, by default of 100 steps and batches of two sequences."""
    plan = steps or steps_of(100)
    batch = batch or BatchPlan(2, 1, world_size=1)
    return dataclasses.replace(plan, batch=batch, requested=optimization)


def ledger_of(optimization, *, ranks, start=NEW, records=100, **changes):
    """The ledger of a run of a small task on so many records."""
    run = begun(ranks=ranks, start=start)
    job = Job(
        run,
        resolve(run, optimization, records),
        arithmetic(**changes),
        RunModel(RegressionTask(CONFIG), None),
        JobData(GivenBatches(None, 4), None, entries={"sha256": "abc", "train_records": records}),
    )
    return training_ledger(job)


def job_of(
    task,
    *,
    run=None,
    batches=None,
    max_seq_length=4,
    model=None,
    evaluation=None,
    optimization=None,
    training=None,
    batch=None,
    steps=None,
    **of_arithmetic,
):
    """A job of ``task`` that trains on ``batches``, a function without arguments."""
    optimization = optimization or optimization_settings()
    training = training or GivenBatches(lambda *_: batches(), max_seq_length)
    return Job(
        run=run or begun(),
        plan=plan_of(optimization, batch=batch, steps=steps),
        arithmetic=arithmetic(**of_arithmetic),
        model=model or RunModel(task, None),
        data=JobData(training, evaluation, entries={}),
    )
