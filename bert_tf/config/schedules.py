"""What a learning rate schedule may be given: checks of its options, ends and lengths.

The schedules and their options are in ``bert_tf.update.schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_tf.config.settings import OptimizationSettings
from bert_tf.update.schedules import SCHEDULES, ScheduleRow, schedule_options, schedule_row
from bert_tf.util.errors import UserError
from bert_tf.util.options import OptionValue


def options_of(optimization: OptimizationSettings) -> dict[str, OptionValue]:
    """The options of the settings' schedule, by keyword."""
    row, given = schedule_row(optimization.schedule), optimization.schedule_options
    return {name: given.get(name, option.default) for name, option in row.options.items()}


def check_schedule(optimization: OptimizationSettings) -> None:
    """Raises UserError for values that no length of training makes valid."""
    row, known = schedule_row(optimization.schedule), schedule_options()
    for name, value in optimization.schedule_options.items():
        if name not in known:
            raise UserError(f"no learning rate schedule has an option {name}; drop it.")
        if name not in row.options and value != known[name].default:
            raise _foreign(name, value, optimization.schedule)
    for problem in _wrong_values(optimization, row):
        raise UserError(problem)
    _check_rewarming(optimization, row)


def _foreign(name: str, value: OptionValue, schedule: str) -> UserError:
    owners = [owner for owner, row in SCHEDULES.items() if name in row.options]
    option = schedule_options()[name]
    shown = "" if option.default is None else f" or set it to {_shown(option.default)}"
    return UserError(
        f"--{option.flag}={_shown(value)} belongs to --lr_schedule={' or '.join(owners)}, "
        f"but the schedule is {schedule}; leave it out{shown}."
    )


def _wrong_values(optimization: OptimizationSettings, row: ScheduleRow) -> Iterator[str]:
    """A sentence for each value that is out of its range or contradicts another."""
    options, end = options_of(optimization), optimization.end_learning_rate
    peak = optimization.learning_rate
    for name, option in row.options.items():
        problem = option.problem(options[name])
        if problem is not None:
            yield problem
    if end < 0:
        yield f"--end_learning_rate={end:g} must not be negative."
    if end and not row.has_end:
        yield (
            f"--end_learning_rate={end:g} is never reached with --lr_schedule="
            f"{optimization.schedule}; leave one of them out."
        )
    if end > peak > 0:
        yield (
            f"--end_learning_rate={end:g} is greater than --learning_rate={peak:g}, the peak; "
            "lower it."
        )
    problem = row.contradiction and row.contradiction(options, peak, end)
    if problem:
        yield problem


def _check_rewarming(optimization: OptimizationSettings, row: ScheduleRow) -> None:
    at, warmup = optimization.rewarm_at_step, optimization.num_rewarm_steps
    if at is None and warmup is None:
        return
    if at is None or warmup is None:
        raise UserError("--rewarm_at_step and --num_rewarm_steps need each other; give both.")
    if not row.can_rewarm:
        possible = [name for name, other in SCHEDULES.items() if other.can_rewarm]
        raise UserError(
            f"--rewarm_at_step={at} cannot be combined with --lr_schedule={optimization.schedule}; "
            f"drop it, or choose {', '.join(possible[:-1])} or {possible[-1]}."
        )
    for flag, value in (("rewarm_at_step", at), ("num_rewarm_steps", warmup)):
        if value < 1:
            raise UserError(f"--{flag}={value} must be at least 1.")


def check_lengths(optimization: OptimizationSettings) -> None:
    """Raises UserError for parts of a schedule that do not fit into ``num_train_steps``.

    The settings have been through :func:`check_schedule`, and their steps are known.
    """
    total, warmup = optimization.num_train_steps, optimization.num_warmup_steps
    at = optimization.rewarm_at_step
    if warmup > total > 0:
        raise UserError(
            f"--num_warmup_steps={warmup} is more than --num_train_steps={total}, so the learning "
            "rate would never reach its peak; lower it."
        )
    if at is None:
        _check_phase(optimization, total, warmup, f"--num_train_steps={total}")
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
    if optimization.num_rewarm_steps > rest:
        raise UserError(
            f"--num_rewarm_steps={optimization.num_rewarm_steps} is more than the {rest} steps "
            f"after --rewarm_at_step={at}; lower it."
        )
    _check_phase(optimization, at, warmup, f"--rewarm_at_step={at}")
    _check_phase(optimization, rest, optimization.num_rewarm_steps, f"the {rest} steps after it")


def most_warmup_steps(optimization: OptimizationSettings) -> float:
    """The longest warm-up that fits into ``num_train_steps`` with the rest of the schedule."""
    at = optimization.rewarm_at_step
    return _most_warmup(optimization, optimization.num_train_steps if at is None else at)


def _most_warmup(optimization: OptimizationSettings, total: int) -> float:
    row = schedule_row(optimization.schedule)
    return total if row.most_warmup is None else row.most_warmup(total, options_of(optimization))


def _check_phase(optimization: OptimizationSettings, total: int, warmup: int, shown: str) -> None:
    """Checks a warm-up and what follows it until ``total``, which messages call ``shown``."""
    row = schedule_row(optimization.schedule)
    fits = row.least_warmup <= warmup <= _most_warmup(optimization, total)
    if row.misfit is not None and not fits:
        raise UserError(row.misfit(warmup, shown, options_of(optimization)))


def _shown(value: OptionValue) -> str:
    return value if isinstance(value, str) else f"{value:g}"
