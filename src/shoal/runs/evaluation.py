"""Evaluation: whole episodes without learning, in environments of their own, with the filter frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import Any

import numpy as np

from shoal.config.settings import AlgorithmConfig
from shoal.data.metrics import custom_metrics, episode_statistics, mean_interval
from shoal.envs.making import EnvMaker, spaces_of
from shoal.envs.watching import Case, Film, Trace
from shoal.models.policy import Policy
from shoal.parallel.evaluators import Evaluators
from shoal.sampling.episodes import Found, Share, check_same_form

SEED_SHIFT = 1_000_003  # evaluation must not meet the episodes of training
SHARES_PER_WORKER = 4  # of cases: who gets the short ones takes more of them


@dataclass(frozen=True)
class Agent:
    """Who is evaluated, on what, and by whom."""

    config: AlgorithmConfig
    maker: EnvMaker
    policy: Policy
    evaluators: Evaluators


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
) -> tuple[dict[str, Any], list[Trace]]:
    """Statistics over `episodes` whole episodes, or over the episodes that end within `steps` steps; and their traces.

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
) -> Callable[[], tuple[dict[str, Any], list[Trace]]]:
    """Set out on an evaluation with the policy as it is now; what is returned waits for its end."""
    config = agent.config
    if episodes is None and steps is None:
        by_episode = config.evaluation_duration_unit == "episodes"
        episodes, steps = (config.evaluation_duration, None) if by_episode else (None, config.evaluation_duration)
    whole = _whole(agent, explore, seed)
    answer = agent.evaluators.begin(_shares(config, whole, episodes, steps, watch), agent.policy)

    def result() -> tuple[dict[str, Any], list[Trace]]:
        found = answer()
        return statistics(found, whole), [trace for part in found for trace in part.traces]

    return result


def evaluate_cases(
    agent: Agent, cases: Sequence[Case], explore: bool | None = None, seed: int | None = None, watch: Watch = NOTHING
) -> tuple[dict[str, Any], Found]:
    """One episode of every case: statistics over those that did not fail, and each case's own by its place."""
    whole = _whole(agent, explore, seed)
    workers = agent.config.evaluation_num_workers
    size = ceil(len(cases) / (SHARES_PER_WORKER * workers)) if workers and watch.film is None else len(cases)
    shares = [
        replace(whole, first_index=at, cases=tuple(cases[at : at + size]), trace=watch.trace, film=watch.film)
        for at in range(0, len(cases), size)
    ]
    found = agent.evaluators.begin(shares, agent.policy)()
    together = Found(
        [episode for part in found for episode in part.episodes],
        sum(part.num_steps for part in found),
        sum(part.failures for part in found),
        {index: why for part in found for index, why in part.failed.items()},
        [trace for part in found for trace in part.traces],
    )
    return statistics([together], whole), together


def check_environment(config: AlgorithmConfig, maker: EnvMaker, policy: Policy) -> None:
    """Refuse an environment of evaluation that the policy does not fit, before anything is trained."""
    own = config.evaluation_config.env_config
    if config.evaluation_interval is not None and own:
        check_same_form(policy, *spaces_of(maker, {**config.env_config, **own}))


def statistics(found: Sequence[Found], whole: Share) -> dict[str, Any]:
    """What a result says of an evaluation."""
    episodes = [episode for part in found for episode in part.episodes]
    rewards = [episode.reward for episode in episodes]
    low, high = mean_interval(rewards)
    return {
        **episode_statistics(episodes),
        "episode_reward_std": float(np.std(rewards)) if rewards else None,
        "episode_reward_ci_low": low,
        "episode_reward_ci_high": high,
        "episodes_this_iter": len(episodes),
        "timesteps_this_iter": sum(part.num_steps for part in found),
        "env_failures": sum(part.failures for part in found),
        "custom_metrics": custom_metrics(episodes),
        "episode_rewards": rewards,
        "episode_lengths": [episode.length for episode in episodes],
        "explore": whole.explore,
        "seed": whole.config.seed,
    }


def _whole(agent: Agent, explore: bool | None, seed: int | None) -> Share:
    """What all shares of an evaluation have in common."""
    config, own = agent.config, agent.config.evaluation_config
    if seed is None:
        seed = own.seed if own.seed is not None else config.seed + SEED_SHIFT
    different = {
        "seed": seed,
        "horizon": config.horizon if own.horizon is None else own.horizon,
        "env_config": {**config.env_config, **own.env_config},
        "num_workers": 0,
        "render_env": False,
    }
    explore = own.explore if explore is None else explore
    return Share(config.model_copy(update=different), agent.maker, explore, index_offset=config.num_envs)


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
        num_envs = 1 if in_a_row else min(workers * config.num_envs_per_worker, episodes)
        widths, wanted = _spread(num_envs, min(workers, num_envs)), _spread(episodes, num_envs)
        parts = [(w, sum(wanted[end - w : end]), 0) for w, end in zip(widths, accumulate(widths), strict=True)]
    shares, at = [], 0
    for width, own_episodes, own_steps in parts:
        share = replace(whole, first_index=at, episodes=own_episodes, steps=own_steps, trace=watch.trace)
        own_config = whole.config.model_copy(update={"num_envs_per_worker": width})
        shares.append(replace(share, config=own_config, film=None if at else watch.film))
        at += width
    return shares


def _spread(total: int, places: int) -> list[int]:
    """`total` as evenly as can be, larger numbers first."""
    return [total // places + (place < total % places) for place in range(places)]
