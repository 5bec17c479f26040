"""TensorFlow, imported when it is first used: for modules that also serve flags and estimates."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["tf"]

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf
else:

    class _Imported:
        """Stands for the module."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("tensorflow.compat.v1"), name)

    tf = _Imported()
