"""A schedule with options of its own is a file like this one."""

import numpy as np
import pytest
from absl import flags as absl_flags

from bert_tf.cli import training_flags as flags
from bert_tf.cli.settings_flags import Definer
from bert_tf.train.ledger import schedule_entries
from bert_tf.update.schedules import SCHEDULES, ScheduleRow
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval, Option
from tests.helpers.jobs import resolve_on


def staircase(step, *, peak_rate, total_steps, warmup_steps, end_rate, stair_steps, stair_factor):
    """The peak times ``stair_factor`` for every ``stair_steps`` that are done."""
    return peak_rate * stair_factor ** (np.asarray(step) // stair_steps)


ROW = ScheduleRow(
    "down by stairs",
    staircase,
    options={
        "stair_steps": Option(
            4, "lr_stair_steps", "Steps of a stair.", bounds=Interval(1), counts_steps=True
        ),
        "stair_factor": Option(
            0.5, "lr_stair_factor", "Factor of a stair.", bounds=Interval(0, 1, open_low=True)
        ),
    },
    has_end=False,
    can_rewarm=False,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "staircase", ROW)


def settings(*given):
    values = absl_flags.FlagValues()
    flags.define_optimization_flags(
        Definer(values), num_train_steps={"default": 16}, num_warmup_steps={"default": 0}
    )
    values(["program", "--learning_rate=1", "--train_batch_size=2", *given])
    return flags.optimization_settings(values)


STAIRCASE = ("--lr_schedule=staircase", "--lr_stair_factor=0.25")


def test_its_options_arrive_in_the_schedule_and_in_the_ledger():
    found = settings(*STAIRCASE, "--scale_steps_by_ranks")
    assert found.schedule.all_options() == {"stair_steps": 4, "stair_factor": 0.25}
    schedule = resolve_on(found, 2).schedule
    np.testing.assert_array_equal(schedule.rate(np.arange(5)), [1, 1, 0.25, 0.25, 0.0625])
    entries = schedule_entries(schedule)
    assert (entries["stair_steps"], entries["stair_factor"]) == (2, 0.25)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((*STAIRCASE, "--lr_stair_steps=0"), r"^--lr_stair_steps=0 must be at least 1\.$"),
        (
            ("--lr_stair_factor=0.25",),
            r"^--lr_stair_factor=0.25 belongs to --lr_schedule=staircase, but the schedule is "
            r"polynomial; leave it out or set it to 0\.5\.$",
        ),
        ((*STAIRCASE, "--end_learning_rate=0.1"), "is never reached with --lr_schedule=staircase"),
    ],
)
def test_its_options_are_checked(given, sentence):
    with pytest.raises(UserError, match=sentence):
        settings(*given)
