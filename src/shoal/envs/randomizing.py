"""Values that are drawn anew for every episode: domain randomisation.

What an episode gets follows from the seed, the environment's global index and the number of its reset alone, so it is
the same with any number of workers, and comes back when an episode is replayed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.config.sections import RandomizeConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.streams import Stream, generator
from shoal.envs.cases import read_cases
from shoal.envs.importing import UserCode
from shoal.errors import ConfigError

DRAWS: Mapping[str, Callable[[np.random.Generator, list[Any]], Any]] = {
    "uniform": lambda rng, given: float(rng.uniform(*given)),
    "loguniform": lambda rng, given: math.exp(rng.uniform(math.log(given[0]), math.log(given[1]))),
    "normal": lambda rng, given: float(rng.normal(*given)),
    "choice": lambda rng, given: copy.deepcopy(given[int(rng.integers(len(given)))]),
}


@dataclass(frozen=True)
class EpisodeValues:
    """What one episode gets."""

    options: dict[str, Any] = field(default_factory=dict)
    env_config: dict[str, Any] = field(default_factory=dict)


class Randomizer:
    """Draws the values of every episode."""

    def __init__(
        self,
        config: RandomizeConfig,
        seed: int,
        user_code: UserCode,
        env_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._config, self._seed = config, seed
        self._cases = [] if config.cases is None else _drawn_cases(config.cases, user_code, env_config or {})
        for key, sampled in (("options", config.options), ("env_config", config.env_config)):
            in_cases = {name for case in self._cases for name in getattr(case, key)}
            if twice := sorted(in_cases & set(sampled)):
                raise ConfigError(f"config.randomize.{key}.{twice[0]}: cases has a column for it; leave one out")
        self.has_options = bool(config.options or any(case.options for case in self._cases))
        self.has_env_config = bool(config.env_config or any(case.env_config for case in self._cases))

    @classmethod
    def from_config(cls, config: AlgorithmConfig, user_code: UserCode) -> Randomizer | None:
        """The randomizer that a configuration asks for, if any."""
        asked = config.randomize
        if not asked.options and not asked.env_config and asked.cases is None:
            return None
        return cls(asked, config.seed, user_code, config.env_config)

    def draw(self, env_index: int, seeding: int, reset: int) -> EpisodeValues:
        """The values of an environment's `reset`-th episode since its `seeding`-th seed."""
        rng = generator(self._seed, Stream.EPISODES, env_index, seeding, reset)
        case = copy.deepcopy(self._cases[int(rng.integers(len(self._cases)))]) if self._cases else EpisodeValues()
        return EpisodeValues(
            {**case.options, **_values(self._config.options, rng)},
            {**case.env_config, **_values(self._config.env_config, rng)},
        )


def first_draw(config: AlgorithmConfig, user_code: UserCode) -> EpisodeValues:
    """What the first episode of the first environment gets: for those who look at one before there are any."""
    randomizer = Randomizer.from_config(config, user_code)
    return EpisodeValues() if randomizer is None else randomizer.draw(0, 1, 0)


def _drawn_cases(file: str, user_code: UserCode, env_config: Mapping[str, Any]) -> list[EpisodeValues]:
    """The rows of a file of cases."""
    try:
        found = read_cases(user_code.find_file(file), env_config)
    except ConfigError as error:
        raise ConfigError([f"config.randomize.cases: {problem}" for problem in error.problems]) from None
    if "seed" in found.columns:
        raise ConfigError(f"config.randomize.cases: {file}: training seeds its episodes itself; leave seed out")
    return [EpisodeValues(case.options or {}, case.env_config or {}) for case in found.cases]


def _values(samplers: Mapping[str, Mapping[str, list[Any]]], rng: np.random.Generator) -> dict[str, Any]:
    found = {}
    for name in sorted(samplers):
        ((kind, given),) = samplers[name].items()
        found[name] = DRAWS[kind](rng, given)
    return found
