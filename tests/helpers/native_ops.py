"""What tests of the native operations need."""

from pathlib import Path

import pytest

from bert_tf.native import library
from tests.helpers.programs import NEEDED

requires_native_ops = pytest.mark.skipif(
    "native_ops" not in NEEDED
    and not all(map(Path.is_file, map(library.library_path, library.SOURCE.parent.glob("*.cc")))),
    reason="the native operations are not built: python -m bert_tf.native.build",
)
