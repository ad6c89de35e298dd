"""The keys of soft actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, WithJsonSchema, model_validator

from shoal.config.changing import unchecked
from shoal.config.fields import (
    MOST_CLIP,
    STRICT,
    Clip,
    Count,
    Flag,
    FragmentLength,
    LearningRate,
    PositiveCoefficient,
    PositiveFraction,
    Repeats,
    Size,
    Sizes,
    number,
    refused_exploration,
)
from shoal.config.model import Activation, ModelConfig
from shoal.config.off_policy import OffPolicyConfig, ReplayConfig, TrainingIntensity
from shoal.config.sections import ExplorationConfig

HIGH_RATIO = 8


def _entropy(value: Any) -> float | Literal["auto"]:
    """A number, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, str):
        raise ValueError("must be a number, or auto")
    if abs(number(value)) > MOST_CLIP:
        raise ValueError(f"must be a number from {-MOST_CLIP:g} to {MOST_CLIP:g}, or auto")
    return number(value)


TargetEntropy = Annotated[
    float | Literal["auto"],
    BeforeValidator(_entropy),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"const": "auto"}]}),
]


class SACModelConfig(ModelConfig):
    """The network between observations and actions, and if q_model_config says nothing else, those of the critics."""

    fcnet_hiddens: Sizes = (256, 256)
    """Widths of the hidden layers for vector observations; [] is a linear policy."""
    fcnet_activation: Activation = "relu"
    """Activation after each of those layers."""
    free_log_std: Flag = False
    """Whether the spread of continuous actions is a parameter of its own, not an output of the network."""
    vf_share_layers: Flag = True
    """Not for SAC, which has no value function of states: leave it out."""


class CriticModelConfig(BaseModel):
    """What is different in the networks of the critics."""

    model_config = STRICT

    fcnet_hiddens: Sizes | None = None
    """Widths of the hidden layers for vector observations; null: as in model."""
    fcnet_activation: Activation | None = None
    """Activation after each of those layers; null: as in model."""
    post_fcnet_hiddens: Sizes | None = None
    """Widths of the layers after the convolutions; null: as in model."""


class SACReplayConfig(ReplayConfig):
    """What is remembered of the past, and how it is drawn from."""

    capacity: Size = 300_000
    """Maximum number of transitions; the oldest are dropped first (classic RLlib: 1000000)."""


class SACExplorationConfig(ExplorationConfig):
    """How actions are tried out in training."""

    type: Annotated[
        Literal["StochasticSampling"],
        refused_exploration(
            (
                ("EpsilonGreedy", "PerWorkerEpsilonGreedy", "SoftQ"),
                "chooses by the values of actions, and SAC samples from its policy; leave exploration_config out, "
                "or set run: DQN",
            ),
            (
                ("GaussianNoise", "OrnsteinUhlenbeckNoise"),
                "is noise of a fixed kind, and SAC learns how much noise is worth; leave exploration_config out, "
                "or set run: PPO",
            ),
        ),
    ] = "StochasticSampling"
    """StochasticSampling: actions are drawn from the policy, whose entropy is part of what is learned."""


class SACConfig(OffPolicyConfig):
    """Soft actor-critic: a policy that is as random as it can afford, learned from replayed transitions."""

    learner = "shoal.algorithms.sac:SACLearner"
    results = {
        "policy_loss": "policy's part of the loss",
        "entropy": "entropy of the policy",
        "critic_loss": "mean squared error of the critics, halved (SAC)",
        **OffPolicyConfig.results,
        "critic_gnorm": "norm of the critics' gradients before clipping (SAC)",
        "cur_alpha": "temperature now: what a unit of entropy is worth, of continuous actions if there are both (SAC)",
        "cur_alpha_choices": "temperature of discrete choices beside continuous actions (SAC)",
    }
    mutable = (*OffPolicyConfig.mutable, "tau")
    more_exploration = "a larger config.target_entropy"

    train_batch_size: Size = 256
    """Number of transitions that one update learns from."""
    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment between updates; auto: 1, with n_step above 1 four times that."""
    training_intensity: TrainingIntensity = 256.0
    """Transitions learned from per environment step: 256 is one update of 256 for every step; null: the default.

    auto, with sample_async: at least these, and as many as fit while workers sample until they overfit."""
    learning_starts: Count = 1000
    """Number of environment steps before the first update (classic RLlib: 1500)."""
    n_step: Repeats = 1
    """Number of rewards in a multi-step return."""
    twin_q: Flag = True
    """Whether there are two critics, of which the lower value counts (Fujimoto et al. 2018)."""
    high_update_ratio: Flag = False
    """Whether many updates are made for each step, for very expensive simulators.

    The critics' hidden layers are then normalised (layer norm), without which values run away, and training_intensity
    is 8 times its default unless it is set."""
    tau: PositiveFraction = 0.005
    """Share of the critics that goes into their target networks with every update."""
    initial_alpha: PositiveCoefficient = 0.02
    """Temperature at the start: what a unit of entropy is worth, in rewards as they are learned from.

    Classic RLlib: 1, in the environment's own rewards; with normalize_rewards these are divided by their scale."""
    target_entropy: TargetEntropy = "auto"
    """Entropy that the temperature is adjusted for; auto: minus the number of continuous actions.

    For discrete choices auto is a share of the largest possible entropy; both kinds at once need auto."""
    replay_buffer_config: SACReplayConfig = SACReplayConfig()
    """The replay buffer."""
    exploration_config: SACExplorationConfig = SACExplorationConfig()
    """How the algorithm explores."""
    model: SACModelConfig = SACModelConfig()
    """The network of the policy."""
    q_model_config: CriticModelConfig = CriticModelConfig()
    """The networks of the critics."""
    lr: LearningRate = 3e-4
    """Learning rate of policy, critics and temperature."""
    grad_clip: Clip | None = None
    """Largest norm of a gradient, of the policy and of each critic separately; null: no limit."""
    squash_actions: Flag = True
    """Whether bounded continuous actions pass a tanh, which stays within the bounds; SAC always does this."""

    @model_validator(mode="before")
    @classmethod
    def _many_updates(cls, data: Any) -> Any:
        """A high update ratio is a higher training_intensity, unless one is set."""
        if not isinstance(data, Mapping) or data.get("high_update_ratio") is not True:
            return data
        if data.get("training_intensity") is not None:
            return data
        return {**data, "training_intensity": HIGH_RATIO * cls.model_fields["training_intensity"].default}

    @property
    def fragment_length(self) -> int:
        """Steps per environment and fragment, with auto resolved."""
        if self.rollout_fragment_length == "auto":
            return 1 if self.n_step == 1 else 4 * self.n_step
        return self.rollout_fragment_length

    @property
    def least_intensity(self) -> float:
        """See `OffPolicyConfig`; many updates are also at least so many."""
        many = self.training_intensity == "auto" and self.high_update_ratio
        return super().least_intensity * (HIGH_RATIO if many else 1)

    @property
    def critic_model(self) -> SACModelConfig:
        """The network of each critic: the policy's, with what is different; a custom model is the policy's alone."""
        said = self.q_model_config.model_dump(exclude_none=True)
        return unchecked(self.model, **said, custom_model=None, custom_model_config={})

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if not self.squash_actions:
            found.append(
                "config.squash_actions: SAC keeps bounded actions inside their bounds by a tanh; leave it out, "
                "or set run: PPO"
            )
        if not self.model.vf_share_layers:
            found.append("config.model.vf_share_layers: it has no effect, because SAC has critics; leave it out")
        if self.model.custom_action_dist is not None:
            found.append(
                "config.model.custom_action_dist: SAC needs samples with a derivative, which only the built-in "
                "distributions have; leave it out, or set run: PPO"
            )
        return found
