"""`shoal envs`: what can be trained here."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from shoal.cli.completion import environments
from shoal.cli.options import Command
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.envs.spaces import Space

SHOWN_ID = 26
SHOWN_SPACES = (22, 18)  # letters of observations and actions, so that a line has 80 at most


class EnvRow(NamedTuple):
    """One environment: its spaces, or why it cannot be trained; `needs` is what its network needs beside NumPy."""

    id: str
    observation_space: str = ""
    action_space: str = ""
    needs: str = ""
    problem: str = ""


@click.command(cls=Command)
@click.argument("pattern", required=False, shell_complete=environments)
@click.option("--all", "every", is_flag=True, help="List older versions too.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
def envs(pattern: str | None, every: bool, as_json: bool) -> None:
    """List the environments that can be trained here: their spaces, and what is missing for them.

    They are Gymnasium's ids and those of installed packages. PATTERN is a part of an id (cart), or has wildcards
    (ALE/Pong*); with a file, my_env.py, they are the classes in it; with envpool: in front, those of EnvPool.
    """
    chosen, hidden, failed = _chosen(pattern, every)
    rows = _rows(chosen)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    width = min(max(map(len, chosen)), SHOWN_ID)
    click.echo(_line(width, "id", "observations", "actions", "needs"))
    for row in rows:
        if row.problem:
            click.echo(f"{row.id:{width}}  {row.problem}")
        else:
            click.echo(_line(width, *row[:4]))
    older = f"; --all also shows {hidden} older version{'s' * (hidden != 1)}" if hidden else ""
    click.echo(f"{len(chosen)} environment{'s' * (len(chosen) != 1)}{older}")
    for package, why in failed.items():
        click.echo(f"The package {package} cannot be imported, so its environments are missing: {why}")


def _chosen(pattern: str | None, every: bool) -> tuple[list[str], int, dict[str, str]]:
    """The environments to list, how many older ones are hidden, and the packages that fail."""
    import gymnasium

    from shoal.envs.catalogue import current_ids, env_classes, import_packages, known_ids
    from shoal.envs.envpool_ids import PREFIX
    from shoal.envs.importing import UserCode
    from shoal.envs.pettingzoo_ids import PREFIX as PETTINGZOO

    if pattern is not None and pattern.endswith(".py"):
        names = env_classes(UserCode.at(".").load_file(pattern))
        if not names:
            raise ConfigError(f"{pattern}: defines no environment; write a class with reset and step")
        return [f"{pattern}:{name}" for name in names], 0, {}
    if pattern is not None and pattern.startswith(PREFIX):
        return _of_envpool(pattern), 0, {}
    if pattern is not None and pattern.startswith(PETTINGZOO):
        return _of_pettingzoo(pattern), 0, {}
    failed = import_packages()
    ids = known_ids()
    found = [name for name in ids if pattern is None or _matches(name, pattern)]
    if not found:
        from shoal.envs.gym_ids import nearest_ids

        near = nearest_ids(str(pattern))
        hint = f"did you mean {', '.join(near)}?" if near else "`shoal envs` lists all of them"
        raise ConfigError(f"no environment here matches {pattern!r}; {hint}")
    current = {*current_ids(gymnasium.registry.values()), *(name for name in ids if name not in gymnasium.registry)}
    shown = found if every else [name for name in found if name in current]
    # An old version that was asked for by its whole name is what is meant.
    shown = shown or found
    return shown, len(found) - len(shown), failed


def _of_envpool(pattern: str) -> list[str]:
    from shoal.envs.envpool_ids import PREFIX, envpool_ids, envpool_maker

    part = pattern.removeprefix(PREFIX)
    found = [f"{PREFIX}{name}" for name in envpool_ids() if _matches(name, part)]
    if not found:
        envpool_maker(pattern)  # says which are near
    return found


def _of_pettingzoo(pattern: str) -> list[str]:
    from shoal.envs.pettingzoo_ids import PREFIX, pettingzoo_ids, pettingzoo_maker

    part = pattern.removeprefix(PREFIX)
    found = [f"{PREFIX}{name}" for name in pettingzoo_ids() if _matches(name, part)]
    if not found:
        pettingzoo_maker(pattern)  # says which are near
    return found


def _matches(name: str, pattern: str) -> bool:
    wanted = pattern.lower()
    return fnmatch.fnmatch(name.lower(), wanted if any(sign in wanted for sign in "*?[") else f"*{wanted}*")


def _rows(ids: list[str]) -> Iterator[EnvRow]:
    from shoal.envs.catalogue import spaces_of_ids

    for name, answer in spaces_of_ids(ids):
        yield EnvRow(name, problem=answer) if isinstance(answer, str) else _row(name, *answer)


def _row(name: str, observations: Space, actions: Space) -> EnvRow:
    """What a person wants to know of an environment with these spaces."""
    from importlib.util import find_spec

    from shoal.config.ppo import PPOConfig
    from shoal.envs.catalogue import in_short, short_reason
    from shoal.envs.observations import ObsSpec
    from shoal.envs.spaces import ActionSpec
    from shoal.models.build import needs_torch

    try:
        ObsSpec(observations, True, ActionSpec(actions))
    except ConfigError as error:
        return EnvRow(name, in_short(observations), in_short(actions), problem=short_reason(str(error)))
    needs = ""
    if needs_torch(observations, PPOConfig()) is not None:
        needs = "torch" if find_spec("torch") else "torch: pip install 'shoal-rl[torch]'"
    return EnvRow(name, in_short(observations), in_short(actions), needs)


def _line(width: int, name: str, observations: str, actions: str, needs: str) -> str:
    cells = [_cut(text, most) for text, most in zip((observations, actions), SHOWN_SPACES, strict=True)]
    return "  ".join([name.ljust(width), *cells, needs]).rstrip()


def _cut(text: str, most: int) -> str:
    return text.ljust(most) if len(text) <= most else text[: most - 3] + "..."
