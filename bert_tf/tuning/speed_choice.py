"""--precision=auto and the default of --native_ops: measured, cached, equal on all ranks.

Measurements are cached in the user's cache directory, one file per processor, TensorFlow version
and job shape, so that a repeated command does not measure again. The files can be deleted at any
time. On GPUs, which have no native operations, the precision follows from the GPU's model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.ranks.ranks import Ranks
from bert_tf.tuning import speed_probe
from bert_tf.tuning.hardware import Hardware, probe_hardware, resolve_precision
from bert_tf.tuning.native_ops import reason_against_native_ops
from bert_tf.tuning.session import SessionSettings
from bert_tf.tuning.speed_probe import PRODUCTS, Figures, JobShapes, UpdatePieces
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.util.temporary import make_private, require_private, user_cache

# The precisions of CPUs, the preferred one first. float16 is not among them: TensorFlow only
# emulates it, and it would need a loss scale.
_ON_CPUS = ("fp32", "bf16")

# The speed-up that an alternative must have to be chosen. A smaller one may be noise, and is
# smaller still relative to a whole step; float32 keeps more digits.
_TIE = 1.05

# A layer with fewer operations takes microseconds, too little to measure its speed.
LEAST_OPERATIONS = 100_000_000

_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
_TRIAL = [sys.executable, "-m", "bert_tf.tuning.bfloat16_trial"]

_NATIVE, _TENSORFLOW = "native", "tensorflow"
_PRODUCT_CLASSES = ("attention", "dense")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the user requested.

    Attributes:
      precision: ``auto`` or one of ``precision.PRECISIONS``.
      native_ops: None uses whatever is faster.
      policy_changes: class of operation -> type, where it differs from the precision's.
    """

    precision: str = "auto"
    native_ops: bool | None = None
    policy_changes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def policy(self, precision: str) -> PrecisionPolicy:
        """The data type of each class of operation in a precision."""
        return policy_for(precision).changed(self.policy_changes)

    def compared_policy(self, precision: str) -> PrecisionPolicy:
        """Like :meth:`policy`, but products always have that precision, so that it is measured."""
        others = {k: v for k, v in self.policy_changes.items() if k not in _PRODUCT_CLASSES}
        return policy_for(precision).changed(others)


@dataclasses.dataclass(frozen=True)
class SpeedChoice:
    """The precision and operations that were chosen.

    Attributes:
      precision: one of ``precision.PRECISIONS``.
      options: its policy, and whether layers are native.
      against_native_ops: why updates use TensorFlow's operations; None for native ones.
      details: the measurements, for the ledger; empty if nothing was measured.
      warnings: sentences on requested settings that are slower than an alternative.
    """

    precision: str
    options: ForwardOptions
    against_native_ops: str | None
    details: dict[str, Any]
    warnings: tuple[str, ...] = ()


def choose_speed(
    wanted: Wanted,
    shapes: JobShapes,
    *,
    hardware: Hardware,
    ranks: Ranks,
    earlier: Mapping[str, Any] | None = None,
    update: UpdatePieces | None = None,
) -> SpeedChoice:
    """Chooses what a job computes fastest with, unless the user did. Collective.

    Args:
      wanted: what the user requested.
      shapes: the job's shapes.
      hardware: what all ranks compute on.
      ranks: all ranks.
      earlier: details of the choice that the run to resume recorded, the same on all ranks, or
        None; reused if the conditions are the same.
      update: ``update_probe.update_pieces`` for training, None for prediction.

    Raises UserError as :func:`reason_against_native_ops` does, and if bfloat16 is requested on a
    processor on which TensorFlow cannot compute it.
    """
    reason = reason_against_native_ops(wanted.native_ops, has_gpu=hardware.has_gpu, ranks=ranks)
    requested = resolve_precision(wanted.precision, hardware)
    precisions = _measured_precisions(requested, wanted, hardware)
    if shapes.operations < LEAST_OPERATIONS:
        precisions = ()
    against_half = _agreed_reason_against_bf16(ranks) if "bf16" in precisions else None
    if against_half is not None:
        policy = wanted.policy("fp32" if requested == "auto" else requested)
        if policy.classes_in("bf16"):
            raise UserError(f"{against_half}; use float32.")
        precisions = ("fp32",)
    forms = [_TENSORFLOW]
    if reason is None:
        forms = [_NATIVE]
        if wanted.native_ops is None and precisions:
            forms.append(_TENSORFLOW)
    if len(precisions) < 2 and len(forms) < 2:
        precision = requested if requested != "auto" else _ON_CPUS[0]
        return _choice(wanted, precision, reason, {}, _sentences(against_half))
    local_conditions = _conditions(wanted, shapes, precisions, forms, ranks)
    conditions = "; ".join(sorted(set(ranks.gather(local_conditions))))
    known = earlier or {}
    if known.get("conditions") == conditions and _are_figures(
        known.get("seconds"), precisions, forms
    ):
        figures, when = known["seconds"], "when the run began"
    else:
        figures, when = _figures(
            wanted,
            shapes,
            forms,
            precisions,
            conditions=local_conditions,
            ranks=ranks,
            update=update,
        )
    choosable = [requested] if requested != "auto" else list(precisions)
    precision, form = decide(figures, choosable, forms)
    rates = speed_probe.gflops(figures, shapes)
    shown = figures[precision if form in figures[precision] else _ON_CPUS[0]]
    details = {
        "asked": wanted.precision,
        **{f"{name}_gflops": float(f"{rate:.3g}") for name, rate in rates.items()},
        "operations": form,
        **{f"{name}_ms": float(f"{1e3 * shown[name]:.3g}") for name in forms if name in shown},
        "measured": when,
        "conditions": conditions,
        "seconds": figures,
    }
    warnings = _warnings(requested, wanted, figures, rates) + _sentences(against_half)
    if reason is None and form == _TENSORFLOW:
        reason = "measured, and faster here"
    return _choice(wanted, precision, reason, details, warnings)


def _agreed_reason_against_bf16(ranks: Ranks) -> str | None:
    """The reason why no rank may compute in bfloat16; None if all can. Collective."""
    found: list[str | None] = []
    ranks.once_on_each_host(lambda: found.append(reason_against_bf16()))
    # The other ranks of a host find the result in the cache.
    reasons = ranks.gather(found[0] if found else reason_against_bf16())
    return next(filter(None, reasons), None)


def _sentences(against_half: str | None) -> tuple[str, ...]:
    return () if against_half is None else (f"{against_half}; products are float32",)


def reason_against_bf16() -> str | None:
    """The reason why TensorFlow cannot compute in bfloat16 on this machine; None if it can.

    Tried in another process, because TensorFlow may crash; cached, because a trial takes seconds.
    """
    conditions = (
        f"a layer in bfloat16, {environment.processor()}, TensorFlow {tf.version.VERSION}, bert_tf "
        f"{bert_tf.__version__}"
    )
    figures = cache_directory()
    directory = None if figures is None else figures.with_name("bfloat16")
    from bert_tf.tuning.bfloat16_trial import REFUSED

    outcomes = {0: None, REFUSED: "refuses", **{-s: f"crashes ({s.name}) in" for s in _CRASHES}}
    known = read_cached(directory, conditions)
    status = known.get("status") if isinstance(known, dict) else None
    if status not in outcomes:
        status = try_bf16()
        if status not in outcomes:  # it could not start, or was killed from outside
            return None
        write_cached(directory, conditions, {"status": status})
    how = outcomes[status]
    where = f"bfloat16 products on this processor, {environment.processor()}"
    return None if how is None else f"TensorFlow {how} {where}"


def try_bf16(trial: Sequence[str] = _TRIAL) -> int:
    """The exit status of the trial; negative for the signal that ended it."""
    package = str(Path(bert_tf.__file__).parents[1])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    nothing = subprocess.DEVNULL
    return subprocess.run(
        trial, env=variables, stdin=nothing, stdout=nothing, stderr=nothing, check=False
    ).returncode


def measured_choice(
    wanted: Wanted,
    network: BertConfig,
    *,
    sequences: int,
    length: int,
    accumulation_steps: int,
    ranks: Ranks,
    hardware: Hardware | None = None,
    update: UpdatePieces | None = None,
) -> SpeedChoice:
    """Calls :func:`choose_speed` for micro batches of ``sequences`` x ``length``.

    ``accumulation_steps`` is 0 for prediction; ``hardware`` None stands for this machine's.
    """
    shapes = JobShapes.of(
        network, sequences=sequences, length=length, accumulation_steps=accumulation_steps
    )
    hardware = hardware or probe_hardware()
    return choose_speed(wanted, shapes, hardware=hardware, ranks=ranks, update=update)


def decide(figures: Figures, precisions: Sequence[str], forms: Sequence[str]) -> tuple[str, str]:
    """Returns the precision and form in which a layer takes the least time.

    Args:
      figures: seconds on the slowest rank.
      precisions, forms: the candidates; the first of each wins unless another is clearly faster.
    """
    best, least = (precisions[0], forms[0]), math.inf
    for precision in precisions:
        found = figures[precision]
        for form in forms:
            if form in found and found[PRODUCTS] + found[form] < least / _TIE:
                best, least = (precision, form), found[PRODUCTS] + found[form]
    return best


def slowest(figures: Sequence[Figures]) -> Figures:
    """The longest time over all ranks, for each piece that all ranks have timed."""
    first = figures[0]
    return {
        precision: {
            piece: max(of_rank[precision][piece] for of_rank in figures)
            for piece in pieces
            if all(piece in of_rank[precision] for of_rank in figures)
        }
        for precision, pieces in first.items()
    }


def cache_directory() -> Path | None:
    """The directory of cached measurements; None if the user has no home directory."""
    return user_cache("speed")


def read_cached_figures(
    directory: Path | None, conditions: str, *, precisions: Sequence[str], forms: Sequence[str]
) -> Figures | None:
    """The times cached for these conditions; None if there are none, or they are unusable."""
    found = read_cached(directory, conditions)
    return found if _are_figures(found, precisions, forms) else None


def read_cached(directory: Path | None, conditions: str) -> Any:
    """Whatever is cached for these conditions; None if there is nothing or it is damaged."""
    if directory is None:
        return None
    path, what = _file(directory, conditions), "cached measurements"
    try:
        require_private(directory)
        found = read_sealed_json(path, what=what, advice="delete it", required=True)
    except (OSError, UserError):
        return None
    return found.get("seconds") if found.get("conditions") == conditions else None


def write_cached(directory: Path | None, conditions: str, seconds: Mapping[str, Any]) -> None:
    """Caches times for these conditions; if that fails, they will be measured again."""
    if directory is None:
        return
    with contextlib.suppress(OSError, UserError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        make_private(directory)
        content = {"conditions": conditions, "seconds": seconds}
        write_sealed_json(_file(directory, conditions), content)


def _file(directory: Path, conditions: str) -> Path:
    return directory / f"{hashlib.sha256(conditions.encode()).hexdigest()[:16]}.json"


def _are_figures(value: Any, precisions: Sequence[str], forms: Sequence[str]) -> bool:
    """Whether a value from a file has the structure that :func:`speed_probe.measure` returns."""
    if not isinstance(value, dict) or set(value) != set(precisions):
        return False
    for precision, pieces in value.items():
        if not isinstance(pieces, dict) or PRODUCTS not in pieces:
            return False
        if precision == precisions[0] and not set(forms) <= set(pieces):
            return False
        if not all(
            type(seconds) is float and 0 < seconds < math.inf for seconds in pieces.values()
        ):
            return False
    return True


def _measured_precisions(requested: str, wanted: Wanted, hardware: Hardware) -> tuple[str, ...]:
    """The precisions to measure for the choice or for a warning; the first is always float32."""
    policy = wanted.policy(_ON_CPUS[0] if requested == "auto" else requested)
    if hardware.has_gpu or policy.classes_in("fp16"):
        return ()
    is_open = requested == "auto" or policy.classes_in("bf16")
    return _ON_CPUS if is_open else _ON_CPUS[:1]


def _figures(
    wanted: Wanted,
    shapes: JobShapes,
    forms: Sequence[str],
    precisions: Sequence[str],
    *,
    conditions: str,
    ranks: Ranks,
    update: UpdatePieces | None,
) -> tuple[Figures, str]:
    """The times of the slowest rank, and when they were measured (for the ledger)."""
    directory = cache_directory()
    kept = read_cached_figures(directory, conditions, precisions=precisions, forms=forms)
    everywhere, when = ranks.gather(kept), "before"
    # If one rank must measure, all do: at the same time, as they will compute.
    if None in everywhere:
        measured = speed_probe.measure(
            shapes,
            {name: wanted.compared_policy(name) for name in precisions},
            {form: form == _NATIVE for form in forms},
            settings=SessionSettings(threads=ranks.threads),
            update=update,
        )
        if kept is None:
            write_cached(directory, conditions, measured)
        everywhere, when = ranks.gather(measured), "now"
    return slowest(everywhere), when


def _choice(
    wanted: Wanted,
    precision: str,
    reason: str | None,
    details: dict[str, Any],
    warnings: tuple[str, ...] = (),
) -> SpeedChoice:
    options = ForwardOptions(wanted.policy(precision)).with_native_layers(reason is None)
    return SpeedChoice(precision, options, reason, details, warnings)


def _warnings(
    requested: str, wanted: Wanted, figures: Figures, rates: Mapping[str, float]
) -> tuple[str, ...]:
    """Sentences on requested settings that are slower than float32."""
    preferred, half = _ON_CPUS
    in_half = wanted.policy(preferred if requested == "auto" else requested).classes_in(half)
    if half not in figures or not in_half:
        return ()
    if figures[half][PRODUCTS] <= _TIE * figures[preferred][PRODUCTS]:
        return ()
    found = (
        f"products run at {rates[half]:.3g} GFLOP/s in {half} on this CPU and at "
        f"{rates[preferred]:.3g} in {preferred}"
    )
    return (f"{found}: {preferred} is faster here",)


def _conditions(
    wanted: Wanted,
    shapes: JobShapes,
    precisions: Sequence[str],
    forms: Sequence[str],
    ranks: Ranks,
) -> str:
    """Describes the conditions that a rank's times depend on."""
    changes = [f"{name} {wanted.policy_changes[name]}" for name in sorted(wanted.policy_changes)]
    parts = [
        environment.processor(),
        f"TensorFlow {tf.version.VERSION}, bert_tf {bert_tf.__version__}",
        f"{ranks.threads} threads a rank, {ranks.local_size} ranks a host",
        str(shapes),
        *precisions,
        *forms,
        *changes,
    ]
    return ", ".join(parts)
