"""The contract of a learner: one in the driver's process, or its part of several that share every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Step
from shoal.data.state import State
from shoal.models.policy import Policy
from shoal.parallel.group import Group


class Learner(Protocol):
    """Owns the optimiser, and makes the workers' policy better."""

    def training_step(self, workers: Any, timesteps_total: int) -> Step:
        """Sample and learn once."""

    def get_state(self) -> State:
        """All that the next step depends on, beside policy and workers."""

    def set_state(self, state: State) -> None:
        """Take over a saved state."""


MakeLearner = Callable[[AlgorithmConfig, Policy, Group], Learner]
