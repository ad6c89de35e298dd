"""Action distributions of the user's own, in classic RLlib's form, behind the contract of all distributions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Beta, Categorical, Normal, kl_divergence

import shoal
from shoal import TorchDistributionWrapper
from shoal.config.dqn import DQNConfig
from shoal.config.ppo import PPOConfig
from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError
from shoal.models import distributions
from shoal.models.build import build_policy
from shoal.models.torch_distributions import CustomDistribution

BOX = spaces.Box(-1, 1, (2,))
ROWS = 9


class Diagonal(TorchDistributionWrapper):
    """Normal numbers, as the built-in distribution has them."""

    def __init__(self, inputs, model):
        super().__init__(inputs, model)
        mean, log_std = inputs.chunk(2, dim=1)
        self.dist = Normal(mean, log_std.exp())

    @staticmethod
    def required_model_output_shape(action_space, model_config):
        return 2 * action_space.shape[0]

    def deterministic_sample(self):
        return self.dist.mean


class Choice(TorchDistributionWrapper):
    """A softmax, as the built-in distribution has it."""

    def __init__(self, inputs, model):
        super().__init__(inputs, model)
        self.dist = Categorical(logits=inputs)

    @staticmethod
    def required_model_output_shape(action_space, model_config):
        return action_space.n

    def deterministic_sample(self):
        return self.dist.probs.argmax(dim=1)


class OnInterval(TorchDistributionWrapper):
    """Beta numbers, moved to -1..1: no sample ever needs clipping."""

    def __init__(self, inputs, model):
        super().__init__(inputs, model)
        a, b = (1 + torch.nn.functional.softplus(inputs)).chunk(2, dim=1)
        self.dist = Beta(a, b)

    @staticmethod
    def required_model_output_shape(action_space, model_config):
        return (2 * action_space.shape[0],)

    def sample(self):
        return 2 * self.dist.sample() - 1

    def deterministic_sample(self):
        return 2 * self.dist.mean - 1

    def logp(self, actions):
        return self.dist.log_prob(((actions + 1) / 2).clamp(1e-6, 1 - 1e-6)) - np.log(2)

    def kl(self, other):
        return kl_divergence(self.dist, other.dist).sum(dim=1)


def both(kind):
    if kind is Choice:
        return CustomDistribution(Choice, ActionSpec(spaces.Discrete(4, start=3)), {}), distributions.Categorical(4)
    return CustomDistribution(Diagonal, ActionSpec(BOX), {}), distributions.Gaussian(2)


@pytest.mark.parametrize("kind", [Diagonal, Choice])
def test_it_says_what_the_built_in_one_of_its_kind_says(kind) -> None:
    mine, theirs = both(kind)
    assert (mine.num_inputs, mine.num_actions) == (theirs.num_inputs, theirs.num_actions)
    rng = np.random.default_rng(0)
    inputs, old, tangent = rng.standard_normal((3, ROWS, mine.num_inputs)).astype(np.float32)
    actions = theirs.sample(old, theirs.noise(rng, ROWS))
    d = [rng.standard_normal(ROWS).astype(np.float32), 0.3, np.float32(0.2)]
    one, two = mine.evaluate(inputs, actions, old), theirs.evaluate(inputs, actions, old)
    for name in ("log_prob", "entropy", "kl"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine.gradient(one, *d), theirs.gradient(two, *d), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine.fisher(inputs, tangent), theirs.fisher(inputs, tangent), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(mine.mode(inputs), theirs.mode(inputs))
    assert mine.evaluate(inputs, actions).kl is None


def test_samples_follow_from_their_noise_alone() -> None:
    family, _ = both(Diagonal)
    inputs = np.zeros((ROWS, 4), np.float32)
    noise = family.noise(np.random.default_rng(1), ROWS)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    drawn = family.sample(inputs, noise)
    assert len(np.unique(drawn)) == 2 * ROWS
    np.testing.assert_array_equal(family.sample(inputs[4:5], noise[4:5]), drawn[4:5])
    assert torch.equal(before, torch.random.get_rng_state())


class NoMode(Diagonal):
    deterministic_sample = TorchDistributionWrapper.deterministic_sample


class Flat(Diagonal):
    def sample(self):
        return super().sample()[:, 0]


class OneEntropy(Diagonal):
    def entropy(self):
        return super().entropy().sum()


@pytest.mark.parametrize(
    ("kind", "space", "words"),
    [
        (NoMode, BOX, "NoMode fails: NotImplementedError: write deterministic_sample"),
        (Flat, BOX, r"Flat: expected actions \[B, 2\], got \(1,\)"),
        (OneEntropy, BOX, r"OneEntropy: expected log-probabilities, entropies and KLs \[B\], got \(\)"),
        (TorchDistributionWrapper, BOX, "write required_model_output_shape"),
        (Normal, BOX, r"write class Normal\(TorchDistributionWrapper\)"),
        (Diagonal, spaces.Tuple([BOX, BOX]), "cannot act in Dict and Tuple spaces"),
        ("nobody_s_dist", BOX, "no distribution 'nobody_s_dist' is registered"),
    ],
    ids=str,
)
def test_what_is_wrong_with_it_is_told_before_the_first_iteration(kind, space, words) -> None:
    with pytest.raises(ConfigError, match=words):
        build_policy(BOX, space, PPOConfig(model={"custom_action_dist": kind}))


def test_it_is_refused_where_nothing_reads_it() -> None:
    with pytest.raises(ConfigError, match="DQN acts by values"):
        DQNConfig(model={"custom_action_dist": Choice})
    with pytest.raises(ConfigError, match="squash_actions: it has no effect, because custom_action_dist samples"):
        PPOConfig(model={"custom_action_dist": Diagonal}, squash_actions=True)
    masked = spaces.Dict(observations=BOX, action_mask=spaces.MultiBinary(4))
    policy = build_policy(masked, spaces.Discrete(4), PPOConfig(model={"custom_action_dist": Choice}))
    obs = {"observations": np.zeros(2), "action_mask": [0, 0, 1, 0]}
    assert {policy.compute_single_action(obs) for _ in range(20)} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "TRPO"])
def test_it_learns_by_its_registered_name(algorithm) -> None:
    class Aim(gym.Env):
        """Right is a number that is seen, on a scale of 5."""

        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Box(-5, 5, (1,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = 5
            self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
            return self.seen, {}

        def step(self, action):
            reward = 1 - abs(float(action[0]) / 5 - float(self.seen[0]))
            self.left -= 1
            self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
            return self.seen, reward, self.left == 0, False, {}

    shoal.ModelCatalog.register_custom_action_dist("on_interval", OnInterval)
    config = {"train_batch_size": 512, "model": {"custom_action_dist": "on_interval"}, "seed": 1}
    config |= {"max_kl": 0.05} if algorithm == "TRPO" else {}
    with getattr(shoal, algorithm)(env=Aim, config=config) as trainer:
        for _ in range(20):
            trainer.train()
        assert trainer.evaluate(episodes=40)["episode_reward_mean"] / 5 > 0.8
