"""Turns an opened task into a job; every task, program, dry run and doctor goes through here."""

from __future__ import annotations

from typing import Protocol

from bert_tf.config.settings import OptimizationSettings
from bert_tf.train.arithmetic import Arithmetic, choose_arithmetic
from bert_tf.train.checks import check_start
from bert_tf.train.job import Job, JobData, RunModel
from bert_tf.train.plan import check_fit, resolve, resolve_batches, scales_steps
from bert_tf.train.run import Run


class Opened(Protocol):
    """A task of a run whose model and files are open, but whose data are not made yet."""

    @property
    def optimization(self) -> OptimizationSettings:
        """The optimization settings that the user requested."""

    @property
    def model(self) -> RunModel:
        """The model to train or evaluate."""

    @property
    def max_seq_length(self) -> int:
        """The length of the longest sequence."""

    @property
    def max_records(self) -> int:
        """An upper bound on the number of training records; 1 for a run that does not train."""

    @property
    def is_padded(self) -> bool:
        """Whether batches may be padded."""

    def make_data(self, run: Run, arithmetic: Arithmetic) -> JobData:
        """Makes or opens the records of the run. Collective."""


def prepare(opened: Opened, run: Run) -> Job:
    """Plans a run, checks where it starts and makes its data. Collective.

    Whatever does not depend on the records is checked before they are made. Raises UserError if
    settings contradict each other, the run to resume or the weights.
    """
    optimization, trains = opened.optimization, run.settings.do_train
    scaled = scales_steps(run, optimization)
    batch = resolve_batches(optimization, run.ranks.world_size, run.start, scaled=scaled)
    if trains:
        check_fit(optimization, batch, opened.max_records)
    arithmetic = choose_arithmetic(run, opened.model.config, skip_padding=opened.is_padded)
    check_start(run, opened.model, optimization, arithmetic)
    data = opened.make_data(run, arithmetic)
    record_count = 1 if data.training is None else data.training.num_records
    plan = resolve(optimization, batch, record_count, trains=trains)
    return Job(run, plan, arithmetic, opened.model, data, optimization)
