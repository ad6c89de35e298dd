"""Gymnasium's ids: finding what an id means, the Atari names of the past, and the nearest ids to a wrong one."""

from __future__ import annotations

import difflib
import re

import gymnasium
from gymnasium.envs.registration import EnvSpec, parse_env_id

from shoal.envs.registry import registered_names
from shoal.envs.telling import notice_once
from shoal.errors import ConfigError

_CLASSIC_ATARI = re.compile(r"(?P<game>\w+?)(?P<ram>-ram)?(?P<skip>NoFrameskip|Deterministic)?-v(?P<version>[04])")


def find_spec(text: str) -> tuple[EnvSpec, dict[str, object]] | None:
    """What an id stands for and the settings that an old Atari name implies, or None if nobody knows the id."""
    if text.startswith("ALE/") and not _register_atari():
        raise ConfigError(f"env {text!r}: Atari games need another package; type pip install 'shoal[atari]'")
    if text not in gymnasium.registry:
        _register_atari()
    if text in gymnasium.registry:
        spec = gymnasium.registry[text]
        _tell_newer_version(spec)
        return spec, {}
    return _classic_atari(text)


def unknown_id(text: str) -> ConfigError:
    """The sentence for an id that nobody knows, with the nearest ones that exist."""
    base = _without_version(text)
    same = [f"{base}-v{version}" for version in _versions().get(base, [])]
    same += [known for known in gymnasium.registry if known.endswith(f"/{text}")]
    if same:
        problem = "which version?" if base == text else "Gymnasium has no such version;"
        return ConfigError(f"env {text!r}: {problem} type {' or '.join(same)}")
    near = nearest_ids(text)
    hint = f"did you mean {', '.join(near)}?" if near else "type a Gymnasium id, my_module:MyEnv or my_env.py:MyEnv"
    atari = "" if _register_atari() else " (Atari games need pip install 'shoal[atari]')"
    return ConfigError(f"env {text!r}: no such Gymnasium id, and no name given with shoal.register_env; {hint}{atari}")


def nearest_ids(text: str) -> list[str]:
    """Up to three known ids and registered names that look like this one, whatever their namespace and version."""
    names: dict[str, list[str]] = {}
    for base, numbers in _versions().items():
        newest = f"{base}-v{numbers[-1]}" if numbers else base
        for spelling in {base.lower(), base.rpartition("/")[2].lower()}:
            names.setdefault(spelling, []).append(newest)
    for name in registered_names():
        names.setdefault(name.lower(), []).append(name)
    near = difflib.get_close_matches(_without_version(text).lower(), names, n=3, cutoff=0.7)
    return list(dict.fromkeys(known for spelling in near for known in names[spelling]))[:3]


def _register_atari() -> bool:
    try:
        import ale_py
    except ImportError:
        return False
    # A no-op in itself: it tells linters and readers that the import registers the games.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every game
    gymnasium.register_envs(ale_py)
    return True


def _classic_atari(text: str) -> tuple[EnvSpec, dict[str, object]] | None:
    match = _CLASSIC_ATARI.fullmatch(text)
    if match is None:
        return None
    spec = gymnasium.registry.get(f"ALE/{match['game']}-v5")
    if spec is None:
        if (match["ram"] or match["skip"]) and not _register_atari():
            raise ConfigError(f"env {text!r}: Atari games need another package; type pip install 'shoal[atari]'")
        return None
    # The settings that Gym gave these names until 0.21; SpaceInvaders' lasers blink at every fourth frame.
    deterministic = 3 if match["game"] == "SpaceInvaders" else 4
    return spec, {
        "obs_type": "ram" if match["ram"] else "rgb",
        "frameskip": {"NoFrameskip": 1, "Deterministic": deterministic}.get(match["skip"], (2, 5)),
        "repeat_action_probability": 0.25 if match["version"] == "0" else 0.0,
    }


def _tell_newer_version(spec: EnvSpec) -> None:
    # Gymnasium says so with a Python warning at every environment; v0 and v4 of Atari are variants, not versions.
    if spec.version is None or str(spec.entry_point).startswith("ale_py"):
        return
    newest = max(_versions().get(_without_version(spec.id), [spec.version]))
    if newest > spec.version:
        notice_once(f"env {spec.id} is an old version; {_without_version(spec.id)}-v{newest} is the current one")


def _versions() -> dict[str, list[int]]:
    """Each id without its version, and the versions there are."""
    found: dict[str, list[int]] = {}
    for spec in gymnasium.registry.values():
        found.setdefault(_without_version(spec.id), []).extend([] if spec.version is None else [spec.version])
    return {base: sorted(numbers) for base, numbers in found.items()}


def _without_version(text: str) -> str:
    try:
        namespace, name, _ = parse_env_id(text)
    except gymnasium.error.Error:
        return text
    return f"{namespace}/{name}" if namespace else name
