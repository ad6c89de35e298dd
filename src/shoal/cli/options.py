"""Commands that know the options of other tools: a foreign one is refused with what to type instead, value and all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from shoal.cli.completion import keys, presets, results

FOLDER = "Folder to search for runs of that NAME; default: ~/shoal_results."

T = TypeVar("T", bound=Callable[..., Any])

TAKEN = {"--name-env": "--env"}
"""Options of other tools that mean exactly what one of ours does, and are taken for it."""

OWN_PRESET = "true"
"""What `--preset` without a name stands for, as in a file."""

OFF = ("0", "false", "no", "none", "off", "cpu")
_SENTENCE = re.compile(r"write (?P<key>\w+): (?P<value>\w+) in config(, and (?P<more>\w+): (?P<other>\w+))?")
_FILE_WORDS = ("config", "config_file", "config_path", "yaml")
_VALUE = re.compile(r"[-+]?[\d.][\d._eE+-]*[smhd]?|true|false|null|auto")
_RUN_WORDS = ("resume", "run", "run_folder", "path", "model", "name")


def stop_option(text: str) -> Callable[[T], T]:
    """`--stop NAME=LIMIT`, which completes names of results."""
    return click.option("--stop", multiple=True, metavar="NAME=LIMIT", shell_complete=results, help=text)


def set_option(text: str) -> Callable[[T], T]:
    """`--set KEY=VALUE`, which completes keys."""
    return click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", shell_complete=keys, help=text)


def protocol_option(function: T) -> T:
    """`--protocol NAME`, for commands whose environment may be a program."""
    text = "ENV is a program that speaks this protocol."
    return click.option("--protocol", type=click.Choice(["lines"]), help=text)(function)


def wrap_option(function: T) -> T:
    """`--wrap NAME[:KEY=VALUE,...]`, for commands that make environments."""
    text = "Wrap the environment; repeatable, applied in order."
    return click.option("--wrap", "wraps", multiple=True, metavar="NAME[:KEY=VALUE,...]", help=text)(function)


def call_timeout_option(function: T) -> T:
    """`--timeout SECONDS`, for commands that try an environment."""
    text = "Seconds that one call of the environment may take."
    kind = click.FloatRange(0, min_open=True)
    return click.option("--timeout", type=kind, default=60.0, show_default=True, help=text)(function)


def preset_option(function: T) -> T:
    """`--preset [NAME]`: without a name it is the environment's own."""
    text = "Start from tuned settings for the environment, or from those of this NAME; `shoal presets` lists them."
    option = click.option(
        "--preset", is_flag=False, flag_value=OWN_PRESET, metavar="[NAME]", shell_complete=presets, help=text
    )
    return option(function)


def asked_preset(value: str | None, what: str | Path | None, command: str) -> str | bool | None:
    """What `--preset` asks for; a sentence where it has swallowed `what` the command is about."""
    if value is None or value == OWN_PRESET:
        return None if value is None else True
    if what is None:
        from shoal.config.presets import all_presets

        preset = all_presets().get(value)
        words = f"{_quoted(value)} --preset" if preset is None else f"{preset.env} --preset {value}"
        raise click.UsageError(f"--preset takes the word after it for its name; type `{command} {words}`.")
    return value


def where_option() -> Callable[[T], T]:
    """`--results-dir FOLDER`, for commands that look for a run by its name."""
    return click.option("--results-dir", metavar="FOLDER", help=FOLDER)


def trust_option(command: T) -> T:
    """`--trust`, for commands that may run code which a run names."""
    return click.option("--trust", is_flag=True, help="Run the code that it names, although it is not your own run.")(
        command
    )


class Command(click.Command):
    """A command whose unknown options are answered with the word to use."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take underscores for dashes, and name what to type in place of an option that does not exist."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        words = [_own_word(word, known) for word in (_joined(args) if ctx.resilient_parsing else args)]
        if not ctx.resilient_parsing:
            _check_pairs(words, ctx)
        try:
            rest = super().parse_args(ctx, list(words))
        except click.NoSuchOption as error:
            arguments = [parameter for parameter in self.params if isinstance(parameter, click.Argument)]
            problems = []
            for name, value in _unknown(error.option_name, words, known):
                instead = _instead(name, value, known, bool(arguments), ctx.command_path)
                problems.append(f"There is no option {name}; {instead}")
            raise click.UsageError("\nError: ".join(problems), ctx) from None
        for parameter in self.params:
            value = ctx.params.get(parameter.name or "")
            if isinstance(value, float) and not isfinite(value):
                raise click.UsageError(f"{parameter.opts[0]} must be a number that is finite (got {value}).", ctx)
        return rest


def _check_pairs(words: list[str], ctx: click.Context) -> None:
    """Refuse `--stop timesteps_total 1000`, whose number would be taken for an argument of the command."""
    for option, name, value in zip(words, words[1:], words[2:]):
        if option in ("--stop", "--set") and re.fullmatch(r"[\w./]+", name) and _VALUE.fullmatch(value):
            raise click.UsageError(f"{option} takes one value; write {option} {name}={value}", ctx)


def _joined(args: list[str]) -> list[str]:
    """The words of a line that is being completed, in which bash has cut `config.lr=1e-3` into three."""
    words: list[str] = []
    for word in args:
        if words and (word == "=" or words[-1].endswith("=")):
            words[-1] += word
        else:
            words.append(word)
    return words


def _own_word(word: str, known: set[str]) -> str:
    """An option as we spell it, if it is one of ours in other clothes."""
    name, equals, value = word.partition("=")
    dashed = name.replace("_", "-")
    own = TAKEN.get(dashed, dashed)
    return f"{own}{equals}{value}" if word.startswith("--") and own in known else word


def _unknown(first: str, words: list[str], known: set[str]) -> list[tuple[str, str | None]]:
    """Every unknown option as it was typed, each with its value; `first` is one of them."""
    found: dict[str, str | None] = {}
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        name, equals, value = word.partition("=")
        if not re.match(r"--\w", name) or name in known or name == "--help":
            continue
        is_value = not after.startswith("-") or re.fullmatch(r"-[\d.]\S*", after)
        found[name] = value if equals else after if is_value else None
    return list(found.items()) if first in found else [(first, None)]


def _instead(name: str, value: str | None, known: set[str], has_argument: bool, command: str) -> str:
    """What to type for an option that does not exist, as the end of a sentence."""
    from shoal.config.vocabulary import FOREIGN, FOREIGN_RESULTS

    word = name.lstrip("-").lower().replace("-", "_")
    if word in _RUN_WORDS and has_argument and "--set" not in known:
        return f"write {command} {_quoted(value or 'RUN')}"
    if word == "resume" and "--restore" in known:
        run = _quoted(value or "RUN")
        return f"write shoal resume {run} to continue that run, or --restore {run} to begin a new one with its policy"
    if word in FOREIGN_RESULTS and "--stop" in known and word not in FOREIGN:
        return f"write --stop {FOREIGN_RESULTS[word]}={_quoted(value or 'LIMIT')}"
    if word in _FILE_WORDS and "--file" in known:
        return f"write --file {_quoted(value or 'FILE.yml')}"
    return _key_instead(name, FOREIGN.get(word) or _key(word), value, known, command)


def _key_instead(name: str, meant: str | None, value: str | None, known: set[str], command: str) -> str:
    """The same for an option that sets a key, or does nothing that is known."""
    from shoal.config.vocabulary import SWEEP_KEYS, nearest

    if meant in SWEEP_KEYS and "--num-samples" not in known and "--set" in known:
        return "that is for a sweep: type shoal tune FILE.yml"
    if meant is not None and (typed := _typed(meant, value, known)):
        return typed
    close = nearest(name, known, 0.7)
    return f"did you mean {close}?" if close else f"{command} --help lists the options"


def _typed(meant: str, value: str | None, known: set[str]) -> str | None:
    """The options that say the same as a key or a sentence of the table of foreign words; None if none can here."""
    if " " not in meant:
        option = _option(meant, value, known)
        return f"write {option}" if option else None
    if value is not None and value.lower() in OFF:
        return f"leave it out, because {value} is the default"
    sentence = _SENTENCE.match(meant)
    if sentence is None:
        return meant
    pairs = [(sentence["key"], sentence["value"]), (sentence["more"], sentence["other"])]
    options = [_option(f"config.{key}", text, known) for key, text in pairs if key]
    return f"write {' '.join(filter(None, options))}" if all(options) else None


def _option(key: str, value: str | None, known: set[str]) -> str | None:
    """The option that sets a key, with the user's value."""
    own = "--" + key.rpartition(".")[2].replace("_", "-")
    if own in known and not key.startswith("stop."):
        return f"{own} {_quoted(_algorithm(value) if key == 'run' else value or 'VALUE')}"
    if key.startswith("stop."):
        return f"--stop {key.removeprefix('stop.')}={_quoted(value or 'LIMIT')}" if "--stop" in known else None
    return f"--set {key}={_quoted(_written(key, value))}" if "--set" in known else None


def _key(word: str) -> str | None:
    """The key that an option names, of any algorithm and of a sweep: its own name is enough if no other has it."""
    from shoal.config.algorithms import ALGORITHMS
    from shoal.config.overrides import full_path
    from shoal.config.settings import key_paths
    from shoal.config.vocabulary import EXPERIMENT_KEYS, SWEEP_KEYS
    from shoal.errors import ConfigError

    for algorithm in ALGORITHMS.values():  # PPO first: another may have a second key of that name
        keys = [*EXPERIMENT_KEYS, *SWEEP_KEYS, *key_paths(algorithm)]
        with suppress(ConfigError):
            found = full_path(word, keys)
            if found in keys:
                return found
    return None


def _written(key: str, value: str | None) -> str:
    """The value as the key wants it: `244,81` is a list, and a switch without a value is true."""
    default = _default(key)
    if value is None:
        return "true" if isinstance(default, bool) else "VALUE"
    is_list = isinstance(default, tuple | list) or "," in value
    return f"[{value}]" if is_list and not value.startswith(("[", "{")) else value


def _default(key: str) -> Any:
    """The default of a key in the first algorithm that has one; None if none has."""
    from shoal.config.algorithms import ALGORITHMS

    default: Any = None
    for algorithm in ALGORITHMS.values():
        default = algorithm()
        for name in key.split(".")[1:]:
            default = getattr(default, name, None)
        if default is not None:
            break
    return default


def _algorithm(value: str | None) -> str:
    """The algorithm that a class of another library is named after."""
    from shoal.config.algorithms import ALGORITHMS

    text = value or "ALGORITHM"
    return next((name for name in ALGORITHMS if name.lower() in text.lower()), text)


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w.,:/=@%+-]+", value) else shlex.quote(value)
