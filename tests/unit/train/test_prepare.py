"""The one way from an open task to a job: what is found out before data are made."""

import dataclasses

import pytest

from bert_tf.config.settings import OptimizationSettings
from bert_tf.train.execute import GivenBatches, prepare
from bert_tf.train.job import InitialWeights, JobData, RunModel
from bert_tf.train.run import begin
from bert_tf.util.errors import UserError
from tests.helpers.regression_task import RegressionTask
from tests.helpers.settings import optimization_settings, run_settings, runtime_settings
from tests.helpers.small_span_model import CONFIG


@dataclasses.dataclass(frozen=True)
class Opened:
    """A task of 12 records, announced as at most ``max_records``, that notes when it makes them."""

    optimization: OptimizationSettings
    model: RunModel
    made: list
    max_records: int = 20
    max_seq_length: int = 4
    is_padded: bool = False

    def make_data(self, run, arithmetic):
        self.made.append(arithmetic)
        training = GivenBatches(lambda *_: None, self.max_seq_length, num_records=12)
        return JobData(training, None, entries={})


def opened(*, initial=None, **changes):
    model = RunModel(RegressionTask(CONFIG), None, initial=InitialWeights(initial))
    return Opened(optimization_settings(**changes), model, made=[])


def prepared(task, tmp_path, **settings):
    asked = run_settings(tmp_path / "out", **{"do_train": True, **settings})
    with begin(asked, runtime_settings()) as run:
        return prepare(task, run)


def test_a_plan_counts_the_records_that_were_made(tmp_path):
    task = opened(
        num_train_steps=None, num_warmup_steps=None, num_train_epochs=3.0, warmup_proportion=0.5
    )
    job = prepared(task, tmp_path)
    batch, schedule = job.plan.batch, job.plan.schedule
    assert schedule.total_steps * batch.global_batch_size == 3 * 12
    assert schedule.warmup_steps == schedule.total_steps // 2
    assert task.made == [job.arithmetic]


@pytest.mark.parametrize(
    ("initial", "changes", "sentence"),
    [
        (None, {"num_train_steps": 5, "num_warmup_steps": 6}, "--num_warmup_steps=6 is more than"),
        (
            None,
            {"num_train_steps": None, "num_train_epochs": 1.0, "num_warmup_steps": 99},
            r"--num_warmup_steps=99 is more than the at most \d+ steps of --num_train_epochs=1",
        ),
        ("elsewhere/model.ckpt", {}, "elsewhere/model.ckpt"),
    ],
)
def test_what_cannot_work_is_refused_before_records_are_made(tmp_path, initial, changes, sentence):
    task = opened(initial=initial, **changes)
    with pytest.raises(UserError, match=sentence):
        prepared(task, tmp_path)
    assert task.made == []


def test_without_weights_there_is_nothing_to_evaluate(tmp_path):
    task = opened()
    with pytest.raises(UserError, match="contains no checkpoint; train first"):
        prepared(task, tmp_path, do_train=False, do_eval=True)
    assert task.made == []
