"""Objects in memory that processes share come out as they went in, wherever their bytes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.parallel.shared_messages import ALIGNMENT, SharedMemory, message_in

VALUES: list[Any] = [
    None,
    {"a": np.arange(10.0), "b": [np.zeros((0, 3), np.float32), "words"]},
    (np.ones((3, 4, 5), np.uint8)[:, ::2], np.array(3)),
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("at", [0, 5 * ALIGNMENT])
def test_a_message_is_what_was_written(value: Any, at: int) -> None:
    writer = SharedMemory()
    end = writer.write(value, at)
    data = SharedMemory(writer.descriptor).bytes_at(at, end)
    for found in (message_in(data), message_in(data.copy())):
        np.testing.assert_equal(found, value)


def test_arrays_are_read_where_they_lie_and_only_read() -> None:
    writer = SharedMemory()
    data = SharedMemory(writer.descriptor).bytes_at(0, writer.write(np.arange(100)))
    found = message_in(data)
    assert np.shares_memory(found, data)
    assert not found.flags.writeable
    assert found.ctypes.data % ALIGNMENT == 0


def test_memory_grows_and_what_was_read_before_stays() -> None:
    writer = SharedMemory()
    reader = SharedMemory(writer.descriptor)
    first = message_in(reader.bytes_at(0, writer.write(np.arange(3))))
    large = np.arange(1_000_000)
    np.testing.assert_array_equal(message_in(reader.bytes_at(0, writer.write(large))), large)
    assert first.shape == (3,)
