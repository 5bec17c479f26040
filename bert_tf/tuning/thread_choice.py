"""The threads of a rank: one for each of its processors, or half as many, by measuring.

Processors may be hyper-threads, two of which share the units that compute products, and a virtual
machine does not say whether its own are. Whether the second one helps or is in the way depends on
the processor and on how much of a layer lies between the products.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf import environment
from bert_tf.model.options import ForwardOptions
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.tuning import speed_probe
from bert_tf.tuning.speed_choice import LEAST_OPERATIONS, cache_directory, keep, read_kept
from bert_tf.tuning.speed_probe import JobShapes
from bert_tf.tuning.update_probe import update_pieces

# Share of a host's processors that other processes may have while a measurement shows anything:
# where one of two processors is taken, a rank with one thread waits for nobody and looks faster.
_OTHERS_SHARE = 0.1

# By how much a layer must be faster with half of the threads. What lies outside of the layers (the
# embeddings, the words' scores, their update) may take twice as long with half of them.
_LEAST_GAIN = 1.25


def choose_threads(
    ranks: SingleProcess,
    shapes: JobShapes,
    *,
    options: ForwardOptions,
    native_update: bool,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Halves the threads of all ranks where that is faster on all of them. Collective.

    Where other processes are so busy that nothing can be measured, ranks keep all their threads.

    Args:
      ranks: all ranks, with a thread for each processor; ``threads`` may change.
      shapes: the job's.
      options: how its layers are computed.
      native_update: whether native operations compute its update.
      earlier: facts of the choice that a run which is resumed was begun with, the same on all
        ranks, None without one; they hold where the conditions are the same.

    Returns: facts for the ledger, none where there is nothing to choose.
    """
    numbers = (ranks.threads, ranks.threads // 2)
    has_choice = ranks.threads > 1 and shapes.operations >= LEAST_OPERATIONS
    local = _conditions(ranks, shapes, options, native_update) if has_choice else ""
    everywhere = set(ranks.gather(local))
    if "" in everywhere:
        return {}
    environment.give_sessions_their_own_threads()
    conditions = "; ".join(sorted(everywhere))
    known = earlier or {}
    if known.get("conditions") == conditions and isinstance(known.get("halved"), bool):
        facts = dict(known)
    else:
        found = _measure(ranks, shapes, options, native_update, numbers, local)
        facts = {**found, "conditions": conditions}
    if facts["halved"]:
        ranks.threads = numbers[1]
    return facts


def _measure(
    ranks: SingleProcess,
    shapes: JobShapes,
    options: ForwardOptions,
    native_update: bool,
    numbers: tuple[int, int],
    conditions: str,
) -> dict[str, Any]:
    """Whether half the threads are faster on all ranks, and the figures of this one."""
    directory, when = cache_directory(), "before"
    seconds = _as_kept(read_kept(directory, conditions), numbers)
    # All measure where one has to: at once, as they will compute, and none waits for another.
    if None in ranks.gather(seconds):
        when = "now"
        others = OtherProcesses(ranks.local_size)
        found = speed_probe.time_threads(
            shapes,
            options,
            numbers,
            update=update_pieces,
            native_update=native_update,
            is_disturbed=others.are_busy,
        )
        if None in ranks.gather(found):
            return {"halved": False, "measured": "not, other processes are busy"}
        seconds = {str(number): found[number] for number in numbers}
        keep(directory, conditions, seconds)
    all_of_them, half = map(str, numbers)
    gains = seconds[half] < seconds[all_of_them] / _LEAST_GAIN
    shown = {f"{n}_threads_ms": float(f"{1e3 * seconds[n]:.3g}") for n in (all_of_them, half)}
    return {"halved": all(ranks.gather(gains)), **shown, "measured": when}


class OtherProcesses:
    """What processes other than ranks take of a host's processors, from now on."""

    def __init__(self, local_size: int) -> None:
        """``local_size`` ranks on this host take as much as this one each."""
        self._local_size = local_size
        self._start = self._read()

    def are_busy(self) -> bool:
        """Whether they have had so much that times show nothing; also where nobody can tell."""
        mine, busy, clock = (now - then for then, now in zip(self._start, self._read()))
        others = busy - self._local_size * mine
        return not others <= _OTHERS_SHARE * clock * environment.allowed_cores()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Seconds of this process, of all that its processors computed, and of the clock."""
        busy = environment.busy_seconds()
        return time.process_time(), math.nan if busy is None else busy, time.perf_counter()


def _as_kept(value: Any, numbers: tuple[int, int]) -> dict[str, float] | None:
    """A value from a file if it can be what was kept there, else None."""
    if not isinstance(value, dict) or set(value) != set(map(str, numbers)):
        return None
    return value if all(type(s) is float and s > 0 for s in value.values()) else None


def _conditions(
    ranks: SingleProcess, shapes: JobShapes, options: ForwardOptions, native_update: bool
) -> str:
    """What the figures of a rank depend on."""
    types = " ".join(sorted(set(options.policy.describe().values())))
    layers, update = (
        "native" if native else "TensorFlow's" for native in (options.native_layers, native_update)
    )
    return (
        f"{environment.processor()}, TensorFlow {tf.version.VERSION}, bert_tf "
        f"{bert_tf.__version__}, {ranks.threads} threads a rank or half of them, "
        f"{ranks.local_size} ranks a host, {shapes}, {types}, {layers} layers, "
        f"{update} update"
    )
