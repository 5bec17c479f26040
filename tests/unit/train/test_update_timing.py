"""Times of updates: the slowest rank counts, and a trial leaves no trace."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.ramps import Ramp
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.train import update_timing
from bert_tf.train.trainer import build_update
from bert_tf.train.update_timing import seconds_per_update, time_updates
from bert_tf.tuning.arithmetic import session_config
from bert_tf.update.batch_plan import BatchPlan
from tests.helpers.jobs import begun, job_of
from tests.parallel.updates_program import GLOBAL_BATCH, S, V, global_batches

LENGTHS = (8, 16, 12)
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=S,
)


class TwoRanks(SingleProcess):
    """The second rank takes twice as long, and has the same to say otherwise."""

    def gather(self, value):
        return [value, 2 * value]


def batches():
    """A batch of each length, as a job's dataset."""
    for length in LENGTHS:
        batch = {name: value[0] for name, value in global_batches("squad").items()}
        yield {
            name: np.asarray(v[:, :length] if v.shape[1] > 1 else v, np.int32)
            for name, v in batch.items()
        }


def dataset():
    spec = {
        name: tf.TensorSpec([GLOBAL_BATCH, None if value.shape[1] > 1 else 1], tf.int32)
        for name, value in next(batches()).items()
    }
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


@pytest.fixture
def job():
    return job_of(
        SpanTask(CONFIG),
        batches=dataset,
        max_seq_length=S,
        options=ForwardOptions(policy_for("fp32"), skip_padding=True),
        batch=BatchPlan(GLOBAL_BATCH, 1, 1),
    )


def weights_after_updates(job):
    """What a training of the job's data ends with."""
    options, session_settings = job.arithmetic.options, job.arithmetic.session
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(job.train_input())
        features = iterator.get_next()
        network = create_network(job.task, options, seed=job.settings.seed)
        outputs = build_update(job, network, features)
        with tf.Session(config=session_config(session_settings)) as session:
            session.run([tf.global_variables_initializer(), iterator.initializer])
            for _ in LENGTHS:
                session.run(outputs.train_op)
            return session.run(tf.trainable_variables())


@pytest.fixture(name="quick")
def few_updates(monkeypatch):
    monkeypatch.setattr(update_timing, "_TIMED_SECONDS", 0.0)
    monkeypatch.setattr(update_timing, "_FEWEST_UPDATES", 5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_trial_leaves_no_trace_in_the_training(job):
    before = weights_after_updates(job)
    time_updates(job, next(batches()))
    for expected, found in zip(before, weights_after_updates(job), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("quick")
def test_the_slowest_rank_counts(job, monkeypatch):
    seen = []
    two = TwoRanks(1)
    gather = two.gather
    monkeypatch.setattr(two, "gather", lambda value: seen.append(value) or gather(value))
    of_two = dataclasses.replace(job, run=begun(ranks=two))
    found = time_updates(of_two, next(batches()))
    updates, seconds = seen
    assert updates == 5
    assert found == 2 * seconds > 0


def test_an_update_is_estimated_from_one_micro_batch(job, monkeypatch):
    timed = []

    def time_updates(one, batch):
        timed.append(one.plan.batch)
        return 0.5

    monkeypatch.setattr(update_timing, "time_updates", time_updates)
    ramps = {"sizes": Ramp((GLOBAL_BATCH, 6 * GLOBAL_BATCH), (9,)), "lengths": Ramp((8, 16), (7,))}
    batch = BatchPlan(GLOBAL_BATCH, 6, 1, **ramps, offset=2)
    job = job.with_batch(batch)
    assert seconds_per_update(job) == 3.0
    assert timed == [BatchPlan(GLOBAL_BATCH, 1, 1)]
