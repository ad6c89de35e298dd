"""How the inputs and outputs of ONNX graphs and TorchScript modules are called, and how observations become them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.export.plan import ActionField, ObsField
from shoal.export.proof import Questions


def action_names(fields: tuple[ObsField, ...], actions: tuple[ActionField, ...]) -> list[str]:
    """A name for each leaf of an action that no leaf of an observation has."""
    taken = {field.name for field in fields} | {"outputs", "reward"}
    names = []
    for action in actions:
        name = action.name if action.name == "action" else f"action_{action.name}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names


def obs_dtype(field: ObsField) -> type[np.generic]:
    """The type of an observation's tensor: bytes for images of bytes, 64 bits for integers, otherwise floats."""
    if field.kind in ("items", "avail"):
        return np.float32
    if field.kind == "mask":
        return np.int64
    if field.kind == "image" and field.space.dtype == np.uint8:
        return np.uint8
    if np.issubdtype(field.space.dtype or np.float32, np.floating):
        return np.float32
    return np.int64


def obs_tensors(fields: tuple[ObsField, ...], asked: Questions) -> list[NDArray[Any]]:
    """Each leaf of all observations, `[N, ...]`."""
    tensors = []
    for field in fields:
        numbers = asked.rows[:, field.offset : field.offset + field.size]
        tensors.append(numbers.reshape(len(asked), *field.shape).astype(obs_dtype(field)))
    return tensors
