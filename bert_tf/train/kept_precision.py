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
    numerics = runtime.numerics
    if not command.defaulted.issuperset(_PRECISION_FLAGS & command.values.keys()):
        stored, changes = kept["precision"], kept.get("precision_policy", {})
        if numerics.precision in (stored, "auto") and numerics.policy_changes == changes:
            return runtime, []
        return runtime, [
            f"warning: --precision={numerics.precision}, but the model was trained with {stored}; "
            "other commands and load_model predict with that"
        ]
    precision, changes, notes = usable_precision(kept, hardware)
    numerics = dataclasses.replace(numerics, precision=precision, policy_changes=changes)
    return dataclasses.replace(runtime, numerics=numerics), notes
