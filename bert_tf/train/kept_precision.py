"""The precision of a model's training, for runs that use the model as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.config.settings import CommandLine, RuntimeSettings
from bert_tf.tuning.hardware import Hardware, usable_precision

_PRECISION_FLAGS = {"precision", "precision_policy", "amp", "use_fp16"}


def with_kept_precision(
    runtime: RuntimeSettings, kept: Mapping[str, Any], command: CommandLine, hardware: Hardware
) -> tuple[RuntimeSettings, list[str]]:
    """The runtime with the precision of a model's training, unless the user gave one; and notes."""
    stored, numerics = kept["precision"], runtime.numerics
    changes = kept.get("precision_policy", {})
    if not command.defaulted.issuperset(_PRECISION_FLAGS & command.values.keys()):
        if (numerics.precision, numerics.policy_changes) in ((stored, changes), ("auto", changes)):
            return runtime, []
        return runtime, [
            f"warning: --precision={numerics.precision}, but the model was trained with {stored}; "
            "other commands and load_model predict with that"
        ]
    precision, note = usable_precision(stored, hardware)
    numerics = dataclasses.replace(
        numerics, precision=precision, policy_changes={} if note else changes
    )
    return dataclasses.replace(runtime, numerics=numerics), [note] if note else []
