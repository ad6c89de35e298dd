"""What the shell offers after TAB: environments, keys, results, algorithms, runs and files, without users' code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Items = list[CompletionItem[str]]

FILES = (".py", ".yml", ".yaml")
"""What `shoal train` takes beside the name of an environment."""

UNFINISHED = {
    "bash": (
        "    return 0\n",
        """\
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace
    fi

    return 0
""",
    ),
    "zsh": (
        "        compadd -U -V unsorted -a completions\n",
        """\
        local -a unfinished=(${(M)completions:#*[=./]})
        completions=(${completions:#*[=./]})
        compadd -U -V unsorted -S '' -a unfinished
        compadd -U -V unsorted -a completions
""",
    ),
    "fish": ('string split ","', 'string split --max 1 ","'),
}
"""For each shell, a part of click's script and what stands there in ours.

In bash and zsh, no space follows what ends with one of `=./`, for that is not yet the whole word; fish knows this by
itself, but click's script ends a description at its first comma.
"""


def shell_script(shell: str, command: click.Command) -> str:
    """The script that a shell evaluates to complete the `shoal` command."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    script = complete(command, {}, "shoal", "_SHOAL_COMPLETE").source()
    theirs, ours = UNFINISHED[shell]
    return script.replace(theirs, ours, 1)


def environments(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Ids of Gymnasium and of Atari, and files with experiments or environments."""
    import gymnasium

    if incomplete.lower().startswith("a"):
        from shoal.envs.gym_ids import find_spec
        from shoal.errors import ConfigError

        with contextlib.suppress(ConfigError):
            find_spec("ALE/Pong-v5")  # registers the games, if they are installed
    from shoal.envs.catalogue import current_ids

    ids = [name for name in current_ids(gymnasium.registry.values()) if name.startswith(incomplete)]
    return _plain([*ids, *_files(incomplete)]) or [CompletionItem(incomplete, type="file")]


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Keys of an experiment for `--set`, in full or without `config.`."""
    from shoal.config.algorithms import ALGORITHMS
    from shoal.config.experiment import algorithm_name, known_keys
    from shoal.config.vocabulary import SWEEP_KEYS

    chosen = algorithm_name(ctx.params.get("run_name"))
    kinds = [ALGORITHMS[chosen]] if chosen in ALGORITHMS else list(ALGORITHMS.values())
    paths = list(dict.fromkeys(path for kind in kinds for path in known_keys(kind)))
    if ctx.info_name == "tune":
        paths += SWEEP_KEYS
    if not incomplete.startswith("config"):
        tops = [path for path in paths if not path.startswith("config.")]
        paths = [*tops, *(path.removeprefix("config.") for path in paths if path.startswith("config."))]
    return _plain(_whole_words(paths, incomplete))


def results(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Names of results for `--stop`."""
    from shoal.config.result_names import result_names

    return _plain(f"{name}=" for name in result_names() if name.startswith(incomplete))


def algorithms(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Names of algorithms, in whatever case one begins to type."""
    from shoal.config.algorithms import algorithm_names

    return _plain(name for name in algorithm_names() if name.upper().startswith(incomplete.upper()))


def presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Names of presets, those of the environment alone if it has any."""
    from shoal.config.presets import all_presets

    env = ctx.params.get("env")
    known = all_presets().values()
    own = [preset.name for preset in known if preset.env == env]
    return _plain(name for name in own or [preset.name for preset in known] if name.startswith(incomplete))


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001
    """Names of experiments in the results folder, what is inside them, and folders."""
    here = _files(incomplete, ())
    if incomplete.startswith((".", "/", "~")):
        return _plain(here) or [CompletionItem(incomplete, type="dir")]
    from shoal.errors import ConfigError
    from shoal.runs.folders import DEFAULT_RESULTS, results_root

    folder = incomplete.rpartition("/")[0]
    names: list[str] = []
    try:
        place = results_root(ctx.params.get("results_dir") or DEFAULT_RESULTS)
        inside = [child.name for child in (place / folder).iterdir() if child.is_dir()]
        names = [f"{folder}/{name}" if folder else name for name in inside if not name.startswith(".")]
    except (OSError, ConfigError):
        pass
    found = sorted(name for name in names if name.startswith(incomplete))
    return _plain([*found, *here]) or [CompletionItem(incomplete, type="dir")]


def _plain(words: Iterable[str]) -> Items:
    return [CompletionItem(word) for word in dict.fromkeys(words)]


def _whole_words(paths: list[str], incomplete: str) -> list[str]:
    """Keys up to the next dot: `config.model.` before all that stands inside it."""
    words: list[str] = []
    for path in paths:
        if not path.startswith(incomplete):
            continue
        head, dot, _ = path[len(incomplete) :].partition(".")
        inner = any(other.startswith(f"{path}.") for other in paths)
        words.append(f"{incomplete}{head}." if dot or inner else f"{path}=")
    return words


def _files(incomplete: str, endings: tuple[str, ...] = FILES) -> list[str]:
    """Folders and files with one of the endings that begin so."""
    head, slash, begun = incomplete.rpartition("/")
    try:
        children = sorted(Path(os.path.expanduser(head + slash) or ".").iterdir())
    except OSError:
        return []
    shown = [child for child in children if child.name.startswith(begun) and (begun or child.name[0] != ".")]
    folders = [f"{head}{slash}{child.name}/" for child in shown if child.is_dir()]
    return folders + [f"{head}{slash}{child.name}" for child in shown if endings and child.name.endswith(endings)]
