"""Archives, Parquet and WET files, as collections of text are published in."""

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


def wet_of(texts, *, compresses=True):
    """A WET file as Common Crawl's, by warcio: what it is, and a record for the text of a page."""
    pytest.importorskip("warcio")
    from warcio.warcwriter import WARCWriter

    content = io.BytesIO()
    writer = WARCWriter(content, gzip=compresses)
    software = {"software": "a test", "format": "WARC File Format 1.0"}
    writer.write_record(writer.create_warcinfo_record("a.warc.wet.gz", software))
    for text in texts:
        writer.write_record(
            writer.create_warc_record(
                "http://example.org",
                "conversion",
                payload=io.BytesIO(text.encode()),
                warc_content_type="text/plain",
            )
        )
    return content.getvalue()
