"""Rewards as a learner sees them: clipped if asked, and divided by their running scale."""

from __future__ import annotations

import logging

import numpy as np

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch
from shoal.data.reward_scale import RewardScale
from shoal.data.state import State
from shoal.models.network import Array
from shoal.parallel.group import Alone, Group

log = logging.getLogger("shoal")


class LearnedRewards:
    """Turns the rewards of a batch into those that are learned from; the environment's own are what is reported."""

    def __init__(self, config: AlgorithmConfig, group: Group | None = None) -> None:
        self.clip, self.group = config.clip_rewards, group or Alone()
        self.scale = RewardScale(config.gamma) if config.normalize_rewards else None

    @property
    def divisor(self) -> float:
        """What rewards are divided by now."""
        return 1.0 if self.scale is None else self.scale.divisor

    def scaled(self, batch: Batch) -> Array:
        """The rewards `[T, N]` of a batch to learn from; the scale has seen them before it divides them."""
        rewards = self.unscaled(batch)
        if self.scale is None:
            return rewards
        return rewards / np.float32(self.divisor)

    def unscaled(self, batch: Batch) -> Array:
        """The rewards `[T, N]` before the division, for who remembers them and divides when they are learned from."""
        rewards = clipped_rewards(batch.rewards, self.clip)
        if self.scale is not None:
            self.scale.update(batch, rewards, self.group.sum)
        return rewards

    def remembered(self, fragment: Batch, num_envs: int) -> Array:
        """As `unscaled`, for a fragment of some of `num_envs` environments: whoever was first to finish one."""
        rewards = clipped_rewards(fragment.rewards, self.clip)
        if self.scale is not None:
            self.scale.update_part(fragment, rewards, num_envs)
        return rewards

    def divided(self, batch: Batch) -> Array:
        """The rewards `[T, N]` of a batch to learn from, whose fragments the scale has seen."""
        rewards = clipped_rewards(batch.rewards, self.clip)
        if self.scale is None:
            return rewards
        return rewards / np.float32(self.divisor)

    def get_state(self) -> State:
        """What the scale has seen; empty without one."""
        return State() if self.scale is None else self.scale.get_state()

    def set_state(self, state: State | None) -> None:
        """Take over a saved scale; None is what a version of shoal saved that had none.

        A run that began without a scale goes on without, for its values have grown to the size of its rewards.
        """
        if self.scale is not None and state is not None and state.values:
            self.scale.set_state(state)
        elif self.scale is not None:
            log.warning("the checkpoint was trained without normalize_rewards, and goes on without")
            self.scale = None


def clipped_rewards(rewards: Array, clip: bool | float | None) -> Array:
    """Rewards as they are, their signs (True), or cut at +-clip."""
    if clip is True:
        return np.sign(rewards)
    if not clip:
        return rewards
    return np.clip(rewards, -clip, clip)
