"""Tuned settings for known environments: each was found with `shoal tune` and measured against the defaults.

A preset is a file in `preset_files`. It lies between the defaults and what the user says: whatever stands in a file, in
`--set` or in a program replaces the preset's own value of that key.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, WithJsonSchema

from shoal.config.fields import STRICT, FreeMapping, Size, Text
from shoal.config.problems import got, printable
from shoal.config.search_spaces import space_kind
from shoal.config.vocabulary import nearest
from shoal.errors import ConfigError

PresetName = Annotated[Text | None, WithJsonSchema({"type": ["string", "boolean", "null"]})]
"""In a checked experiment, true has become a name."""

FILES = Path(__file__).with_name("preset_files")


class PresetFigures(BaseModel):
    """What a preset reaches, and what the algorithm's defaults do after as many steps."""

    model_config = STRICT

    timesteps_total: Size
    """Number of steps that each seed was trained for."""
    episodes: Size
    """Number of episodes of `shoal evaluate` over which each return is the mean."""
    seeds: tuple[int, ...]
    """Seeds of the runs; none of them was used in the sweep."""
    returns: tuple[float, ...]
    """Return of each seed with the preset."""
    default_returns: tuple[float, ...]
    """Return of each seed with the defaults."""
    date: Text
    """Day of the measurement."""
    shoal: Text
    """Version of shoal that was measured."""


class Preset(BaseModel):
    """Settings of one algorithm for one environment, where they come from, and what they reach."""

    model_config = STRICT

    name: Text
    """Name of the preset, and of its file."""
    env: Text
    """The environment that it was found for."""
    run: Text
    """The algorithm whose settings it has."""
    config: FreeMapping
    """The settings: every key on which the result depends, also where it is the default now."""
    sweep: FreeMapping
    """The sweep that found it, as `shoal tune` takes it."""
    measured: PresetFigures
    """What it reaches."""


@functools.cache
def all_presets() -> Mapping[str, Preset]:
    """Every preset by its name."""
    return {path.stem: _read(path) for path in sorted(FILES.glob("*.yml"))}


def _read(path: Path) -> Preset:
    from shoal.config.yaml_files import load_file  # here, so that showing keys does not import a YAML parser

    return Preset(name=path.stem, **load_file(path).tree)


def fold_preset(body: dict[str, Any]) -> list[str]:
    """Put the settings of the preset that an experiment's tree asks for under its own, in place; what is wrong."""
    asked = body.pop("preset", None)
    config = body.get("config")
    if asked is None or asked is False or not isinstance(config, Mapping):
        return []
    if not isinstance(asked, bool | str):
        return [f"preset: must be a name, or true for the environment's own {got(asked)}"]
    try:
        preset = preset_for(asked, config.get("env"), body.get("run", "PPO"))
    except ConfigError as error:
        return error.problems
    body["preset"] = preset.name
    body["config"] = _under(config, preset.config)
    return []


def preset_for(asked: bool | str, env: Any, run: Any) -> Preset:
    """The preset of a name, or with `true` that of the environment, which must be one of the algorithm."""
    if isinstance(asked, str):
        preset = all_presets().get(asked)
        if preset is None:
            raise ConfigError(f"preset: there is no {printable(asked)!r}{_instead(asked, env)}")
        if preset.run != run:
            raise ConfigError(f"preset: {asked} is for {preset.run}; set run: {preset.run} {got(run)}")
        return preset
    found = [preset for preset in all_presets().values() if preset.env == env]
    own = [preset for preset in found if preset.run == run]
    if len(own) == 1:
        return own[0]
    if own:
        names = " or ".join(preset.name for preset in own)
        raise ConfigError(f"preset: there are {len(own)} for {env} with {run}; name one: {names}")
    if found:
        runs = " or ".join(f"--run {preset.run}" for preset in found)
        raise ConfigError(f"preset: there is none for {env} with {run}, but with {runs}")
    where = printable(env) if isinstance(env, str) else "this environment"
    hint = _instead(env, None) if isinstance(env, str) else "; `shoal presets` lists them"
    raise ConfigError(f"preset: there is none for {where}{hint}")


def _instead(word: str, env: Any) -> str:
    """The end of a sentence: which preset was most likely meant."""
    known = all_presets()
    own = [preset.name for preset in known.values() if env in (preset.env, None) and preset.env == word]
    own = own or [preset.name for preset in known.values() if preset.env == env]
    close = " or ".join(own) or nearest(word, [*known, *(preset.env for preset in known.values())], 0.7)
    return f"; did you mean {close}? `shoal presets` lists them" if close else "; `shoal presets` lists them"


def _under(said: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, and of the preset what it leaves open."""
    found = {**preset, **said}
    for key, value in preset.items():
        mine = said.get(key)
        if f"{key}_schedule" in said and key not in said:
            del found[key]  # the schedule replaces it
        elif isinstance(value, Mapping) and isinstance(mine, Mapping) and space_kind(mine) is None:
            is_another = mine.get("type", value.get("type")) != value.get("type")
            found[key] = dict(mine) if is_another else _under(mine, value)
    return found


def unused_preset(env: str, run: str, said: Set[str]) -> Preset | None:
    """The preset for an environment and algorithm, if the user has said none of its keys and so may not know it."""
    # Every run asks this when it starts, and parsing all files would take longer than the rest of its start.
    files = [path for path in sorted(FILES.glob("*.yml")) if f"\nenv: {env}\n" in path.read_text()]
    found = [preset for preset in map(_read, files) if preset.run == run]
    return next((preset for preset in found if not preset.config.keys() & said), None)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a preset's settings by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def value_at(config: Any, path: str) -> Any:
    """The value of a configuration at a dotted key, as it stands in a file; None where nobody has set it."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return list(config) if isinstance(config, tuple) else config
