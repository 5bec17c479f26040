"""The labels of a token classification head: in ``labels.txt`` or Hugging Face's settings.

``labels.txt`` has one label per line, in the order of the head's classes. A text classification
head has the same variables, so the labels also tell which of the two a checkpoint contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import atomic_open

LABELS_NAME = "labels.txt"
TEXT_CLASSES_NAME = "text_classes.json"  # of a head for whole texts, see text_classes.py

_MOST_UNNAMED = 1_000_000  # which take 0.3 s; damaged files may have any number

# A label's number is its index.
Labels = tuple[str, ...]


def read_labels(directory: Path) -> Labels | None:
    """The labels in a model directory; None without the file; UserError if it is damaged."""
    path = directory / LABELS_NAME
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"labels {path}: the file cannot be read ({error}); restore it.") from error
    # The last line's end is optional.
    labels = tuple(text.removesuffix("\n").split("\n"))
    if "" in labels or len(set(labels)) < len(labels):
        raise UserError(
            f"labels {path}: it must have a different label on every line; restore the file."
        )
    return labels


def write_labels(directory: Path, labels: Sequence[str] | None) -> None:
    """Writes ``labels.txt``; None removes the file, which would be used for the new weights."""
    path = directory / LABELS_NAME
    if labels is None:
        path.unlink(missing_ok=True)
        return
    with atomic_open(path) as file:
        file.writelines(f"{label}\n" for label in labels)


def find_labels(directory: Path, settings: Mapping[str, Any], source: Path | None) -> Labels | None:
    """The labels of a model; None for models without a token classification head.

    ``settings`` are those of its configuration, ``source``. If it is Hugging Face's, it also tells
    whether the model classifies tokens. Raises UserError as :func:`read_labels` does.
    """
    architectures = settings.get("architectures")
    if architectures is None or source is None:
        return read_labels(directory)
    if "BertForTokenClassification" not in str(architectures):
        return None
    return labels_of_settings(settings, source)


def labels_of_settings(settings: Mapping[str, Any], source: Path) -> Labels:
    """The labels in Hugging Face's settings; unnamed ones get transformers' default names."""
    named = settings.get("id2label")
    if named is None:
        count = settings.get("num_labels", 2)
        if not isinstance(count, int) or not 0 < count <= _MOST_UNNAMED:
            raise UserError(
                f"{source}: its num_labels is {short_repr(count)}, not a number of classes from 1 "
                f"to {_MOST_UNNAMED:,}; restore the file."
            )
        named = {index: f"LABEL_{index}" for index in range(count)}
    by_number = {str(n): name for n, name in named.items()} if isinstance(named, Mapping) else {}
    found = [by_number.get(str(index)) for index in range(len(by_number))]
    labels = tuple(name for name in found if isinstance(name, str) and name)
    if not labels or len(set(labels)) < len(found):
        raise UserError(
            f"{source}: its id2label must name classes 0, 1, 2 and so on, all of them differently; "
            "restore the file."
        )
    return labels
