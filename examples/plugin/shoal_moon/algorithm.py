"""An algorithm: its configuration class, which says where its learner is.

This one is PPO with one key of its own. docs/algorithms.md writes an algorithm with a learner of
its own, from the paper to the entry point.
"""

from __future__ import annotations

from shoal.algorithms.ppo import PPOLearner
from shoal.config.fields import Fraction, Positive
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch


class CalmPPOConfig(PPOConfig):
    """Proximal policy optimisation that takes a part of every update back."""

    learner = "shoal_moon.algorithm:CalmPPOLearner"

    lr: Positive = 3e-4
    """Learning rate."""
    calm: Fraction = 0.2
    """Share of every update that is taken back."""


class CalmPPOLearner(PPOLearner):
    """Learns as PPO does, and then goes a part of the way back to where it was."""

    config: CalmPPOConfig

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        params = self.policy.network.params
        before = params.copy()
        stats = super().update(batch, timesteps_total)
        params += self.config.calm * (before - params)
        self.policy.network.sync()
        return stats
