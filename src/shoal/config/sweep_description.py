"""What a sweep is, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.config.search_spaces import Setting

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class MethodChoice:
    """A scheduler or a search by its name, with its own options."""

    type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """Many runs of one experiment, checked: every value of every setting makes an experiment that is right.

    `tree` is the experiment as `experiment_from` takes it, with `{grid_search: [...]}` and the like still in it; for a
    function of the user's own it is `{"name": ..., "config": {...}}`, and `metric` is empty where they name none. The
    options of the scheduler are complete; settings that it changes on the way stand there as `{path: {kind: [...]}}`.
    """

    name: str
    tree: Mapping[str, Any]
    settings: tuple[Setting, ...]
    metric: str = "episode_reward_mean"
    mode: Mode = "max"
    num_samples: int = 1
    seeds: int = 1
    scheduler: MethodChoice = MethodChoice("fifo")
    search_alg: MethodChoice = MethodChoice("random")
    max_concurrent_trials: int | None = None
