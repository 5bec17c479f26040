"""Learning rates as pure functions of the step.

``step`` is the number of updates done so far: the first update has step 0, the last one
``total_steps - 1``. It may be a Python number, a numpy array or a tensor; the rate is returned as
float64 or, for a tensor, as a float32 tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def polynomial(
    step: Any,
    *,
    peak_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    end_rate: float = 0.0,
    power: float = 1.0,
) -> Any:
    """Linear warm-up followed by polynomial decay; continuous, and reaches the peak.

    The rate is ``peak_rate * (step + 1) / warmup_steps`` before ``warmup_steps``, so the first
    update already has a positive rate and the last one of the warm-up has the full rate. It then
    decays as ``(1 - x) ** power``, where ``x`` runs from 0 at ``warmup_steps`` to 1 at
    ``total_steps``, and stays at ``end_rate``. The last update, one step earlier, still has a rate
    above ``end_rate``.
    """
    array, step = _as_array(step)
    warmup = peak_rate * (step + 1.0) / max(warmup_steps, 1)
    decay_steps = max(total_steps - warmup_steps, 1)
    remaining = array.clip(1.0 - (step - warmup_steps) / decay_steps, 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * remaining**power
    return array.where(step < warmup_steps, warmup, decay)


def google(
    step: Any,
    *,
    peak_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    end_rate: float = 0.0,
    power: float = 1.0,
) -> Any:
    """The schedule of google-research/bert, to reproduce its runs.

    The warm-up ``peak_rate * step / warmup_steps`` replaces the start of a decay that begins at
    step 0: the first update has rate 0, and at the end of the warm-up the rate drops to
    ``1 - warmup_steps / total_steps`` of its peak (for ``power`` 1).
    """
    array, step = _as_array(step)
    warmup = peak_rate * step / max(warmup_steps, 1)
    remaining = 1.0 - array.clip(step / max(total_steps, 1), 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * remaining**power
    return array.where(step < warmup_steps, warmup, decay)


SCHEDULES = {"polynomial": polynomial, "google": google}


class _NumpyArrays:
    clip = staticmethod(np.clip)
    where = staticmethod(np.where)


class _Tensors:
    clip = staticmethod(tf.clip_by_value)
    where = staticmethod(tf.where_v2)


def _as_array(step: Any) -> tuple[Any, Any]:
    """The array functions for the type of ``step``, and ``step`` as floats."""
    if tf.is_tensor(step):
        return _Tensors, tf.cast(step, tf.float32)
    return _NumpyArrays, np.asarray(step, np.float64)
