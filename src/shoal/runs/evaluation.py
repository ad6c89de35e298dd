"""Evaluation: whole episodes without learning, in environments of their own, with the filter frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import Any

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig, RandomizeConfig
from shoal.data.metrics import custom_metrics, episode_statistics, mean_interval
from shoal.data.streams import evaluation_seed
from shoal.envs.cases import Case
from shoal.envs.making import EnvMaker, spaces_of
from shoal.envs.randomizing import first_draw
from shoal.envs.recording import Film
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.parallel.evaluators import Evaluators
from shoal.sampling.evaluation_episodes import Found, Share, check_same_form

SHARES_PER_WORKER = 4  # of cases: who gets the short ones takes more of them


@dataclass(frozen=True)
class Agent:
    """Who is evaluated, on what, and by whom."""

    config: AlgorithmConfig
    maker: EnvMaker
    policy: Policy
    evaluators: Evaluators
    task: Any = None  # that training has now; None: the environments' own


@dataclass(frozen=True)
class Watch:
    """What is kept of an evaluation beside its numbers."""

    trace: bool = False
    film: Film | None = None


NOTHING = Watch()


def evaluate(
    agent: Agent,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    explore: bool | None = None,
    seed: int | None = None,
    watch: Watch = NOTHING,
) -> tuple[dict[str, Any], Found]:
    """Statistics over `episodes` whole episodes, or over the episodes that end within `steps` steps; and each of them.

    What is not given comes from the config's evaluation_* keys.
    """
    return begin(agent, episodes=episodes, steps=steps, explore=explore, seed=seed, watch=watch)()


def begin(
    agent: Agent,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    explore: bool | None = None,
    seed: int | None = None,
    watch: Watch = NOTHING,
) -> Callable[[], tuple[dict[str, Any], Found]]:
    """Set out on an evaluation with the policy as it is now; what is returned waits for its end."""
    config = agent.config
    for name, given in (("episodes", episodes), ("steps", steps)):
        if given is not None and given < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {given})")
    if episodes is None and steps is None:
        by_episode = config.evaluation_duration_unit == "episodes"
        episodes, steps = (config.evaluation_duration, None) if by_episode else (None, config.evaluation_duration)
    whole = _whole(agent, explore, seed)
    answer = agent.evaluators.begin(_shares(config, whole, episodes, steps, watch), agent.policy)

    def result() -> tuple[dict[str, Any], Found]:
        found = together(answer())
        return statistics(found, whole), found

    return result


def evaluate_cases(
    agent: Agent, cases: Sequence[Case], explore: bool | None = None, seed: int | None = None, watch: Watch = NOTHING
) -> tuple[dict[str, Any], Found]:
    """One episode of every case: statistics over those that did not fail, and each case's own by its place.

    A case says all that is different, so nothing else is drawn for its episode.
    """
    whole = _whole(agent, explore, seed)
    whole = replace(whole, config=unchecked(whole.config, randomize=RandomizeConfig()))
    workers = agent.config.evaluation_num_workers
    size = ceil(len(cases) / (SHARES_PER_WORKER * workers)) if workers and watch.film is None else len(cases)
    shares = [
        replace(whole, first_index=at, cases=tuple(cases[at : at + size]), trace=watch.trace, film=watch.film)
        for at in range(0, len(cases), size)
    ]
    found = together(agent.evaluators.begin(shares, agent.policy)())
    return statistics(found, whole), found


def evaluated(config: AlgorithmConfig, seed: int | None = None) -> AlgorithmConfig:
    """The configuration of evaluation's environments: that of training, but for what is said to be different."""
    own = config.evaluation_config
    if seed is None:
        seed = own.seed if own.seed is not None else evaluation_seed(config.seed)
    drawn = {name: sampler for name, sampler in config.randomize.env_config.items() if name not in own.env_config}
    return unchecked(
        config,
        seed=seed,
        horizon=config.horizon if own.horizon is None else own.horizon,
        env_config={**config.env_config, **own.env_config},
        randomize=unchecked(config.randomize, env_config=drawn) if own.randomize else RandomizeConfig(),
        env_task_fn=None,  # it stays in the driver
        num_workers=0,
        render_env=False,
    )


def check_environment(config: AlgorithmConfig, maker: EnvMaker, policy: Policy) -> None:
    """Refuse an environment of evaluation that the policy does not fit, before anything is trained."""
    if config.evaluation_interval is not None and config.evaluation_config.env_config:
        there = evaluated(config)
        drawn = first_draw(there, maker.user_code)
        check_same_form(policy, *spaces_of(maker, {**there.env_config, **drawn.env_config}))


def together(parts: Sequence[Found]) -> Found:
    """The parts of an evaluation as one."""
    return Found(
        [episode for part in parts for episode in part.episodes],
        sum(part.num_steps for part in parts),
        sum(part.failures for part in parts),
        {index: why for part in parts for index, why in part.failed.items()},
        [trace for part in parts for trace in part.traces],
        " ".join(part.trouble for part in parts if part.trouble),
    )


def statistics(found: Found, whole: Share) -> dict[str, Any]:
    """What a result says of an evaluation."""
    episodes = found.episodes
    rewards = [episode.reward for episode in episodes]
    low, high = mean_interval(rewards)
    return {
        **episode_statistics(episodes),
        "episode_reward_std": float(np.std(rewards)) if rewards else None,
        "episode_reward_ci_low": low,
        "episode_reward_ci_high": high,
        "episodes_this_iter": len(episodes),
        "timesteps_this_iter": found.num_steps,
        "env_failures": found.failures,
        "custom_metrics": custom_metrics(episodes),
        "episode_rewards": rewards,
        "episode_lengths": [episode.length for episode in episodes],
        "explore": whole.explore,
        "seed": whole.config.seed,
    }


def _whole(agent: Agent, explore: bool | None, seed: int | None) -> Share:
    """What all shares of an evaluation have in common."""
    own = agent.config.evaluation_config
    return Share(
        evaluated(agent.config, seed),
        agent.maker,
        own.explore if explore is None else explore,
        index_offset=agent.config.num_envs,
        task=agent.task if own.task is None else own.task,
    )


def _shares(
    config: AlgorithmConfig, whole: Share, episodes: int | None, steps: int | None, watch: Watch
) -> list[Share]:
    """The evaluation spread over its workers: the same episodes for any number that has as many environments in all."""
    workers = max(config.evaluation_num_workers, 1)
    if steps is not None:
        parts = [(1, 0, count) for count in _spread(steps, min(workers, steps))]
    else:
        assert episodes is not None
        in_a_row = watch.film is not None and watch.film.episodes > 1
        num_envs = 1 if in_a_row else min(workers * config.envs_per_worker, episodes)
        widths, wanted = _spread(num_envs, min(workers, num_envs)), _spread(episodes, num_envs)
        parts = [(w, sum(wanted[end - w : end]), 0) for w, end in zip(widths, accumulate(widths), strict=True)]
    shares, at = [], 0
    for width, own_episodes, own_steps in parts:
        share = replace(whole, first_index=at, episodes=own_episodes, steps=own_steps, trace=watch.trace)
        own_config = unchecked(whole.config, num_envs_per_worker=width)
        shares.append(replace(share, config=own_config, film=None if at else watch.film))
        at += width
    return shares


def _spread(total: int, places: int) -> list[int]:
    """`total` as evenly as can be, larger numbers first."""
    return [total // places + (place < total % places) for place in range(places)]
