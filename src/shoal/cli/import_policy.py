"""`shoal import`: a policy that Stable-Baselines3 or RLlib has trained, as an ordinary run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import Command, set_option
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.bridges.foreign_policy import ForeignPolicy


@click.command("import", cls=Command)
@click.argument("source", metavar="MODEL.zip|CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--env", metavar="ENV", help="The environment that it was trained on; needed.")
@click.option(
    "--vecnormalize",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What VecNormalize.save wrote, if Stable-Baselines3 trained with it.",
)
@click.option("--policy-id", metavar="NAME", help="Which module of an RLlib checkpoint; default: the only one.")
@click.option("--name", metavar="NAME", help="The name of the experiment; default: that of the environment.")
@click.option("--results-dir", metavar="FOLDER", help="Folder for the new run; default: ~/shoal_results.")
@set_option("Set a key of the new run, e.g. env_config.size=4; repeatable.")
def import_command(
    source: Path,
    env: str | None,
    vecnormalize: Path | None,
    policy_id: str | None,
    name: str | None,
    results_dir: str | None,
    sets: tuple[str, ...],
) -> None:
    """Make a run of a policy that another library trained: it can be evaluated, exported and trained further.

    \b
    MODEL.zip   a model that Stable-Baselines3 saved: PPO, A2C, TRPO, DQN or SAC with MlpPolicy or CnnPolicy
    CHECKPOINT  a checkpoint folder of RLlib's new API stack: PPO, APPO, IMPALA, DQN or SAC with the default networks

    Neither library is needed. The pickles inside are not run: only arrays of numbers are read from them. The policy
    acts as the original does; optimiser and replay stay behind. What cannot be taken over is refused.
    """
    from shoal.bridges.foreign_policy import import_policy
    from shoal.config.overrides import parse_override

    policy, described = _read(source, vecnormalize, policy_id)
    if env is None:
        raise ConfigError(
            f"--env: {source} does not say on which environment its policy was trained; "
            "add --env CartPole-v1, --env my_env.py:MyEnv or the like"
        )
    overrides = [parse_override(text) for text in sets]
    folder, experiment = import_policy(policy, env, described, overrides, results_dir, name)
    click.echo(f"{policy.library}, {policy.algorithm} -> {experiment.run} {env}")
    click.echo(f"  {short_path(folder)}")
    for note in policy.notes:
        click.echo(f"  Note: {note}.")
    run = typed_path(folder)
    click.echo(f"Measure it: shoal evaluate {run}")
    click.echo(f"Train it further: shoal resume {run} --stop timesteps_total=100000")


def _read(source: Path, vecnormalize: Path | None, policy_id: str | None) -> tuple[ForeignPolicy, dict[str, Any]]:
    """The policy, and what is written down of where it came from."""
    described: dict[str, Any] = {"source": str(source.absolute())}
    if source.is_dir():
        from shoal.bridges.rllib_states import read_rllib

        if vecnormalize is not None:
            raise ConfigError("--vecnormalize: is for models of Stable-Baselines3; leave it out")
        return read_rllib(source, policy_id), described
    if not source.is_file():
        raise ConfigError(f"{source}: there is no such file or folder; check the path and the working folder")
    from shoal.bridges.sb3_models import read_sb3

    if policy_id is not None:
        raise ConfigError("--policy-id: is for checkpoints of RLlib; leave it out")
    policy = read_sb3(source, vecnormalize)
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    described["sha256"] = digest.hexdigest()
    return policy, described
