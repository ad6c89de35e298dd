"""TensorBoard event files, written directly: the libraries that write them import torch, which costs seconds.

A file is a row of TFRecords, each a serialised `Event` message (tensorflow/core/util/event.proto). Only numbers are
written.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping


def event_file_name() -> str:
    """A name that TensorBoard finds and that sorts by time."""
    return f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{os.urandom(2).hex()}"


def opening(step: int) -> bytes:
    """The records that begin a file; TensorBoard drops what older files say from `step` on."""
    version = _event(0) + _field(3, b"brain.Event:2")
    session = _event(step) + _field(7, _varint(1 << 3) + _varint(1))  # SessionLog.status = START
    return _record(version) + _record(session)


def scalars(step: int, values: Mapping[str, float]) -> bytes:
    """One record with all numbers of one iteration."""
    summary = b"".join(
        _field(1, _field(1, name.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", _as_float32(value)))
        for name, value in values.items()
    )
    return _record(_event(step) + _field(5, summary))


def _event(step: int) -> bytes:
    return _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + _varint(2 << 3) + _varint(step)


def _as_float32(value: float) -> float:
    return max(min(float(value), 3.4e38), -3.4e38)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _masked_crc(length) + content + _masked_crc(content)


def _masked_crc(content: bytes) -> bytes:
    crc, table = 0xFFFFFFFF, _CRC32C
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc32c_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_CRC32C = _crc32c_table()
