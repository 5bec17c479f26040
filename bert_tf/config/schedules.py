"""The registry of learning rate schedules, one row each; the formulas are in ``update.schedules``.

Flags, their checks and the ledger's entries follow from the rows. To add a schedule, write a
function in ``bert_tf.update.schedules`` and add a row with its name here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_tf.config.settings import OptimizationSettings
from bert_tf.util.errors import UserError

LINEAR, COSINE, SQRT = DECAY_FORMS = ("linear", "cosine", "1-sqrt")

# Fields of ``OptimizationSettings`` that some schedules take as keywords -> their flags.
OPTION_FLAGS = {
    "warmup_power": "lr_warmup_power",
    "decay_power": "lr_decay_power",
    "decay_share": "lr_decay_share",
    "decay_form": "lr_decay_form",
    "decay_rate": "lr_decay_rate",
    "decay_steps": "lr_decay_steps",
    "cycle_start": "lr_cycle_start",
}


_ROUNDING = 1e-9  # 0.55 * 100 is more than 55


@dataclasses.dataclass(frozen=True)
class ScheduleRow:
    """What the rest of the toolkit knows about a schedule without loading TensorFlow.

    Attributes:
      title: what it does, for help texts.
      options: the keys of ``OPTION_FLAGS`` that it takes.
      has_end: whether it decays to ``end_learning_rate``.
      can_rewarm: whether it can begin again in the middle of a run.
    """

    title: str
    options: tuple[str, ...] = ()
    has_end: bool = True
    can_rewarm: bool = True


SCHEDULES = {
    "polynomial": ScheduleRow(
        "warm-up, then decay from the peak, linear unless --lr_decay_power says otherwise",
        options=("decay_power", "warmup_power"),
    ),
    "google": ScheduleRow(
        "google-research/bert's, in which the decay begins at step 0",
        options=("decay_power", "warmup_power"),
        can_rewarm=False,
    ),
    "constant": ScheduleRow(
        "warm-up, then the peak", options=("warmup_power",), has_end=False, can_rewarm=False
    ),
    "cosine": ScheduleRow("warm-up, then the falling half of a cosine", options=("warmup_power",)),
    "warmup_stable_decay": ScheduleRow(
        "warm-up, the peak, and a decay in the last --lr_decay_share of the steps",
        options=("decay_share", "decay_form", "warmup_power"),
    ),
    "one_cycle": ScheduleRow(
        "up and down in as many steps each as the warm-up has, then on to the end",
        options=("cycle_start", "warmup_power"),
        can_rewarm=False,
    ),
    "exponential": ScheduleRow(
        "warm-up, then a decay by the factor --lr_decay_rate every --lr_decay_steps",
        options=("decay_rate", "decay_steps", "warmup_power"),
    ),
}


def schedule_row(name: str) -> ScheduleRow:
    """The row of a schedule; raises UserError for a name that is not in the registry."""
    if name not in SCHEDULES:
        raise UserError(f"--lr_schedule={name} is not one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def default_of(option: str) -> float | str | None:
    """The value of an option that was not given."""
    return getattr(OptimizationSettings, option)


def check_schedule(optimization: OptimizationSettings) -> None:
    """Raises UserError for values that no length of training makes valid."""
    row = schedule_row(optimization.schedule)
    given = {name: getattr(optimization, name) for name in OPTION_FLAGS}
    for name, value in given.items():
        if name not in row.options and value != default_of(name):
            raise _foreign(name, value, optimization.schedule)
    for problem in _wrong_values(optimization, row):
        raise UserError(problem)
    _check_rewarming(optimization, row)


def _foreign(name: str, value: float | str, schedule: str) -> UserError:
    owners = [owner for owner, row in SCHEDULES.items() if name in row.options]
    default = default_of(name)
    shown = "" if default is None else f" or set it to {_shown(default)}"
    return UserError(
        f"--{OPTION_FLAGS[name]}={_shown(value)} belongs to --lr_schedule={' or '.join(owners)}, "
        f"but the schedule is {schedule}; leave it out{shown}."
    )


def _wrong_values(optimization: OptimizationSettings, row: ScheduleRow) -> Iterator[str]:
    """A sentence for each value that is out of its range."""
    given = {name: getattr(optimization, name) for name in row.options}
    for name in ("decay_rate", "decay_steps"):
        if name in given and given[name] is None:
            yield (
                f"--lr_schedule={optimization.schedule} needs --lr_decay_rate and "
                "--lr_decay_steps; give both, such as 0.9 and 250."
            )
    if optimization.decay_form not in DECAY_FORMS:
        yield (f"--lr_decay_form={optimization.decay_form} is not one of {', '.join(DECAY_FORMS)}.")
    for name in ("decay_power", "warmup_power"):
        if given.get(name, 1) <= 0:
            yield f"--{OPTION_FLAGS[name]}={given[name]:g} must be greater than 0."
    for name in ("decay_share", "cycle_start"):
        if not 0 <= given.get(name, 0) <= 1:
            yield f"--{OPTION_FLAGS[name]}={given[name]:g} must be in [0, 1]."
    if not 0 < given.get("decay_rate", 1) <= 1:
        yield f"--lr_decay_rate={given['decay_rate']:g} must be in (0, 1]."
    if given.get("decay_steps", 1) < 1:
        yield f"--lr_decay_steps={given['decay_steps']} must be at least 1."
    yield from _wrong_ends(optimization, row)


def _wrong_ends(optimization: OptimizationSettings, row: ScheduleRow) -> Iterator[str]:
    end, peak = optimization.end_learning_rate, optimization.learning_rate
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
    if "cycle_start" in row.options and end > optimization.cycle_start * peak:
        yield (
            f"--end_learning_rate={end:g} is greater than the rate at which the cycle starts and "
            f"ends, --lr_cycle_start={optimization.cycle_start:g} times --learning_rate={peak:g}; "
            "lower it."
        )


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
    if optimization.schedule == "warmup_stable_decay":
        return total * (1 + _ROUNDING) - optimization.decay_share * total
    return total // 2 if optimization.schedule == "one_cycle" else total


def _check_phase(optimization: OptimizationSettings, total: int, warmup: int, shown: str) -> None:
    """Checks a warm-up and what follows it until ``total``, which messages call ``shown``."""
    name, most = optimization.schedule, _most_warmup(optimization, total)
    if name == "warmup_stable_decay" and warmup > most:
        raise UserError(
            f"--lr_decay_share={optimization.decay_share:g} of {shown} and a warm-up of {warmup} "
            "steps overlap; lower one of them."
        )
    if name == "one_cycle" and not 1 <= warmup <= most:
        raise UserError(
            f"--lr_schedule=one_cycle rises in {warmup} warm-up steps and falls in as many, which "
            f"must be from 1 to half of {shown}; change --num_warmup_steps or --warmup_proportion."
        )


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
