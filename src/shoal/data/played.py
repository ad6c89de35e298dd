"""What was seen while a policy played: plain arrays, for whoever wants to judge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.findings import Finding


@dataclass(frozen=True)
class PlayedEpisode:
    """One whole episode."""

    env_index: int
    length: int
    terminated: bool


@dataclass(frozen=True)
class Played:
    """T steps of N environments, in the order of time; rows with `valid` False are no steps."""

    obs: NDArray[np.float32]  # [T, N, C], the numbers of observations, not filtered; C is 0 where there are only images
    columns: tuple[str, ...]  # the names of those numbers
    measured: NDArray[np.bool_]  # [C], which of them are measurements, and not choices
    actions: NDArray[Any]  # [T, N, A]
    rewards: NDArray[np.float32]  # [T, N], the environment's own
    terminated: NDArray[np.bool_]  # [T, N]
    truncated: NDArray[np.bool_]  # [T, N]
    valid: NDArray[np.bool_]  # [T, N]
    outputs: NDArray[np.float32]  # [T, N, K], of the policy's network; K is 0 where it has no probabilities
    masks: NDArray[np.bool_] | None = None  # [T, N, M]
    choices: tuple[tuple[int, int], ...] = ()  # column of `actions` and number of values, of each discrete choice
    outside_share: float | None = None  # of continuous actions beyond their bounds, where they are clipped
    findings: tuple[Finding, ...] = field(default=())  # of trials with the environment alone

    @property
    def num_steps(self) -> int:
        """Real steps."""
        return int(self.valid.sum())

    @property
    def episodes(self) -> list[PlayedEpisode]:
        """The episodes that came to an end, environment by environment."""
        found = []
        for env in range(self.valid.shape[1]):
            length = 0
            for t in range(len(self.valid)):
                if not self.valid[t, env]:
                    length = 0
                    continue
                length += 1
                if self.terminated[t, env] or self.truncated[t, env]:
                    found.append(PlayedEpisode(env, length, bool(self.terminated[t, env])))
                    length = 0
        return found
