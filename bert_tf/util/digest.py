"""Digests of bytes, files and JSON values, as hexadecimal text.

All are SHA-256, which users can compute themselves (``sha256sum``). Files that are read by users
and by earlier versions say so in their keys; code calls it a digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Keys of digests in files.
DIGEST_KEY = "sha256"
VOCABULARY_DIGEST_KEY = "vocabulary_sha256"
EVAL_DIGEST_KEY, PREDICT_DIGEST_KEY = "eval_sha256", "predict_sha256"  # of records
CLASSES_DIGEST_KEY = "classes_sha256"

BLOCK_BYTES = 1 << 16


def digest_of(*contents: bytes) -> str:
    """The digest of bytes that follow each other."""
    return digest_of_blocks(contents)


def digest_of_blocks(blocks: Iterable[bytes]) -> str:
    """The digest of all blocks together, of which one is in memory at a time."""
    running = hashlib.sha256()
    for block in blocks:
        running.update(block)
    return running.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """The digest of a file's bytes."""
    with open(path, "rb") as file:
        return digest_of_blocks(iter(lambda: file.read(BLOCK_BYTES), b""))


def digest_of_json(value: Any) -> str:
    """The digest of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return digest_of(text.encode("ascii"))
