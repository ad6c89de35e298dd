"""Evaluation: whole episodes without learning, in environments of its own, with the filter frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.settings import AlgorithmConfig, EvaluationConfig, RandomizeConfig
from shoal.data.batch import Episode
from shoal.data.metrics import custom_metrics, episode_statistics
from shoal.envs.vector import PythonVector
from shoal.errors import EnvError
from shoal.sampling.sampler import LONGEST_EPISODE
from shoal.sampling.worker import Worker

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer

CHUNK = 100
SEED_SHIFT = 1_000_003  # evaluation must not meet the episodes of training


def evaluate(
    trainer: Trainer,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    explore: bool | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
) -> dict[str, Any]:
    """Statistics over `episodes` whole episodes, or over the episodes that end within `steps` steps.

    What is not given comes from the config's evaluation_* keys. Every environment contributes the same number of
    episodes (its first ones), so short episodes are not counted more often than long ones.
    """
    config = trainer.config
    if episodes is None and steps is None:
        by_episode = config.evaluation_duration_unit == "episodes"
        episodes, steps = (config.evaluation_duration, None) if by_episode else (None, config.evaluation_duration)
    explore = config.evaluation_config.explore if explore is None else explore
    num_envs = 1 if episodes is None else min(num_envs or config.num_envs_per_worker, episodes)
    config = _evaluation_config(config, num_envs, seed)
    worker = Worker(
        config, trainer.env_maker, policy=trainer.get_policy(), any_size=True, index_offset=trainer.config.num_envs
    )
    own_task = config.evaluation_config.task
    worker.set_task(trainer.curriculum.task if own_task is None else own_task)
    try:
        if steps is not None:
            found, taken = _over_steps(worker, steps, explore)
        else:
            assert episodes is not None
            found, taken = _over_episodes(worker, episodes, explore)
        failures = worker.vector.get_state()["failures"] if isinstance(worker.vector, PythonVector) else 0
    finally:
        worker.stop()
    rewards = [e.reward for e in found]
    metrics = {
        **episode_statistics(found),
        "episode_reward_std": float(np.std(rewards)) if rewards else None,
        "episodes_this_iter": len(found),
        "timesteps_this_iter": taken,
        "env_failures": failures,
        "custom_metrics": custom_metrics(found),
        "episode_rewards": rewards,
        "episode_lengths": [e.length for e in found],
        "explore": explore,
        "seed": config.seed,
    }
    trainer.call_hook("on_evaluate_end", evaluation_metrics=metrics)
    return metrics


def _evaluation_config(config: AlgorithmConfig, num_envs: int, seed: int | None) -> AlgorithmConfig:
    own = config.evaluation_config
    if seed is None:
        seed = own.seed if own.seed is not None else config.seed + SEED_SHIFT
    return config.model_copy(
        update={
            "seed": seed,
            "horizon": config.horizon if own.horizon is None else own.horizon,
            "env_config": {**config.env_config, **own.env_config},
            "randomize": _evaluation_randomize(config.randomize, own),
            "num_workers": 0,
            "num_envs_per_worker": num_envs,
        }
    )


def _evaluation_randomize(asked: RandomizeConfig, own: EvaluationConfig) -> RandomizeConfig:
    """What is drawn in evaluation: nothing, or all but what has a fixed value there."""
    if not own.randomize:
        return RandomizeConfig()
    drawn = {name: sampler for name, sampler in asked.env_config.items() if name not in own.env_config}
    return asked.model_copy(update={"env_config": drawn})


def _over_episodes(worker: Worker, episodes: int, explore: bool) -> tuple[list[Episode], int]:
    num_envs = worker.vector.num_envs
    # The first `episodes % num_envs` environments give one more than the others.
    wanted = [episodes // num_envs + (row < episodes % num_envs) for row in range(num_envs)]
    found: list[Episode] = []
    longest = 0
    while any(wanted):
        sample = worker.sampler.sample(CHUNK, explore)
        longest = 0 if sample.episodes else longest + CHUNK
        if longest > LONGEST_EPISODE:
            raise EnvError(f"no episode ended within {longest} steps; set evaluation_config.horizon, or give --steps")
        for episode in sample.episodes:
            if wanted[episode.env_index]:
                wanted[episode.env_index] -= 1
                found.append(episode)
    return found, sum(e.length for e in found)


def _over_steps(worker: Worker, steps: int, explore: bool) -> tuple[list[Episode], int]:
    found: list[Episode] = []
    taken = 0
    while taken < steps:
        sample = worker.sampler.sample(min(CHUNK, steps - taken), explore)
        taken += sample.batch.num_steps
        found += sample.episodes
    return found, taken
