"""Returns large results of worker processes through memory that they share with their parent.

A pipe would copy a result four times, on the cores that the workers need. Here, a worker writes the
buffers of a result (numpy arrays'; PEP 574) to a file in memory that belongs to its parent, which
maps them. Linux only; elsewhere, and for small results, everything goes through the pipe.
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
    """A result in transit: its pickle, and the sizes of the buffers in its slot."""

    content: bytes
    sizes: tuple[int, ...] = ()


class Slot:
    """Memory for one result at a time, which grows as needed and is reused.

    Attributes:
      address: where other processes of the same user find it; None if memory is not shared.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("bert_tf results")
            self.address = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._mapping: mmap.mmap | None = None

    def unpack(self, packed: Packed, *, copy: bool = False) -> Any:
        """The result that :func:`pack` put into this slot.

        Its arrays are copies, or views of this memory, which remains valid for them even after
        :meth:`close`.
        """
        if not packed.sizes:
            return pickle.loads(packed.content)
        starts, end = _layout(packed.sizes)
        # Writable by the owner of the result, but copy-on-write.
        self._mapping = mmap.mmap(self._descriptor, end, access=mmap.ACCESS_COPY)
        view = memoryview(self._mapping)
        parts = [view[start : start + size] for start, size in zip(starts, packed.sizes)]
        return pickle.loads(packed.content, buffers=map(bytearray, parts) if copy else parts)

    def is_free(self) -> bool:
        """Whether no views of the previous result are left."""
        if self._mapping is not None:
            try:
                self._mapping.close()
            except BufferError:
                return False
            self._mapping = None
        return True

    def close(self) -> None:
        """Stops using the slot."""
        self._mapping = None
        if self.address is not None:
            os.close(self._descriptor)
            self.address = None


class Slots:
    """The slots of a process pool; a context manager that closes them."""

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
        """The result in a slot, which is reused once nothing refers to the result's arrays."""
        # Each view keeps a file open, so callers that keep all results get copies.
        result = slot.unpack(packed, copy=len(self._emptied) >= _MOST_KEPT)
        self._emptied.append(slot)
        return result


def pack(result: Any, address: str | None) -> Packed:
    """Pickles a result; writes its buffers to the slot at this address if they are large."""
    buffers: list[memoryview] = []
    content = pickle.dumps(result, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    if not buffers:  # usually text; the pickle is complete
        return Packed(content)
    sizes = tuple(buffer.nbytes for buffer in buffers)
    if address and sum(sizes) >= _SMALLEST_SHARED:
        starts, _ = _layout(sizes)
        # If another process's files cannot be opened, results go through the pipe.
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
