"""The versions of code and libraries that determine the output of a stage."""

from __future__ import annotations

import importlib.metadata
import unicodedata
import zlib

# From Python: its character tables, and its compression library.
UNICODE, ZLIB = "Unicode", "zlib"


def maker(code: int, *packages: str) -> dict[str, str]:
    """The versions that determine the output of a stage, for its manifest.

    Args:
      code: the stage's own version, incremented when its output changes for the same input.
      packages: those that affect the output; ``UNICODE`` and ``ZLIB`` are Python's own.
    """
    own = {UNICODE: unicodedata.unidata_version, ZLIB: zlib.ZLIB_RUNTIME_VERSION}
    return {"stage": str(code), **{name: own.get(name) or version_of(name) for name in packages}}


def tokenizer_package(kind: str) -> str:
    """The package that determines a tokenizer's tokens, given its vocabulary."""
    return "sentencepiece" if kind == "sentencepiece" else UNICODE


def version_of(package: str) -> str:
    """The version of an installed package, or "none"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
