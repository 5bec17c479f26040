"""Numbered versions in a directory, in the layout that TensorFlow Serving expects."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, make_output_dir


def choose_version(export_dir: PathLike, version: int | None) -> Path:
    """Returns the directory for a new version.

    Args:
      export_dir: created if needed.
      version: a number from 1; None for one more than the highest existing version.

    Raises:
      UserError: if the version is below 1, its directory is not empty, or ``export_dir`` is not
        writable.
    """
    export_dir = make_output_dir(export_dir, flag="export_dir")
    if version is None:
        taken = [int(path.name) for path in export_dir.iterdir() if path.name.isdecimal()]
        return export_dir / str(max(taken, default=0) + 1)
    if version < 1:
        raise UserError(f"--version={version} must be at least 1.")
    target = export_dir / str(version)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(
            f"--version={version}: {target} already exists; give another number, or leave the "
            "flag out for the next one."
        )
    return target


@contextlib.contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """Yields a temporary directory that is renamed to ``target`` when the block succeeds.

    A server that watches the parent directory sees only complete versions, because the temporary
    name is not a number. After an exception nothing is left behind.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
