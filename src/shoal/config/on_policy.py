"""The keys of algorithms that learn from each batch once, such as PPO and TRPO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import model_validator

from shoal.config.changing import changed
from shoal.config.fields import MOST_CLIP, Flag, Fraction, Size
from shoal.config.model import ModelConfig
from shoal.config.schedules import levels
from shoal.config.sections import NoiseConfig
from shoal.config.settings import AlgorithmConfig

OnPolicy = TypeVar("OnPolicy", bound="OnPolicyConfig")


class OnPolicyConfig(AlgorithmConfig):
    """The keys of algorithms that learn from each batch once, by advantages."""

    takes_memory = True
    takes_agents = True
    shares_batches = True
    results = {
        "policy_loss": "policy's part of the loss",
        "vf_loss": "value function's part of the loss",
        "vf_explained_var": "share of the returns' variance that the values explain",
        "kl": "KL divergence of the new policy from the one that sampled (TRPO: from the one before)",
        "entropy": "entropy of the policy",
        **AlgorithmConfig.results,
        "cur_stddev": "standard deviation of continuous actions now (GaussianNoise)",
    }
    mutable = (*AlgorithmConfig.mutable, "lambda_", "sgd_minibatch_size")

    use_critic: Flag = True
    """Whether a value function is the baseline of the advantages."""
    use_gae: Flag = True
    """Whether advantages are generalised advantage estimates; false: whole returns minus the baseline."""
    lambda_: Fraction = 0.95
    """Decay of generalised advantage estimation (classic RLlib: 1.0; 0.95 has less variance)."""
    sgd_minibatch_size: Size = 256
    """Number of steps per gradient; if left out, at most train_batch_size (classic RLlib: 128).

    A model with memory takes whole sequences, as many as come closest to it."""
    exploration_config: NoiseConfig = NoiseConfig()
    """How the algorithm explores."""

    @model_validator(mode="before")
    @classmethod
    def _small_batch(cls, data: Any) -> Any:
        """A batch smaller than the default minibatch is one minibatch."""
        if isinstance(data, Mapping) and "sgd_minibatch_size" not in data:
            size = data.get("train_batch_size")
            if isinstance(size, int | float) and 1 <= size < cls.model_fields["sgd_minibatch_size"].default:
                return {**data, "sgd_minibatch_size": size}
        return data

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.sgd_minibatch_size > self.train_batch_size:
            found.append(
                f"config.sgd_minibatch_size: {self.sgd_minibatch_size} is more than train_batch_size "
                f"{self.train_batch_size}; make it at most that, or the batch larger"
            )
        if self.use_gae and not self.use_critic:
            found.append("config.use_gae: needs the value function; set use_critic: true, or use_gae: false")
        return found + self._noise_conflicts()

    def with_whole_fragments(self: OnPolicy) -> OnPolicy:
        """See `AlgorithmConfig`: a batch that whole fragments do not make up is as large as those that are sampled."""
        if not self.written_conflicts():
            return self
        return changed(self, train_batch_size=self.steps_per_iteration * self.num_rows)

    def written_conflicts(self) -> list[str]:
        """A batch that fragments do not make up exactly: an iteration samples whole ones, so it would be larger."""
        if self.batch_mode != "truncate_episodes" or "auto" in (self.rollout_fragment_length, self.num_workers):
            return []
        rows = self.fragment_length * self.num_envs
        if self.train_batch_size % rows == 0:
            return []
        return [
            f"config.rollout_fragment_length: {self.rollout_fragment_length} steps of {self.num_envs} environments "
            f"make {rows}, which does not divide train_batch_size {self.train_batch_size}; "
            f"use auto, or train_batch_size: {math.ceil(self.train_batch_size / rows) * rows}"
        ]

    def _noise_conflicts(self) -> list[str]:
        """What is said of an exploration that is not the one in use."""
        noise = self.exploration_config
        path, owners = "config.exploration_config", {"ou_theta": "OrnsteinUhlenbeckNoise"}
        owners |= dict.fromkeys(("stddev", "stddev_schedule"), "GaussianNoise")
        found = [
            f"{path}.{key}: it has no effect; set type: {owner}, or leave it out"
            for key, owner in owners.items()
            if noise.type != owner and getattr(noise, key) != NoiseConfig.model_fields[key].default
        ]
        if noise.type != "StochasticSampling" and self.model.custom_action_dist is not None:
            found.append(f"{path}.type: it has no effect, because custom_action_dist samples; leave it out")
        if noise.type != "GaussianNoise":
            return found
        if self.model.log_std_init != ModelConfig.model_fields["log_std_init"].default:
            found.append("config.model.log_std_init: GaussianNoise sets the spread to stddev; leave one of them out")
        if noise.stddev_schedule is not None:
            start = levels(noise.stddev_schedule)
            if noise.stddev not in (start[0], NoiseConfig.model_fields["stddev"].default):
                found.append(f"{path}.stddev: stddev_schedule replaces it and starts at {start[0]:g}; leave it out")
            if min(start) <= 0:
                found.append(f"{path}.stddev_schedule: a standard deviation must be above 0 (got {min(start):g})")
            if max(start) > MOST_CLIP:
                found.append(f"{path}.stddev_schedule: its values must be at most {MOST_CLIP:g} (got {max(start):g})")
        if self.model.custom_model is not None or not self.model.free_log_std:
            found.append(
                f"{path}.type: GaussianNoise sets the spread that this model computes itself; "
                "set free_log_std: true without a custom_model, or StochasticSampling"
            )
        return found
