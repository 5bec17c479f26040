"""The choice between both ways: the arithmetic by hand, the trial on a very small job."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.ranks.single import SingleProcess
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.train import update_timing, xla_choice
from bert_tf.train.trainer import build_update
from bert_tf.train.update_timing import Trial, seconds_per_update, time_updates
from bert_tf.train.xla_choice import choose_xla, decide
from bert_tf.tuning.session import session_config
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.ramps import Ramp
from tests.helpers.jobs import begun, job_of, plan_of
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
    """The second rank is twice as slow, and has the same to say otherwise."""

    def gather(self, value):
        slower = tuple(2 * v for v in value) if isinstance(value, tuple) else value
        return [value, slower]


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


@pytest.fixture
def trials(monkeypatch):
    """Stands in for the trials: says what was tried, and gives XLA half the time of an update."""
    tried = []

    def time_updates(job, batch):
        tried.append((job.plan.arithmetic.session.use_xla, batch["input_ids"].shape))
        return Trial(0.5, 4.0, 7) if job.plan.arithmetic.session.use_xla else Trial(1.0, 1.0, 0)

    monkeypatch.setattr(xla_choice, "time_updates", time_updates)
    return tried


@pytest.mark.parametrize(("updates", "use_xla"), [(5, False), (7, True)])
def test_compiling_counts_as_much_as_it_delays(updates, use_xla):
    # 1 + n against 4 + n / 2 seconds: equal at 6 updates.
    choice = decide(
        Trial(1.0, 1.0, 0),
        Trial(0.5, 4.0, 7),
        updates=updates,
        global_batch_size=8,
        conditions="here",
    )
    assert choice.use_xla == choice.details["kept"] == use_xla
    assert choice.details["sequences_per_second_without"] == 8
    assert choice.details["sequences_per_second_with"] == 16
    assert choice.details["compile_seconds"] == 3
    assert choice.details["clusters"] == 7
    assert f"XLA is {'on' if use_xla else 'off'}: 8 sequences/s without it and 16 " in (
        choice.sentence
    )
    assert f"after 3.0 s of compiling, for {updates} updates" in choice.sentence


def test_both_ways_go_over_the_batch_of_middle_size_one_after_the_other(job, trials):
    choice = choose_xla(job, earlier=None)
    assert trials == [(False, (GLOBAL_BATCH, 12)), (True, (GLOBAL_BATCH, 12))]
    assert choice.use_xla
    assert choice.details["updates"] == 100


def test_with_xla_the_layers_are_those_that_it_knows(job):
    plain = job.plan.arithmetic
    options = dataclasses.replace(plain.options, native_layers=True)
    native = dataclasses.replace(plain, options=options)
    changed = native.with_xla()
    assert changed.session.use_xla
    assert changed.options == plain.options  # nothing else has changed
    assert native.options.native_layers
    assert not changed.options.native_layers
    assert not native.session.use_xla


def test_a_resumed_run_keeps_its_choice(job, trials):
    first = choose_xla(job, earlier=None)
    trials.clear()
    second = choose_xla(job, earlier=first.details)
    assert (second.use_xla, second.details) == (True, first.details)
    assert "XLA is on, as when this run began" in second.sentence
    assert trials == []


def test_other_conditions_are_tried_anew(job, trials):
    first = choose_xla(job, earlier=None)
    trials.clear()
    on_more_threads = dataclasses.replace(job, run=begun(ranks=SingleProcess(7)))
    choose_xla(on_more_threads, earlier=first.details)
    assert len(trials) == 2


def test_a_rank_that_cannot_compile_decides_for_all(job, trials, monkeypatch):
    def fail(config):
        raise tf.errors.InternalError(None, None, "libdevice not found\nand more")

    monkeypatch.setattr(xla_choice, "compile_first_cluster", fail)
    choice = choose_xla(job, earlier=None)
    assert not choice.use_xla
    assert "XLA does not work here (libdevice not found)" in choice.sentence
    assert trials == []


def test_nothing_compiled_is_nothing_gained(job, monkeypatch):
    monkeypatch.setattr(xla_choice, "time_updates", lambda job, batch: Trial(1.0, 0.0, 0))
    choice = choose_xla(job, earlier=None)
    assert not choice.use_xla
    assert choice.sentence == "--use_xla=auto: XLA is off: XLA finds nothing to compile here"
    assert choice.details["reason"] == "XLA finds nothing to compile here"


def weights_after_updates(job):
    """What a training of the job's data ends with."""
    options, session_settings = job.plan.arithmetic.options, job.plan.arithmetic.session
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


@pytest.mark.slow
def test_a_trial_leaves_no_trace_in_the_training(job):
    before = weights_after_updates(job)
    time_updates(job, next(batches()), timed_seconds=0.0)
    for expected, found in zip(before, weights_after_updates(job), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_slowest_rank_counts(job, monkeypatch):
    seen = []
    two = TwoRanks(1)
    gather = two.gather
    monkeypatch.setattr(two, "gather", lambda value: seen.append(value) or gather(value))
    of_two = dataclasses.replace(job, run=begun(ranks=two))
    trial = time_updates(of_two, next(batches()), fewest_updates=5, timed_seconds=0.0)
    updates, (seconds, warm_up, clusters) = seen
    assert updates == 5
    assert trial == Trial(2 * seconds, 2 * warm_up, 2 * clusters)
    assert seconds > 0


def test_an_update_is_estimated_from_one_micro_batch(job, monkeypatch):
    timed = []

    def time_updates(one, batch, **settings):
        timed.append(one.plan.batch)
        return Trial(0.5, 0.0, 0)

    monkeypatch.setattr(update_timing, "time_updates", time_updates)
    ramps = {"sizes": Ramp((GLOBAL_BATCH, 6 * GLOBAL_BATCH), (9,)), "lengths": Ramp((8, 16), (7,))}
    batch = BatchPlan(GLOBAL_BATCH, 6, 1, **ramps, offset=2)
    job = job.with_plan(plan_of(job.optimization, batch=batch))
    assert seconds_per_update(job) == 3.0
    assert timed == [BatchPlan(GLOBAL_BATCH, 1, 1)]
