"""Archives and Parquet files, as collections of text are published in."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest


def tar_of(files, mode="w"):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def zip_of(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def parquet_of(path, columns, **options):
    """Writes columns, or a table of Arrow."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
    parquet.write_table(table, path, **options)
