"""The threads of a rank: one for each of its processors, or half as many, by measuring.

Processors may be hyper-threads, two of which share the units that compute products, and a virtual
machine does not say whether its own are. Whether the second one helps or is in the way depends on
the processor and on how much of a layer lies between the products.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf import environment
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.training import speed_probe
from bert_tf.training.speed_choice import LEAST_OPERATIONS, TIE, cache_directory, keep, read_kept
from bert_tf.training.speed_probe import JobShapes
from bert_tf.update.kernels import Kernels

# Share of a host's processors that other processes may have while a measurement shows anything:
# where one of two processors is taken, a rank with one thread waits for nobody and looks faster.
_OTHERS_SHARE = 0.05


class Use(NamedTuple):
    """What of a host's processors was used meanwhile.

    Attributes:
      host: its name.
      own: the share of its processors' time that one rank took.
      busy: the share in which they were not idle; None where the host does not tell.
    """

    host: str
    own: float
    busy: float | None


def others_share(uses: Sequence[Use]) -> float:
    """The largest share of some host's processors that processes other than ranks had.

    Args:
      uses: of all ranks. A host that does not tell counts as busy.
    """
    largest = 0.0
    for host in {use.host for use in uses}:
        there = [use for use in uses if use.host == host]
        busy = max(1.0 if use.busy is None else use.busy for use in there)
        known = [use.own for use in there if use.busy is not None]
        largest = max(largest, busy - sum(known))
    return largest


def choose_threads(
    ranks: SingleProcess,
    shapes: JobShapes,
    *,
    policy: PrecisionPolicy,
    kernels: Kernels,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Halves the threads of all ranks where that is faster on all of them. Collective.

    Where other processes are so busy that nothing can be measured, ranks keep all their threads.

    Args:
      ranks: all ranks, with a thread for each processor; ``threads`` may change.
      shapes: the job's.
      policy: its types, and the form of its layers.
      kernels: its update.
      earlier: facts of the choice that a run which is resumed was begun with, the same on all
        ranks, None without one; they hold where the conditions are the same.

    Returns: facts for the ledger, none where there is nothing to choose.
    """
    numbers = (ranks.threads, ranks.threads // 2)
    has_choice = ranks.threads > 1 and shapes.operations >= LEAST_OPERATIONS
    own = _conditions(ranks, shapes, policy, kernels) if has_choice else ""
    everywhere = set(ranks.gather(own))
    if "" in everywhere:
        return {}
    environment.give_sessions_their_own_threads()
    conditions = "; ".join(sorted(everywhere))
    known = earlier or {}
    if known.get("conditions") == conditions and isinstance(known.get("halved"), bool):
        facts = dict(known)
    else:
        facts = {**_measure(ranks, shapes, policy, kernels, numbers, own), "conditions": conditions}
    if facts["halved"]:
        ranks.threads = numbers[1]
    return facts


def _measure(
    ranks: SingleProcess,
    shapes: JobShapes,
    policy: PrecisionPolicy,
    kernels: Kernels,
    numbers: tuple[int, int],
    conditions: str,
) -> dict[str, Any]:
    """Whether half the threads are faster on all ranks, and the figures of this one."""
    directory, when = cache_directory(), "before"
    seconds = _as_kept(read_kept(directory, conditions), numbers)
    # All measure where one has to: at once, as they will compute, and none waits for another.
    if None in ranks.gather(seconds):
        when = "now"
        meter = _Meter()
        found = speed_probe.time_threads(shapes, policy, kernels, numbers)
        ranks.gather(None)  # until the slowest is done, so that all have looked at the same
        if others_share(ranks.gather(meter.use())) > _OTHERS_SHARE:
            return {"halved": False, "measured": "not, other processes are busy"}
        seconds = {str(number): found[number] for number in numbers}
        keep(directory, conditions, seconds)
    all_of_them, half = map(str, numbers)
    gains = seconds[half] < seconds[all_of_them] / TIE
    shown = {f"{n}_threads_ms": float(f"{1e3 * seconds[n]:.3g}") for n in (all_of_them, half)}
    return {"halved": all(ranks.gather(gains)), **shown, "measured": when}


class _Meter:
    """Reads what this rank and its host have computed since it was made."""

    def __init__(self) -> None:
        self._start = self._read()

    def use(self) -> Use:
        """What was used since then."""
        own, busy, clock = (
            None if now is None or then is None else now - then
            for then, now in zip(self._start, self._read())
        )
        available = clock * environment.available_cores()
        return Use(socket.gethostname(), own / available, busy and busy / available)

    @staticmethod
    def _read() -> tuple[float, float | None, float]:
        return time.process_time(), environment.busy_seconds(), time.perf_counter()


def _as_kept(value: Any, numbers: tuple[int, int]) -> dict[str, float] | None:
    """A value from a file if it can be what was kept there, else None."""
    if not isinstance(value, dict) or set(value) != set(map(str, numbers)):
        return None
    return value if all(type(s) is float and s > 0 for s in value.values()) else None


def _conditions(
    ranks: SingleProcess, shapes: JobShapes, policy: PrecisionPolicy, kernels: Kernels
) -> str:
    """What the figures of a rank depend on."""
    types = " ".join(sorted(set(policy.describe().values())))
    form = "native" if policy.native else "TensorFlow's"
    return (
        f"{environment.processor()}, TensorFlow {tf.version.VERSION}, bert_tf "
        f"{bert_tf.__version__}, {ranks.threads} threads a rank or half of them, "
        f"{ranks.local_size} ranks a host, {shapes}, {types}, {form} layers, "
        f"{type(kernels).__name__}"
    )
