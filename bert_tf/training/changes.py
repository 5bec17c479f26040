"""What a run that is resumed does otherwise than its last start did, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from bert_tf.checkpoint.run_record import RunRecord
from bert_tf.files import finite_or_null
from bert_tf.training.ledger import Ledger, show_value
from bert_tf.update.schedules import SCHEDULES

# Facts of a ledger that differ from start to start by themselves, or follow from other facts.
_NO_SETTINGS = {
    ("batch", "arithmetic"),
    ("checkpoints", "checkpoints"),
    ("checkpoints", "gib_each"),
    ("checkpoints", "gib_of_all_kept"),
    ("checkpoints", "gib_of_best"),
    ("ranks", "hosts"),
    ("steps", "last_step"),
    ("steps", "schedule_offset"),
    ("steps", "start_step"),
}
_SECTIONS_WITHOUT_SETTINGS = {"changed", "consumption", "speed", "threads", "xla"}

_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12


def changed_settings(record: RunRecord, ledger: Ledger, model: Mapping[str, Any]) -> dict[str, str]:
    """``section.name`` -> ``before -> after``, of the facts that both starts know.

    Args:
      record: of the last start.
      ledger: of this one.
      model: its configuration.
    """
    before = {**record.ledger, "model": record.config.to_dict()}
    changes = {}
    for section, facts in {**ledger, "model": model}.items():
        if section in _SECTIONS_WITHOUT_SETTINGS:
            continue
        for name, value in facts.items():
            if (section, name) in _NO_SETTINGS or name not in before.get(section, {}):
                continue
            old, new = before[section][name], _as_json(value)
            if old != new:
                changes[f"{section}.{name}"] = f"{_show(old)} -> {_show(new)}"
    return changes


def jump_of_learning_rate(record: RunRecord, ledger: Ledger, *, step: int) -> str | None:
    """A sentence where the learning rate is not what the last start would have had at ``step``.

    A difference of one step's place in either schedule is none: it comes from rounding steps where
    the number of ranks changes.
    """

    def fact(section: str, name: str, *kinds: type) -> Any:
        del kinds
        return ledger[section][name]

    if record.fact("learning_rate", "schedule", str) not in SCHEDULES:
        return None
    before, after = _rates(record.fact, step), _rates(fact, step)
    one_step = max(abs(rates[1] - rates[0]) for rates in (before, after))
    old, new = before[0], after[0]
    if abs(new - old) <= one_step + 1e-6 * max(old, new):
        return None
    return f"the learning rate jumps at step {step}: {old:.3g} -> {new:.3g}"


def _rates(fact: Callable[..., Any], step: int) -> tuple[float, float]:
    """The learning rate of the update after ``step`` updates, and of the one after it."""
    place = step + fact("steps", "schedule_offset", int)
    schedule = SCHEDULES[fact("learning_rate", "schedule", str)]
    settings = {
        "peak_rate": fact("learning_rate", "peak", float, int),
        "total_steps": fact("steps", "train_steps", int),
        "warmup_steps": fact("steps", "warmup_steps", int),
        "end_rate": fact("learning_rate", "end", float, int),
        "power": fact("learning_rate", "decay_power", float, int),
    }
    return float(schedule(place, **settings)), float(schedule(place + 1, **settings))


def _as_json(value: Any) -> Any:
    """A value as it comes back from a file."""
    return json.loads(json.dumps(finite_or_null(value)))


def _show(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:_SHOWN_DIGITS]
    return show_value(value)
