"""The keys inside keys: what stands under optimizer, exploration_config, evaluation_config, curriculum and randomize.

The docstring under a field is its only description: `shoal config show`, the JSON Schema and the reference read it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from shoal.config.episode_variation import EnvConfigSamplers, OptionSamplers, Stages, Task
from shoal.config.fields import (
    STRICT,
    BelowOne,
    Flag,
    FreeMapping,
    PositiveFraction,
    Seed,
    Size,
    Spread,
    Text,
    refused_exploration,
)
from shoal.config.schedules import Schedule


class OptimizerConfig(BaseModel):
    """How gradients become steps."""

    model_config = STRICT

    type: Literal["adam"] = "adam"
    """The optimiser."""
    eps: Spread = 1e-5
    """Adam's epsilon (classic RLlib: 1e-8; 1e-5 is usual for PPO and steadier at the start)."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""


class ExplorationConfig(BaseModel):
    """How actions are tried out in training."""

    model_config = STRICT

    type: str = "StochasticSampling"
    """How the algorithm explores."""


class NoiseConfig(ExplorationConfig):
    """How actions are tried out in training."""

    type: Annotated[
        Literal["StochasticSampling", "GaussianNoise", "OrnsteinUhlenbeckNoise"],
        refused_exploration(
            (
                ("EpsilonGreedy", "PerWorkerEpsilonGreedy", "SoftQ"),
                "chooses by the values of actions, and this algorithm explores by sampling from its own action "
                "distribution; leave exploration_config out, or set run: DQN",
            )
        ),
    ] = "StochasticSampling"
    """StochasticSampling: actions are drawn from the policy's own distribution.

    GaussianNoise: the same, but the spread of continuous actions is stddev and is not learned. OrnsteinUhlenbeckNoise:
    the same, but the noise on continuous actions is correlated from step to step, which moves a sluggish system
    further (Hollenstein et al. 2024)."""
    stddev: Spread = 0.3
    """Standard deviation of continuous actions, for GaussianNoise; with normalize_actions the bounds are -1 and 1.

    Classic RLlib: 0.1, on top of a deterministic policy."""
    stddev_schedule: Schedule = None
    """Standard deviation over timesteps, as lr_schedule; it replaces stddev."""
    ou_theta: PositiveFraction = 0.15
    """How fast OrnsteinUhlenbeckNoise forgets: the correlation of two steps in a row is 1 - ou_theta."""


class EvaluationConfig(BaseModel):
    """Settings that differ in evaluation."""

    model_config = STRICT

    explore: Flag = False
    """Whether actions are sampled in evaluation; false takes the most likely one (classic RLlib: as in training)."""
    env_config: FreeMapping = {}
    """Entries that replace those of the training env_config."""
    seed: Seed | None = None
    """Seed of the evaluation environments; null: derived from the training seed."""
    horizon: Size | None = None
    """Longest evaluation episode in steps; null: as in training."""
    task: Task = None
    """Task of the evaluation environments; null: the current task of training."""
    randomize: Flag = True
    """Whether evaluation episodes are randomized as in training, with their own seeds."""


class CurriculumConfig(BaseModel):
    """Tasks of rising difficulty, one after another."""

    model_config = STRICT

    stages: Stages = ()
    """Tasks in their order as [{task: 1, until: {episode_reward_mean: 0.8}}, {task: 2}]; []: no curriculum.

    The environments get a stage's task (by set_task) at their next reset. A stage ends as soon as any result in until
    reaches its limit; "<= 20" instead of 20 means at most that. Statistics over episodes are those of its own task."""
    min_episodes: Size = 20
    """Number of episodes that must end at a stage's task before a statistic over episodes may end the stage."""


class RandomizeConfig(BaseModel):
    """Values that are drawn anew for every episode, by each environment from a stream of its own."""

    model_config = STRICT

    options: OptionSamplers = {}
    """Values to draw for reset(options=...), e.g. {wind: {uniform: [0, 10]}}.

    Samplers: uniform [low, high], loguniform [low, high], normal [mean, std], choice [a, b, ...]."""
    env_config: EnvConfigSamplers = {}
    """Entries of env_config to draw, with the same samplers; the environment is made again for every episode."""
    cases: Text | None = None
    """A CSV file from which every episode takes a row: its columns are env_config.NAME and options.NAME (of reset)."""
