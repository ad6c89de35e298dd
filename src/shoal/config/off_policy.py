"""The keys of algorithms that learn from replayed transitions, such as DQN and SAC."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from shoal.config.algorithms import name_of
from shoal.config.fields import STRICT, Count, Exponent, Flag, Fraction, Positive, Repeats, Size, Spread, number
from shoal.config.sections import OptimizerConfig
from shoal.config.settings import AlgorithmConfig

MOST_INTENSITY = 1e6  # of one step; with batches of 32, 31,250 updates


def _intensity(value: Any) -> float | Literal["auto"]:
    """A number, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if isinstance(value, str):
        raise ValueError("must be a number, or auto")
    found = number(value)
    if found <= 0:
        raise ValueError("must be more than 0")
    if found > MOST_INTENSITY:
        raise ValueError(f"must be at most {MOST_INTENSITY:g}")
    return found


TrainingIntensity = Annotated[
    float | Literal["auto"],
    BeforeValidator(_intensity),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "auto"}]}),
]


class QOptimizerConfig(OptimizerConfig):
    """How gradients become steps."""

    eps: Spread = 1e-8
    """Adam's epsilon."""


class ReplayConfig(BaseModel):
    """What is remembered of the past, and how it is drawn from."""

    model_config = STRICT

    capacity: Size = 50_000
    """Maximum number of transitions; the oldest are dropped first."""
    prioritized_replay: Flag = False
    """Whether surprising transitions are drawn more often (Schaul et al. 2016; classic RLlib: true)."""
    prioritized_replay_alpha: Exponent = 0.6
    """How much priorities count: 0: not at all, 1: in proportion."""
    prioritized_replay_beta: Fraction = 0.4
    """How much the loss is weighted to correct for prioritised draws: 0: not at all, 1: fully."""
    prioritized_replay_eps: Spread = 1e-6
    """Added to each error, so that every transition can be drawn."""


class OffPolicyConfig(AlgorithmConfig):
    """The keys of algorithms that learn from replayed transitions."""

    learns_from_replay = True
    takes_agents = True
    results = {
        **AlgorithmConfig.results,
        "mean_q": "mean value of the actions learned from (DQN, SAC)",
        "mean_td_error": "mean magnitude of the values' errors (DQN, SAC)",
        "num_updates": "number of updates in this iteration (DQN, SAC)",
        "replay_size": "number of transitions in replay (DQN, SAC)",
        "training_intensity": "transitions learned from per environment step of this iteration (DQN, SAC)",
        "overfit_ratio": "error of values on transitions held out over that on learned ones (training_intensity: auto)",
    }
    batch_key = "timesteps_per_iteration"
    mutable = (*AlgorithmConfig.mutable, "training_intensity")

    timesteps_per_iteration: Size = 1000
    """Minimum number of environment steps per iteration, over all environments; whole fragments are sampled.

    An iteration is shorter where a stop criterion ends the run: it ends with the fragment that meets it."""
    training_intensity: TrainingIntensity = 8.0
    """Transitions learned from per environment step; null: the default; auto: as many as fit while workers sample."""
    max_overfit_ratio: Positive | None = 2.0
    """With training_intensity: auto, how wrong values may be on transitions held out, over those learned from.

    Above it the learner waits for more experience; null: it makes as many updates as fit."""
    learning_starts: Count = 1000
    """Number of environment steps before the first update."""
    n_step: Repeats = 1
    """Number of rewards in a multi-step return."""
    replay_buffer_config: ReplayConfig = ReplayConfig()
    """The replay buffer."""
    optimizer: QOptimizerConfig = QOptimizerConfig()
    """The optimiser's own settings."""

    @property
    def fills_the_wait(self) -> bool:
        """Whether the learner learns while workers sample, and takes what each of them has when it is finished."""
        return self.sample_async and self.worker_count > 0

    @property
    def least_intensity(self) -> float:
        """`training_intensity`, or what `auto` does at least."""
        if self.training_intensity == "auto":
            return float(type(self).model_fields["training_intensity"].default)
        return self.training_intensity

    @property
    def rounds_per_iteration(self) -> int:
        """How often an iteration samples one fragment and learns."""
        return math.ceil(self.timesteps_per_iteration / (self.fragment_length * self.num_rows))

    @property
    def steps_per_iteration(self) -> int:
        """Steps per environment in one iteration."""
        return self.rounds_per_iteration * self.fragment_length

    def timing_notes(self) -> list[str]:
        """See `AlgorithmConfig`."""
        if not self.fills_the_wait:
            return []
        return [
            "sample_async: what is in replay at an update depends on time, so a run can be neither repeated nor "
            "resumed exactly"
        ]

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.fragment_length < self.n_step:
            found.append(
                f"config.rollout_fragment_length: {self.fragment_length} steps are fewer than n_step {self.n_step}; "
                f"use auto, or at least {self.n_step}"
            )
        if self.batch_mode != "truncate_episodes":
            name = name_of(type(self))
            found.append(f"config.batch_mode: {name} learns from single transitions; leave it at truncate_episodes")
        if self.training_intensity == "auto" and not self.fills_the_wait:
            found.append(
                "config.training_intensity: auto learns while workers sample; set sample_async: true and num_workers "
                "above 0, or a number"
            )
        found += self._unread("max_overfit_ratio", self.training_intensity != "auto", "training_intensity is a number")
        replay = self.replay_buffer_config
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
