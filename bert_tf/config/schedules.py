"""The learning rate settings: the schedule, with checks of its options, bounds and lengths.

``bert_tf.update.schedules`` has the schedules and their options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_tf.config.declared import AT_LEAST_ONE, NOT_NEGATIVE, Settings, setting
from bert_tf.update.schedules import SCHEDULES, ScheduleRow, schedule_options, schedule_row
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval, Options, OptionValue, shown


@dataclasses.dataclass(frozen=True)
class ScheduleSettings(Settings):
    """Settings of the learning rate.

    Attributes:
      options: the schedule's options, by keyword; omitted ones get their defaults.
    """

    learning_rate: float = setting(5e-5, "Peak learning rate.", bounds=Interval(0, open_low=True))
    learning_rate_scaling: str = setting(
        "none",
        "Multiply the learning rate by 1, the number of ranks or its square root.",
        choices=("none", "linear", "sqrt"),
    )
    name: str = setting(
        "polynomial",
        "; ".join(f"{name}: {row.title}" for name, row in SCHEDULES.items()) + ".",
        flag="lr_schedule",
        choices=SCHEDULES,
    )
    options: Options = dataclasses.field(default_factory=dict)
    end_learning_rate: float = setting(
        0.0, "Learning rate after the last step.", bounds=NOT_NEGATIVE
    )
    rewarm_at_step: int | None = setting(
        None,
        "Update, on one rank, after which the schedule restarts for the remaining updates.",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    num_rewarm_steps: int | None = setting(
        None, "Warm-up updates after --rewarm_at_step, on one rank.", kind=int, bounds=AT_LEAST_ONE
    )

    def contradictions(self) -> Iterator[str]:
        """Values that are invalid for any length of training."""
        row, known = schedule_row(self.name), schedule_options()
        for name, value in self.options.items():
            if name not in known:
                yield f"no learning rate schedule has an option {name}; drop it."
            elif name not in row.options and value != known[name].default:
                yield _foreign(name, value, self.name)
        yield from self._wrong_values(row)
        yield from self._wrong_rewarming(row)

    def all_options(self) -> dict[str, Any]:
        """The options by keyword, with defaults for omitted ones."""
        row, given = schedule_row(self.name), self.options
        return {name: given.get(name, option.default) for name, option in row.options.items()}

    def _wrong_values(self, row: ScheduleRow) -> Iterator[str]:
        """A sentence for each value that is out of range or contradicts another."""
        options, end, peak = self.all_options(), self.end_learning_rate, self.learning_rate
        for name, option in row.options.items():
            problem = option.problem(options[name])
            if problem is not None:
                yield problem
        if end and not row.has_end:
            yield (
                f"{self.given('end_learning_rate')} is never reached with {self.given('name')}; "
                "leave one of them out."
            )
        if end > peak:
            yield (
                f"{self.given('end_learning_rate')} is greater than "
                f"{self.given('learning_rate')}, the peak; lower it."
            )
        problem = row.contradiction and row.contradiction(options, peak, end)
        if problem:
            yield problem

    def _wrong_rewarming(self, row: ScheduleRow) -> Iterator[str]:
        at, warmup = self.rewarm_at_step, self.num_rewarm_steps
        if (at is None) != (warmup is None):
            yield "--rewarm_at_step and --num_rewarm_steps need each other; give both."
        elif at is not None and not row.can_rewarm:
            possible = [name for name, other in SCHEDULES.items() if other.can_rewarm]
            yield (
                f"{self.given('rewarm_at_step')} cannot be combined with {self.given('name')}; "
                f"drop it, or choose {', '.join(possible[:-1])} or {possible[-1]}."
            )


def _foreign(name: str, value: OptionValue, schedule: str) -> str:
    owners = [owner for owner, row in SCHEDULES.items() if name in row.options]
    option = schedule_options()[name]
    drop = "" if option.default is None else f" or set it to {shown(option.default)}"
    return (
        f"--{option.flag}={shown(value)} belongs to --lr_schedule={' or '.join(owners)}, "
        f"but the schedule is {schedule}; leave it out{drop}."
    )


def check_lengths(schedule: ScheduleSettings, total: int | None, warmup: int | None) -> None:
    """Raises UserError if parts of a schedule do not fit into its steps.

    ``total`` and ``warmup`` are steps on one rank; None, if they depend on the records, passes.
    """
    if total is None or warmup is None:
        return
    at, rewarmup = schedule.rewarm_at_step, schedule.num_rewarm_steps
    if warmup > total:
        raise UserError(
            f"--num_warmup_steps={warmup} is more than --num_train_steps={total}, so the learning "
            "rate would never reach its peak; lower it."
        )
    if at is None or rewarmup is None:
        _check_phase(schedule, total, warmup, f"--num_train_steps={total}")
        return
    if at >= total:
        raise UserError(
            f"--rewarm_at_step={at} is not before the end, --num_train_steps={total}; raise the "
            "number of steps."
        )
    rest = total - at
    if warmup > at:
        raise UserError(
            f"--num_warmup_steps={warmup} is more than the {at} steps before --rewarm_at_step; "
            "lower it."
        )
    if rewarmup > rest:
        raise UserError(
            f"--num_rewarm_steps={rewarmup} is more than the {rest} steps "
            f"after --rewarm_at_step={at}; lower it."
        )
    _check_phase(schedule, at, warmup, f"--rewarm_at_step={at}")
    _check_phase(schedule, rest, rewarmup, f"the {rest} steps after it")


def most_warmup_steps(schedule: ScheduleSettings, num_train_steps: int) -> float:
    """The longest warm-up that fits into ``num_train_steps`` with the rest of the schedule."""
    at = schedule.rewarm_at_step
    return _most_warmup(schedule, num_train_steps if at is None else at)


def _most_warmup(schedule: ScheduleSettings, total: int) -> float:
    row = schedule_row(schedule.name)
    return total if row.most_warmup is None else row.most_warmup(total, schedule.all_options())


def _check_phase(schedule: ScheduleSettings, total: int, warmup: int, until: str) -> None:
    """Checks a warm-up and the rest of the phase up to ``total``, which messages call ``until``."""
    row = schedule_row(schedule.name)
    fits = row.least_warmup <= warmup <= _most_warmup(schedule, total)
    if row.misfit is not None and not fits:
        raise UserError(row.misfit(warmup, until, schedule.all_options()))
