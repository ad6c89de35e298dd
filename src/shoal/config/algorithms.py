"""The algorithms: a name, and the class of its configuration, which says everything else, such as its learner.

A row of `BUILT_IN` is an algorithm of shoal's own. An installed package adds one by an entry point of the same form in
the group `shoal.algorithms`, which is imported only when `run` names it (see docs/algorithms.md). This module imports
neither pydantic nor NumPy, so that a help page may list the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config.algorithm import Algorithm

BUILT_IN: dict[str, str] = {
    "PPO": "shoal.config.ppo:PPOConfig",
    "APPO": "shoal.config.appo:APPOConfig",
    "TRPO": "shoal.config.trpo:TRPOConfig",
    "DQN": "shoal.config.dqn:DQNConfig",
    "SAC": "shoal.config.sac:SACConfig",
    "ES": "shoal.config.evolution:ESConfig",
    "ARS": "shoal.config.evolution:ARSConfig",
    "CEM": "shoal.config.evolution:CEMConfig",
    "CMAES": "shoal.config.evolution:CMAESConfig",
    "BC": "shoal.config.offline:BCConfig",
    "MARWIL": "shoal.config.offline:MARWILConfig",
}
"""Every algorithm of shoal's own, with the place of its configuration class."""

RLLIB: dict[str, str] = {
    "rllib:PPO": "shoal.config.rllib:PPOInRLlib",
    "rllib:APPO": "shoal.config.rllib:APPOInRLlib",
    "rllib:IMPALA": "shoal.config.rllib:IMPALAInRLlib",
    "rllib:DQN": "shoal.config.rllib:DQNInRLlib",
    "rllib:SAC": "shoal.config.rllib:SACInRLlib",
    "rllib:TQC": "shoal.config.rllib:TQCInRLlib",
    "rllib:DreamerV3": "shoal.config.rllib:DreamerV3InRLlib",
    "rllib:BC": "shoal.config.rllib:BCInRLlib",
    "rllib:MARWIL": "shoal.config.rllib:MARWILInRLlib",
    "rllib:CQL": "shoal.config.rllib:CQLInRLlib",
    "rllib:IQL": "shoal.config.rllib:IQLInRLlib",
}
"""RLlib's own algorithms, which need the extra `rllib`; `rllib_algorithms()` says which the installed Ray has."""

ENTRY_POINTS = "shoal.algorithms"


class InstalledAlgorithm(NamedTuple):
    """An algorithm that an installed package adds."""

    name: str
    config: str  # module:Class
    package: str  # name and version
    summary: str  # of the package


class Algorithms(Mapping[str, "type[Algorithm]"]):
    """The configuration class of each algorithm, imported when it is first asked for.

    Those of installed packages are found by their names; iteration is over shoal's own and those that were named.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, type[Algorithm]] = {}

    def __getitem__(self, name: str) -> type[Algorithm]:
        if name not in self._loaded:
            self._loaded[name] = _config_class(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*BUILT_IN, *self._loaded)))

    def __len__(self) -> int:
        return len({*BUILT_IN, *self._loaded})


ALGORITHMS = Algorithms()
"""Every algorithm that `run` may name, with the class of its configuration."""


def installed_algorithms() -> list[InstalledAlgorithm]:
    """What installed packages add, by name; nothing of theirs is imported."""
    from importlib.metadata import entry_points

    found: list[InstalledAlgorithm] = []
    for point in entry_points(group=ENTRY_POINTS):
        about = point.dist.metadata if point.dist is not None else None
        package = f"{about['Name']} {about['Version']}" if about is not None else "an unknown package"
        summary = str(about["Summary"]) if about is not None and "Summary" in about else ""
        found.append(InstalledAlgorithm(point.name, point.value, package, summary))
    return sorted(found, key=lambda one: (one.name, one.package))


def algorithm_names() -> list[str]:
    """Every name that `run` may take, those of installed packages too, but for RLlib's own."""
    return list(dict.fromkeys([*BUILT_IN, *(one.name for one in installed_algorithms())]))


def rllib_algorithms() -> list[str]:
    """The names in `RLLIB` that the installed Ray has; nothing of it is imported."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("ray")
    if found is None or found.origin is None:
        return []
    folder = Path(found.origin).parent / "rllib" / "algorithms"
    return [name for name in RLLIB if (folder / name.partition(":")[2].lower()).is_dir()]


def name_of(kind: type[Algorithm]) -> str:
    """The algorithm whose configuration a class is."""
    home = f"{kind.__module__}:{kind.__qualname__}"
    for name, place in {**BUILT_IN, **RLLIB}.items():
        if place == home:
            return name
    for name in ALGORITHMS:
        if name not in BUILT_IN and ALGORITHMS[name] is kind:
            return name
    return kind.__name__.removesuffix("Config")


def algorithms_that(ability: str) -> str:
    """Those of shoal's own whose configuration class claims an ability, such as `takes_memory`: one or the other."""
    *others, last = [name for name in BUILT_IN if getattr(ALGORITHMS[name], ability)]
    return f"{', '.join(others)} or {last}" if others else last


def _config_class(name: str) -> type[Algorithm]:
    """The class of one algorithm; a KeyError if there is none of this name, a ConfigError if it cannot be used."""
    if name in BUILT_IN or name in RLLIB:
        return load(BUILT_IN.get(name) or RLLIB[name])  # type: ignore[no-any-return]
    found = [one for one in installed_algorithms() if one.name == name]
    if not found:
        raise KeyError(name)
    if len(found) > 1:
        packages = " and ".join(one.package for one in found)
        raise ConfigError(f"run: {name} is in more than one installed package, {packages}; uninstall all but one")
    return _checked(found[0])


def _checked(one: InstalledAlgorithm) -> type[Algorithm]:
    """The configuration class of a package's algorithm."""
    from shoal.config.algorithm import Algorithm

    where = f"run: {one.name} of the installed package {one.package}"
    try:
        kind = load(one.config)
    except Exception as error:  # it is somebody else's code, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where} cannot be imported from {one.config} ({reason}); repair or uninstall it") from error
    if not (isinstance(kind, type) and issubclass(kind, Algorithm) and ":" in kind.learner):
        raise ConfigError(
            f"{where}: {one.config} must be a subclass of shoal.config.settings.AlgorithmConfig whose class attribute "
            "`learner` says where its learner is, as 'module:Class'"
        )
    return kind


def load(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
