"""What the user says about many runs: which values to try, how often, by which search, and what is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Setting:
    """One place of the experiment's tree whose value the search chooses."""

    path: str
    """Where it stands, e.g. `config.lr` or `config.model.fcnet_hiddens`."""
    kind: str
    """How it is chosen: `grid_search`, `uniform`, `loguniform`, `choice`, ..."""
    args: tuple[Any, ...]
    """The values of a grid or choice; the bounds, and the step, of a range."""


@dataclass(frozen=True)
class Chosen:
    """A scheduler or a search by its name, with its own options."""

    type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """Many runs of one experiment, checked: every value of every setting makes an experiment that is right.

    `tree` is the experiment as `experiment_from` takes it, with `{grid_search: [...]}` and the like still in it; for a
    function of the user's own it is `{"name": ..., "config": {...}}`.
    """

    name: str
    tree: Mapping[str, Any]
    settings: tuple[Setting, ...]
    metric: str = "episode_reward_mean"
    mode: Mode = "max"
    num_samples: int = 1
    seeds: int = 1
    scheduler: Chosen = Chosen("fifo")
    search_alg: Chosen = Chosen("random")
    max_concurrent_trials: int | None = None
