"""The labels of a head for words, beside its weights: ``labels.txt`` or Hugging Face's settings.

``labels.txt`` has a label per line, in the order of the head's classes. A head for classes of a
text has the same variables, so the labels also tell which of the two a checkpoint has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open

LABELS_NAME = "labels.txt"

# Their numbers are their places.
Labels = tuple[str, ...]


def read_labels(directory: Path) -> Labels | None:
    """The labels in a model directory, None without the file; UserError if it is damaged."""
    path = directory / LABELS_NAME
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"labels {path}: the file cannot be read ({error}); restore it.") from error
    # Whoever writes the file may leave out the last line's end.
    labels = tuple(text.removesuffix("\n").split("\n"))
    if "" in labels or len(set(labels)) < len(labels):
        raise UserError(
            f"labels {path}: it must have a different label on every line; restore the file."
        )
    return labels


def write_labels(directory: Path, labels: Sequence[str] | None) -> None:
    """Writes ``labels.txt``; None removes one, which would be taken for that of new weights."""
    path = directory / LABELS_NAME
    if labels is None:
        path.unlink(missing_ok=True)
        return
    with atomic_open(path) as file:
        file.writelines(f"{label}\n" for label in labels)


def find_labels(directory: Path, settings: Mapping[str, Any], config_file: Path) -> Labels | None:
    """The labels of a model; None for one without a head for words.

    ``config_file`` is the model's, with ``settings``. If it is Hugging Face's, it also says whether
    the model labels words. Raises UserError as :func:`read_labels`.
    """
    architectures = settings.get("architectures")
    if architectures is None:
        return read_labels(directory)
    if "BertForTokenClassification" not in str(architectures):
        return None
    return labels_of_settings(settings, config_file)


def labels_of_settings(settings: Mapping[str, Any], source: Path) -> Labels:
    """The labels in Hugging Face's settings, by transformers' names if they are not named."""
    named = settings.get("id2label")
    if named is None:
        count = settings.get("num_labels", 2)
        named = {index: f"LABEL_{index}" for index in range(count if isinstance(count, int) else 0)}
    by_number = {str(n): name for n, name in named.items()} if isinstance(named, Mapping) else {}
    labels = tuple(by_number.get(str(index)) for index in range(len(by_number)))
    if not labels or not all(isinstance(name, str) and name for name in labels):
        raise UserError(
            f"{source}: its id2label must name classes 0, 1, 2 and so on; correct the file."
        )
    return labels
