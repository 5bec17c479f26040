"""Parts in which speed and memory count: shapes, policies, largest batches and starts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.lab import USUAL_PRECISION, Lab, Shape
from benchmarks.gpu.rows import RATE, Case, attempts, checked, missing
from benchmarks.gpu.runs import OutOfTimeError, RunError
from benchmarks.largest_batch import Line
from benchmarks.results import Result, result
from benchmarks.speed.batches import masked_words
from benchmarks.speed.process import ROOT

PEER = "transformers"
# Name -> flags that differ from the usual: bf16, compiled.
_VARIANTS: dict[str, dict[str, object]] = {
    "": {},
    ", half policy": {"precision_policy": ROOT / "recipes" / "precision_half_policy.json"},
    ", fp16": {"precision": "fp16"},
    ", fp32 without XLA": {"precision": "fp32", "use_xla": False},
}
_GIB = 1 << 30
_START_SECONDS = {"first start": 60.0, "second start": 20.0}


def speed(lab: Lab) -> Iterator[Result]:
    """Sequences per second, peak memory and start of ours and of transformers, shape by shape."""
    yield from attempts(
        Case(str(shape), functools.partial(measure, lab, shape))
        for shape in lab.sizes.speed
        for measure in (_ours, _peer)
    )


def _ours(lab: Lab, shape: Shape, variant: str = "") -> Iterator[Result]:
    """The rate, peak and start of a training of ours."""
    flags = _VARIANTS[variant]
    found = lab.train_shape(shape, **flags)
    config = {"memory": "GPU" if lab.has_gpu else "process", **found.described()}
    config["flags"] = {name: str(value) for name, value in flags.items()}
    figures = found.sequences_per_second, found.peak_bytes, found.start_seconds
    yield from _figures(f"{shape}{variant}", *figures, config)


def _peer(lab: Lab, shape: Shape) -> Iterator[Result]:
    """The rate, peak and start of transformers, and ours to it."""
    job = {
        **dataclasses.asdict(shape),
        "network": lab.network(shape.network).to_dict(),
        "predictions": masked_words(shape.length),
        "updates": lab.sizes.updates,
    }
    try:
        found = lab.peer(job)
    except (RunError, OSError) as error:
        yield missing(str(shape), RATE, error, PEER)
        return
    config = {name: found[name] for name in ("torch", "transformers")}
    rate, peak = found["sequences_per_second"], found["peak_bytes"]
    yield from _figures(str(shape), rate, peak, found["start_seconds"], config, PEER)
    ours = lab.train_shape(shape)
    yield result(f"{shape}, ours to it", ours.sequences_per_second / rate, "ratio", config, PEER)
    if peak:
        ratio = ours.peak_bytes / peak
        yield result(f"{shape}, peak, ours to its", ratio, "ratio", config, PEER)


def _figures(
    name: str,
    rate: float,
    peak_bytes: float | None,
    start_seconds: float,
    config: Mapping[str, Any],
    subject: str = "ours",
) -> Iterator[Result]:
    yield result(name, rate, RATE, config, subject)
    if peak_bytes:
        yield result(f"{name}, peak", peak_bytes / _GIB, "GiB", config, subject)
    yield result(f"{name}, start", start_seconds, "s", config, subject)


def policy(lab: Lab) -> Iterator[Result]:
    """The usual policy, that with half-precision residuals, and NVIDIA's pair of precisions."""
    shape = lab.sizes.speed[0]

    def ratio() -> Iterator[Result]:
        fast, slow = (
            lab.train_shape(shape, **_VARIANTS[name]).sequences_per_second
            for name in (", fp16", ", fp32 without XLA")
        )
        yield result(ratio_name, fast / slow, "ratio", {"reference": "(NVIDIA: 2.1)"})

    ratio_name = "fp16 with XLA to fp32 without"
    variants = (
        Case(f"{shape}{name}", functools.partial(_ours, lab, shape, name)) for name in _VARIANTS
    )
    yield from attempts([*variants, Case(ratio_name, ratio, "ratio")])


def batches(lab: Lab) -> Iterator[Result]:
    """The largest batches within a limit of memory, and the rate of long sequences."""
    network, length = lab.sizes.memory

    def largest(recompute: bool) -> Iterator[Case]:
        for precision in lab.sizes.precisions:
            name = f"{network}, {length} tokens, {precision}{', recompute' * recompute}"
            flags = {"precision": precision, "recompute": recompute}
            yield Case(name, functools.partial(_largest, lab, name, flags), "sequences")

    long = (
        Case(f"{lab.sizes.long}, {precision}", functools.partial(_long, lab, precision))
        for precision in lab.sizes.precisions
    )
    yield from attempts([*largest(False), *long, *largest(True)])


def _largest(lab: Lab, name: str, flags: Mapping[str, object]) -> Iterator[Result]:
    """Draws a line through the peaks of two batches, and tries the batch that it predicts."""
    network, length = lab.sizes.memory
    limit = lab.sizes.memory_gib * _GIB

    def peak(batch: int) -> float:
        return lab.train_shape(Shape(network, batch, length), **flags).peak_bytes

    peaks = {batch: peak(batch) for batch in lab.sizes.memory_batches}
    line = Line.through(peaks)
    predicted = min(line.largest_batch(limit), lab.sizes.most_batch)
    late: OutOfTimeError | None = None
    try:
        peaks[predicted] = peak(predicted)
        state = "verified" if peaks[predicted] <= limit else "predicted; its peak is too high"
    except OutOfTimeError as error:
        state, late = "predicted; no time to try it", error
    except RunError as error:
        state = f"predicted; it failed: {error}"
    if predicted == lab.sizes.most_batch:
        state += "; none larger was tried"
    config = {
        "peaks_gib": {batch: found / _GIB for batch, found in peaks.items()},
        "gib_per_sequence": line.of_a_sequence / _GIB,
        "limit_gib": lab.sizes.memory_gib,
        "state": state,
        "reference": "(Perseus, fp32: 26)",
    }
    yield result(name, predicted, "sequences", config)
    if late is not None:
        raise late


def _long(lab: Lab, precision: str) -> Iterator[Result]:
    flags = {} if precision == USUAL_PRECISION else {"precision": precision}
    rate = lab.train_shape(lab.sizes.long, **flags).sequences_per_second
    config = {"reference": "(Perseus, eight V100: 680)"}
    yield result(f"{lab.sizes.long}, {precision}", rate, RATE, config)


def starts(lab: Lab) -> Iterator[Result]:
    """Seconds to the first update with an empty cache of compiled code, and with a full one."""
    shape = lab.sizes.speed[0]
    environment = {"XDG_CACHE_HOME": str(lab.work / "cache of starts")}
    for name, bound in _START_SECONDS.items():
        trained = lab.train(name, lab.flags(shape), environment=environment)
        seconds, config = trained.start_seconds, trained.described()
        yield checked(f"{shape}, {name}", seconds, "s", bound=bound, **config)
