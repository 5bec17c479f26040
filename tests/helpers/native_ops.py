"""What tests of the native operations need."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_tf.native import library
from bert_tf.update.kernels import Kernels, NativeKernels, TensorFlowKernels
from tests.helpers.programs import NEEDED, skip_without

requires_native_ops = pytest.mark.skipif(
    "native_ops" not in NEEDED
    and not all(map(Path.is_file, map(library.library_path, library.SOURCE.parent.glob("*.cc")))),
    reason="the native operations are not built: python -m bert_tf.native.build",
)


def kernels_named(name: str) -> Kernels:
    """The ``native`` or the ``tensorflow`` form of the update's arithmetic."""
    if name == "tensorflow":
        return TensorFlowKernels()
    try:
        return NativeKernels()
    except library.MissingLibrary as error:
        skip_without("native_ops", str(error))
