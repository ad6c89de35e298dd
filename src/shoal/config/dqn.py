"""The keys of deep Q-learning."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel

from shoal.config.fields import (
    STRICT,
    Count,
    Flag,
    Fraction,
    FragmentLength,
    NonNegative,
    Positive,
    Size,
    refused_exploration,
)
from shoal.config.model import Activation, ModelConfig
from shoal.config.schedules import Schedule, levels
from shoal.config.sections import ExplorationConfig, OptimizerConfig
from shoal.config.settings import AlgorithmConfig


class QModelConfig(ModelConfig):
    """The network between observations and the values of actions."""

    fcnet_activation: Activation = "relu"
    """Activation after each of those layers (classic RLlib: tanh)."""
    vf_share_layers: Flag = True
    """Whether the value of a state shares the hidden layers of the actions' advantages; only with dueling."""


class QOptimizerConfig(OptimizerConfig):
    """How gradients become steps."""

    eps: Positive = 1e-8
    """Adam's epsilon."""


class EpsilonGreedyConfig(ExplorationConfig):
    """How actions are tried out in training."""

    type: Annotated[
        Literal["EpsilonGreedy", "PerWorkerEpsilonGreedy", "SoftQ"],
        refused_exploration(
            (
                ("StochasticSampling",),
                "needs probabilities, and DQN has values of actions; use SoftQ, which samples by these values",
            ),
            (
                ("GaussianNoise", "OrnsteinUhlenbeckNoise"),
                "is noise on continuous actions, and DQN chooses among discrete ones; use EpsilonGreedy or SoftQ",
            ),
        ),
    ] = "EpsilonGreedy"
    """EpsilonGreedy: one share of random actions for all environments, falling over time.

    PerWorkerEpsilonGreedy: each environment has a fixed share of its own, 0.4^(1 + 7 i / (N - 1)) for environment i
    of N (Horgan et al. 2018), whichever worker steps it. SoftQ: actions are sampled by the softmax of their values."""
    initial_epsilon: Fraction = 1.0
    """Share of random actions at the start."""
    final_epsilon: Fraction = 0.02
    """Share of random actions after epsilon_timesteps."""
    epsilon_timesteps: Size = 10_000
    """Environment steps over which the share falls, linearly."""
    epsilon_schedule: Schedule = None
    """Share of random actions over timesteps, as lr_schedule; it replaces the three keys above."""
    temperature: Positive = 1.0
    """Temperature of SoftQ: near 0 it takes the best action, far above the action values it takes any."""


class ReplayConfig(BaseModel):
    """What is remembered of the past, and how it is drawn from."""

    model_config = STRICT

    capacity: Size = 50_000
    """Maximum number of transitions; the oldest are dropped first."""
    prioritized_replay: Flag = False
    """Whether surprising transitions are drawn more often (Schaul et al. 2016; classic RLlib: true)."""
    prioritized_replay_alpha: NonNegative = 0.6
    """How much priorities count: 0: not at all, 1: in proportion."""
    prioritized_replay_beta: Fraction = 0.4
    """How much the loss is weighted to correct for prioritised draws: 0: not at all, 1: fully."""
    prioritized_replay_eps: Positive = 1e-6
    """Added to each error, so that every transition can be drawn."""


class DQNConfig(AlgorithmConfig):
    """Deep Q-learning: one value per discrete action, learned from replayed transitions."""

    learner = "shoal.algorithms.dqn:DQNLearner"
    acts_by_value = True
    results = {
        "total_loss": "loss that is minimised, last pass",
        **AlgorithmConfig.results,
        "mean_q": "mean value of the actions learned from (DQN)",
        "mean_td_error": "mean magnitude of the values' errors (DQN)",
        "num_updates": "number of updates in this iteration (DQN)",
        "num_target_updates": "number of copies into the target network since the run began (DQN)",
        "cur_epsilon": "share of random actions now (DQN)",
        "replay_size": "number of transitions in replay (DQN)",
    }
    batch_key = "timesteps_per_iteration"
    mutable = (*AlgorithmConfig.mutable, "training_intensity", "target_network_update_freq")
    more_exploration = "a longer config.exploration_config.epsilon_timesteps"

    train_batch_size: Size = 32
    """Number of transitions that one update learns from."""
    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment between updates; auto: 4, with n_step above 1 four times that (classic RLlib: 4)."""
    timesteps_per_iteration: Size = 1000
    """Minimum number of environment steps per iteration, over all environments; whole fragments are sampled.

    An iteration is shorter where stop.timesteps_total ends the run: it ends with the fragment that reaches it."""
    training_intensity: Positive = 8.0
    """Transitions learned from per environment step: 8 is one update of 32 every 4 steps; null: the default."""
    learning_starts: Count = 1000
    """Number of environment steps before the first update."""
    target_network_update_freq: Size = 500
    """Number of environment steps between copies of the network into the target network."""
    n_step: Size = 3
    """Number of rewards in a multi-step return (classic RLlib: 1; 3 learns sooner)."""
    double_q: Flag = True
    """Double Q-learning: the network chooses the action that the target network values (van Hasselt et al. 2016)."""
    dueling: Flag = True
    """Whether action values are a state's value plus each action's advantage (Wang et al. 2016)."""
    td_error_loss_fn: Literal["mse", "huber"] = "mse"
    """Loss of the value errors: mse: their squares, huber: squares of small errors and magnitudes of large ones.

    Classic RLlib: huber, under which many small errors outvote the few large ones at the ends of episodes, and values
    can grow without bound."""
    replay_buffer_config: ReplayConfig = ReplayConfig()
    """The replay buffer."""
    exploration_config: EpsilonGreedyConfig = EpsilonGreedyConfig()
    """How the algorithm explores."""
    model: QModelConfig = QModelConfig()
    """The network."""
    optimizer: QOptimizerConfig = QOptimizerConfig()
    """The optimiser's own settings."""
    lr: Positive = 1e-3
    """Learning rate (classic RLlib: 5e-4)."""
    grad_clip: Positive | None = 10.0
    """Largest norm of a gradient; null: no limit (classic RLlib: 40)."""
    explore: Flag = True
    """Whether some actions are random in training; false always takes the best action."""

    @property
    def fragment_length(self) -> int:
        """Steps per environment and fragment, with auto resolved."""
        if self.rollout_fragment_length == "auto":
            return 4 if self.n_step == 1 else 4 * self.n_step
        return self.rollout_fragment_length

    @property
    def rounds_per_iteration(self) -> int:
        """How often an iteration samples one fragment and learns."""
        return math.ceil(self.timesteps_per_iteration / (self.fragment_length * self.num_envs))

    @property
    def steps_per_iteration(self) -> int:
        """Steps per environment in one iteration."""
        return self.rounds_per_iteration * self.fragment_length

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.fragment_length < self.n_step:
            found.append(
                f"config.rollout_fragment_length: {self.fragment_length} steps are fewer than n_step {self.n_step}; "
                f"use auto, or at least {self.n_step}"
            )
        if self.batch_mode != "truncate_episodes":
            found.append("config.batch_mode: DQN learns from single transitions; leave it at truncate_episodes")
        found += self._unread("squash_actions", True, "DQN acts only in discrete spaces")
        if self.model.log_std_init != ModelConfig.model_fields["log_std_init"].default:
            found.append("config.model.log_std_init: it has no effect, because DQN acts by values; leave it out")
        if self.model.custom_action_dist is not None:
            found.append("config.model.custom_action_dist: it has no effect, because DQN acts by values; leave it out")
        replay = self.replay_buffer_config
        found += self._exploration_conflicts()
        if not replay.prioritized_replay and "prioritized_replay" not in replay.model_fields_set:
            found += [
                f"config.replay_buffer_config.{key}: it has no effect; set prioritized_replay: true, or leave it out"
                for key in ("prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps")
                if getattr(replay, key) != ReplayConfig.model_fields[key].default
            ]
        if replay.capacity < self.train_batch_size:
            found.append(
                f"config.replay_buffer_config.capacity: {replay.capacity} is less than train_batch_size "
                f"{self.train_batch_size}; make it larger"
            )
        return found

    def _exploration_conflicts(self) -> list[str]:
        """What is said of an exploration that is not the one in use, and epsilons that cannot be."""
        said, path = self.exploration_config, "config.exploration_config"
        falling = ("initial_epsilon", "final_epsilon", "epsilon_timesteps")
        unread: dict[str, str] = {} if said.type == "SoftQ" else {"temperature": f"{said.type} has no temperature"}
        if said.type == "PerWorkerEpsilonGreedy":
            unread |= dict.fromkeys((*falling, "epsilon_schedule"), "PerWorkerEpsilonGreedy has its own epsilons")
        elif said.type == "SoftQ":
            unread |= dict.fromkeys((*falling, "epsilon_schedule"), "SoftQ has no epsilon")
        elif said.epsilon_schedule is not None:
            unread |= dict.fromkeys(falling, "epsilon_schedule replaces it")
        found = [
            f"{path}.{key}: it has no effect, because {why}; leave it out"
            for key, why in unread.items()
            if getattr(said, key) != EpsilonGreedyConfig.model_fields[key].default
        ]
        if found:
            return found
        if said.epsilon_schedule is not None and max(levels(said.epsilon_schedule)) > 1:
            found.append(f"{path}.epsilon_schedule: its values are shares of all actions, and must be at most 1")
        elif said.epsilon_schedule is None and said.final_epsilon > said.initial_epsilon:
            found.append(
                f"{path}.final_epsilon: {said.final_epsilon:g} is more than initial_epsilon "
                f"{said.initial_epsilon:g}; epsilon falls over time"
            )
        return found
