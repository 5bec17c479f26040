"""TFRecord files with random access.

Framing of a record (tensorflow/core/lib/io/record_writer.h): its length (8 bytes, little-endian),
the masked CRC32C of the length (4 bytes), the bytes, the masked CRC32C of the bytes (4 bytes).

``X.tfrecord`` is accompanied by ``X.tfrecord.offsets``: 8 magic bytes, then one little-endian
uint64 for the start of every record and one for the size of the file. It is written together with
the records, or created by one scan if the file came from elsewhere. Compressed files are read from
an uncompressed copy (compressed.py), which has the offsets.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import google_crc32c
import numpy as np

from bert_tf.errors import UserError
from bert_tf.files import PathLike, atomic_open, sync_file
from bert_tf.records.compressed import first_content_bytes, uncompressed_copy, write_uncompressed
from bert_tf.records.journal import Written

OFFSETS_SUFFIX = ".offsets"

_MAGIC = b"TFROFF01"
_HEADER_BYTES = 12
_FRAMING_BYTES = 16
_CHECKED_FRAMES = 16
_MOST_OPEN_FILES = 256
_MAPPED_BYTES = 8 << 20
_CRC_MASK_DELTA = 0xA282EAD8

_records_read = 0


def records_read() -> int:
    """A counter that changes whenever any thread of this process has read records."""
    return _records_read


@dataclasses.dataclass(frozen=True)
class FramedRecords:
    """Records with framing, as in a file, made by :func:`frame_records` in a worker process.

    Attributes:
      content: concatenated framed records.
      sizes: int64 [N], size of each framed record in bytes.
    """

    content: bytes
    sizes: np.ndarray


def frame_records(records: Iterable[bytes]) -> FramedRecords:
    """Adds lengths and checksums to records."""
    frames = [_frame(record) for record in records]
    return FramedRecords(b"".join(frames), np.array([len(frame) for frame in frames], np.int64))


class TFRecordWriter:
    """Writes a TFRecord file and its offsets; both appear under their names when it closes.

    A context manager; if the block raises an exception, neither file is left behind. Records are
    added with :meth:`write`, or many at a time, already framed, with :meth:`write_framed`.

    With ``continues``, for a file of a journal (journal.py), records are appended to those that are
    there, under the file's name at once, and are left behind by an exception.
    """

    def __init__(self, path: PathLike, *, continues: bool = False):
        self._path = Path(path)
        self._continues = continues
        self._sizes: list[np.ndarray] = []
        self._num_records = 0

    def __enter__(self) -> TFRecordWriter:
        if self._continues:
            self._opened = open(self._path, "ab")
            self._sizes = [_sizes_in(self._path)]
            self._num_records = len(self._sizes[0])
        else:
            self._opened = atomic_open(self._path, "wb")
        self._file = self._opened.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.__exit__(kind, error, traceback)
        if error is None:
            ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._sizes]))
            _write_offsets(self._path, ends)

    @property
    def num_records(self) -> int:
        """Number of records written so far."""
        return self._num_records

    def sync(self) -> dict[Path, Written]:
        """See :class:`bert_tf.records.journal.Appended`."""
        sync_file(self._file)
        return {self._path: Written(self._file.tell(), self._num_records)}

    def write(self, record: bytes) -> None:
        """Appends one record."""
        self.write_framed(frame_records([record]))

    def write_framed(self, records: FramedRecords) -> None:
        """Appends records that are already framed."""
        self._file.write(records.content)
        self._sizes.append(records.sizes)
        self._num_records += len(records.sizes)


class RecordFile:
    """Access to the records of one file by number.

    Attributes:
      path: the file.
      content: the file that is read: the file itself or, if it is compressed, a copy.
    """

    def __init__(self, path: PathLike, *, keep_offsets: bool = True):
        """Locates the records.

        ``keep_offsets`` saves the offsets of a file that comes without them, and the uncompressed
        copy of a compressed file.
        """
        self.path = Path(path)
        self.content = self.path
        if _is_compressed(self.path):
            self.content = self._copy(keep=keep_offsets)
        self._offsets = _load_offsets(self.content, self.path, keep=keep_offsets)

    def _copy(self, *, keep: bool) -> Path:
        if keep:
            return uncompressed_copy(self.path)
        self._temporary = tempfile.TemporaryDirectory(prefix="bert_tf_uncompressed_")
        content = Path(self._temporary.name, self.path.name)
        write_uncompressed(self.path, content)
        return content

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, number: int, descriptor: int) -> bytes:
        """Reads record ``number`` from the open file ``descriptor`` and checks it.

        Raises:
          UserError: the record is damaged, or the offsets do not match the file.
        """
        global _records_read
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        side_file = _offsets_path(self.content)
        if not start + _FRAMING_BYTES <= end <= int(self._offsets[-1]):
            raise UserError(f"{side_file} does not match its record file; delete it.")
        frame = os.pread(descriptor, end - start, start)
        _records_read += 1
        if len(frame) != end - start:
            raise UserError(
                f"{self.path} is truncated inside record {number}; make or copy it again."
            )
        length = _length_in(frame)
        if length is None:
            raise UserError(
                f"record {number} of {self.path} is damaged, or {side_file.name} does not match "
                "the file; delete the latter, and if that does not help, make or copy the file "
                "again."
            )
        if length != len(frame) - _FRAMING_BYTES:
            raise UserError(f"{side_file} does not match its record file; delete it.")
        record = frame[_HEADER_BYTES:-4]
        if struct.unpack("<I", frame[-4:])[0] != _masked_crc(record):
            raise UserError(
                f"record {number} of {self.path} is damaged (wrong checksum); make or copy the "
                "file again."
            )
        return record


class RecordSet:
    """The records of several files, numbered from 0 across the files in the order given.

    Reading is thread-safe. Up to 256 files stay open; with more, each read opens its file, to stay
    below the system's limit on open files.
    """

    def __init__(self, files: Sequence[PathLike], *, keep_offsets: bool = True):
        """Opens the files; ``keep_offsets`` is as for :class:`RecordFile`."""
        self._files = [RecordFile(path, keep_offsets=keep_offsets) for path in files]
        self._starts = np.cumsum([0, *(len(file) for file in self._files)])
        self._keep_open = len(self._files) <= _MOST_OPEN_FILES
        self._descriptors: dict[int, int] = {}
        # Not at exit: descriptors of a thread that is still reading could be reused for other
        # files.
        weakref.finalize(self, _close_all, self._descriptors).atexit = False

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def files(self) -> list[RecordFile]:
        """The files, in order."""
        return list(self._files)

    def locate(self, index: int) -> tuple[RecordFile, int]:
        """The file of record ``index``, and the record's number within that file."""
        which = self._file_of(index)
        return self._files[which], int(index - self._starts[which])

    def locations(self, indices: Iterable[int]) -> list[tuple[str, int]]:
        """The path of the file, and the number within it, of each of the records ``indices``."""
        found = map(self.locate, indices)
        return [(str(file.path), number) for file, number in found]

    def index_of(self, file: RecordFile) -> int:
        """The index in this set of a file's first record."""
        return int(self._starts[self._files.index(file)])

    def read(self, indices: Iterable[int]) -> list[bytes]:
        """Reads and checks the records ``indices``, in that order; UserError if one is damaged."""
        by_file: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
        for place, index in enumerate(indices):
            which = self._file_of(index)
            by_file[which].append((place, int(index - self._starts[which])))
        records = [b""] * sum(map(len, by_file.values()))
        for which, wanted in by_file.items():
            descriptor = self._open(which)
            try:
                for place, number in wanted:
                    records[place] = self._files[which].read(number, descriptor)
            finally:
                if not self._keep_open:
                    os.close(descriptor)
        return records

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        _close_all(self._descriptors)

    def _file_of(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return int(np.searchsorted(self._starts, index, side="right")) - 1

    def _open(self, which: int) -> int:
        if which in self._descriptors:
            return self._descriptors[which]
        descriptor = _open_for_reading(self._files[which].content)
        if not self._keep_open:
            return descriptor
        kept = self._descriptors.setdefault(which, descriptor)
        if kept != descriptor:  # another thread was first
            os.close(descriptor)
        return kept


def _close_all(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def _frame(record: bytes) -> bytes:
    return _header(len(record)) + record + _masked_crc(record).to_bytes(4, "little")


@functools.lru_cache(maxsize=8192)
def _header(length: int) -> bytes:
    """The length of a record and its checksum, in front of the record."""
    content = struct.pack("<Q", length)
    return content + struct.pack("<I", _masked_crc(content))


def _length_in(frame: bytes) -> int | None:
    """The record length in the header of a frame, None if the header is damaged."""
    length, crc = struct.unpack("<QI", frame[:_HEADER_BYTES])
    return length if crc == _masked_crc(frame[:8]) else None


def _header_fits(frame: bytes, size: int) -> bool:
    """Whether a frame starts with an intact header for a frame of ``size`` bytes."""
    return _length_in(frame) == size - _FRAMING_BYTES


def _open_for_reading(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


def _offsets_path(path: Path) -> Path:
    return path.with_name(path.name + OFFSETS_SUFFIX)


def _write_offsets(path: Path, offsets: np.ndarray) -> None:
    with atomic_open(_offsets_path(path), "wb") as file:
        file.write(_MAGIC)
        file.write(offsets.astype("<u8").tobytes())


def _is_compressed(path: Path) -> bool:
    """Whether a file has compressed records; UserError if it has other compressed content."""
    descriptor = _open_for_reading(path)
    try:
        header = os.pread(descriptor, _HEADER_BYTES, 0)
    finally:
        os.close(descriptor)
    # Checks the plain form first: a length of 35,615 looks like gzip's first two bytes.
    if len(header) == _HEADER_BYTES and _length_in(header) is not None:
        return False
    start = first_content_bytes(path, _HEADER_BYTES)
    if start and (len(start) < _HEADER_BYTES or _length_in(start) is None):
        raise UserError(f"{path} is compressed, but contains no TFRecords; give another file.")
    return start is not None


def _load_offsets(path: Path, source: Path, *, keep: bool) -> np.ndarray:
    """Starts of all records and the file's size, from the offsets file if that can be trusted.

    Messages name ``source``; ``path`` may be a copy of it.
    """
    descriptor = _open_for_reading(path)
    try:
        offsets = _read_offsets(_offsets_path(path))
        if offsets is None or not _offsets_fit(descriptor, offsets):
            offsets = _scan(source, descriptor)
            if keep:
                with contextlib.suppress(
                    UserError
                ):  # read-only directory: the next run scans again
                    _write_offsets(path, offsets)
        return offsets
    finally:
        os.close(descriptor)


def _read_offsets(path: Path) -> np.ndarray | None:
    """The contents of an offsets file; None if it is missing or malformed."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError:
        return None
    if magic != _MAGIC or size < len(_MAGIC) + 8 or size % 8:
        return None
    if size > _MAPPED_BYTES:  # so that ranks on one machine share the memory
        return np.memmap(path, "<u8", "r", offset=len(_MAGIC))
    return np.fromfile(path, "<u8", offset=len(_MAGIC))


def _offsets_fit(descriptor: int, offsets: np.ndarray) -> bool:
    """Checks the file's size and up to 16 record headers, including the first and the last."""
    size = os.fstat(descriptor).st_size
    if int(offsets[0]) != 0 or int(offsets[-1]) != size:
        return False
    last = len(offsets) - 2
    if last < 0:
        return True
    for number in np.unique(np.linspace(0, last, _CHECKED_FRAMES).astype(np.int64)):
        start, end = int(offsets[number]), int(offsets[number + 1])
        if not start + _FRAMING_BYTES <= end <= size:
            return False
        if not _header_fits(os.pread(descriptor, _HEADER_BYTES, start), end - start):
            return False
    return True


def _sizes_in(path: Path) -> np.ndarray:
    """The sizes of the framed records of a file, int64 [N]."""
    descriptor = _open_for_reading(path)
    try:
        return np.diff(_scan(path, descriptor)).astype(np.int64)
    finally:
        os.close(descriptor)


def _scan(path: Path, descriptor: int) -> np.ndarray:
    """Locates all records by following their lengths, without reading the records."""
    size = os.fstat(descriptor).st_size
    offsets = [0]
    while offsets[-1] < size:
        number, start = len(offsets) - 1, offsets[-1]
        header = os.pread(descriptor, _HEADER_BYTES, start)
        if len(header) == _HEADER_BYTES:
            end = start + struct.unpack("<Q", header[:8])[0] + _FRAMING_BYTES
            if not _header_fits(header, end - start):
                raise UserError(
                    f"record {number} of {path} is damaged, or the file is not a TFRecord file; "
                    "make or copy it again."
                )
        if len(header) < _HEADER_BYTES or end > size:
            raise UserError(f"{path} is truncated inside record {number}; make or copy it again.")
        offsets.append(end)
    return np.array(offsets, "<u8")
