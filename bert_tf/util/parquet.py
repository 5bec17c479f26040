"""Parquet files, read as streams; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike

_VERSION = "21.0.0"  # the last for NumPy 1; works with NumPy 2


def import_parquet() -> Any:
    """The module pyarrow.parquet; raises UserError if it is not installed."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"Parquet files need the package pyarrow, which cannot be used here "
            f"({first_line(error)}); run: pip install pyarrow=={_VERSION}"
        ) from error
    return parquet


def open_parquet(path: PathLike, *, flag: str) -> Any:
    """A pyarrow.parquet.ParquetFile that is read as a stream; UserError if it is damaged."""
    parquet = import_parquet()
    import pyarrow

    try:
        return parquet.ParquetFile(
            str(path), pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error, flag) from error


def parquet_batches(
    opened: Any, path: Path, columns: Sequence[str], *, batch_rows: int, flag: str
) -> Iterator[Any]:
    """Record batches of some columns; raises UserError if the file is damaged."""
    import pyarrow

    try:
        yield from opened.iter_batches(
            batch_size=batch_rows, columns=list(columns), use_threads=False
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error, flag) from error


def rows_of(batch: Any, name: str, *, flag: str) -> list[dict[str, Any]]:
    """The rows of a record batch; raises UserError for text that is not UTF-8."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(
            f"--{flag}: {name} or one after it has text that is not UTF-8; make the file again."
        ) from error


def _damaged(path: PathLike, error: Exception, flag: str) -> UserError:
    return UserError(
        f"--{flag}: {path} is damaged or no whole Parquet file ({first_line(error)}); download "
        "it again."
    )
