"""Learning rate schedules: each is a pure function of the step, with a row that describes it.

Flags, their checks and the ledger's entries are derived from the rows. To add a schedule, write a
function, its options and a row, and add the row to ``SCHEDULES``. TensorFlow is loaded only if a
step is a tensor.

``step`` is the number of updates done so far: it is 0 in the first update and ``total_steps - 1``
in the last. It may be a Python number, a numpy array or a tensor; the rate is returned as float64
or, for a tensor, as a float32 tensor.

All schedules except :func:`google` are joined: the warm-up is

    start_rate + (peak_rate - start_rate) * ((step + 1) / warmup_steps) ** warmup_power

before ``warmup_steps``, so the first update already has a positive rate and the last warm-up update
has the peak rate. The rest of the schedule begins at ``warmup_steps``, at the peak.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Callable

from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval, Option, Options

_ROUNDING = 1e-9  # 0.55 * 100 is more than 55
_POSITIVE = Interval(0, open_low=True)
_SHARE = Interval(0, 1)

WARMUP_POWER = Option(
    1.0, "lr_warmup_power", "Power of the warm-up; 1 means linear.", bounds=_POSITIVE
)
DECAY_POWER = Option(
    1.0, "lr_decay_power", "Power of the polynomial decay; 1 means linear.", bounds=_POSITIVE
)


@dataclasses.dataclass(frozen=True)
class ScheduleRow:
    """A schedule, and what the rest of the toolkit knows about it.

    Attributes:
      title: what it does, for help texts.
      function: maps a step and the keywords ``peak_rate``, ``total_steps``, ``warmup_steps``,
        ``end_rate``, its ``options`` and, if it can rewarm, ``start_rate`` to the rate.
      options: its own options, by keyword.
      has_end: whether it decays to ``end_rate``.
      can_rewarm: whether it can restart in the middle of a run.
      contradiction: maps (options, peak, end) to a sentence about values that cannot be combined;
        None if they are valid.
      least_warmup, most_warmup: the bounds of its warm-up steps; the latter maps (total steps,
        options) to a number, None for all steps.
      misfit: maps (warm-up steps, what the total is called, options) to a sentence about a warm-up
        outside these bounds.
    """

    title: str
    function: Callable[..., Any]
    options: Mapping[str, Option]
    has_end: bool = True
    can_rewarm: bool = True
    contradiction: Callable[[Options, float, float], str | None] | None = None
    least_warmup: int = 0
    most_warmup: Callable[[int, Options], float] | None = None
    misfit: Callable[[int, str, Options], str] | None = None


def _joined(share_of_peak: Callable[..., Any]) -> Callable[..., Any]:
    """Builds a schedule from its part after the warm-up, a fraction between ``end_rate`` and peak.

    ``share_of_peak(array, step, total_steps, warmup_steps, ...)`` applies from ``warmup_steps`` on.
    """

    def schedule(
        step: Any,
        *,
        peak_rate: float,
        total_steps: int,
        warmup_steps: int = 0,
        end_rate: float = 0.0,
        start_rate: float = 0.0,
        warmup_power: float = 1.0,
        **options: Any,
    ) -> Any:
        array, step = _as_array(step)
        warmup = _warmup(array, step, start_rate, peak_rate, warmup_steps, warmup_power)
        share = share_of_peak(array, step, total_steps, warmup_steps, **options)
        return array.where(step < warmup_steps, warmup, _between(end_rate, peak_rate, share))

    schedule.__doc__ = share_of_peak.__doc__
    return schedule


@_joined
def polynomial(
    array: Any, step: Any, total_steps: int, warmup_steps: int, *, decay_power: float = 1.0
) -> Any:
    """Warm-up, then a decay as ``remaining ** decay_power``; 1 is linear.

    ``remaining`` falls from 1 at ``warmup_steps`` to 0 at ``total_steps``, after which the rate is
    ``end_rate``. The last update is one step earlier, so its rate is still higher.
    """
    return _remaining(array, step, warmup_steps, total_steps - warmup_steps) ** decay_power


POLYNOMIAL = ScheduleRow(
    "warm-up, then decay from the peak, linear unless --lr_decay_power says otherwise",
    polynomial,
    options={"decay_power": DECAY_POWER, "warmup_power": WARMUP_POWER},
)


@_joined
def constant(array: Any, step: Any, total_steps: int, warmup_steps: int) -> Any:
    """Warm-up, then the peak rate, however many steps follow."""
    del total_steps, warmup_steps
    return array.clip(step, 1.0, 1.0)


CONSTANT = ScheduleRow(
    "warm-up, then the peak",
    constant,
    options={"warmup_power": WARMUP_POWER},
    has_end=False,
    can_rewarm=False,
)


@_joined
def cosine(array: Any, step: Any, total_steps: int, warmup_steps: int) -> Any:
    """Warm-up, then ``(1 + cos(pi * x)) / 2`` where ``x`` rises from 0 to 1 at ``total_steps``.

    The annealing of Loshchilov and Hutter 2017 (SGDR, equation 5), without restarts.
    """
    remaining = _remaining(array, step, warmup_steps, total_steps - warmup_steps)
    return _half_cosine(array, remaining)


COSINE = ScheduleRow(
    "warm-up, then the falling half of a cosine", cosine, options={"warmup_power": WARMUP_POWER}
)


DECAY_FORMS = ("linear", "cosine", "1-sqrt")


@_joined
def warmup_stable_decay(
    array: Any,
    step: Any,
    total_steps: int,
    warmup_steps: int,
    *,
    decay_share: float = 0.1,
    decay_form: str = DECAY_FORMS[0],
) -> Any:
    """Warm-up, the peak, then a decay over the last ``decay_share`` of all steps.

    The schedule of MiniCPM (Hu et al. 2024, section 4), with the decay forms compared by Hägele et
    al. 2024: ``linear``, ``cosine`` and ``1-sqrt``, which is ``1 - sqrt(x)`` where ``x`` rises from
    0 to 1. A fraction of less than one step means no decay before ``total_steps``.
    """
    decay_steps = min(decay_share * total_steps, total_steps - warmup_steps)
    remaining = _remaining(array, step, total_steps - decay_steps, decay_steps)
    if decay_form == "cosine":
        return _half_cosine(array, remaining)
    if decay_form == "1-sqrt":
        # Equal to 1 - sqrt(x), without cancellation near the end.
        return remaining / (1.0 + (1.0 - remaining) ** 0.5)
    return remaining


WARMUP_STABLE_DECAY = ScheduleRow(
    "warm-up, the peak, then a decay over the last --lr_decay_share of the steps",
    warmup_stable_decay,
    options={
        "decay_share": Option(
            0.1,
            "lr_decay_share",
            "warmup_stable_decay: fraction of the steps over which the rate decays.",
            bounds=_SHARE,
        ),
        "decay_form": Option(
            DECAY_FORMS[0],
            "lr_decay_form",
            "warmup_stable_decay: how the rate decays.",
            choices=DECAY_FORMS,
        ),
        "warmup_power": WARMUP_POWER,
    },
    most_warmup=lambda total, options: total * (1 + _ROUNDING) - options["decay_share"] * total,
    misfit=lambda warmup, shown, options: (
        f"--lr_decay_share={options['decay_share']:g} of {shown} and a warm-up of {warmup} steps "
        "overlap; lower one of them."
    ),
)


@_joined
def exponential(
    array: Any,
    step: Any,
    total_steps: int,
    warmup_steps: int,
    *,
    decay_rate: float,
    decay_steps: float,
) -> Any:
    """Warm-up, then an unending decay, ``decay_rate ** ((step - warmup_steps) / decay_steps)``.

    DeepSpeed's bing_bert trains with it: ``warmup_linear_decay_exp`` has ``warmup_power`` 1, and
    ``warmup_exp_decay_exp`` (the ``EE`` of its scripts) has 2. In DeepSpeed, the first update has
    rate 0, and without a warm-up the rate never decays. ``end_rate`` is approached, never reached.
    """
    del total_steps
    return decay_rate ** array.clip((step - warmup_steps) / decay_steps, 0.0, math.inf)


EXPONENTIAL = ScheduleRow(
    "warm-up, then a decay by the factor --lr_decay_rate every --lr_decay_steps",
    exponential,
    options={
        "decay_rate": Option(
            None,
            "lr_decay_rate",
            "exponential: factor per --lr_decay_steps, such as 0.9.",
            kind=float,
            bounds=Interval(0, 1, open_low=True),
        ),
        "decay_steps": Option(
            None,
            "lr_decay_steps",
            "exponential: updates on one rank per multiplication of the rate by --lr_decay_rate.",
            kind=int,
            bounds=Interval(1),
            counts_steps=True,
        ),
        "warmup_power": WARMUP_POWER,
    },
    contradiction=lambda options, *_: (
        "--lr_schedule=exponential needs --lr_decay_rate and --lr_decay_steps; give both, such "
        "as 0.9 and 250."
        if None in (options["decay_rate"], options["decay_steps"])
        else None
    ),
)


def one_cycle(
    step: Any,
    *,
    peak_rate: float,
    total_steps: int,
    warmup_steps: int,
    end_rate: float = 0.0,
    cycle_start: float = 0.1,
    warmup_power: float = 1.0,
) -> Any:
    """A triangle of twice ``warmup_steps``, then a linear decay to ``end_rate``.

    The cycle rises from ``cycle_start * peak_rate`` and falls back to it; over the remaining steps
    the rate is annihilated (Smith and Topin 2018, "Super-convergence", section 3). The warm-up's
    power applies only to the rise.
    """
    array, step = _as_array(step)
    start_rate, cycle_end = cycle_start * peak_rate, 2 * warmup_steps
    rise = _warmup(array, step, start_rate, peak_rate, warmup_steps, warmup_power)
    fall = _remaining(array, step, warmup_steps, warmup_steps)
    rest = _remaining(array, step, cycle_end, total_steps - cycle_end)
    after = array.where(
        step < cycle_end,
        _between(start_rate, peak_rate, fall),
        _between(end_rate, start_rate, rest),
    )
    return array.where(step < warmup_steps, rise, after)


ONE_CYCLE = ScheduleRow(
    "up during the warm-up, down in as many steps, then a decay to the end",
    one_cycle,
    options={
        "cycle_start": Option(
            0.1,
            "lr_cycle_start",
            "one_cycle: fraction of the peak at which the cycle starts and ends.",
            bounds=_SHARE,
        ),
        "warmup_power": WARMUP_POWER,
    },
    can_rewarm=False,
    contradiction=lambda options, peak, end: (
        f"--end_learning_rate={end:g} is greater than the rate at which the cycle starts and "
        f"ends, --lr_cycle_start={options['cycle_start']:g} times --learning_rate={peak:g}; "
        "lower it."
        if end > options["cycle_start"] * peak
        else None
    ),
    least_warmup=1,
    most_warmup=lambda total, _: total // 2,
    misfit=lambda warmup, shown, _: (
        f"--lr_schedule=one_cycle rises in {warmup} warm-up steps and falls in as many, which must "
        f"be from 1 to half of {shown}; change --num_warmup_steps or --warmup_proportion."
    ),
)


def google(
    step: Any,
    *,
    peak_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    end_rate: float = 0.0,
    decay_power: float = 1.0,
    warmup_power: float = 1.0,
) -> Any:
    """The schedule of google-research/bert, to reproduce its runs.

    The warm-up ``peak_rate * (step / warmup_steps) ** warmup_power``, of power 1 there, replaces
    the start of a decay that begins at step 0: the first update has rate 0, and when the warm-up
    ends the rate drops to ``1 - warmup_steps / total_steps`` of its peak (for ``decay_power`` 1).
    """
    array, step = _as_array(step)
    warmup = peak_rate * array.clip(step / max(warmup_steps, 1), 0.0, 1.0) ** warmup_power
    remaining = 1.0 - array.clip(step / max(total_steps, 1), 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * remaining**decay_power
    return array.where(step < warmup_steps, warmup, decay)


GOOGLE = ScheduleRow(
    "google-research/bert's, in which the decay begins at step 0",
    google,
    options={"decay_power": DECAY_POWER, "warmup_power": WARMUP_POWER},
    can_rewarm=False,
)


SCHEDULES: dict[str, ScheduleRow] = {
    "polynomial": POLYNOMIAL,
    "google": GOOGLE,
    "constant": CONSTANT,
    "cosine": COSINE,
    "warmup_stable_decay": WARMUP_STABLE_DECAY,
    "one_cycle": ONE_CYCLE,
    "exponential": EXPONENTIAL,
}


def schedule_row(name: str) -> ScheduleRow:
    """The row of a schedule; raises UserError for an unknown name."""
    if name not in SCHEDULES:
        raise UserError(f"--lr_schedule={name} is not one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def schedule_options() -> dict[str, Option]:
    """Keyword -> option, for all schedules; an option shared by several appears once."""
    return {name: option for row in SCHEDULES.values() for name, option in row.options.items()}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule with all its settings, after scaling by ranks.

    Attributes:
      name: a key of ``SCHEDULES``.
      options: the options of its row, by keyword.
      rewarm_at_step: the step at which the schedule restarts for the remaining steps; before that,
        it runs as if this were the end. None for a single phase.
      rewarm_steps: the warm-up of the second phase, which starts at the first phase's last rate.
    """

    name: str
    peak_rate: float
    total_steps: int
    warmup_steps: int
    end_rate: float = 0.0
    options: Options = dataclasses.field(default_factory=dict)
    rewarm_at_step: int | None = None
    rewarm_steps: int = 0

    def rate(self, step: Any) -> Any:
        """The learning rate of the update after ``step`` updates, as described above."""
        begin = self.rewarm_at_step
        if begin is None:
            return self._phase(step, self.total_steps, self.warmup_steps)
        array, step = _as_array(step)
        last = float(self._phase(begin, begin, self.warmup_steps))
        second = self._phase(
            step - begin, self.total_steps - begin, self.rewarm_steps, start_rate=last
        )
        return array.where(step < begin, self._phase(step, begin, self.warmup_steps), second)

    def _phase(self, step: Any, total_steps: int, warmup_steps: int, **start: float) -> Any:
        return SCHEDULES[self.name].function(
            step,
            peak_rate=self.peak_rate,
            total_steps=total_steps,
            warmup_steps=warmup_steps,
            end_rate=self.end_rate,
            **self.options,
            **start,
        )


def _warmup(
    array: Any, step: Any, start_rate: float, peak_rate: float, steps: int, power: float
) -> Any:
    """Rises to the peak, and stays there."""
    done = array.clip((step + 1.0) / max(steps, 1), 0.0, 1.0)
    return _between(start_rate, peak_rate, done**power)


def _remaining(array: Any, step: Any, begin: float, steps: float) -> Any:
    """Falls from 1 at ``begin`` to 0 ``steps`` later, which is at least one step."""
    steps = max(steps, 1)
    return array.clip((begin + steps - step) / steps, 0.0, 1.0)


def _half_cosine(array: Any, remaining: Any) -> Any:
    """``(1 + cos(pi * (1 - remaining))) / 2``, as a square that is exact near 0 in float32."""
    return array.sin(math.pi / 2 * remaining) ** 2


def _between(low: float, high: float, share: Any) -> Any:
    """Interpolates from ``low`` to ``high``, both of which are exact for fractions 0 and 1."""
    return low * (1.0 - share) + high * share


def _as_array(step: Any) -> tuple[Any, Any]:
    """The array module for the type of ``step``, and ``step`` as floats."""
    import numpy as np

    if isinstance(step, (int, float, list, np.ndarray, np.generic)):
        return np, np.asarray(step, np.float64)
    import tensorflow.compat.v1 as tf

    functions = types.SimpleNamespace(clip=tf.clip_by_value, sin=tf.sin, where=tf.where_v2)
    return functions, tf.cast(step, tf.float32)
