"""Named arrays as the bytes of a safetensors file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from shoal.errors import CheckpointError

Arrays = dict[str, NDArray[Any]]


def arrays_bytes(arrays: Mapping[str, NDArray[Any]], name: str) -> bytes:
    """The bytes of a file of this name."""
    try:
        # safetensors 0.8 writes the memory of a transposed array as it lies, so the order must be made C first.
        return bytes(save({key: np.asarray(array, order="C") for key, array in arrays.items()}))
    except Exception as error:  # safetensors raises its own type, which has no parent but Exception
        raise CheckpointError(f"{name} cannot be saved: {error}.") from error


def arrays_in(content: bytes) -> Arrays:
    """The arrays of a file, as views of its bytes that cannot be written."""
    try:
        return load(content)
    except Exception as error:  # as above
        raise CheckpointError(f"it cannot be parsed ({error})") from error
