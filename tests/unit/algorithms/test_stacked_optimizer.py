"""Optimisers that step together: each as it steps alone, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.optimizer import Optimizer
from shoal.algorithms.stacked_optimizer import StackedOptimizer
from shoal.config.ppo import PPOConfig
from shoal.models.mlp import MLP


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e-5, 1e-5, 1e-5), (1.0, 1e-5, 1.0), (1.0, np.nan, 1e-5)])
@pytest.mark.parametrize("grad_clip", [0.5, None])
def test_each_steps_as_alone(scales: tuple[float, ...], grad_clip: float | None) -> None:
    """Long gradients are cut, short ones are not, and what is not finite is refused."""
    config = PPOConfig(env="CartPole-v1", grad_clip=grad_clip)
    networks = [MLP(3, 2, (8,), seed=seed) for seed in range(3)]
    alone = [Optimizer(MLP(3, 2, (8,), seed=seed), config) for seed in range(3)]
    together = [Optimizer(network, config) for network in networks]
    params = np.stack([network.params for network in networks])
    stacked = StackedOptimizer(together, params)
    rng = np.random.default_rng(0)
    for lr in (0.1, 0.01):
        gradients = rng.normal(size=params.shape).astype(np.float32) * np.array(scales, np.float32)[:, None]
        norms = [own.step(gradient.copy(), lr) for own, gradient in zip(alone, gradients, strict=True)]
        assert stacked.step(gradients.copy(), lr) == norms
    stacked.store()
    for row, (own, other) in enumerate(zip(alone, together, strict=True)):
        np.testing.assert_array_equal(params[row], own.network.params)
        np.testing.assert_array_equal(other.adam.m, own.adam.m)
        np.testing.assert_array_equal(other.adam.v, own.adam.v)
        assert (other.adam.steps, other.refused) == (own.adam.steps, own.refused)
