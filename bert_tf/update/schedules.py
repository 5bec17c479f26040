"""Learning rates as pure functions of the step.

``step`` is the number of updates done so far: the first update has step 0, the last one
``total_steps - 1``. It may be a Python number, a numpy array or a tensor; the rate is returned as
float64 or, for a tensor, as a float32 tensor.

All schedules but :func:`google` are joined: the warm-up is

    start_rate + (peak_rate - start_rate) * ((step + 1) / warmup_steps) ** warmup_power

before ``warmup_steps``, so the first update already has a positive rate and the last one of the
warm-up has the peak's. What follows begins at ``warmup_steps``, at the peak.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_tf.config.schedules import COSINE, LINEAR, SQRT


def _joined(share_of_peak: Callable[..., Any]) -> Callable[..., Any]:
    """A schedule from what follows its warm-up: a share of the way from ``end_rate`` to the peak.

    ``share_of_peak(array, step, total_steps, warmup_steps, ...)`` applies from ``warmup_steps`` on.
    """

    @functools.wraps(share_of_peak)
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

    del schedule.__wrapped__  # its signature is not that of the schedule
    return schedule


@_joined
def polynomial(
    array: Any, step: Any, total_steps: int, warmup_steps: int, *, decay_power: float = 1.0
) -> Any:
    """Warm-up, then a decay as ``remaining ** decay_power``; 1 is linear.

    ``remaining`` runs from 1 at ``warmup_steps`` to 0 at ``total_steps``, from where on the rate is
    ``end_rate``. The last update, one step earlier, still has a rate above it.
    """
    return _remaining(array, step, warmup_steps, total_steps - warmup_steps) ** decay_power


@_joined
def constant(array: Any, step: Any, total_steps: int, warmup_steps: int) -> Any:
    """Warm-up, then the peak, however many steps there are."""
    del total_steps, warmup_steps
    return array.clip(step, 1.0, 1.0)


@_joined
def cosine(array: Any, step: Any, total_steps: int, warmup_steps: int) -> Any:
    """Warm-up, then ``(1 + cos(pi * x)) / 2`` with ``x`` from 0 to 1 at ``total_steps``.

    The annealing of Loshchilov and Hutter 2017 (SGDR, equation 5), without restarts.
    """
    remaining = _remaining(array, step, warmup_steps, total_steps - warmup_steps)
    return _half_cosine(array, remaining)


@_joined
def warmup_stable_decay(
    array: Any,
    step: Any,
    total_steps: int,
    warmup_steps: int,
    *,
    decay_share: float = 0.1,
    decay_form: str = LINEAR,
) -> Any:
    """Warm-up, the peak, and a decay in the last ``decay_share`` of all steps.

    The schedule of MiniCPM (Hu et al. 2024, section 4), with forms that Hägele et al. 2024 compare:
    ``linear``, ``cosine`` and ``1-sqrt``, the last one being ``1 - sqrt(x)`` with ``x`` from 0 to
    1. A share of less than one step has no decay before ``total_steps``.
    """
    decay_steps = min(decay_share * total_steps, total_steps - warmup_steps)
    remaining = _remaining(array, step, total_steps - decay_steps, decay_steps)
    if decay_form == COSINE:
        return _half_cosine(array, remaining)
    if decay_form == SQRT:
        # Equal to 1 - sqrt(x), without the cancellation near the end.
        return remaining / (1.0 + (1.0 - remaining) ** 0.5)
    return remaining


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
    """Warm-up, then ``decay_rate ** ((step - warmup_steps) / decay_steps)``, without an end.

    DeepSpeed's bing_bert trains with it: its ``warmup_linear_decay_exp`` has ``warmup_power`` 1,
    ``warmup_exp_decay_exp`` (the ``EE`` of its scripts) has 2. There the first update has rate 0,
    and without a warm-up the rate never decays. ``end_rate`` is approached, not reached.
    """
    del total_steps
    return decay_rate ** array.clip((step - warmup_steps) / decay_steps, 0.0, math.inf)


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
    """A triangle of two times ``warmup_steps``, then a linear way down to ``end_rate``.

    The cycle rises from ``cycle_start * peak_rate`` and falls back to it; in the rest of the steps
    the rate is annihilated (Smith and Topin 2018, "Super-convergence", section 3). Only the rise
    has the power of the warm-up.
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
    the start of a decay that begins at step 0: the first update has rate 0, and at the end of the
    warm-up the rate drops to ``1 - warmup_steps / total_steps`` of its peak (for ``decay_power``
    1).
    """
    array, step = _as_array(step)
    warmup = peak_rate * array.clip(step / max(warmup_steps, 1), 0.0, 1.0) ** warmup_power
    remaining = 1.0 - array.clip(step / max(total_steps, 1), 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * remaining**decay_power
    return array.where(step < warmup_steps, warmup, decay)


FUNCTIONS = {
    function.__name__: function
    for function in (
        polynomial,
        constant,
        cosine,
        warmup_stable_decay,
        exponential,
        one_cycle,
        google,
    )
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule with all its settings, after scaling by ranks.

    Attributes:
      name: a key of ``config.schedules.SCHEDULES``.
      options: those of its row, by keyword.
      rewarm_at_step: the step at which the schedule begins again, for the remaining steps; until
        then it runs as if this were the end. None for a single phase.
      rewarm_steps: the warm-up of the second phase, which starts at the first one's last rate.
    """

    name: str
    peak_rate: float
    total_steps: int
    warmup_steps: int
    end_rate: float = 0.0
    options: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    rewarm_at_step: int | None = None
    rewarm_steps: int = 0

    def rate(self, step: Any) -> Any:
        """The learning rate of the update that follows ``step`` updates, as described above."""
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
        return FUNCTIONS[self.name](
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
    """The rise to the peak, which is kept afterwards."""
    done = array.clip((step + 1.0) / max(steps, 1), 0.0, 1.0)
    return _between(start_rate, peak_rate, done**power)


def _remaining(array: Any, step: Any, begin: float, steps: float) -> Any:
    """From 1 at ``begin`` to 0, ``steps`` later; at least one step lies between."""
    steps = max(steps, 1)
    return array.clip((begin + steps - step) / steps, 0.0, 1.0)


def _half_cosine(array: Any, remaining: Any) -> Any:
    """``(1 + cos(pi * (1 - remaining))) / 2``, as a square that is exact near 0 in float32."""
    return array.sin(math.pi / 2 * remaining) ** 2


def _between(low: float, high: float, share: Any) -> Any:
    """From ``low`` to ``high``, each of which is returned exactly for a share of 0 or 1."""
    return low * (1.0 - share) + high * share


class _NumpyArrays:
    clip = staticmethod(np.clip)
    sin = staticmethod(np.sin)
    where = staticmethod(np.where)


class _Tensors:
    clip = staticmethod(tf.clip_by_value)
    sin = staticmethod(tf.sin)
    where = staticmethod(tf.where_v2)


def _as_array(step: Any) -> tuple[Any, Any]:
    """The array functions for the type of ``step``, and ``step`` as floats."""
    if tf.is_tensor(step):
        return _Tensors, tf.cast(step, tf.float32)
    return _NumpyArrays, np.asarray(step, np.float64)
