"""Reads the tensors of a file that `torch.save` has written, without torch and without running its pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.bridges.inert_pickle import MOST_BYTES, read_pickle
from shoal.errors import ConfigError

STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
MOST_MEMBERS = 10_000


class _StorageKind:
    """The type of a storage's numbers."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)


def member(archive: zipfile.ZipFile, name: str, what: str, most: int = MOST_BYTES) -> bytes:
    """The bytes of one file of an archive, whose size is what it says and not more than `most`."""
    try:
        with archive.open(name) as file:
            data = file.read(most + 1)
    except KeyError:
        raise ConfigError(f"{what}: has no {name}") from None
    except (OSError, RuntimeError, ValueError, NotImplementedError, zipfile.BadZipFile, EOFError) as error:
        raise ConfigError(f"{what}: {name} in it cannot be read: {str(error)[:200]}") from None
    except Exception as error:  # zlib and lzma have errors of their own
        raise ConfigError(f"{what}: {name} in it cannot be read: {type(error).__name__}") from None
    if len(data) > most:
        raise ConfigError(f"{what}: {name} in it is larger than {most >> 20} MB, and is not opened")
    return data


def opened(file: BinaryIO, what: str) -> zipfile.ZipFile:
    """An archive, if it is one."""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        told = "" if isinstance(error, zipfile.BadZipFile) else f": {str(error)[:200]}"
        raise ConfigError(f"{what}: is no zip file, or a damaged one{told}") from None
    if len(archive.namelist()) > MOST_MEMBERS:
        archive.close()
        raise ConfigError(f"{what}: holds more than {MOST_MEMBERS:,} files, and is not opened")
    return archive


def read_tensors(file: BinaryIO, what: str) -> dict[str, NDArray[Any]]:
    """The tensors of a saved state dict by name; ConfigError if it is something else."""
    with opened(file, what) as archive:
        found = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise ConfigError(f"{what}: is not a file that torch.save has written")
        root = found[0].removesuffix("data.pkl")
        read: dict[str, NDArray[Any]] = {}

        def storage(pid: Any) -> NDArray[Any]:
            kind, key, count = pid[1], pid[2], pid[4]
            if pid[0] != "storage" or not isinstance(kind, _StorageKind) or not isinstance(key, str):
                raise ValueError("a tensor has a storage of an unknown kind")
            if key not in read:
                raw = member(archive, f"{root}data/{key}", what)
                read[key] = np.frombuffer(raw, kind.dtype, count=count if count else -1)
            return read[key]

        known = {("torch", name): _StorageKind(dtype) for name, dtype in STORAGES.items()}
        known_functions = {
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        data = member(archive, f"{root}data.pkl", what)
        state = read_pickle(data, what, {**known, **known_functions}, storage)
        if f"{root}byteorder" in archive.namelist() and member(archive, f"{root}byteorder", what) == b"big":
            raise ConfigError(f"{what}: was written on a machine of another byte order; save it again on this one")
    if not isinstance(state, Mapping):
        raise ConfigError(f"{what}: holds no state dict")
    return {str(name): value for name, value in state.items() if isinstance(value, np.ndarray)}


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> NDArray[Any]:
    """The numbers of a storage that are a tensor's, copied."""
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise ValueError("a tensor has no storage")
    if not all(type(number) is int and 0 <= number <= MOST_BYTES for number in (offset, *size, *stride)):
        raise ValueError("a tensor has an impossible shape")
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    if prod(size) == 0:
        return np.zeros(size, storage.dtype)
    if last >= len(storage) or prod(size) > MOST_BYTES:
        raise ValueError("a tensor reaches beyond its storage")
    strides = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, strides, writeable=False).copy()
