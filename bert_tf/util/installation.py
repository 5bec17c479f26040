"""Messages about missing packages; imports nothing that has to be installed."""

from __future__ import annotations

import importlib.util
import sys
from types import TracebackType

# Imported by every program before it can explain anything else.
_ALWAYS_NEEDED = ("absl", "numpy")

_OWN = ("bert_tf", "data_prep", "tools", "benchmarks")


def explain_missing(module: str | None) -> str | None:
    """A sentence about a package that cannot be imported; None for modules of this project."""
    name = (module or "").partition(".")[0]
    if not name or name in _OWN:
        return None
    return (
        f"{name} is not installed for {sys.executable}; use the Python of the environment that "
        "'make setup' built, or run: pip install 'bert_tf[cpu]' (or 'bert_tf[gpu]')."
    )


def require_always_needed() -> None:
    """Raises ImportError, shown as one line if uncaught, if a package that all need is missing."""
    missing = next((name for name in _ALWAYS_NEEDED if not importlib.util.find_spec(name)), None)
    if missing is not None:
        sys.excepthook = _show_import_error
        raise ImportError(explain_missing(missing), name=missing)


def _show_import_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, ImportError) and error.name in _ALWAYS_NEEDED:
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
