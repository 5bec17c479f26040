"""TFRecord files with random access.

``X.tfrecord`` is accompanied by ``X.tfrecord.offsets`` (framing.py): the start of every record and
the size of the file. It is written together with the records, or created by one scan if the file
came without it. Files compressed in blocks are read in place (gzip_blocks.py).
"""

from __future__ import annotations

import array
import codecs
import collections
import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bert_tf.records.framing import (
    FRAMING_BYTES,
    HEADER_BYTES,
    FramedRecords,
    frame_end,
    frame_of,
    header_fits,
    keep_offsets,
    length_in,
    offsets_path,
    read_offsets,
    record_in,
    running_sums,
    write_offsets,
)
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, Written, atomic_open, sync_file

if TYPE_CHECKING:
    from bert_tf.records.gzip_blocks import GzipBlocks


# How records are stored: as they are, or in gzip blocks.
COMPRESSION = ("none", "gzip")

_GZIP = b"\x1f\x8b"
_MAGIC = b"TFROFF01"
_TEXT_BYTES = 1024
_CHECKED_FRAMES = 16
_MOST_OPEN_FILES = 256


def frame_records(records: Iterable[bytes], *, compression: str = "none") -> FramedRecords:
    """Adds lengths and checksums to records; ``compression`` is one of ``COMPRESSION``."""
    frames = [frame_of(record) for record in records]
    if compression == "gzip":
        from bert_tf.records.gzip_blocks import compress_frames

        return compress_frames(frames)
    return FramedRecords.of(frames)


class TFRecordWriter:
    """Writes a TFRecord file and its offsets; both get their names when it is closed.

    A context manager; if the block raises an exception, no files are left behind. Add records with
    :meth:`write`, or many already framed ones with :meth:`write_framed`. With compression, each
    call starts a new block.

    With ``continues``, for a file of a journal (journal.py), records are appended to those that
    exist, directly under the file's own name, and are kept after an exception.
    """

    def __init__(self, path: PathLike, *, compression: str = "none", continues: bool = False):
        self._path = Path(path)
        self._compression = compression
        self._continues = continues
        self._num_records = 0

    def __enter__(self) -> TFRecordWriter:
        self._sizes = array.array("q")
        self._counts = array.array("q")  # of blocks, if compressed
        if self._continues:
            self._opened: AbstractContextManager[IO[Any]] = open(self._path, "ab")
            self._count_written()
        else:
            self._opened = atomic_open(self._path, "wb")
        self._file: IO[Any] = self._opened.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._opened.__exit__(kind, error, traceback)
            return
        if self._compression == "none":
            self._opened.__exit__(None, None, None)
            write_offsets(self._path, _MAGIC, running_sums(self._sizes))
            return
        from bert_tf.records import gzip_blocks

        with contextlib.ExitStack() as stack:
            stack.push(self._opened)
            self.write_framed(gzip_blocks.end_of_file())
        columns = map(running_sums, (self._sizes, self._counts))
        write_offsets(self._path, gzip_blocks.MAGIC, *columns)

    def _count_written(self) -> None:
        """Counts the existing content of a file that is continued."""
        with _opened(self._path) as descriptor:
            if self._compression == "gzip":
                from bert_tf.records.gzip_blocks import written_blocks

                self._count(*written_blocks(self._path, descriptor))
            else:
                self._count(np.diff(_scan(self._path, descriptor)).astype(np.int64))

    def _count(self, sizes: np.ndarray, counts: np.ndarray | None = None) -> None:
        self._sizes.frombytes(sizes.tobytes())
        if counts is not None:
            self._counts.frombytes(counts.tobytes())
        self._num_records += len(sizes) if counts is None else int(counts.sum())

    @property
    def num_records(self) -> int:
        """Number of records written so far."""
        return self._num_records

    def sync(self) -> dict[Path, Written]:
        """See :class:`data_prep.stages.journal.Appended`."""
        sync_file(self._file)
        return {self._path: Written(self._file.tell(), self._num_records)}

    def write(self, record: bytes) -> None:
        """Appends one record."""
        self.write_framed(frame_records([record], compression=self._compression))

    def write_framed(self, records: FramedRecords) -> None:
        """Appends records that are already framed, with this writer's compression."""
        self._file.write(records.content)
        self._count(records.sizes, records.counts)


class RecordFile:
    """Access to the records of a file by number.

    Attributes:
      path: the file.
      blocks: the blocks it is compressed in; None for any other file.
    """

    def __init__(self, path: PathLike, *, keep_offsets: bool = True):
        """Locates the records; ``keep_offsets`` saves them for a file that comes without them.

        Raises UserError for anything else than records.
        """
        self.path = Path(path)
        self.blocks: GzipBlocks | None = None
        with _opened(self.path) as descriptor:
            if os.pread(descriptor, len(_GZIP), 0) == _GZIP:
                from bert_tf.records.gzip_blocks import open_blocks

                self.blocks = open_blocks(self.path, descriptor, keep=keep_offsets)
            if self.blocks is None:
                self._offsets = _load_offsets(self.path, descriptor, keep=keep_offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self.blocks is None else len(self.blocks)

    def read(self, number: int, descriptor: int) -> bytes:
        """Reads record ``number`` from the open file ``descriptor``; UserError if it is damaged."""
        if self.blocks is None:
            frame = self._frame(number, descriptor)
        else:
            frame = self.blocks.frame(number, descriptor)
        record = record_in(frame)
        if record is None:
            raise UserError(
                f"record {number} of {self.path} is damaged (wrong checksum); make or copy the "
                "file again."
            )
        return record

    def _frame(self, number: int, descriptor: int) -> bytes:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        is_place = start + FRAMING_BYTES <= end <= int(self._offsets[-1])
        frame = os.pread(descriptor, end - start, start) if is_place else b""
        if is_place and len(frame) != end - start:
            raise UserError(
                f"{self.path} is truncated inside record {number}; make or copy it again."
            )
        if not is_place or length_in(frame) != len(frame) - FRAMING_BYTES:
            raise UserError(
                f"record {number} of {self.path} is damaged, or {offsets_path(self.path)} does "
                "not match the file; delete the latter, and if that does not help, make or copy "
                "the file again."
            )
        return frame


class RecordSet:
    """The records of several files, numbered from 0 across the files in the given order.

    Reading is thread-safe. Up to 256 files stay open; if there are more, each read opens its file,
    to stay below the system's limit on open files.
    """

    def __init__(self, files: Sequence[PathLike], *, keep_offsets: bool = True):
        """Opens the files; ``keep_offsets`` is as in :class:`RecordFile`."""
        self._files = [RecordFile(path, keep_offsets=keep_offsets) for path in files]
        self._starts = np.cumsum([0, *(len(file) for file in self._files)])
        self._keep_open = len(self._files) <= _MOST_OPEN_FILES
        self._descriptors: dict[int, int] = {}
        blocks = [file.blocks for file in self._files if file.blocks is not None]
        for other in blocks[1:]:
            other.share_decoded(blocks[0])
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
        """The file that contains record ``index``, and the record's number in that file."""
        which = self._file_of(index)
        return self._files[which], int(index - self._starts[which])

    def locations(self, indices: Iterable[int]) -> list[tuple[str, int]]:
        """The path of the file and the number in it, for each of the records ``indices``."""
        found = map(self.locate, indices)
        return [(str(file.path), number) for file, number in found]

    def index_of(self, file: RecordFile) -> int:
        """The index in this set of a file's first record."""
        return int(self._starts[self._files.index(file)])

    def read(self, indices: Iterable[int]) -> list[bytes]:
        """Reads and checks records in the given order; raises UserError if one is damaged."""
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
        descriptor = _open_for_reading(self._files[which].path)
        if not self._keep_open:
            return descriptor
        kept = self._descriptors.setdefault(which, descriptor)
        if kept != descriptor:  # another thread was faster
            os.close(descriptor)
        return kept


def _close_all(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _open_for_reading(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yields the descriptor of a file that is open for reading."""
    descriptor = _open_for_reading(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _load_offsets(path: Path, descriptor: int, *, keep: bool) -> np.ndarray:
    """Offsets of all records and the file's size, from the side file if it can be trusted."""
    offsets = read_offsets(path, _MAGIC)
    if offsets is None or not _offsets_fit(descriptor, offsets):
        offsets = _scan(path, descriptor)
        if keep:
            keep_offsets(path, _MAGIC, offsets)
    return offsets


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
        if not start + FRAMING_BYTES <= end <= size:
            return False
        if not header_fits(os.pread(descriptor, HEADER_BYTES, start), end - start):
            return False
    return True


def _is_text(begin: bytes) -> bool:
    """Whether a file begins like text, which has no NUL bytes, unlike a record's length."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin


def _is_compressed(begin: bytes) -> bool:
    """Whether a file that does not begin with a record begins like gzip's or zlib's (RFC 1950)."""
    is_record = len(begin) >= HEADER_BYTES and length_in(begin[:HEADER_BYTES]) is not None
    is_zlib = begin[:1] == b"x" and int.from_bytes(begin[:2], "big") % 31 == 0
    return not is_record and (is_zlib or begin.startswith(_GZIP))


def _scan(path: Path, descriptor: int) -> np.ndarray:
    """Locates all records by following their lengths, without reading their contents."""
    size, begin = os.fstat(descriptor).st_size, os.pread(descriptor, _TEXT_BYTES, 0)
    if size and _is_text(begin):
        raise UserError(
            f"{path} is text, not a file of records; make records of it with python -m "
            "data_prep.pipeline, and give those."
        )
    if _is_compressed(begin):
        raise UserError(
            f"{path} is compressed as a whole, so its records cannot be read in any order; "
            "uncompress it, or make records with --compression=gzip."
        )
    offsets = array.array("Q", [0])
    while offsets[-1] < size:
        number, start = len(offsets) - 1, offsets[-1]
        header = os.pread(descriptor, HEADER_BYTES, start)
        if len(header) == HEADER_BYTES:
            end = start + frame_end(header, 0)
            if not header_fits(header, end - start):
                raise UserError(
                    f"record {number} of {path} is damaged, or the file is not a TFRecord file; "
                    "make or copy it again."
                )
        if len(header) < HEADER_BYTES or end > size:
            raise UserError(f"{path} is truncated inside record {number}; make or copy it again.")
        offsets.append(end)
    return np.frombuffer(offsets, np.uint64).astype("<u8")
