"""The state of anything that can be saved: plain JSON values beside named arrays, never a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class State:
    """`values` must survive JSON unchanged (64-bit and larger integers too); `arrays` go to safetensors."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
