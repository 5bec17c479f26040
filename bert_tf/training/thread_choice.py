"""The threads of a rank where a core runs two of them: all, or one for each core, by measuring.

Two hyper-threads share the units that compute products. Whether a second thread on each core helps
or is in the way depends on the processor and on how much of a layer lies between the products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf import environment
from bert_tf.model.precision import PrecisionPolicy
from bert_tf.ranks.distribution import SingleProcess, threads_of_a_rank
from bert_tf.training import speed_probe
from bert_tf.training.speed_choice import LEAST_OPERATIONS, TIE, cache_directory, keep, read_kept
from bert_tf.training.speed_probe import JobShapes
from bert_tf.update.kernels import Kernels


def choose_threads(
    ranks: SingleProcess,
    shapes: JobShapes,
    *,
    policy: PrecisionPolicy,
    kernels: Kernels,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Gives ranks one thread for each core where that is faster on all of them. Collective.

    Where other processes are so busy that nothing can be measured, ranks keep all their threads.

    Args:
      ranks: all ranks, with a thread for each hyper-thread; ``threads`` may change.
      shapes: the job's.
      policy: its types, and the form of its layers.
      kernels: its update.
      earlier: facts of the choice that a run which is resumed was begun with, the same on all
        ranks, None without one; they hold where the conditions are the same.

    Returns: facts for the ledger, none where there is nothing to choose.
    """
    fewer = threads_of_a_rank(ranks.local_size, cores=environment.physical_cores())
    numbers = (ranks.threads, fewer)
    has_choice = fewer < ranks.threads and shapes.operations >= LEAST_OPERATIONS
    own = _conditions(ranks, shapes, policy, kernels, fewer) if has_choice else ""
    everywhere = set(ranks.gather(own))
    if "" in everywhere:
        return {}
    environment.give_sessions_their_own_threads()
    conditions = "; ".join(sorted(everywhere))
    known = earlier or {}
    if known.get("conditions") == conditions and isinstance(known.get("one_a_core"), bool):
        facts = dict(known)
    else:
        facts = {**_measure(ranks, shapes, policy, kernels, numbers, own), "conditions": conditions}
    if facts["one_a_core"]:
        ranks.threads = fewer
    return facts


def _measure(
    ranks: SingleProcess,
    shapes: JobShapes,
    policy: PrecisionPolicy,
    kernels: Kernels,
    numbers: tuple[int, int],
    conditions: str,
) -> dict[str, Any]:
    """Whether fewer threads are faster on all ranks, and the figures of this one."""
    directory, when = cache_directory(), "before"
    seconds = _as_kept(read_kept(directory, conditions), numbers)
    # All measure where one has to: at once, as they will compute, and none waits for another.
    if None in ranks.gather(seconds):
        when = "now"
        found = speed_probe.time_threads(shapes, policy, kernels, numbers)
        seconds = found and {str(number): found[number] for number in numbers}
        if seconds is not None:
            keep(directory, conditions, seconds)
    more, fewer = map(str, numbers)
    gains = seconds is not None and seconds[fewer] < seconds[more] / TIE
    facts = {"one_a_core": all(ranks.gather(gains))}
    if seconds is None:
        return {**facts, "measured": "not, other processes are busy"}
    shown = {f"{n}_threads_ms": float(f"{1e3 * seconds[n]:.3g}") for n in (more, fewer)}
    return {**facts, **shown, "measured": when}


def _as_kept(value: Any, numbers: tuple[int, int]) -> dict[str, float] | None:
    """A value from a file if it can be what was kept there, else None."""
    if not isinstance(value, dict) or set(value) != set(map(str, numbers)):
        return None
    return value if all(type(s) is float and s > 0 for s in value.values()) else None


def _conditions(
    ranks: SingleProcess,
    shapes: JobShapes,
    policy: PrecisionPolicy,
    kernels: Kernels,
    fewer: int,
) -> str:
    """What the figures of a rank depend on."""
    types = " ".join(sorted(set(policy.describe().values())))
    form = "native" if policy.native else "TensorFlow's"
    return (
        f"{environment.processor()}, TensorFlow {tf.version.VERSION}, bert_tf "
        f"{bert_tf.__version__}, {ranks.threads} or {fewer} threads a rank, {ranks.local_size} "
        f"ranks a host, {shapes}, {types}, {form} layers, {type(kernels).__name__}"
    )
