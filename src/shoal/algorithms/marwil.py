"""Monotonic advantage re-weighted imitation learning (Wang et al. 2018).

    minimise   L(theta) = mean of  -exp(beta A / c) log pi_theta(a | s)  +  c1 (V(s) - R)^2

with the return R from the step on, the advantage A = R - V(s), and c^2 the running mean of A^2, so that `beta` means
the same whatever rewards are counted in; c1 = `vf_coeff`. Recorded actions that led to more than usual count more. With
`beta` 0 all count alike and no values are learned: that is behaviour cloning. Weights end at `LARGEST_WEIGHT`, so that
no single step is all that a minibatch says.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np

from shoal.algorithms.network_inputs import StepInputs
from shoal.algorithms.offline import Minibatch, OfflineLearner
from shoal.algorithms.on_policy import explained_variance, values_of
from shoal.algorithms.rewards import clipped_rewards
from shoal.config.offline import MARWILConfig
from shoal.data.experience import Experience, ReturnsToGo, returns_to_go
from shoal.data.reward_scale import RewardScale
from shoal.data.state import State
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group

LARGEST_WEIGHT = 20.0


class MARWILLearner(OfflineLearner):
    """Makes recorded actions likelier, those the more that led to more than their state promised."""

    config: MARWILConfig
    names = ("vf_loss", "mean_weight")

    def __init__(self, config: MARWILConfig, policy: Policy, group: Group | None = None) -> None:
        super().__init__(config, policy, group)
        self.squared_norm = config.moving_average_sqd_adv_norm_start  # c^2
        self.scale = RewardScale(config.gamma) if config.normalize_rewards else None
        self._returns: ReturnsToGo | None = None
        self._targets: Array | None = None  # [R], of the values in this iteration

    def take(self, experience: Experience, first_row: int) -> None:
        """See `OfflineLearner`; returns are divided by their standard deviation, as PPO's are."""
        super().take(experience, first_row)
        rewards = clipped_rewards(experience.rewards, self.config.clip_rewards)
        returns = returns_to_go(experience, rewards, self.config.gamma)
        if self.scale is not None and not self.scale.count:
            self.scale.learn(returns.partial, self.group.sum)
        partial = returns.partial / np.float32(self.divisor)
        self._returns = ReturnsToGo(partial, returns.discounts, returns.finals)

    @property
    def divisor(self) -> float:
        """What rewards are divided by."""
        return 1.0 if self.scale is None else self.scale.divisor

    def begin_iteration(self) -> None:
        """Put the present values of what followed into the returns of episodes that were cut short."""
        experience, returns = self.experience, self._returns
        assert experience is not None
        assert returns is not None
        self._targets = returns.partial
        if len(experience.final_obs[0]) and self.config.beta:
            following = values_of(self.policy, StepInputs(self.policy.encoder(experience.final_obs)).chunks())
            self._targets = returns.partial + returns.discounts * following[returns.finals]

    def gradient(self, minibatch: Minibatch) -> tuple[Array, Array, list[float]]:
        """The weighted policy's part, and the values' part."""
        c, size = self.config, minibatch.size
        assert self._targets is not None
        weights = np.ones(len(minibatch.rows), np.float32)
        error = np.zeros_like(minibatch.values)
        if c.beta:
            error = minibatch.values - self._targets[minibatch.rows]
            self._follow_norm(error, size)
            exponents = np.minimum(error * np.float32(-c.beta / sqrt(self.squared_norm)), log(LARGEST_WEIGHT))
            weights = np.exp(exponents, dtype=np.float32)
        d_outputs = self.policy.distribution.gradient(minibatch.now, weights * -size, 0.0, 0.0)
        d_values = error * (2 * c.vf_coeff * size)
        return d_outputs, d_values, [float(np.dot(error, error) * size), float(weights.sum() * size)]

    def more_stats(self) -> dict[str, float]:
        """How well the values explain the returns, and the advantages' norm."""
        assert self.experience is not None
        assert self._targets is not None
        rows = np.arange(min(4096, self.experience.num_steps))
        explained = 0.0
        if self.config.beta:
            values = values_of(self.policy, StepInputs(self.inputs(rows)).chunks())
            explained = explained_variance(values, self._targets[rows], self.group)
        return {
            "vf_explained_var": explained,
            "advantage_norm": sqrt(self.squared_norm),
            "reward_scale": self.divisor,
        }

    def get_state(self) -> State:
        """See `OfflineLearner`; with the advantages' norm and the rewards' scale."""
        state = super().get_state()
        scale = State() if self.scale is None else self.scale.get_state()
        own = State.of(squared_norm=self.squared_norm, rewards=scale)
        return State({**state.values, **own.values}, {**state.arrays, **own.arrays})

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        super().set_state(state)
        self.squared_norm = float(state.values["squared_norm"])
        if self.scale is not None and state.values["rewards"]:
            self.scale.set_state(state.part("rewards"))

    def _follow_norm(self, error: Array, size: np.float32) -> None:
        """Move c^2 towards the minibatch's mean of squared advantages."""
        squares = self.group.sum(np.array([np.dot(error, error) * size], np.float64))
        rate = self.config.moving_average_sqd_adv_norm_update_rate
        self.squared_norm += rate * (float(squares[0]) - self.squared_norm)
