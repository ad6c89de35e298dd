"""The keys of deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Literal

from shoal.config.fields import (
    Clip,
    Flag,
    Fraction,
    FragmentLength,
    LearningRate,
    Repeats,
    Size,
    Spread,
    refused_exploration,
)
from shoal.config.model import Activation, ModelConfig
from shoal.config.off_policy import OffPolicyConfig, TrainingIntensity
from shoal.config.schedules import Schedule, levels
from shoal.config.sections import ExplorationConfig


class QModelConfig(ModelConfig):
    """The network between observations and the values of actions."""

    fcnet_activation: Activation = "relu"
    """Activation after each of those layers (classic RLlib: tanh)."""
    vf_share_layers: Flag = True
    """Whether the value of a state shares the hidden layers of the actions' advantages; only with dueling."""


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
    temperature: Spread = 1.0
    """Temperature of SoftQ: near 0 it takes the best action, far above the action values it takes any."""


class DQNConfig(OffPolicyConfig):
    """Deep Q-learning: one value per discrete action, learned from replayed transitions."""

    learner = "shoal.algorithms.dqn:DQNLearner"
    acts_by_value = True
    results = {
        "total_loss": "loss that is minimised, last pass",
        **OffPolicyConfig.results,
        "num_target_updates": "number of copies into the target network since the run began (DQN)",
        "cur_epsilon": "share of random actions now (DQN)",
    }
    mutable = (*OffPolicyConfig.mutable, "target_network_update_freq")
    more_exploration = "a longer config.exploration_config.epsilon_timesteps"

    train_batch_size: Size = 32
    """Number of transitions that one update learns from."""
    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment between updates; auto: 4, with n_step above 1 four times that (classic RLlib: 4)."""
    training_intensity: TrainingIntensity = 8.0
    """Transitions learned from per environment step: 8 is one update of 32 every 4 steps; null: the default.

    auto, with sample_async: at least these, and as many as fit while workers sample until they overfit."""
    target_network_update_freq: Size = 500
    """Number of environment steps between copies of the network into the target network."""
    n_step: Repeats = 3
    """Number of rewards in a multi-step return (classic RLlib: 1; 3 learns sooner)."""
    double_q: Flag = True
    """Double Q-learning: the network chooses the action that the target network values (van Hasselt et al. 2016)."""
    dueling: Flag = True
    """Whether action values are a state's value plus each action's advantage (Wang et al. 2016)."""
    td_error_loss_fn: Literal["mse", "huber"] = "mse"
    """Loss of the value errors: mse: their squares, huber: squares of small errors and magnitudes of large ones.

    Classic RLlib: huber, under which many small errors outvote the few large ones at the ends of episodes, and values
    can grow without bound."""
    exploration_config: EpsilonGreedyConfig = EpsilonGreedyConfig()
    """How the algorithm explores."""
    model: QModelConfig = QModelConfig()
    """The network."""
    lr: LearningRate = 1e-3
    """Learning rate (classic RLlib: 5e-4)."""
    grad_clip: Clip | None = 10.0
    """Largest norm of a gradient; null: no limit (classic RLlib: 40)."""
    explore: Flag = True
    """Whether some actions are random in training; false always takes the best action."""

    @property
    def fragment_length(self) -> int:
        """Steps per environment and fragment, with auto resolved."""
        if self.rollout_fragment_length == "auto":
            return 4 if self.n_step == 1 else 4 * self.n_step
        return self.rollout_fragment_length

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        found += self._unread("squash_actions", True, "DQN acts only in discrete spaces")
        if self.model.log_std_init != ModelConfig.model_fields["log_std_init"].default:
            found.append("config.model.log_std_init: it has no effect, because DQN acts by values; leave it out")
        if self.model.custom_action_dist is not None:
            found.append("config.model.custom_action_dist: it has no effect, because DQN acts by values; leave it out")
        found += self._exploration_conflicts()
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
