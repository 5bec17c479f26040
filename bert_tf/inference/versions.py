"""Numbered versions in a directory, in the layout that TensorFlow Serving expects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, atomic_directory, explain_write_errors, make_output_dir


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
def new_version(export_dir: PathLike, version: int | None) -> Iterator[tuple[Path, Path]]:
    """Yields the directory for a new version, and where to make it meanwhile.

    A server that watches ``export_dir`` sees only complete versions, because the temporary name is
    not a number. Of several exports at once, each waits for those before it; the number is that of
    :func:`choose_version` after them, and errors are the same.
    """
    directory = make_output_dir(export_dir, flag="export_dir")
    with hold_directory(directory, flag="export_dir", wait=True):
        target = choose_version(directory, version)
        with explain_write_errors(directory), atomic_directory(target, directory) as temporary:
            yield target, temporary
