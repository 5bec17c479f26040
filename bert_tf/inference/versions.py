"""Numbered versions in a directory, the layout that TensorFlow Serving looks for."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bert_tf.errors import UserError
from bert_tf.files import PathLike, make_output_dir


def choose_version(export_dir: PathLike, version: int | None) -> Path:
    """The directory of a version that does not exist yet.

    Args:
      export_dir: created if needed.
      version: a number from 1 on; None for the one after the highest there.

    Raises:
      UserError: the version is no such number or there is something in its directory already, or
        ``export_dir`` cannot be written.
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
            f"--version={version}: {target} exists already; give another number, or none for the "
            "next one."
        )
    return target


@contextlib.contextmanager
def written_at_once(target: Path) -> Iterator[Path]:
    """A directory's name to write to, which becomes ``target`` when the block succeeds.

    A server that watches the directory beside sees nothing before all is there, because the
    temporary name is no number. On an exception nothing is left behind.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
