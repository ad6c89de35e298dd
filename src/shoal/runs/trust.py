"""Whose run it is, and so whether the code that it names may be imported.

What shoal writes down of a run carries a mark: a proof by a secret that only this user has (`machine/own_key.py`). What
has no such mark is a stranger's: it may name anything as its environment, `os:system` for one. Nothing of that is
imported or started before the user has said so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from shoal.config.experiment import Experiment
from shoal.config.program_names import program_name
from shoal.config.wrappers import source_and_args
from shoal.envs.env_errors import notice_once
from shoal.envs.envpool_ids import PREFIX
from shoal.envs.importing import UserCode
from shoal.envs.registry import registered
from shoal.errors import CheckpointError, NotTrusted
from shoal.machine.own_key import key_file, own_key
from shoal.machine.proofs import is_proof, proof
from shoal.runs.bounded_files import bounded_bytes, bounded_json

MARK = "mark"
"""The key under which what is written down carries its mark."""
MOST_NAMED = 6
FILE_LIMIT = 1 << 26

_PLAIN = re.compile(r"[\w+-]*")


def marked(tree: Mapping[str, Any], place: Path | None = None) -> dict[str, Any]:
    """The tree with the mark of this user; with `place`, it is theirs only there.

    Without a home to keep the secret in, there is no mark.
    """
    key = own_key(make=True)
    mark = None if key is None else proof(key, *_words(tree, place)).hex()
    if mark is None:
        notice_once(
            f"{key_file()} can be neither read nor made, so that later commands will not know what is yours, "
            "and will ask for --trust"
        )
    return {**_unmarked(tree), MARK: mark}


def is_own(tree: Mapping[str, Any], place: Path | None = None) -> bool:
    """Whether this user has written down the tree, as it is."""
    mark, key = tree.get(MARK), own_key()
    if not isinstance(mark, str) or key is None:
        return False
    try:
        return is_proof(bytes.fromhex(mark), key, *_words(tree, place))
    except (ValueError, TypeError, RecursionError):
        return False


def code_to_run(
    tree: Mapping[str, Any], experiment: Experiment, user_code: UserCode, where: Path, env_is_given: bool = False
) -> UserCode:
    """The user's code that a run's environment, models and hooks come from; a stranger's is refused, and told.

    A stranger's run that names no code runs with installed packages alone. With `env_is_given` the user has named the
    environment: it comes from the working folder.
    """
    if user_code.is_trusted:
        return user_code
    named = [words for key, words in code_named(experiment) if not (env_is_given and key == "env")]
    if named:
        raise NotTrusted(_refusal(where, named, tree))
    return UserCode.at(".") if env_is_given else user_code


def check_own_file(file: Path, folder_file: str, is_placed: bool, trust: bool) -> None:
    """Refuse the configuration file of a run or sweep that is a stranger's; `folder_file` tells what the folder is.

    Where the file is a link, the folder that it leads to counts like the one that it lies in. With `is_placed`, what is
    the user's own is so only in its place.
    """
    if trust:
        return
    typed, real = file.absolute(), Path(os.path.realpath(file))
    for folder in dict.fromkeys((typed.parent, real.parent)):
        told = folder / folder_file
        if told.is_file() and not _is_own_file(told, folder if is_placed else None):
            link = "" if folder == typed.parent else f" is a link to {real}, which"
            raise NotTrusted(
                f"{file}{link} belongs to {folder}, which is not yours, and could name any code; "
                "read it, and add --trust"
            )


def _is_own_file(told: Path, place: Path | None) -> bool:
    try:
        tree = bounded_json(bounded_bytes(told, FILE_LIMIT), told.name)
    except CheckpointError:
        return False
    return isinstance(tree, Mapping) and is_own(tree, place)


def code_named(experiment: Experiment) -> list[tuple[str, str]]:
    """What an experiment would import, start or open besides installed environments: each key, and in words."""
    config = experiment.config
    found = list(_of_env(config.env))
    for item in config.wrappers:
        source, args = source_and_args(item)
        if not _is_plain(source) or not _is_plain(args):
            found.append(("wrappers", f"wrapper {source!r}"))
    named = {
        "callbacks": config.callbacks,
        "env_task_fn": config.env_task_fn,
        "model.custom_model": config.model.custom_model,
        "model.custom_action_dist": config.model.custom_action_dist,
    }
    found += [(key, f"{key} {value!r}") for key, value in named.items() if value is not None and not _is_plain(value)]
    # A package may take for a module or a file what is no plain word.
    given = {
        "env_config": config.env_config,
        "evaluation_config": config.evaluation_config.env_config,
        "randomize": config.randomize.model_dump(),
        "multiagent": config.multiagent.policies,  # whose models may be a class of one's own
        "record_env": config.record_env,
        "input": getattr(config, "input", None),
        "output": config.output,
        "rllib_config": getattr(config, "rllib_config", None),  # which may name classes, and files to read
    }
    found += [(key, f"{key} {_odd(value)!r}") for key, value in given.items() if not _is_plain(value)]
    return found


def _of_env(env: Any) -> Iterator[tuple[str, str]]:
    if isinstance(env, Mapping):
        yield "env", f"the program {program_name(env)!r}"
    elif isinstance(env, str):
        text = env.strip()
        is_known = registered(text) is not None or text in gymnasium.registry or text.startswith(PREFIX)
        # A plain id is looked for in installed packages only.
        if not is_known and (":" in text or "." in text):
            yield "env", f"env {text!r}"
    elif env is not None:
        yield "env", f"env {env!r}"


def _is_plain(value: Any) -> bool:
    return _odd(value) is None


def _odd(value: Any) -> Any:
    """What in a value is more than numbers and plain words; None if nothing is."""
    if isinstance(value, str):
        return None if _PLAIN.fullmatch(value) else value
    if isinstance(value, Mapping):
        return next((odd for item in (*value, *value.values()) if (odd := _odd(item)) is not None), None)
    if isinstance(value, Sequence):
        return next((odd for item in value if (odd := _odd(item)) is not None), None)
    return None if value is None or isinstance(value, bool | int | float) else value


def _refusal(where: Path, named: list[str], tree: Mapping[str, Any]) -> str:
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    folders = tree.get("search_path") or []
    searched = f" (looked for in {', '.join(map(str, folders[:3]))})" if folders else ""
    return (
        f"{where} is not a run of yours, and would run {', '.join(named[:MOST_NAMED])}{more}{searched}; "
        "read that code, and add --trust (in Python trust=True) if it may run here"
    )


def _unmarked(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != MARK}


def _words(tree: Mapping[str, Any], place: Path | None) -> tuple[bytes, ...]:
    """What the mark is of: the tree as JSON, however its file is laid out, and its place if that matters."""
    where = "" if place is None else str(place.resolve())
    return (
        b"shoal own 1\n",
        where.encode("utf-8", "surrogateescape"),
        b"\n",
        json.dumps(_unmarked(tree), sort_keys=True).encode(),
    )
