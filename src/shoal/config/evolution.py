"""The keys of algorithms that try whole parameter vectors and learn from their returns alone: ES, ARS, CEM, CMAES."""

from __future__ import annotations

from typing import ClassVar, Literal

from shoal.config.fields import Count, Flag, Fraction, LearningRate, NoneOrSpread, Size, Sizes, Spread
from shoal.config.model import ModelConfig
from shoal.config.settings import AlgorithmConfig

BatchMode = Literal["truncate_episodes", "complete_episodes"]


class LinearModelConfig(ModelConfig):
    """The network between observations and actions."""

    fcnet_hiddens: Sizes = ()
    """Widths of the hidden layers for vector observations; [] is a linear policy, which these searches suit best."""


class EvolutionConfig(AlgorithmConfig):
    """The keys of algorithms that try parameter vectors in whole episodes, without gradients."""

    results = {
        "return_mean": "mean return of the parameter vectors that were tried (ES, ARS, CEM, CMAES)",
        "return_max": "highest return of a parameter vector that was tried",
        "return_min": "lowest return of a parameter vector that was tried",
        "noise_stdev": "mean standard deviation of the parameter vectors that were tried, around their centre",
        "update_norm": "length of the step of the parameters",
        "refused_steps": "steps of the parameters that were taken back because they were not finite",
    }
    batch_key = "num_rollouts"
    mutable: ClassVar[tuple[str, ...]] = ()
    more_exploration = "a larger config.noise_stdev"
    clips_reported_norm = False

    num_rollouts: Size = 32
    """Number of parameter vectors that one iteration tries, each in episodes_per_rollout whole episodes."""
    episodes_per_rollout: Size = 1
    """Number of episodes whose mean return is that of a parameter vector; more where returns are noisy."""
    noise_stdev: Spread = 0.1
    """Standard deviation of the parameter vectors that are tried around the present one."""
    batch_mode: BatchMode = "complete_episodes"
    """Whether a batch may end inside an episode; these algorithms learn from whole ones."""
    explore: Flag = False
    """Whether actions are sampled; false takes the most likely one: the parameters differ already."""

    @property
    def steps_per_iteration(self) -> int:
        """Unknown before the episodes are played."""
        return 0

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.batch_mode != "complete_episodes":
            found.append("config.batch_mode: a parameter vector is judged by whole episodes; leave it out")
        if self.sample_async:
            found.append("config.sample_async: the next parameter vectors follow from these returns; leave it out")
        why = "only the returns of whole episodes are learned from"
        for key in ("train_batch_size", "rollout_fragment_length", "gamma", "clip_rewards", "grad_clip"):
            found += self._unread(key, True, why)
        found += self._unread("exploration_config", True, "noise_stdev is how parameters, and so actions, are tried")
        return found


class PairsConfig(EvolutionConfig):
    """The keys of algorithms that try parameter vectors in pairs, on both sides of the present one."""

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.num_rollouts % 2:
            found.append(
                f"config.num_rollouts: parameter vectors are tried in pairs; use an even number "
                f"(got {self.num_rollouts})"
            )
        return found


class ESConfig(PairsConfig):
    """Evolution strategies: a gradient estimated from the ranks of many perturbed policies (Salimans et al. 2017)."""

    learner = "shoal.algorithms.es:ESLearner"
    results = {**EvolutionConfig.results, "cur_lr": "learning rate now"}
    mutable = ("lr", "noise_stdev", "l2_coeff")

    num_rollouts: Size = 64
    """Number of parameter vectors that one iteration tries, in pairs (classic RLlib: at least 1000 episodes)."""
    noise_stdev: Spread = 0.1
    """Standard deviation of the parameter vectors that are tried (classic RLlib: 0.02)."""
    lr: LearningRate = 0.05
    """Learning rate of Adam (classic RLlib: stepsize, 0.01)."""
    l2_coeff: NoneOrSpread = 0.005
    """How strongly large parameters are pulled towards 0."""


class ARSConfig(PairsConfig):
    """Augmented random search: a step along the best of random directions (Mania et al. 2018)."""

    learner = "shoal.algorithms.ars:ARSLearner"
    results = {**EvolutionConfig.results, "cur_lr": "learning rate now"}
    mutable = ("lr", "noise_stdev")

    rollouts_used: Size | None = None
    """Number of the num_rollouts that are learned from, those of the best pairs; null: all of them.

    Classic RLlib counts pairs."""
    lr: LearningRate = 0.1
    """Length of a step in units of the returns' standard deviation (classic RLlib: sgd_stepsize, 0.01)."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "MeanStdFilter"
    """MeanStdFilter scales observations by their running mean and standard deviation, as in the paper's second form."""
    model: LinearModelConfig = LinearModelConfig()
    """The network."""

    @property
    def pairs_used(self) -> int:
        """The number of pairs that are learned from."""
        return (self.num_rollouts if self.rollouts_used is None else self.rollouts_used) // 2

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        used = self.rollouts_used
        if used is not None and (used % 2 or used > self.num_rollouts):
            found.append(
                f"config.rollouts_used: are whole pairs of the num_rollouts; use an even number up to "
                f"{self.num_rollouts} (got {used})"
            )
        return found


class CEMConfig(EvolutionConfig):
    """The cross-entropy method: a Gaussian over parameters, fitted to the best of those tried (de Boer et al. 2005)."""

    learner = "shoal.algorithms.cem:CEMLearner"

    noise_stdev: Spread = 0.5
    """Standard deviation of the parameter vectors that are tried first; later it follows from the best ones."""
    elite_frac: Fraction = 0.2
    """Share of the parameter vectors that the next Gaussian is fitted to: those with the highest returns."""
    extra_std: NoneOrSpread = 0.2
    """Standard deviation that is added at first, so that the search does not narrow too soon."""
    extra_decay_time: Count = 20
    """Number of iterations over which extra_std falls to 0, linearly."""
    model: LinearModelConfig = LinearModelConfig()
    """The network."""

    @property
    def num_elites(self) -> int:
        """The number of parameter vectors that the next Gaussian is fitted to."""
        return round(self.elite_frac * self.num_rollouts)

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        found += self._unread("lr", True, "CEM takes no steps by gradients")
        if self.num_elites < 2:
            found.append(
                f"config.elite_frac: {self.elite_frac:g} of {self.num_rollouts} rollouts are fewer than the two that a "
                "standard deviation needs; use more of either"
            )
        return found


class CMAESConfig(EvolutionConfig):
    """Covariance matrix adaptation (Hansen 2016), by the package `cma`."""

    learner = "shoal.algorithms.cmaes:CMAESLearner"

    noise_stdev: Spread = 0.5
    """Standard deviation of the parameter vectors that are tried first; later CMA-ES adapts it."""
    num_rollouts: Size = 16
    """Number of parameter vectors that one iteration tries."""
    max_full_covariance: Size = 500
    """Largest number of parameters with a full covariance matrix; above it, a diagonal one is adapted."""
    model: LinearModelConfig = LinearModelConfig()
    """The network."""

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        found += self._unread("lr", True, "CMAES takes no steps by gradients")
        if self.num_rollouts < 3:
            found.append(f"config.num_rollouts: CMA-ES ranks at least 3 parameter vectors (got {self.num_rollouts})")
        return found
