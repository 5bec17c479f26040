"""Large results of worker processes, through memory that they and their parent share.

A pipe would copy a result four times, on the processor that the workers need. Here a worker writes
the buffers of a result (those of numpy arrays; PEP 574) into a file in memory that belongs to its
parent, which maps them. Linux only; elsewhere, and for small results, all goes through the pipe.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from typing import Any, NamedTuple

_SMALLEST_SHARED = 1 << 18  # bytes
_ALIGNMENT = 64
_MOST_KEPT = 8


class Packed(NamedTuple):
    """A result on its way: its pickle, and the sizes of the buffers that lie in a slot."""

    content: bytes
    sizes: tuple[int, ...] = ()


class Slot:
    """Memory for one result, which grows as needed and is used for one result after another.

    Attributes:
      address: where other processes of the same user find it; None where memory is not shared.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("bert_tf results")
            self.address = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._mapping: mmap.mmap | None = None

    def unpack(self, packed: Packed, *, copy: bool = False) -> Any:
        """The result that :func:`pack` has put here.

        Its arrays are views of this memory, which stays theirs, also after :meth:`close`, or
        copies.
        """
        if not packed.sizes:
            return pickle.loads(packed.content)
        starts, end = _layout(packed.sizes)
        # Writable by whoever has the result, but for itself only.
        self._mapping = mmap.mmap(self._descriptor, end, access=mmap.ACCESS_COPY)
        view = memoryview(self._mapping)
        parts = [view[start : start + size] for start, size in zip(starts, packed.sizes)]
        return pickle.loads(packed.content, buffers=map(bytearray, parts) if copy else parts)

    def is_free(self) -> bool:
        """Whether no view is left of the result that was here."""
        if self._mapping is not None:
            try:
                self._mapping.close()
            except BufferError:
                return False
            self._mapping = None
        return True

    def close(self) -> None:
        """Ends the use of the slot."""
        self._mapping = None
        if self.address is not None:
            os.close(self._descriptor)
            self.address = None


class Slots:
    """The slots of a pool of processes; a context manager, which closes them."""

    def __init__(self) -> None:
        self._all: list[Slot] = []
        self._emptied: list[Slot] = []

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *exception: object) -> None:
        for slot in self._all:
            slot.close()

    def take(self) -> Slot:
        """A slot for the next result."""
        slot = next(filter(Slot.is_free, self._emptied), None)
        if slot is None:
            slot = Slot()
            self._all.append(slot)
        else:
            self._emptied.remove(slot)
        return slot

    def unpack(self, packed: Packed, slot: Slot) -> Any:
        """The result in a slot, which is used again once nothing refers to the result's arrays."""
        # Each view keeps a file open, so whoever keeps all results gets copies.
        result = slot.unpack(packed, copy=len(self._emptied) >= _MOST_KEPT)
        self._emptied.append(slot)
        return result


def pack(result: Any, address: str | None) -> Packed:
    """Pickles a result; its buffers go into the slot of this address, if they are large."""
    buffers: list[memoryview] = []
    content = pickle.dumps(result, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    if not buffers:  # text, most often: the pickle is complete
        return Packed(content)
    sizes = tuple(buffer.nbytes for buffer in buffers)
    if address and sum(sizes) >= _SMALLEST_SHARED:
        starts, _ = _layout(sizes)
        # Where another process's files cannot be opened, results go through the pipe.
        with contextlib.suppress(PermissionError, FileNotFoundError), open(address, "r+b") as file:
            for start, buffer in zip(starts, buffers):
                file.seek(start)
                file.write(buffer)
            return Packed(content, sizes)
    return Packed(pickle.dumps(result, 5))


def _layout(sizes: tuple[int, ...]) -> tuple[list[int], int]:
    """Where buffers of these sizes start, and where the last one ends."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end + -end % _ALIGNMENT)
        end = starts[-1] + size
    return starts, end
