"""Which of many equal processes this one is, told by the launcher that started it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """A process's place among those that one launcher started together."""

    launcher: str  # openmpi, pals, jsrun, hydra, srun, aprun
    rank: int
    size: int | None  # None where the launcher does not tell
    key: str  # the same for all ranks of this launch, and for no other's
