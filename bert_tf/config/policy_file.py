"""Precision policy files: the floating-point type of each class of operation.

    {"softmax": "bfloat16", "logits": "bfloat16"}

``bert_tf.model.precision.PrecisionPolicy`` defines the classes. Types have the names shown in the
ledger, or those of ``--precision``.
"""

from __future__ import annotations

from pathlib import Path

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import read_json, require_file

MODULE_CLASSES = ("attention", "dense", "embeddings", "softmax", "layer_norm", "activations",
                  "logits", "loss")  # fmt: skip
TYPE_OF_PRECISION = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

_TYPES = {**{name: name for name in TYPE_OF_PRECISION.values()}, **TYPE_OF_PRECISION}


def policy_changes(given: str | None) -> dict[str, str]:
    """The changes in the file of --precision_policy; empty without a file.

    Raises UserError as :func:`read_policy_file` does.
    """
    return read_policy_file(require_file(given, flag="precision_policy")) if given else {}


def read_policy_file(path: Path) -> dict[str, str]:
    """Module class -> ``float32``, ``bfloat16`` or ``float16``, for the classes in the file.

    Raises UserError if the file cannot be read or contains unknown classes or types.
    """
    flag = "--precision_policy"
    content = read_json(path, what=flag)
    if not isinstance(content, dict):
        raise UserError(
            f'{flag}: {path} is not a JSON object; write e.g. {{"softmax": "bfloat16"}}.'
        )
    unknown = sorted(content.keys() - set(MODULE_CLASSES))
    if unknown:
        raise UserError(
            f"{flag}: {path} has an unknown class {short_repr(unknown[0])}; the classes are "
            f"{', '.join(MODULE_CLASSES)}."
        )
    for name, given in content.items():
        if not isinstance(given, str) or given not in _TYPES:
            raise UserError(
                f"{flag}: {path} has an unknown type {short_repr(given)} for {name}; choose one of "
                f"{', '.join(_TYPES)}."
            )
    return {name: _TYPES[given] for name, given in content.items()}
