"""The arithmetic of batches and steps."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bert_tf.train.start_point import NEW, StartPoint
from bert_tf.update.batch_plan import BatchPlan
from bert_tf.util.errors import UserError
from tests.helpers.jobs import resolve_on
from tests.helpers.settings import optimization_settings

SMALL = st.integers(1, 64)


def resolve(micro=None, accumulation=None, total=None, ranks=1):
    sizes = {
        "micro_batch_size": micro,
        "accumulation_steps": accumulation,
        "global_batch_size": total,
    }
    return resolve_on(optimization_settings(**sizes), ranks).batch


@given(SMALL, SMALL, SMALL)
def test_any_two_give_the_third(micro, accumulation, ranks):
    total = micro * accumulation * ranks
    expected = BatchPlan(micro, accumulation, ranks)
    assert resolve(micro, accumulation, None, ranks) == expected
    assert resolve(micro, None, total, ranks) == expected
    assert resolve(None, accumulation, total, ranks) == expected
    assert resolve(micro, accumulation, total, ranks) == expected
    assert expected.global_batch_size == total


@given(SMALL, SMALL, SMALL, st.integers(1, 10_000))
def test_a_contradiction_is_refused_with_the_arithmetic(micro, accumulation, ranks, total):
    product = micro * accumulation * ranks
    assume(product != total)
    with pytest.raises(UserError) as error:
        resolve(micro, accumulation, total, ranks)
    assert f"{micro} (micro batch) x {accumulation} (accumulation steps)" in str(error.value)
    assert f"= {product}" in str(error.value)
    assert f"={total}" in str(error.value)


@given(SMALL, SMALL, st.integers(1, 10_000))
def test_a_remainder_is_refused(micro, ranks, total):
    if total % (micro * ranks):
        with pytest.raises(UserError, match="cannot be divided"):
            resolve(micro, None, total, ranks)
    else:
        assert resolve(micro, None, total, ranks).global_batch_size == total


def test_defaults():
    assert resolve(ranks=3) == BatchPlan(32, 1, 3)
    assert resolve(total=12, ranks=3) == BatchPlan(4, 1, 3)
    assert resolve(accumulation=2) == BatchPlan(32, 2, 1)


def step_plan(steps=100, warmup=10, rate=1e-3, ranks=4, scale=True, scaling="none"):
    requested = optimization_settings(
        num_train_steps=steps,
        num_warmup_steps=warmup,
        learning_rate=rate,
        learning_rate_scaling=scaling,
    )
    return resolve_on(requested, ranks, scaled=scale)


@given(st.integers(1, 10**6), st.integers(1, 512), st.integers(1, 256))
def test_scaled_steps_consume_at_least_the_same_data(steps, ranks, micro):
    plan = step_plan(steps=steps, warmup=steps // 2, ranks=ranks)
    one_rank_sequences = steps * micro
    sequences = plan.schedule.total_steps * micro * ranks
    assert one_rank_sequences <= sequences < one_rank_sequences + micro * ranks
    assert 0 <= plan.schedule.warmup_steps <= plan.schedule.total_steps


@given(SMALL, SMALL, st.integers(1, 32), st.integers(20, 10_000))
def test_other_ranks_end_the_run_with_the_same_data(ranks, others, micro, steps):
    """Half the run on some ranks, the rest on others: all of the data, and a batch too many."""

    requested = optimization_settings(
        num_train_steps=steps, micro_batch_size=micro, scale_steps_by_ranks=True
    )

    def plan(world_size, start=NEW):
        return resolve_on(requested, world_size, start=start)

    done = plan(ranks).schedule.total_steps // 2
    consumed = done * ranks * micro
    batch = others * micro
    rest = plan(others, StartPoint("model.ckpt", done, done, consumed))
    total = consumed + max(0, rest.last_step - done) * batch
    assert abs(total - steps * micro) <= batch * 1.5 + ranks * micro
    place = (done + rest.batch.offset) * batch
    assert abs(place - consumed) <= batch / 2
    if others == ranks:
        assert rest == plan(ranks)


def test_steps_are_not_scaled_if_requested():
    plan = step_plan(scale=False)
    assert (plan.schedule.total_steps, plan.schedule.warmup_steps) == (100, 10)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_learning_rate_scaling(scaling, factor):
    plan = step_plan(scaling=scaling)
    assert plan.schedule.peak_rate == pytest.approx(1e-3 * factor)
    assert plan.requested.schedule.learning_rate == 1e-3


def test_messages_name_the_flag_of_the_micro_batch():
    with pytest.raises(UserError, match="leave out one of --train_batch_size, --num_acc"):
        resolve(2, 2, 5)
