"""--precision=auto and --native_ops where nobody gives it: measured, kept, the same on all ranks.

What was measured is kept in the user's cache directory, a file for each processor, TensorFlow and
job's shapes, so that a command that is started again does not measure again. It may be deleted at
any time. On GPUs, where there are no native operations, a precision follows from what they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import bert_tf
from bert_tf import environment
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.files import write_json
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.ranks.distribution import SingleProcess
from bert_tf.tuning import speed_probe
from bert_tf.tuning.hardware import Hardware, probe_hardware, resolve_precision
from bert_tf.tuning.native_ops import reason_against_native_ops
from bert_tf.tuning.session import SessionSettings
from bert_tf.tuning.speed_probe import PRODUCTS, Figures, JobShapes, UpdatePieces

# The precisions that CPUs compute, the one to prefer first. float16 is none of them: TensorFlow
# emulates it, and it would need a loss scale.
_ON_CPUS = ("fp32", "bf16")

# By how much another way must be faster to be taken. Below that it may be noise, and of a whole
# step, where all else is the same, it is less still; float32 keeps more digits.
_TIE = 1.05

# Products of a layer that are so few take microseconds, and what is measured is not their speed.
LEAST_OPERATIONS = 100_000_000

_NATIVE, _TENSORFLOW = "native", "tensorflow"
_PRODUCT_CLASSES = ("attention", "dense")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a user asks for.

    Attributes:
      precision: ``auto`` or one of ``precision.PRECISIONS``.
      native_ops: None takes what is faster.
      policy_changes: module class -> type, where it is not that of the precision.
      native_layers: whether layers may be native: not with TensorFlow's rewrite or XLA.
      amp: the flag that asked for TensorFlow's rewrite of a float32 graph, None without it.
    """

    precision: str = "auto"
    native_ops: bool | None = None
    policy_changes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    native_layers: bool = True
    amp: str | None = None

    def policy(self, precision: str) -> PrecisionPolicy:
        """The types of each class of operation with a precision."""
        return policy_for(precision).changed(self.policy_changes)

    def compared_policy(self, precision: str) -> PrecisionPolicy:
        """The same with products in that precision all the same, to find out what they cost."""
        others = {k: v for k, v in self.policy_changes.items() if k not in _PRODUCT_CLASSES}
        return policy_for(precision).changed(others)


@dataclasses.dataclass(frozen=True)
class SpeedChoice:
    """What was chosen.

    Attributes:
      precision: one of ``precision.PRECISIONS``.
      options: its policy, and whether layers are native.
      against_native_ops: why updates are computed by TensorFlow's operations; None for native ones.
      facts: what was measured, for the ledger; empty where nothing was.
      warnings: sentences on what was asked for and is slower than something else.
    """

    precision: str
    options: ForwardOptions
    against_native_ops: str | None
    facts: dict[str, Any]
    warnings: tuple[str, ...] = ()


def choose_speed(
    wanted: Wanted,
    shapes: JobShapes,
    *,
    hardware: Hardware,
    ranks: SingleProcess,
    earlier: Mapping[str, Any] | None = None,
    update: UpdatePieces | None = None,
) -> SpeedChoice:
    """What a job computes fastest with, where the user leaves that open. Collective.

    Args:
      wanted: what the user says.
      shapes: the job's.
      hardware: what all ranks compute on.
      ranks: all ranks.
      earlier: facts of the choice that a run which is resumed was begun with, the same on all
        ranks, None without one; they hold where the conditions are the same.
      update: ``update_probe.update_pieces`` for a training, None for a prediction.

    Raises UserError as :func:`reason_against_native_ops` does.
    """
    reason = reason_against_native_ops(wanted.native_ops, has_gpu=hardware.has_gpu, ranks=ranks)
    requested = resolve_precision(wanted.precision, hardware)
    precisions = _to_measure(requested, wanted, hardware)
    if shapes.operations < LEAST_OPERATIONS:
        precisions = ()
    forms = [_TENSORFLOW]
    if reason is None:
        forms = [_NATIVE]
        if wanted.native_ops is None and wanted.native_layers and precisions:
            forms.append(_TENSORFLOW)
    if len(precisions) < 2 and len(forms) < 2:
        precision = requested if requested != "auto" else _ON_CPUS[0]
        return _choice(wanted, precision, reason, {})
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
    of = precision if form in figures[precision] else _ON_CPUS[0]
    shown = [name for name in forms if name in figures[of]]
    facts = {
        "asked": wanted.precision,
        **{f"{name}_gflops": float(f"{rate:.3g}") for name, rate in rates.items()},
        "operations": form,
        **{f"{name}_ms": float(f"{1e3 * figures[of][name]:.3g}") for name in shown},
        "measured": when,
        "conditions": conditions,
        "seconds": figures,
    }
    warnings = _warnings(requested, wanted, figures, rates)
    if reason is None and form == _TENSORFLOW:
        reason = "measured, and faster here"
    return _choice(wanted, precision, reason, facts, warnings)


def measured_choice(
    wanted: Wanted,
    network: BertConfig,
    *,
    sequences: int,
    length: int,
    accumulation_steps: int,
    ranks: SingleProcess,
    update: UpdatePieces | None = None,
) -> SpeedChoice:
    """As :func:`choose_speed`, of micro batches of ``sequences`` x ``length`` on this hardware.

    ``accumulation_steps`` is 0 for a prediction.
    """
    shapes = JobShapes.of(
        network, sequences=sequences, length=length, accumulation_steps=accumulation_steps
    )
    return choose_speed(wanted, shapes, hardware=probe_hardware(), ranks=ranks, update=update)


def decide(figures: Figures, precisions: Sequence[str], forms: Sequence[str]) -> tuple[str, str]:
    """The precision and the form of which a layer takes least time.

    Args:
      figures: seconds of the slowest rank.
      precisions, forms: what can be chosen; where nothing is clearly faster, the first of each.
    """
    best, least = (precisions[0], forms[0]), math.inf
    for precision in precisions:
        found = figures[precision]
        for form in forms:
            if form in found and found[PRODUCTS] + found[form] < least / _TIE:
                best, least = (precision, form), found[PRODUCTS] + found[form]
    return best


def slowest(figures: Sequence[Figures]) -> Figures:
    """Of the figures of all ranks the longest times, of what all of them have."""
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
    """Where figures are kept; None where the user has no such place."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # relative ones are to be ignored, says the XDG specification
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "bert_tf" / "speed"


def read_figures(
    directory: Path | None, conditions: str, *, precisions: Sequence[str], forms: Sequence[str]
) -> Figures | None:
    """The figures that are kept for these conditions, None where there are none to be used."""
    found = read_kept(directory, conditions)
    return found if _are_figures(found, precisions, forms) else None


def read_kept(directory: Path | None, conditions: str) -> Any:
    """What is kept for these conditions, of whatever form; None where there is nothing."""
    if directory is None:
        return None
    try:
        content = json.loads(_file(directory, conditions).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("conditions") != conditions:
        return None
    return content.get("seconds")


def keep(directory: Path | None, conditions: str, seconds: Mapping[str, Any]) -> None:
    """Keeps figures for these conditions; where that cannot be, they are measured again."""
    if directory is None:
        return
    with contextlib.suppress(OSError, UserError):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(_file(directory, conditions), {"conditions": conditions, "seconds": seconds})


def _file(directory: Path, conditions: str) -> Path:
    return directory / f"{hashlib.sha256(conditions.encode()).hexdigest()[:16]}.json"


def _are_figures(value: Any, precisions: Sequence[str], forms: Sequence[str]) -> bool:
    """Whether a value from a file can be what :func:`speed_probe.measure` returned."""
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


def _to_measure(requested: str, wanted: Wanted, hardware: Hardware) -> tuple[str, ...]:
    """The precisions that the choice or a warning needs figures of; the first is always float32."""
    policy = wanted.policy(_ON_CPUS[0] if requested == "auto" else requested)
    if hardware.has_gpu or policy.classes_in("fp16"):
        return ()
    is_open = requested == "auto" or wanted.amp or policy.classes_in("bf16")
    return _ON_CPUS if is_open else _ON_CPUS[:1]


def _figures(
    wanted: Wanted,
    shapes: JobShapes,
    forms: Sequence[str],
    precisions: Sequence[str],
    *,
    conditions: str,
    ranks: SingleProcess,
    update: UpdatePieces | None,
) -> tuple[Figures, str]:
    """The figures of the slowest rank, and when they were measured."""
    directory = cache_directory()
    kept = read_figures(directory, conditions, precisions=precisions, forms=forms)
    everywhere, when = ranks.gather(kept), "before"
    # All measure where one has to: at once, as they will compute, and none waits for another.
    if None in everywhere:
        measured = speed_probe.measure(
            shapes,
            {name: wanted.compared_policy(name) for name in precisions},
            {form: form == _NATIVE for form in forms},
            native_layers=wanted.native_layers,
            settings=SessionSettings(threads=ranks.threads),
            update=update,
        )
        if kept is None:
            keep(directory, conditions, measured)
        everywhere, when = ranks.gather(measured), "now"
    return slowest(everywhere), when


def _choice(
    wanted: Wanted,
    precision: str,
    reason: str | None,
    facts: dict[str, Any],
    warnings: tuple[str, ...] = (),
) -> SpeedChoice:
    is_native = wanted.native_layers and reason is None
    options = ForwardOptions(wanted.policy(precision)).with_native_layers(is_native)
    return SpeedChoice(precision, options, reason, facts, warnings)


def _warnings(
    requested: str, wanted: Wanted, figures: Figures, rates: Mapping[str, float]
) -> tuple[str, ...]:
    """What is asked for and computes more slowly than float32."""
    preferred, half = _ON_CPUS
    in_half = wanted.policy(preferred if requested == "auto" else requested).classes_in(half)
    if half not in figures or not (in_half or wanted.amp):
        return ()
    if figures[half][PRODUCTS] <= _TIE * figures[preferred][PRODUCTS]:
        return ()
    found = (
        f"products run at {rates[half]:.3g} GFLOP/s in {half} on this CPU and at "
        f"{rates[preferred]:.3g} in {preferred}"
    )
    advice = f"{wanted.amp} gains nothing here" if wanted.amp else f"{preferred} is faster here"
    return (f"{found}: {advice}",)


def _conditions(
    wanted: Wanted,
    shapes: JobShapes,
    precisions: Sequence[str],
    forms: Sequence[str],
    ranks: SingleProcess,
) -> str:
    """What the figures of a rank depend on."""
    changes = [f"{name} {wanted.policy_changes[name]}" for name in sorted(wanted.policy_changes)]
    layers = [] if wanted.native_layers else ["TensorFlow's layers"]
    parts = [
        environment.processor(),
        f"TensorFlow {tf.version.VERSION}, bert_tf {bert_tf.__version__}",
        f"{ranks.threads} threads a rank, {ranks.local_size} ranks a host",
        str(shapes),
        *precisions,
        *forms,
        *layers,
        *changes,
    ]
    return ", ".join(parts)
