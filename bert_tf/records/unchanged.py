"""Notices files that change while they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.util.errors import UserError


class UnchangedFiles:
    """Remembers size, time of change and identity of files, to compare them later."""

    def __init__(self, files: Sequence[Path]):
        self._seen = {path: _status(path) for path in files}

    @contextlib.contextmanager
    def explain(self) -> Iterator[None]:
        """Turns errors from reading a file that has changed into a UserError that says so."""
        try:
            yield
        except (OSError, UserError):
            self.require()
            raise

    def require(self) -> None:
        """Raises UserError if a file is not as it was."""
        for path, status in self._seen.items():
            if _status(path) != status:
                raise UserError(
                    f"{path} changed while it was read; start again when it is complete."
                )


def _status(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); start again.") from error
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino
