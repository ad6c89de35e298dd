"""What is known of one run from its folder: its configuration, its results over time, its incidents and its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.results import numbers
from shoal.errors import ConfigError
from shoal.reports.records import results_of
from shoal.reports.reported_runs import no_results
from shoal.reports.result_columns import LARGEST
from shoal.runs.folders import env_text
from shoal.runs.incidents import read_incidents
from shoal.runs.resuming import experiment_of, stored_tree

FEW_RESULTS = 5  # of which nobody can tell a trend
RISING = 0.5  # correlation of the return with time

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class RunFacts:
    """A run as far as it has come; `results` are flat (`learner/kl`) and hold finite numbers of at most `LARGEST`."""

    algorithm: str
    env: str
    config: AlgorithmConfig
    results: Sequence[Mapping[str, float]]
    lost_losses: int = 0
    """Results in which a loss was not a finite number."""
    causes: Mapping[str, int] = field(default_factory=dict)
    """How often each cause of an incident was written down."""
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The parameters of its newest checkpoint by name; empty if they were not read."""

    def series(self, name: str) -> Numbers:
        """All values of a result, in the order of time; iterations without it are left out."""
        return np.array([result[name] for result in self.results if name in result], np.float64)

    def late(self, name: str) -> Numbers:
        """The values of a result in the later half of the run."""
        values = self.series(name)
        return values[len(values) // 2 :]

    def last(self, name: str, default: float = 0.0) -> float:
        """The last value of a result."""
        values = self.series(name)
        return float(values[-1]) if len(values) else default

    @property
    def iterations(self) -> int:
        """How many results there are."""
        return len(self.results)

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return int(self.last("timesteps_total"))

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""
        return int(self.last("episodes_total"))

    @property
    def discount_steps(self) -> float:
        """How many steps ahead the discount factor looks."""
        return 1 / max(1 - self.config.gamma, 1e-9)

    def smaller_lr(self, divisor: float) -> str:
        """A learning rate to try, as it is typed: one of so many parts of the run's, but never above the default."""
        default: float = type(self.config).model_fields["lr"].default
        return f"{min(self.config.lr / divisor, default):.2g}"

    @property
    def value_scale(self) -> float:
        """The size of the values that are learned: a mean reward, over the steps that the discount looks ahead."""
        length = max(self.last("episode_len_mean"), 1.0)
        return abs(self.last("episode_reward_mean")) / length * min(length, self.discount_steps)

    @cached_property
    def spread(self) -> float:
        """How far the returns of the last hundred episodes lie apart, as it mostly was."""
        names = ("episode_reward_max", "episode_reward_min")
        widths = [result[names[0]] - result[names[1]] for result in self.results if result.keys() >= set(names)]
        return float(np.median(widths)) if widths else 0.0

    @cached_property
    def is_learning(self) -> bool:
        """Whether the return rises, or there are too few results to say that it does not."""
        returns = self.series("episode_reward_mean")
        if len(returns) < FEW_RESULTS:
            return True
        if np.ptp(returns) == 0:
            return False
        quarter = max(len(returns) // 4, 1)
        gain = returns[-quarter:].mean() - returns[:quarter].mean()
        trend = float(np.corrcoef(np.arange(len(returns)), returns)[0, 1])
        return bool(gain > 0.05 * self.spread and trend > RISING)


def facts_of(folder: Path, weights: Mapping[str, NDArray[Any]] | None = None) -> RunFacts:
    """Read the folder of a run; a run that has not finished an iteration is refused."""
    tree = stored_tree(folder)
    if tree is None:
        raise ConfigError(f"{folder}: its experiment cannot be read; give the folder of a run.")
    experiment, _ = experiment_of(tree)
    found = results_of(folder)
    if not found:
        raise ConfigError(no_results(folder, "diagnose it after its first iterations"))
    return RunFacts(
        experiment.run,
        env_text(experiment.config.env),
        experiment.config,
        [_usable(result) for result in found],
        sum(_has_lost_loss(result) for result in found),
        dict(Counter(str(entry["cause"]) for entry in read_incidents(folder)).most_common()),
        weights or {},
    )


def _usable(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in numbers(result).items() if abs(value) <= LARGEST}


def _has_lost_loss(result: Mapping[str, Any]) -> bool:
    """Whether a loss is there that was not finite: JSON has null for it."""
    learner = result.get("learner")
    return isinstance(learner, Mapping) and any(
        name.endswith("_loss") and value is None for name, value in learner.items()
    )
