"""Gymnasium's ids: finding what an id means, the Atari names of the past, and the nearest ids to a wrong one.

Since Gymnasium 1.0 an id is known only after the package that registers it has been imported. So for an id that nobody
has registered, the source of installed packages is read; the one package that has it there is imported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import gymnasium
from gymnasium.envs.registration import EnvSpec, parse_env_id

from shoal.envs.env_errors import notice_once
from shoal.envs.importing import INSTALLED
from shoal.envs.registry import registered_names
from shoal.envs.written_ids import homes_of, packages, written_ids
from shoal.errors import ConfigError

_CLASSIC_ATARI = re.compile(r"(?P<game>\w+?)(?P<ram>-ram)?(?P<skip>NoFrameskip|Deterministic)?-v(?P<version>[04])")


def find_spec(text: str) -> tuple[EnvSpec, dict[str, object]] | None:
    """What an id stands for and the settings that an old Atari name implies, or None if nobody knows the id."""
    if text.startswith("ALE/") and not _register_atari():
        raise ConfigError(f"env {text!r}: Atari games need another package; type pip install 'shoal-rl[atari]'")
    if text not in gymnasium.registry:
        _register_atari()
    if text in gymnasium.registry:
        spec = gymnasium.registry[text]
        _tell_newer_version(spec)
        return spec, {}
    return _classic_atari(text) or _of_installed_package(text)


def unknown_id(text: str) -> ConfigError:
    """The sentence for an id that nobody knows, with the nearest ones that exist."""
    base = _without_version(text)
    same = [f"{base}-v{version}" for version in _versions(gymnasium.registry).get(base, [])]
    same += [known for known in gymnasium.registry if known.endswith(f"/{text}")]
    same += [_with_package(known) for known in _not_imported() if _without_version(known) == base]
    if same:
        problem = "which version?" if base == text else "there is no such version;"
        return ConfigError(f"env {text!r}: {problem} type {' or '.join(same)}")
    near = nearest_ids(text)
    hint = f"did you mean {', '.join(near)}?" if near else "type a Gymnasium id, my_module:MyEnv or my_env.py:MyEnv"
    if not near and packages():
        hint += f"; an id that an installed package registers is typed package:{text} (installed: {_named(packages())})"
    elif not near:
        hint += f"; if a package registers it, install that package and type package:{text}"
    atari = "" if _register_atari() else " (Atari games need pip install 'shoal-rl[atari]')"
    return ConfigError(f"env {text!r}: no such Gymnasium id, and no name given with shoal.register_env; {hint}{atari}")


def nearest_ids(text: str) -> list[str]:
    """Up to three known ids and registered names that look like this one, whatever their namespace and version."""
    names = {known: known for known in [*_newest(gymnasium.registry), *registered_names()]}
    names.update({known: _with_package(known) for known in _newest(_not_imported())})
    return [names[known] for known in _nearest(text, names)]


def is_id(text: str) -> bool:
    """Whether a text means an id, and not an attribute of a module."""
    known = any(text in (env_id, _without_version(env_id)) for env_id in gymnasium.registry)
    return known or not all(part.isidentifier() for part in text.split("."))


def spec_of_package(package: str, env_id: str) -> EnvSpec:
    """What `package:env_id` means, once the package has been imported."""
    if env_id not in gymnasium.registry:
        _import_home(package, env_id)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    top = package.partition(".")[0]
    own = _ids_of(top)
    same = [known for known in own if _without_version(known) == _without_version(env_id)]
    near = same or _nearest(env_id, own)
    if near:
        hint = f"did you mean {', '.join(f'{package}:{known}' for known in near)}?"
    elif own:
        hint = f"it registers {_named(own)}"
    else:
        hint = "it registers no environments; type my_module:MyEnv for a class of it"
    raise ConfigError(f"env '{package}:{env_id}': {package} has no class and registers no id of that name; {hint}")


def _ids_of(package: str) -> list[str]:
    """The ids that a package registers, or would if it were imported."""
    found = {known for known, spec in gymnasium.registry.items() if _is_of(spec, package)}
    for known, homes in written_ids().items():
        if any(home.package == package for home in homes):
            found.add(known)
    return sorted(found)


def _of_installed_package(text: str) -> tuple[EnvSpec, dict[str, object]] | None:
    """The id of the one installed package that registers it, which is imported for it."""
    homes = homes_of(text)
    if len(homes) > 1:
        lines = " or ".join(f"{home.package}:{text}" for home in homes)
        raise ConfigError(f"env {text!r}: several installed packages register it; type {lines}")
    for home in homes:
        notice_once(f"env {text} is registered by the package {home.package}, which is imported for it")
        INSTALLED.load_module(home.package)
        _import_home(home.package, text)
        if text in gymnasium.registry:
            return gymnasium.registry[text], {}
    return None


def _import_home(package: str, env_id: str) -> None:
    """Import the module that registers an id, where importing the package alone has not done so."""
    for home in homes_of(env_id):
        if env_id not in gymnasium.registry and home.package == package.partition(".")[0]:
            INSTALLED.load_module(home.module)


def _is_of(spec: EnvSpec, package: str) -> bool:
    entry = spec.entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return f"{module}.".replace(":", ".").startswith(f"{package}.")


def _not_imported() -> list[str]:
    """Ids that installed packages would register."""
    return [env_id for env_id in written_ids() if env_id not in gymnasium.registry]


def _with_package(env_id: str) -> str:
    return f"{written_ids()[env_id][0].package}:{env_id}"


def _newest(ids: Iterable[str]) -> list[str]:
    """Each id in its newest version."""
    newest = []
    for base, numbers in _versions(ids).items():
        newest.append(f"{base}-v{numbers[-1]}" if numbers else base)
    return newest


def _nearest(text: str, ids: Iterable[str]) -> list[str]:
    """Up to three of the ids that look like this one, whatever their namespace and version."""
    names: dict[str, list[str]] = {}
    for known in ids:
        base = _without_version(known).lower()
        for spelling in {base, base.rpartition("/")[2]}:
            names.setdefault(spelling, []).append(known)
    asked = _without_version(text).lower()
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.7)
    near += difflib.get_close_matches(asked.rpartition("/")[2], names, n=3, cutoff=0.7)
    found: dict[str, None] = {}
    for spelling in near:
        found |= dict.fromkeys(names[spelling])
    return list(found)[:3]


def _named(names: Iterable[str], most: int = 8) -> str:
    """The first of the names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"


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
            raise ConfigError(f"env {text!r}: Atari games need another package; type pip install 'shoal-rl[atari]'")
        return None
    # The settings that Gym gave these names until 0.21; SpaceInvaders' lasers blink at every fourth frame.
    deterministic = 3 if match["game"] == "SpaceInvaders" else 4
    obs_type = "ram" if match["ram"] else "rgb"
    repeat = 0.25 if match["version"] == "0" else 0.0
    frameskip = {"NoFrameskip": 1, "Deterministic": deterministic}.get(match["skip"], (2, 5))
    return spec, {"obs_type": obs_type, "frameskip": frameskip, "repeat_action_probability": repeat}


def _tell_newer_version(spec: EnvSpec) -> None:
    # Gymnasium says so with a Python warning at every environment; v0 and v4 of Atari are variants, not versions.
    if spec.version is None or str(spec.entry_point).startswith("ale_py"):
        return
    newest = max(_versions(gymnasium.registry).get(_without_version(spec.id), [spec.version]))
    if newest > spec.version:
        notice_once(f"env {spec.id} is an old version; {_without_version(spec.id)}-v{newest} is the current one")


def _versions(ids: Iterable[str]) -> dict[str, list[int]]:
    """Each id without its version, and the versions there are."""
    found: dict[str, list[int]] = {}
    for env_id in ids:
        base = _without_version(env_id)
        version = env_id.removeprefix(f"{base}-v")
        found.setdefault(base, []).extend([int(version)] if version.isdigit() else [])
    return {base: sorted(numbers) for base, numbers in found.items()}


def _without_version(text: str) -> str:
    try:
        namespace, name, _ = parse_env_id(text)
    except gymnasium.error.Error:
        return text
    return f"{namespace}/{name}" if namespace else name
