"""Recorded steps as arrays, episode after episode, and the returns that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Parts

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Experience:
    """R recorded steps of E whole episodes, one after another.

    An episode that did not terminate went on from the observation after its last step, if that was recorded: it is a
    row of `final_obs`.
    """

    obs: Parts  # each [R, ...], raw: before filter and one-hot
    actions: NDArray[Any]  # [R, A], as the policy's distribution takes them
    rewards: Array  # [R]
    terminated: NDArray[np.bool_]  # [R]
    starts: Integers  # [E], the first step of each episode
    final_obs: Parts  # each [F, ...]
    final_of: Integers  # [E], the row of `final_obs` that follows each episode; -1: none

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return len(self.rewards)

    @property
    def lengths(self) -> Integers:
        """The steps of each episode, `[E]`."""
        return np.diff(self.starts, append=self.num_steps)


@dataclass(frozen=True)
class ReturnsToGo:
    """Discounted returns from each step on, in two terms: `[R]` each.

    The return is `partial + discounts * V(final_obs[finals])`: where an episode was cut short, the value of what
    followed stands for the rest of it. The values move while they are learned; the rest does not.
    """

    partial: Array
    discounts: Array  # 0 where nothing follows
    finals: Integers  # 0 where nothing follows


def returns_to_go(experience: Experience, rewards: Array, gamma: float) -> ReturnsToGo:
    """The returns of recorded steps, whose rewards to learn from are `rewards` `[R]`."""
    total = experience.num_steps
    lengths = experience.lengths
    has_more = np.repeat(experience.final_of >= 0, lengths)
    finals = np.repeat(np.maximum(experience.final_of, 0), lengths)
    is_last = np.zeros(total, bool)
    is_last[experience.starts[1:] - 1] = True
    is_last[-1:] = True
    partial = np.zeros(total, np.float64)
    discounts = np.zeros(total, np.float64)
    running, discount = 0.0, 1.0
    for row in range(total - 1, -1, -1):
        if is_last[row]:
            running, discount = 0.0, 1.0
        running = rewards[row] + gamma * running
        discount *= gamma
        partial[row], discounts[row] = running, discount
    return ReturnsToGo(partial.astype(np.float32), (discounts * has_more).astype(np.float32), finals)
