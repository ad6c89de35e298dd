"""Values that are drawn anew for every episode: domain randomisation.

What an episode gets follows from the seed, the environment's global index and the number of its reset alone, so it is
the same with any number of workers, and comes back when an episode is replayed.
"""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.config.settings import AlgorithmConfig, RandomizeConfig
from shoal.envs.importing import find_file
from shoal.errors import ConfigError

STREAM = 5  # sets these draws apart from other uses of seed and index
PREFIX = "env_config."  # of the columns that do not go to reset

DRAWS: Mapping[str, Callable[[np.random.Generator, list[Any]], Any]] = {
    "uniform": lambda rng, given: float(rng.uniform(*given)),
    "loguniform": lambda rng, given: math.exp(rng.uniform(math.log(given[0]), math.log(given[1]))),
    "normal": lambda rng, given: float(rng.normal(*given)),
    "choice": lambda rng, given: copy.deepcopy(given[int(rng.integers(len(given)))]),
}


@dataclass(frozen=True)
class Drawn:
    """What one episode gets."""

    options: dict[str, Any] = field(default_factory=dict)
    env_config: dict[str, Any] = field(default_factory=dict)


class Randomizer:
    """Draws the values of every episode."""

    def __init__(self, config: RandomizeConfig, seed: int, search_path: Sequence[str]) -> None:
        self._config, self._seed = config, seed
        self._cases = [] if config.cases is None else read_cases(config.cases, search_path)
        for case in self._cases[:1]:
            for key, own, sampled in (
                ("options", case.options, config.options),
                ("env_config", case.env_config, config.env_config),
            ):
                if twice := sorted(set(own) & set(sampled)):
                    raise ConfigError(f"config.randomize.{key}.{twice[0]}: cases has a column of it; leave one out")
        self.has_options = bool(config.options or any(case.options for case in self._cases))
        self.has_env_config = bool(config.env_config or any(case.env_config for case in self._cases))

    @classmethod
    def of(cls, config: AlgorithmConfig, search_path: Sequence[str]) -> Randomizer | None:
        """The randomizer that a configuration asks for, if any."""
        asked = config.randomize
        if not asked.options and not asked.env_config and asked.cases is None:
            return None
        return cls(asked, config.seed, search_path)

    def draw(self, env_index: int, seeding: int, reset: int) -> Drawn:
        """The values of an environment's `reset`-th episode since its `seeding`-th seed."""
        rng = np.random.default_rng([self._seed, env_index, STREAM, seeding, reset])
        case = self._cases[int(rng.integers(len(self._cases)))] if self._cases else Drawn()
        return Drawn(
            {**case.options, **_values(self._config.options, rng)},
            {**case.env_config, **_values(self._config.env_config, rng)},
        )


def first_draw(config: AlgorithmConfig, search_path: Sequence[str]) -> Drawn:
    """What the first episode of the first environment gets: for those who look at one before there are any."""
    randomizer = Randomizer.of(config, search_path)
    return Drawn() if randomizer is None else randomizer.draw(0, 1, 0)


def read_cases(file: str, search_path: Sequence[str]) -> list[Drawn]:
    """The rows of a CSV file: columns `env_config.NAME` are entries of it, all others options of `reset`."""
    from shoal.config.yaml_files import plain_scalar

    try:
        with find_file(file, search_path).open(encoding="utf-8-sig", newline="") as lines:
            table = [[cell.strip() for cell in row] for row in csv.reader(lines) if any(row)]
        if len(table) < 2:
            raise ConfigError(f"{file} has no case; write names on its first line and a case on each other one")
        header, *rows = table
        _check_table(header, rows)
        values = [{name: plain_scalar(cell) for name, cell in zip(header, row, strict=True)} for row in rows]
    except ConfigError as error:
        raise ConfigError(f"config.randomize.cases: {error}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"config.randomize.cases: {file} cannot be read as CSV: {error}") from None
    return [
        Drawn(
            {name: value for name, value in case.items() if not name.startswith(PREFIX)},
            {name.removeprefix(PREFIX): value for name, value in case.items() if name.startswith(PREFIX)},
        )
        for case in values
    ]


def _check_table(header: list[str], rows: list[list[str]]) -> None:
    if bad := [name for name in header if not name.removeprefix(PREFIX) or header.count(name) > 1]:
        raise ValueError(f"every column needs a name of its own (got {bad[0]!r})")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"case {number} has {len(row)} values, the header {len(header)} names")


def _values(samplers: Mapping[str, Mapping[str, list[Any]]], rng: np.random.Generator) -> dict[str, Any]:
    found = {}
    for name in sorted(samplers):
        ((kind, given),) = samplers[name].items()
        found[name] = DRAWS[kind](rng, given)
    return found
