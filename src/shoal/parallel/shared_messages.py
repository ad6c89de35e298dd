"""What a host and its samplers send each other, and objects in memory that they share.

Such an object is a pickle, and every array beside it as it is, so that none is copied to read.

The memory has no name (a memfd), so nothing of it is left when the last process that maps it is gone, however that
ended. A message is readable wherever its bytes are: in the memory it was written to, or where Ray has put a copy.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes, of every array
HEAD = struct.Struct("<QQ")  # the bytes of the pickle, the number of arrays
PLACE = struct.Struct("<QQ")  # where an array begins, and its bytes
COMMAND = struct.Struct("<Q")  # the bytes of a pickled `(name, arguments)` that follow
ANSWER = struct.Struct("<?QQQQ")  # failed; where what is told ends, and the state; where the fragment begins and ends
Bytes = NDArray[np.uint8]


class SharedMemory:
    """Memory of one writer, which grows with what is written; others read it by its descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("shoal-message", os.MFD_CLOEXEC) if descriptor is None else descriptor
        self._mapped: mmap.mmap | None = None

    def write(self, value: Any, at: int = 0) -> int:
        """Write a message from this byte on; its last byte is before the one that is returned."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        begin = at + HEAD.size + PLACE.size * len(arrays)
        end = begin + len(data)
        places = []
        for array in arrays:
            end = -(-end // ALIGNMENT) * ALIGNMENT
            places.append(end)
            end += array.nbytes
        room = self._room(end)
        HEAD.pack_into(room, at, len(data), len(arrays))
        for k, (place, array) in enumerate(zip(places, arrays, strict=True)):
            PLACE.pack_into(room, at + HEAD.size + k * PLACE.size, place - at, array.nbytes)
            room[place : place + array.nbytes] = array
        room[begin : begin + len(data)] = data
        return end

    def write_bytes(self, data: bytes) -> int:
        """Write bytes as they are to the beginning; how many, up to where the next message may begin."""
        self._room(len(data))[: len(data)] = data
        return -(-len(data) // ALIGNMENT) * ALIGNMENT

    def bytes_at(self, begin: int, end: int) -> Bytes:
        """What another process has written there, without a copy; it changes when that one writes again."""
        if self._mapped is None or len(self._mapped) < end:
            self._mapped = mmap.mmap(self.descriptor, 0)
        return np.frombuffer(self._mapped, np.uint8, end - begin, begin)

    def close(self) -> None:
        """Close the descriptor; what was read stays as long as somebody has it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._mapped = -1, None

    def _room(self, size: int) -> memoryview:
        if self._mapped is None or len(self._mapped) < size:
            size = -(-max(size, 2 * len(self._mapped or b"")) // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)
        return memoryview(self._mapped)


def message_in(data: Any) -> Any:
    """The object of a message's bytes; its arrays are where the bytes are, and can only be read."""
    view = memoryview(data).cast("B").toreadonly()
    length, count = HEAD.unpack_from(view)
    places = [PLACE.unpack_from(view, HEAD.size + k * PLACE.size) for k in range(count)]
    begin = HEAD.size + PLACE.size * count
    arrays = [view[place : place + size] for place, size in places]
    return pickle.loads(view[begin : begin + length], buffers=arrays)
