"""The time that replays of unfinished episodes take: told while they last, and limited."""

from __future__ import annotations

import logging
from time import monotonic

progress = logging.getLogger("shoal.progress")

TELL_EVERY_S = 10.0


class ReplayClock:
    """Counts the steps of replays, of all environments together; `step` raises TimeoutError after `limit_s`."""

    def __init__(self, limit_s: float | None, steps: int) -> None:
        self._limit_s, self._steps, self._taken = limit_s, steps, 0
        self._begun = self._told = monotonic()

    def step(self) -> None:
        """Before every step that is taken again."""
        now = monotonic()
        if self._limit_s is not None and now - self._begun > self._limit_s:
            raise TimeoutError(f"replays have taken {self._limit_s:g} s")
        if now - self._told > TELL_EVERY_S:
            self._told = now
            progress.info("replaying unfinished episodes: %d of %d steps", self._taken, self._steps)
        self._taken += 1
