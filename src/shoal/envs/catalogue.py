"""What could be trained here: Gymnasium's ids, those of installed packages, registered names, the classes of a file."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from time import monotonic
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from shoal.envs.env_errors import error_text
from shoal.envs.envpool_ids import PREFIX
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker, spaces_of
from shoal.envs.packages import registering_packages
from shoal.envs.registry import registered_names
from shoal.envs.spaces import Space
from shoal.errors import ConfigError

BRIDGES = ("GymV21Environment", "GymV26Environment")
"""Ids that are no environments but ways to others."""

MAKING_S = 10.0  # for one environment, to see its spaces
BUDGET_S = 30.0  # for all of them
OF_POOLS_S = 300.0  # of EnvPool's more than a thousand, which are described without being made


def import_packages() -> dict[str, str]:
    """Import every package that registers environments, without what it prints; those that fail, and why."""
    failed: dict[str, str] = {}
    for name in registering_packages():
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(name)
            except (Exception, SystemExit) as error:
                failed[name] = error_text(error)
    return failed


def known_ids() -> list[str]:
    """Every id and every registered name, the newest version of each before the older ones."""
    by_base: dict[str, list[EnvSpec]] = {}
    for spec in gymnasium.registry.values():
        if spec.name not in BRIDGES:
            by_base.setdefault(_base(spec), []).append(spec)
    ids = [spec.id for specs in by_base.values() for spec in sorted(specs, key=_version, reverse=True)]
    return [*registered_names(), *ids]


def current_ids(specs: Iterable[EnvSpec]) -> list[str]:
    """The ids without those of which there is a newer version, and without the Atari names of the past."""
    newest: dict[str, EnvSpec] = {}
    for spec in specs:
        is_old_atari = str(spec.entry_point).startswith("ale_py") and spec.namespace != "ALE"
        if spec.name in BRIDGES or is_old_atari:
            continue
        known = newest.get(_base(spec))
        if known is None or _version(spec) > _version(known):
            newest[_base(spec)] = spec
    return [spec.id for spec in newest.values()]


def _base(spec: EnvSpec) -> str:
    return f"{spec.namespace}/{spec.name}" if spec.namespace else spec.name


def _version(spec: EnvSpec) -> int:
    return -1 if spec.version is None else spec.version


def spaces_of_ids(ids: list[str]) -> Iterator[tuple[str, tuple[Space, Space] | str]]:
    """The spaces of each environment, or why it cannot be made.

    They are made in another process, which may take its time, print, or crash, without harm for this one.
    """
    left, deadline = list(ids), monotonic() + (OF_POOLS_S if all(name.startswith(PREFIX) for name in ids) else BUDGET_S)
    while left:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_look, args=(theirs, left), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process with threads is forked: the child makes environments only
            process.start()
        theirs.close()
        try:
            while left:
                patience = min(MAKING_S, deadline - monotonic())
                if not ours.poll(max(patience, 0)):
                    break
                answer = ours.recv()
                yield left.pop(0), answer
        except EOFError:
            process.join()
            yield left.pop(0), f"its process ended with code {process.exitcode}"
            continue
        finally:
            process.kill()
            process.join()
            ours.close()
        if monotonic() > deadline:
            yield from ((name, "was not checked, because that takes long; give a PATTERN") for name in left)
            return
        if left:
            yield left.pop(0), f"takes more than {MAKING_S:g} s to make"


def _look(answers: Connection, ids: list[str]) -> None:
    """Tell the spaces of environments, one after another."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for name in ids:
        answer: Any
        try:
            answer = spaces_of(env_maker(name, preprocessor_pref="deepmind"), {})
        except (Exception, SystemExit) as error:
            answer = short_reason(str(error))
        try:
            answers.send(answer)
        except (AttributeError, TypeError, ValueError):  # a space that cannot be sent
            answers.send("has spaces of an unknown kind")


def in_short(space: Space) -> str:
    """A space in few letters: `Box(4)`, `Box(96, 96, 3) uint8`, `Discrete(2)`, `Dict(image, speed)`."""
    if isinstance(space, spaces.Box):
        kind = "" if str(space.dtype) == "float32" else f" {space.dtype}"
        return f"Box({', '.join(map(str, space.shape))}){kind}"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(map(str, space.spaces))})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(in_short(child) for child in space.spaces)})"
    return " ".join(str(space).split())


def short_reason(text: str) -> str:
    """What to install, or the first sentence of what went wrong."""
    if command := re.search(r"pip install (\"[^\"]+\"|'[^']+'|[\w\[\],.-]+)", text):
        return f"needs {command[0].rstrip('.')}"
    if missing := re.search(r"No module named '([\w.]+)'", text):
        return f"needs the package {missing[1].partition('.')[0]}"
    return re.split(r"(?<=[\w)])[.;]\s", text.partition("\n")[0])[0][:100]


def class_in_file(text: str, command: str) -> str:
    """`my_env.py:MyEnv` for `my_env.py`, where that has one environment; `command` is what the user types before it."""
    names = env_classes(UserCode.at(".").load_file(text))
    if not names:
        raise ConfigError(
            f"env {text!r}: it defines no environment; write a class with reset and step, such as a gymnasium.Env"
        )
    if len(names) > 1:
        lines = " or ".join(f"{command} {text}:{name}" for name in names)
        raise ConfigError(f"env {text!r}: it defines {len(names)} environments; type {lines}")
    return f"{text}:{names[0]}"


def env_classes(module: ModuleType) -> list[str]:
    """The classes that a module itself defines and that are environments, in their order."""
    return [name for name, value in vars(module).items() if _is_env_class(value, module)]


def _is_env_class(value: Any, module: ModuleType) -> bool:
    if not inspect.isclass(value) or value.__module__ != module.__name__ or value.__name__.startswith("_"):
        return False
    if issubclass(value, gymnasium.Wrapper | gymnasium.vector.VectorWrapper) or inspect.isabstract(value):
        return False
    return all(callable(getattr(value, part, None)) for part in ("reset", "step"))
