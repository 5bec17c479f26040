"""The side file ``X.lengths`` of a record file ``X``: how many positions each record needs.

It contains 8 magic bytes, a digest (SHA-256) and a little-endian uint16 for each record. The digest
covers these numbers and what they were counted in: the number of records, and some of the records,
spread over the file, so that lengths of another file of that name are rejected.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from bert_tf.records.tfrecord import RecordFile, RecordSet
from bert_tf.util.digest import digest_of
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open

LENGTHS_SUFFIX = ".lengths"

_MAGIC = b"TFRLEN02"
_DIGEST_BYTES = 32
_SAMPLED_RECORDS = 64


def lengths_path(path: Path) -> Path:
    """The side file of a record file."""
    return path.with_name(path.name + LENGTHS_SUFFIX)


def read_lengths(records: RecordSet, file: RecordFile) -> np.ndarray | None:
    """The lengths of a file in ``records``: uint16 [N]; None without a matching side file.

    Raises UserError for a damaged record.
    """
    try:
        content = lengths_path(file.path).read_bytes()
    except OSError:
        return None
    header = len(_MAGIC) + _DIGEST_BYTES
    lengths = content[header:]
    if len(lengths) != 2 * len(file) or not content.startswith(_MAGIC):
        return None
    if content[len(_MAGIC) : header] != _digest(records, file, lengths):
        return None
    return np.frombuffer(lengths, "<u2")


def can_keep_lengths(file: RecordFile) -> bool:
    """Whether the directory of a record file can be written."""
    return os.access(file.path.parent, os.W_OK)


def keep_lengths(records: RecordSet, file: RecordFile, lengths: np.ndarray) -> None:
    """Writes the lengths of a file in ``records``, integers [N], if possible."""
    with contextlib.suppress(UserError), atomic_open(lengths_path(file.path), "wb") as out:
        content = lengths.astype("<u2").tobytes()
        out.write(_MAGIC + _digest(records, file, content) + content)


def _digest(records: RecordSet, file: RecordFile, lengths: bytes) -> bytes:
    count, first = len(file), records.index_of(file)
    sample = np.unique(np.linspace(0, max(count - 1, 0), min(count, _SAMPLED_RECORDS)).astype(int))
    sampled = (bytes.fromhex(digest_of(r)) for r in records.read((first + sample).tolist()))
    return bytes.fromhex(digest_of(str(count).encode(), *sampled, lengths))
