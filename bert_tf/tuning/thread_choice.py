"""The threads of a rank: one per processor or half as many, whichever is measured to be faster.

Processors may be hyper-threads, two of which share the units that compute products, and a virtual
machine does not reveal whether they are. Whether the second one helps or hurts depends on the
processor and on how much of a layer is outside its products.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf.model.options import ForwardOptions
from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning import speed_probe
from bert_tf.tuning.speed_choice import LEAST_OPERATIONS, cache_directory, read_cached, write_cached
from bert_tf.tuning.speed_probe import JobShapes
from bert_tf.tuning.update_probe import update_pieces
from bert_tf.util import environment

# Fraction of a host's processors that other processes may use during a meaningful measurement: if
# one of two processors is taken, a rank with one thread is not slowed down, and seems faster.
_OTHERS_SHARE = 0.1

# How much faster a layer must be with half the threads. Work outside of the layers (embeddings,
# vocabulary logits, their update) may take twice as long with half the threads.
_LEAST_GAIN = 1.25


def choose_threads(
    ranks: Ranks,
    shapes: JobShapes,
    *,
    options: ForwardOptions,
    native_update: bool,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Halves the threads of all ranks if that is faster on all of them. Collective.

    If other processes are too busy for a measurement, ranks keep all their threads.

    Args:
      ranks: all ranks, with one thread per processor; ``threads`` may change.
      shapes: the job's shapes.
      options: how its layers are computed.
      native_update: whether native operations compute its update.
      earlier: details of the choice that the run to resume recorded, the same on all ranks, or
        None; reused if the conditions are the same.

    Returns: details for the ledger; empty if there is nothing to choose.
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
        details = dict(known)
    else:
        found = _measure(ranks, shapes, options, native_update, numbers, local)
        details = {**found, "conditions": conditions}
    if details["halved"]:
        ranks.threads = numbers[1]
    return details


def _measure(
    ranks: Ranks,
    shapes: JobShapes,
    options: ForwardOptions,
    native_update: bool,
    numbers: tuple[int, int],
    conditions: str,
) -> dict[str, Any]:
    """Whether half the threads are faster on all ranks, and this rank's times."""
    directory, when = cache_directory(), "before"
    seconds = _valid_seconds(read_cached(directory, conditions), numbers)
    # If one rank must measure, all do: at the same time, as they will compute.
    of_ranks = ranks.gather(seconds)
    if seconds is None or None in of_ranks:
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
        of_ranks = ranks.gather(found)
        if found is None or None in of_ranks:
            return {"halved": False, "measured": "no: other processes are busy"}
        seconds = {str(number): found[number] for number in numbers}
        write_cached(directory, conditions, seconds)
    full, half = map(str, numbers)
    is_faster = seconds[half] < seconds[full] / _LEAST_GAIN
    shown = {f"{n}_threads_ms": float(f"{1e3 * seconds[n]:.3g}") for n in (full, half)}
    return {"halved": all(ranks.gather(is_faster)), **shown, "measured": when}


class OtherProcesses:
    """The processor time on a host that processes other than ranks have used since creation."""

    def __init__(self, local_size: int) -> None:
        """Each of the ``local_size`` ranks on this host is assumed to use as much as this one."""
        self._local_size = local_size
        self._start = self._read()

    def are_busy(self) -> bool:
        """Whether they used too much for times to be meaningful; also true if that is unknown."""
        mine, busy, clock = (now - then for then, now in zip(self._start, self._read()))
        others = busy - self._local_size * mine
        return not others <= _OTHERS_SHARE * clock * environment.allowed_cores()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Seconds used by this process, seconds that its processors were busy, and the clock."""
        busy = environment.busy_seconds()
        return time.process_time(), math.nan if busy is None else busy, time.perf_counter()


def _valid_seconds(value: Any, numbers: tuple[int, int]) -> dict[str, float] | None:
    """Returns a value from the cache if it has the structure that was written, else None."""
    if not isinstance(value, dict) or set(value) != set(map(str, numbers)):
        return None
    return value if all(type(s) is float and s > 0 for s in value.values()) else None


def _conditions(
    ranks: Ranks, shapes: JobShapes, options: ForwardOptions, native_update: bool
) -> str:
    """Describes the conditions that a rank's times depend on."""
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
