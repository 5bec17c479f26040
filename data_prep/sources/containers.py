"""Opens files as streams: plain or compressed ones, and the members of tar and zip archives.

Nothing is unpacked to disk, so names in an archive cannot lead out of a directory. What a file may
expand to is bounded: a few kilobytes can decompress to many gigabytes. Memory is that of a buffer,
except for the table of contents of a zip archive.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Callable, NamedTuple

from bert_tf.util.errors import UserError, first_line
from data_prep.sources.compressed_streams import (
    BZIP2,
    GZIP,
    XZ,
    CompressedStreams,
    DamagedStreamError,
)

HEAD_BYTES = 1 << 16  # what Source.head brings

_COMPRESSIONS = (BZIP2, GZIP, XZ)
_COMPRESSED_SUFFIXES = (".bz2", ".gz", ".tgz", ".xz")
_ZIP, _ZSTANDARD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_TAR_MARK, _TAR_MARK_AT = b"ustar", 257
_MOST_LAYERS = 4  # such as a tar.xz in a tar.xz
# Text becomes a tenth of its size, a table of numbers a fiftieth.
_LARGEST_RATIO = 200
ALWAYS_ALLOWED_BYTES = 64 << 20
_DAMAGE = (
    *(DamagedStreamError, tarfile.TarError, zipfile.BadZipFile, NotImplementedError),
    *(EOFError, zlib.error, lzma.LZMAError, UnicodeDecodeError),  # from a zip archive
)


class Source(NamedTuple):
    """A stream of bytes in a file.

    Attributes:
      name: that of the file, followed by those in archives, for messages.
      suffix: of the innermost name, without those of compression; lower case.
      stream: is at its beginning; valid until the next source is taken.
      is_member: whether it is in an archive.
      is_plain: whether the stream is the file as it is.
    """

    name: str
    suffix: str
    stream: io.BufferedReader
    is_member: bool
    is_plain: bool

    @property
    def head(self) -> bytes:
        """The first 64 KiB, or all if it is shorter; the stream stays at its beginning."""
        return self.stream.peek(HEAD_BYTES)[:HEAD_BYTES]


def open_sources(path: Path, skipped: collections.Counter[str]) -> Iterator[Source]:
    """Yields the streams of a file: one, or one for each file in an archive.

    Hidden members of archives, and those that are not files (links, devices), are left out and
    counted in ``skipped``. Raises UserError if the file is damaged or expands too much.
    """
    with open(path, "rb") as file:
        yield from _Opener(str(path), file, skipped).sources(file, path.name, str(path), 0)


class _Opener:
    """Opens what is in one file, in any depth, with one bound for all of it."""

    def __init__(self, path: str, file: IO[bytes], skipped: collections.Counter[str]):
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._skipped = skipped
        self._expanded = 0

    def sources(self, raw: IO[bytes], name: str, shown: str, layers: int) -> Iterator[Source]:
        """The streams in a stream; ``shown`` is its name with those around it."""
        stream = self._buffered(raw, shown, self._spend if layers else None)
        head = stream.peek(HEAD_BYTES)
        compression = next((c for c in _COMPRESSIONS if head.startswith(c.magic)), None)
        is_tar = head[_TAR_MARK_AT:].startswith(_TAR_MARK) or name.lower().endswith(".tar")
        if layers == _MOST_LAYERS and (compression or is_tar):
            raise UserError(f"--input_file: {shown} has archives in archives; unpack it first.")
        if head.startswith(_ZSTANDARD):
            raise UserError(
                f"--input_file: {shown} is compressed by zstd, which is not read here; uncompress "
                "it first."
            )
        if compression:
            inner: Any = CompressedStreams(stream, compression)
            yield from self.sources(inner, _without_compression(name), shown, layers + 1)
        elif head.startswith(_ZIP):
            yield from self._zip_members(shown, layers)
        elif is_tar:
            yield from self._tar_members(stream, shown, layers)
        else:
            suffix = os.path.splitext(name)[1].lower()
            yield Source(shown, suffix, stream, shown != self._path, not layers)

    def _tar_members(self, stream: IO[bytes], shown: str, layers: int) -> Iterator[Source]:
        with _explained(shown):
            archive: Any = tarfile.TarFile.open(fileobj=stream, mode="r|", tarinfo=_StrictTarInfo)
            while (member := archive.next()) is not None:
                archive.members.clear()  # it keeps all that it has seen
                if self._is_wanted(member.name, member.isdir(), member.isreg()):
                    content = archive.extractfile(member)
                    yield from self._member(content, member.name, shown, layers)
            self._require_end(archive.fileobj, shown)

    def _require_end(self, stream: IO[bytes], shown: str) -> None:
        """Raises UserError if anything but zeros follows the mark for the end of a tar archive."""
        while block := stream.read(HEAD_BYTES):
            if rest := block.lstrip(b"\0"):
                raise UserError(
                    f"--input_file: {shown} has content at byte {stream.tell() - len(rest)}, after "
                    "the end of its tar archive, as when archives are joined; unpack them first."
                )

    def _zip_members(self, shown: str, layers: int) -> Iterator[Source]:
        if layers:
            raise UserError(
                f"--input_file: {shown} is a zip archive inside another file; unpack it first."
            )
        with _explained(shown), zipfile.ZipFile(self._file) as archive:
            for member in archive.infolist():
                is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
                is_directory = member.filename.endswith("/")
                if not self._is_wanted(member.filename, is_directory, not is_link):
                    continue
                if member.flag_bits & 1:
                    raise UserError(f"--input_file: {shown} is encrypted; unpack it first.")
                with archive.open(member) as content:
                    yield from self._member(content, member.filename, shown, layers)

    def _member(self, content: IO[bytes], name: str, shown: str, layers: int) -> Iterator[Source]:
        base = name.rstrip("/").rpartition("/")[2]
        yield from self.sources(content, base, f"{shown}:{name}", layers + 1)

    def _is_wanted(self, name: str, is_directory: bool, is_file: bool) -> bool:
        if is_directory:
            return False
        parts = name.split("/")
        is_hidden = parts[-1].startswith(".") or "__MACOSX" in parts
        if is_hidden or not is_file:
            self._skipped["skipped_members"] += 1
            return False
        return True

    def _buffered(
        self, raw: IO[bytes], shown: str, spend: Callable[[int], None] | None
    ) -> io.BufferedReader:
        return io.BufferedReader(_Checked(raw, shown, spend), HEAD_BYTES)

    def _spend(self, num_bytes: int) -> None:
        self._expanded += num_bytes
        if self._expanded > max(ALWAYS_ALLOWED_BYTES, _LARGEST_RATIO * self._size):
            raise UserError(
                f"--input_file: {self._path} expands to more than {_LARGEST_RATIO} times its size, "
                "which no text does; unpack it yourself if it is meant."
            )


class _Checked(io.RawIOBase):
    """A stream that is read in full blocks, with errors that name it."""

    def __init__(self, raw: IO[bytes], shown: str, spend: Callable[[int], None] | None):
        self._raw = raw
        self._shown = shown
        self._spend = spend

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = 0
        with _explained(self._shown):
            while size < len(buffer) and (block := self._raw.read(len(buffer) - size)):
                buffer[size : size + len(block)] = block
                size += len(block)
        if self._spend:
            self._spend(size)
        return size


_END_OF_TAR: Any = vars(tarfile)["EOFHeaderError"]  # which has no published type


class _StrictTarInfo(tarfile.TarInfo):
    """A header of a tar archive; otherwise a damaged one is taken for the archive's end."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        except _END_OF_TAR:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


@contextlib.contextmanager
def _explained(shown: str) -> Iterator[None]:
    """Turns errors of damaged content into a UserError that names it."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(shown, error) from error
    except OSError as error:
        # A member of a zip archive that begins before the file, and bzip2 in such an archive.
        if error.errno not in (errno.EINVAL, None):
            raise
        raise _damaged(shown, error) from error


def _damaged(shown: str, error: Exception) -> UserError:
    return UserError(
        f"--input_file: {shown} is damaged or was not downloaded completely ({first_line(error)}); "
        "download it again."
    )


def _without_compression(name: str) -> str:
    base, suffix = os.path.splitext(name)
    if suffix.lower() not in _COMPRESSED_SUFFIXES:
        return name
    return f"{base}.tar" if suffix.lower() == ".tgz" else base
