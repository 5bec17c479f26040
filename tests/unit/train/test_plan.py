"""The arithmetic of runs with ramps: ranks, epochs, resuming, the ledger."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_tf.config.ramps import Ramp, parse_length_ramp, parse_ramp
from bert_tf.input.order import batch_indices, sequence_indices
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.run_record import RunRecord
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.train import ledger
from bert_tf.train.ledger import changed_settings
from bert_tf.train.plan import resolve
from bert_tf.train.start_point import StartPoint
from bert_tf.util.errors import UserError
from tests.helpers import jobs
from tests.helpers.jobs import begun, resolve_on
from tests.helpers.settings import optimization_settings, run_settings, with_values


class Ranks(SingleProcess):
    def __init__(self, world_size, rank=0):
        super().__init__(num_threads=1)
        self.world_size, self.rank = world_size, rank


def ramped(*, batch="4:0,8:10,16:20", length="16:0,32:15", scaled=False, **changes):
    return optimization_settings(
        **{
            "global_batch_size": 16,
            "micro_batch_size": 2,
            "num_train_steps": 40,
            "scale_steps_by_ranks": scaled,
            "batch_ramp": parse_ramp(batch, flag="batch_ramp"),
            "length_ramp": parse_length_ramp(length, flag="length_ramp", max_seq_length=32),
            **changes,
        }
    )


@pytest.mark.parametrize(("scaled", "joins"), [(False, (10, 20)), (True, (5, 10))])
def test_updates_are_those_of_one_rank(scaled, joins):
    plan = resolve_on(ramped(scaled=scaled), 2)
    batch = plan.batch
    assert batch.sizes == Ramp((4, 8, 16), joins)
    assert batch.lengths == Ramp((16, 32), (8 if scaled else 15,))
    assert (batch.accumulation_steps, plan.schedule.total_steps) == (4, 20 if scaled else 40)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"micro_batch_size": 8},
            r"^--batch_ramp=4:0,8:10,16:20: a global batch of 4 cannot be divided by 8 \(micro "
            r"batch\) x 1 \(ranks\) = 8; choose multiples, or a smaller --train_batch_size\.$",
        ),
        ({"global_batch_size": 32}, r"ends with 16, but the global batch is 32"),
        (
            {"num_train_steps": 20},
            r"^--batch_ramp reaches 16 at update 20, but there are only 20, so no update would "
            r"have it; shorten the ramp or train for longer\.$",
        ),
        ({"length": "16:0,32:99"}, r"--length_ramp reaches 32 at update 99, but there are only 40"),
        ({"num_train_steps": None}, r"^give --num_train_steps or --num_train_epochs\.$"),
    ],
)
def test_what_does_not_fit(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        resolve_on(ramped(**changes), 1)


def test_rounding_up_does_not_make_a_ramp_too_long():
    settings = ramped(scaled=True, batch="8:0,16:5", num_train_steps=8, length="16:0,32:1")
    plan = resolve_on(settings, 4)
    assert plan.batch.sizes.joins == (plan.schedule.total_steps,)


def test_a_run_that_does_not_train_needs_no_room_for_ramps():
    resolve_on(ramped(num_train_steps=1), 1, trains=False)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_epochs_are_consumed_in_growing_updates(scaled, world_size):
    settings = ramped(
        scaled=scaled,
        num_train_steps=None,
        num_warmup_steps=None,
        num_train_epochs=3.0,
        warmup_proportion=0.5,
    )
    plan = resolve_on(settings, world_size, 100)
    schedule, consumed = plan.schedule, plan.batch.sequences(0, plan.schedule.total_steps)
    assert 300 <= consumed < 300 + 16
    assert schedule.warmup_steps == pytest.approx(schedule.total_steps / 2, abs=1)


def started(**changes):
    return begun(settings=run_settings(Path("out"), seed=1, do_train=True), **changes)


def test_a_run_resumed_on_other_ranks_continues_its_ramp():
    """On one rank up to the second stage, then on two, whose ramp has half as many updates."""
    settings = ramped(scaled=True)
    batch = resolve_on(settings, 1).batch
    done = 14
    consumed = batch.sequences(0, done)
    assert consumed == 10 * 4 + 4 * 8
    found = []
    for rank in range(2):
        run = started(ranks=Ranks(2, rank), start=StartPoint("model.ckpt-14", done, done, consumed))
        plan = resolve(run, settings, 1)
        # On two ranks, 5 x 4 + 5 x 8 = 60 and 1 x 16 more are nearest to 72 sequences: 11 updates.
        assert plan.batch.offset == 11 - done
        assert [plan.batch.global_batch_at(done + n) for n in range(3)] == [16, 16, 16]
        assert plan.batch.length_at(done) == 32
        part = run.batch_slice(plan.batch)
        found.append(batch_indices(done, part, num_records=50, seed=1))
    whole = sequence_indices(consumed, 16, num_records=50, seed=1)
    np.testing.assert_array_equal(np.concatenate(found), whole)
    end = run.start.total(plan.batch, plan.last_step)
    assert end == consumed + (20 - 11) * 16


def test_a_changed_ramp_continues_where_the_data_stopped():
    run = started(start=StartPoint("model.ckpt-6", 5, 6, 99))
    plan = resolve(run, ramped(batch="8:0,16:7"), 1)
    assert plan.batch.offset == 0
    part = run.batch_slice(plan.batch)
    found = [batch_indices(n, part, num_records=500, seed=1) for n in (6, 7)]
    assert [len(indices) for indices in found] == [8, 16]
    whole = sequence_indices(99, 24, num_records=500, seed=1)
    np.testing.assert_array_equal(np.concatenate(found), whole)


def ledger_of(settings):
    start = StartPoint("model.ckpt-6", 5, 6, 6 * 4)
    return jobs.ledger_of(settings, ranks=SingleProcess(1), start=start)


def test_the_ledger_shows_ramps_and_what_they_consume():
    found = ledger_of(ramped())
    assert found["batch"]["batch_ramp"] == "4:0,8:10,16:20"
    # 35 updates are left after 5 applied and 1 skipped: at positions 6 to 40.
    after = 4 * 4 + 10 * 8 + 21 * 16
    assert found["consumption"]["sequences"] == 6 * 4 + after
    assert found["consumption"]["positions"] == 16 * (10 * 4 + 5 * 8) + 32 * (5 * 8 + 21 * 16)
    assert "batch_ramp=4:0,8:10,16:20  length_ramp=16:0,32:15" in ledger.format_ledger(found)
    plain = ledger_of(with_values(ramped(), batch_ramp=None, length_ramp=None))
    assert "ramp" not in ledger.format_ledger(plain)
    assert "positions" not in plain["consumption"]


def test_a_changed_ramp_is_reported():
    before = {"ledger": ledger_of(dataclasses.replace(ramped(), length_ramp=None))}
    record = RunRecord("run.json", {**before, "model": BertConfig(vocab_size=5).to_dict()})
    changes = changed_settings(record, ledger_of(ramped(batch="4:0,16:20")), {})
    assert changes == {
        "batch.batch_ramp": "4:0,8:10,16:20 -> 4:0,16:20",
        "batch.length_ramp": "None -> 16:0,32:15",
    }
