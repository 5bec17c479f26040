"""Learning rates as pure functions of the step.

``step`` is the number of updates made so far: the first update has step 0, the last one
``total_steps - 1``. It may be a Python number, a numpy array or a tensor; the rate comes back as
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
    """Linear warm-up joined to a polynomial decay: continuous, and its peak is reached.

    The rate is ``peak_rate * (step + 1) / warmup_steps`` before ``warmup_steps``, so that the
    first update already learns and the last one of the warm-up has the full rate. From there it
    falls as ``(1 - x) ** power``, ``x`` running from 0 at ``warmup_steps`` to 1 at
    ``total_steps``, where it stays at ``end_rate``. The last update, one step earlier, still has
    a rate above ``end_rate``.
    """
    array, step = _as_array(step)
    warmup = peak_rate * (step + 1.0) / max(warmup_steps, 1)
    decay_steps = max(total_steps - warmup_steps, 1)
    left = array.clip(1.0 - (step - warmup_steps) / decay_steps, 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * left**power
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
    """The schedule of google-research/bert, for those who reproduce its runs.

    A warm-up ``peak_rate * step / warmup_steps`` overlays a decay that runs from step 0 on: the
    first update has rate 0, and at the end of the warm-up the rate drops to
    ``1 - warmup_steps / total_steps`` of its peak (for ``power`` 1).
    """
    array, step = _as_array(step)
    warmup = peak_rate * step / max(warmup_steps, 1)
    left = 1.0 - array.clip(step / max(total_steps, 1), 0.0, 1.0)
    decay = end_rate + (peak_rate - end_rate) * left**power
    return array.where(step < warmup_steps, warmup, decay)


SCHEDULES = {"polynomial": polynomial, "google": google}


class _NumpyArrays:
    clip = staticmethod(np.clip)
    where = staticmethod(np.where)


class _Tensors:
    clip = staticmethod(tf.clip_by_value)
    where = staticmethod(tf.where_v2)


def _as_array(step: Any) -> tuple[Any, Any]:
    """The functions for the kind of array that ``step`` is, and ``step`` as floats."""
    if tf.is_tensor(step):
        return _Tensors, tf.cast(step, tf.float32)
    return _NumpyArrays, np.asarray(step, np.float64)
