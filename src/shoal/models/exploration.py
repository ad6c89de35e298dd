"""Ways to try out actions: by their values (epsilon-greedy, softmax), or by noise that is correlated in time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.dqn import EpsilonGreedyConfig
from shoal.data.returns import scheduled
from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError
from shoal.models.distributions import Array, Categorical, Coefficient, Evaluation
from shoal.models.masked import allowed_of

LARGEST, EXPONENT = 0.4, 7.0  # of Ape-X's ladder of epsilons (Horgan et al. 2018)


class ByValue:
    """Acting by the values of actions, in the form of an action distribution: without chance, the largest is taken."""

    num_actions = 1

    def __init__(self, num_inputs: int, num_noise: int) -> None:
        self.num_inputs, self.num_noise = num_inputs, num_noise

    def noise(self, rng: np.random.Generator, steps: int, env_index: int | None = None) -> Array:
        """What chance has to say in each of `steps` steps of one environment, `[steps, M]`."""
        raise NotImplementedError

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Actions `[B, 1]`."""
        raise NotImplementedError

    def mode(self, inputs: Array) -> NDArray[Any]:
        """The action of the largest value."""
        return np.asarray(inputs.argmax(axis=1)[:, None])

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """Not defined: who learns values asks for no probabilities."""
        raise NotImplementedError("acting by values has no log-probabilities to learn from")

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """Not defined, as `evaluate`."""
        raise NotImplementedError("acting by values has no log-probabilities to learn from")

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """Not defined, as `evaluate`."""
        raise NotImplementedError("acting by values has no log-probabilities to learn from")


class EpsilonGreedy(ByValue):
    """The action of the largest value, or with probability epsilon any action.

    What chance decides is drawn beforehand: the noise of a step is the action that chance takes, or -1 where it leaves
    the choice to the values. So acting costs one comparison, and epsilon may differ between environments. As many
    numbers are drawn whatever epsilon is. Where actions are `masked`, the noise is a fraction instead: how far chance
    goes through the actions that are allowed.
    """

    def __init__(self, num_inputs: int, config: EpsilonGreedyConfig, num_envs: int, masked: bool = False) -> None:
        super().__init__(num_inputs, 1)
        self.num_envs, self.masked = num_envs, masked
        falling = ((0, config.initial_epsilon), (config.epsilon_timesteps, config.final_epsilon))
        self.schedule = config.epsilon_schedule or falling
        self.per_env = config.type == "PerWorkerEpsilonGreedy"
        self.epsilon = self.epsilon_of(num_envs - 1) if self.per_env else scheduled(1.0, self.schedule, 0)

    def epsilon_of(self, env_index: int | None) -> float:
        """The share of random actions of an environment; None: of nobody's environment."""
        if not self.per_env or env_index is None:
            return self.epsilon
        place = min(env_index, self.num_envs - 1) / max(self.num_envs - 1, 1)
        return float(LARGEST ** (1 + EXPONENT * place))

    def noise(self, rng: np.random.Generator, steps: int, env_index: int | None = None) -> Array:
        """What chance takes in each of `steps` steps of one environment, `[steps, 1]`."""
        u = rng.random((steps, 2), dtype=np.float32)
        chance = u[:, 1:]
        if not self.masked:
            chance = np.minimum(np.floor(chance * np.float32(self.num_inputs)), np.float32(self.num_inputs - 1))
        return np.where(u[:, :1] < self.epsilon_of(env_index), chance, np.float32(-1))

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Actions `[B, 1]`."""
        actions = self.mode(inputs)
        taken = noise >= 0
        if taken.any():
            actions[taken] = self._allowed(inputs, noise)[taken] if self.masked else noise[taken]
        return actions

    def _allowed(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """The actions `[B, 1]` that lie a fraction `noise` of the way through those that are allowed."""
        reached = allowed_of(inputs).cumsum(axis=1)
        passed = np.floor(noise * reached[:, -1:])  # a fraction is below 1, so this is below the count
        return np.asarray((reached > passed).argmax(axis=1)[:, None])


class SoftQ(ByValue):
    """Actions drawn by the softmax of their values over a temperature.

    What is added to the values of one state alike changes nothing, so advantages serve as well.
    """

    def __init__(self, num_inputs: int, temperature: float) -> None:
        super().__init__(num_inputs, num_inputs)
        self.temperature = np.float32(temperature)
        self._softmax = Categorical(num_inputs)

    def noise(self, rng: np.random.Generator, steps: int, env_index: int | None = None) -> Array:
        """Gumbel noise, `[steps, K]`."""
        del env_index
        return self._softmax.noise(rng, steps)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Actions `[B, 1]`, none that a mask rules out: no temperature brings those within reach."""
        values = (inputs - inputs.max(axis=1, keepdims=True)) / self.temperature
        values[~allowed_of(inputs)] = -np.inf
        return self._softmax.sample(values, noise)


def acting_by_value(
    spec: ActionSpec, config: EpsilonGreedyConfig, num_envs: int, masked: bool = False, algorithm: str = "DQN"
) -> ByValue:
    """The exploration that a configuration asks for, in a space of one discrete choice; others are refused."""
    leaf = spec.leaves[0]
    if len(spec.leaves) > 1 or leaf.kind != "categorical" or leaf.size > 1:
        raise ConfigError(
            f"run: {algorithm} chooses one of finitely many actions, and this action_space is {spec.space}; "
            "set run: PPO, or run: SAC, which learns from replay too"
        )
    if config.type == "SoftQ":
        return SoftQ(leaf.choices[0], config.temperature)
    return EpsilonGreedy(leaf.choices[0], config, num_envs, masked)


class OrnsteinUhlenbeck:
    """Makes the noise of continuous actions remember: x' = (1 - theta) x + sqrt(1 - (1 - theta)^2) e.

    If e has variance 1, so has x. The probability of an action by itself is what it was, and only actions in a row hang
    together (Hollenstein et al. 2024).
    """

    def __init__(self, theta: float, columns: NDArray[np.int64]) -> None:
        self.columns = columns  # of the noise, that belong to continuous numbers
        self._kept, self._new = np.float32(1 - theta), np.float32(np.sqrt(1 - (1 - theta) ** 2))

    def correlate(self, noise: Array, last: Array) -> None:
        """Go on from `last` `[N, C]` through independent noise `[T, N, M]`, and write over both."""
        numbers = noise[..., self.columns]
        for step in numbers:
            last *= self._kept
            last += self._new * step
            step[:] = last
        noise[..., self.columns] = numbers
