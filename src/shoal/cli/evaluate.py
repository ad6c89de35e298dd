"""`shoal evaluate`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from shoal.errors import ConfigError

SHOWN = 10


@click.command()
@click.argument("path", metavar="RUN_OR_CHECKPOINT")
@click.option("--episodes", type=click.IntRange(1), help="Whole episodes to run; 10 if neither is given.")
@click.option("--steps", type=click.IntRange(1), help="Environment steps to take instead.")
@click.option("--explore", is_flag=True, help="Sample actions rather than take the most likely.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the evaluation environments.")
@click.option("--run", "run_name", metavar="ALGORITHM", help="Checked against the checkpoint.")
@click.option("--env", help="Checked against the checkpoint.")
def evaluate(
    path: str,
    episodes: int | None,
    steps: int | None,
    explore: bool,
    seed: int | None,
    run_name: str | None,
    env: str | None,
) -> None:
    """Run a trained agent without learning; algorithm, environment and settings are those of the checkpoint."""
    if episodes is not None and steps is not None:
        raise click.UsageError("Give --episodes or --steps, not both.")
    from shoal.runs.checkpoints import checkpoint_folder, read_checkpoint
    from shoal.runs.folders import find_run
    from shoal.runs.resuming import experiment_of

    given = Path(os.path.abspath(os.path.expanduser(path)))
    checkpoint = read_checkpoint(given if checkpoint_folder(given) is not None else find_run(given))
    experiment, search_path = experiment_of(checkpoint.experiment_tree)
    _check_same("--run", run_name, experiment.run)
    _check_same("--env", env, str(experiment.config.env))

    from shoal.runs.evaluation import evaluate as run_episodes
    from shoal.runs.run import make_trainer
    from shoal.runs.trainer import part_of

    # The training environments and their unfinished episodes are of no use here, nor is a GPU.
    less: dict[str, Any] = {"num_workers": 0, "num_envs_per_worker": 1}
    if experiment.config.num_gpus:
        less |= {"num_gpus": 0, "framework": "torch"}
    replay = getattr(experiment.config, "replay_buffer_config", None)
    if replay is not None:
        # Nothing is remembered here, and the memory of a login node may be small.
        less["replay_buffer_config"] = replay.model_copy(update={"capacity": 1})
    trainer = make_trainer(
        experiment.model_copy(update={"config": experiment.config.model_copy(update=less)}), search_path
    )
    try:
        trainer.get_policy().set_state(part_of(checkpoint.state, "policy"))
        trainer.curriculum.set_state(part_of(checkpoint.state, "curriculum"))
        found = run_episodes(
            trainer,
            episodes=episodes,
            steps=steps,
            explore=explore or None,
            seed=seed,
            num_envs=experiment.config.num_envs_per_worker,
        )
    finally:
        trainer.stop()
    click.echo(f"{experiment.run} {experiment.config.env}  {checkpoint.path}")
    click.echo(table(found))
    report = {"checkpoint": str(checkpoint.path), "run": experiment.run, "env": str(experiment.config.env), **found}
    click.echo(f"written to {_write(checkpoint.path.parent, report)}")


def table(found: dict[str, Any]) -> str:
    """The evaluation as a few aligned lines."""
    rewards = found.get("episode_rewards", [])
    rows = [
        ("episodes", f"{len(rewards)}, {found.get('timesteps_this_iter', 0)} steps"),
        ("return mean", _number(found.get("episode_reward_mean"))),
        ("return std", _number(found.get("episode_reward_std"))),
        ("return min", _number(found.get("episode_reward_min"))),
        ("return max", _number(found.get("episode_reward_max"))),
        ("length mean", _number(found.get("episode_len_mean"))),
    ]
    if rewards:
        more = f" and {len(rewards) - SHOWN} more" if len(rewards) > SHOWN else ""
        rows.append(("returns", "  ".join(_number(reward) for reward in rewards[:SHOWN]) + more))
    if found.get("env_failures"):
        rows.append(("failures", str(found["env_failures"])))
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".removesuffix(".00")


def _check_same(flag: str, asked: str | None, stored: str) -> None:
    # `module.Class` and `module:Class` are two spellings of one thing.
    if asked is not None and asked.replace(":", ".") != stored.replace(":", "."):
        raise ConfigError(f"{flag}: the checkpoint is of {stored} (got {asked}); leave {flag} out or give its own")


def _write(folder: Path, report: dict[str, Any]) -> Path:
    """Keep the report in the run's folder, or here if that cannot be written."""
    name = f"evaluation_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
    content = json.dumps(report, indent=1, default=str) + "\n"
    for place in (folder, Path.cwd()):
        try:
            (place / name).write_text(content)
            return place / name
        except OSError as error:
            refused = error
    raise ConfigError(
        f"{folder / name} cannot be written: {refused.strerror}; go to a folder that can be, and try again"
    )
