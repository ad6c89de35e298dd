"""How often environments may start (`env_resets_per_s`): a turn for each, in whichever process it is."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from time import monotonic, sleep

from shoal.config.settings import AlgorithmConfig

TURN = struct.Struct("<d")  # when the next turn is, by the clock that all processes of a host share
FILE = "next_turn"


@dataclass(frozen=True)
class Pace:
    """One start per `interval_s` among all processes that have the same folder."""

    interval_s: float
    folder: str

    @classmethod
    def from_config(cls, config: AlgorithmConfig, worker_index: int, folder: str) -> Pace | None:
        """A worker's share of the starts, of which the first comes after those of the workers before it."""
        if config.env_resets_per_s is None:
            return None
        found = cls(config.starting_processes / config.env_resets_per_s, folder)
        found._take_turn(max(worker_index - 1, 0) / config.env_resets_per_s)
        return found

    def wait(self, turns: int = 1) -> None:
        """Wait until it is one's turn, and leave the next one to others; so many times."""
        for _ in range(turns):
            sleep(max(0.0, self._take_turn(self.interval_s) - monotonic()))

    def _take_turn(self, interval_s: float) -> float:
        """When it is one's turn; the next one is so much later."""
        file = os.open(os.path.join(self.folder, FILE), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            written = os.pread(file, TURN.size, 0)
            at = max(monotonic(), TURN.unpack(written)[0] if written else 0.0)
            os.pwrite(file, TURN.pack(at + interval_s), 0)
        finally:
            os.close(file)
        return at
