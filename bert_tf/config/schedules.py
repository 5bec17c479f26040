"""What a learning rate schedule may be given: checks of its options, ends and lengths.

The schedules and their options are in ``bert_tf.update.schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert_tf.update.schedules import SCHEDULES, ScheduleRow, schedule_options, schedule_row
from bert_tf.util.errors import UserError
from bert_tf.util.options import OptionValue, shown

if TYPE_CHECKING:
    from bert_tf.config.settings import OptimizationSettings, ScheduleSettings


def options_of(schedule: ScheduleSettings) -> dict[str, OptionValue]:
    """The options of a schedule, by keyword, with defaults for those that are left out."""
    given = schedule.options
    row = schedule_row(schedule.name)
    return {name: given.get(name, option.default) for name, option in row.options.items()}


def schedule_problems(schedule: ScheduleSettings) -> Iterator[str]:
    """A sentence for each value that no length of training makes valid."""
    row, known = schedule_row(schedule.name), schedule_options()
    for name, value in schedule.options.items():
        if name not in known:
            yield f"no learning rate schedule has an option {name}; drop it."
        elif name not in row.options and value != known[name].default:
            yield _foreign(name, value, schedule.name)
    yield from _wrong_values(schedule, row)
    yield from _wrong_rewarming(schedule, row)


def _foreign(name: str, value: OptionValue, schedule: str) -> str:
    owners = [owner for owner, row in SCHEDULES.items() if name in row.options]
    option = schedule_options()[name]
    drop = "" if option.default is None else f" or set it to {shown(option.default)}"
    return (
        f"--{option.flag}={shown(value)} belongs to --lr_schedule={' or '.join(owners)}, "
        f"but the schedule is {schedule}; leave it out{drop}."
    )


def _wrong_values(schedule: ScheduleSettings, row: ScheduleRow) -> Iterator[str]:
    """A sentence for each value that is out of its range or contradicts another."""
    options, end, peak = options_of(schedule), schedule.end_learning_rate, schedule.learning_rate
    for name, option in row.options.items():
        problem = option.problem(options[name])
        if problem is not None:
            yield problem
    if end and not row.has_end:
        yield (
            f"--end_learning_rate={end:g} is never reached with --lr_schedule={schedule.name}; "
            "leave one of them out."
        )
    if end > peak > 0:
        yield (
            f"--end_learning_rate={end:g} is greater than --learning_rate={peak:g}, the peak; "
            "lower it."
        )
    problem = row.contradiction and row.contradiction(options, peak, end)
    if problem:
        yield problem


def _wrong_rewarming(schedule: ScheduleSettings, row: ScheduleRow) -> Iterator[str]:
    at, warmup = schedule.rewarm_at_step, schedule.num_rewarm_steps
    if (at is None) != (warmup is None):
        yield "--rewarm_at_step and --num_rewarm_steps need each other; give both."
    elif at is not None and not row.can_rewarm:
        possible = [name for name, other in SCHEDULES.items() if other.can_rewarm]
        yield (
            f"--rewarm_at_step={at} cannot be combined with --lr_schedule={schedule.name}; "
            f"drop it, or choose {', '.join(possible[:-1])} or {possible[-1]}."
        )


def check_lengths(optimization: OptimizationSettings) -> None:
    """Raises UserError for parts of a schedule that do not fit into ``num_train_steps``.

    Lengths that follow from the number of records are not checked.
    """
    total, warmup = optimization.steps.num_train_steps, optimization.steps.num_warmup_steps
    if total is None or warmup is None:
        return
    schedule = optimization.schedule
    at = schedule.rewarm_at_step
    if warmup > total > 0:
        raise UserError(
            f"--num_warmup_steps={warmup} is more than --num_train_steps={total}, so the learning "
            "rate would never reach its peak; lower it."
        )
    if at is None:
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
    if schedule.num_rewarm_steps > rest:
        raise UserError(
            f"--num_rewarm_steps={schedule.num_rewarm_steps} is more than the {rest} steps "
            f"after --rewarm_at_step={at}; lower it."
        )
    _check_phase(schedule, at, warmup, f"--rewarm_at_step={at}")
    _check_phase(schedule, rest, schedule.num_rewarm_steps, f"the {rest} steps after it")


def most_warmup_steps(schedule: ScheduleSettings, num_train_steps: int) -> float:
    """The longest warm-up that fits into ``num_train_steps`` with the rest of the schedule."""
    at = schedule.rewarm_at_step
    return _most_warmup(schedule, num_train_steps if at is None else at)


def _most_warmup(schedule: ScheduleSettings, total: int) -> float:
    row = schedule_row(schedule.name)
    return total if row.most_warmup is None else row.most_warmup(total, options_of(schedule))


def _check_phase(schedule: ScheduleSettings, total: int, warmup: int, until: str) -> None:
    """Checks a warm-up and what follows it until ``total``, which messages call ``until``."""
    row = schedule_row(schedule.name)
    fits = row.least_warmup <= warmup <= _most_warmup(schedule, total)
    if row.misfit is not None and not fits:
        raise UserError(row.misfit(warmup, until, options_of(schedule)))
