"""The names of results: what each means, and which of them are counters or statistics over episodes.

What a learner reports stands under `learner/`, and is described by its algorithm's configuration class (`results`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shoal.config.algorithms import ALGORITHMS
from shoal.config.vocabulary import FOREIGN_RESULTS, nearest

RESULT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "timesteps_total": "environment steps since the run began",
        "training_iteration": "training iterations since the run began",
        "episode_reward_mean": "mean return of the last 100 episodes",
        "episode_reward_max": "largest return of the last 100 episodes",
        "episode_reward_min": "smallest return of the last 100 episodes",
        "episode_len_mean": "mean length of the last 100 episodes",
        "episode_reward_per_call": "sum of the returns of the last 100 episodes over their steps and resets",
        "episodes_total": "finished episodes since the run began",
        "episodes_this_iter": "episodes that finished in this iteration",
        "simulator_calls_total": "environment steps, and resets after finished episodes, since the run began",
        "timesteps_this_iter": "environment steps of this iteration",
        "time_total_s": 'seconds of training; the limit may also be a length of time such as "90m"',
        "time_this_iter_s": "seconds of this iteration",
        "timesteps_per_s": "environment steps per second in this iteration",
        "task": "task of the environments in this iteration, where it is a number (curriculum, env_task_fn)",
        "stages_passed": "stages of the curriculum whose rule was met",
        "env_failures_total": "number of environment failures since the run began",
        "timers/env_s": "seconds of this iteration spent in environments",
        "timers/policy_s": "seconds of this iteration spent on choosing actions",
        "timers/learn_s": "seconds of this iteration spent on learning",
        "timers/communicate_s": "seconds of this iteration spent on messages between processes",
        "timers/idle_s": "seconds of this iteration in which a worker, on average, did not sample",
        "timers/wait_s": "seconds of this iteration in which the learner waited for the workers",
        "timers/save_s": "seconds for which checkpoints have held up training since the last result",
        "timers/save_beside_s": "seconds that writing checkpoints has taken since the last result, beside training",
        "timers/env_share": "share of this iteration spent in environments",
        "timers/policy_share": "share of this iteration spent on choosing actions",
        "timers/learn_share": "share of this iteration spent on learning",
        "timers/communicate_share": "share of this iteration spent on messages between processes",
        "timers/idle_share": "share of this iteration in which a worker, on average, did not sample",
        "timers/wait_share": "share of this iteration in which the learner waited for the workers",
        "num_healthy_workers": "number of workers that are running",
        "num_remote_worker_restarts": "number of workers lost and replaced since the program began",
        "parallel_efficiency": "share of the time of all workers and learners in which they sampled or learned",
        "staleness": "updates between the weights that sampled the batch and those that learn from it, at most",
    }
)

EVALUATION_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "evaluation/episode_reward_mean": "mean return in evaluation",
        "evaluation/episode_reward_max": "largest return in evaluation",
        "evaluation/episode_reward_min": "smallest return in evaluation",
        "evaluation/episode_reward_std": "standard deviation of the returns in evaluation",
        "evaluation/episode_reward_ci_low": "lower end of the 95 % interval of that mean (bootstrap)",
        "evaluation/episode_reward_ci_high": "upper end of the 95 % interval of that mean (bootstrap)",
        "evaluation/episode_len_mean": "mean length of episodes in evaluation",
        "evaluation/episodes_this_iter": "episodes of the evaluation",
        "evaluation/timesteps_this_iter": "environment steps of the evaluation",
        "evaluation/env_failures": "failures of environments in the evaluation",
    }
)

COUNTERS = ("timesteps_total", "training_iteration", "time_total_s", "episodes_total")
"""Results that only grow from 0 on, so every run reaches them if it trains for long enough; the best measure first."""

OVER_EPISODES = ("episode_", "policy_reward_", "custom_metrics/")
"""How names of statistics over episodes begin: no result has them before an episode has ended."""

CUSTOM_METRICS = ("custom_metrics/", "evaluation/custom_metrics/")
"""What the user's own environments report stands under these."""

POLICY_REWARDS = {
    "policy_reward_mean": "mean return of an agent of this policy in the last 100 episodes",
    "policy_reward_max": "largest return of an agent of this policy in the last 100 episodes",
    "policy_reward_min": "smallest return of an agent of this policy in the last 100 episodes",
}
"""What stands beside episode_reward_mean where an environment has several agents, by the name of each policy."""

OPEN_NAMES = (*CUSTOM_METRICS, *(f"{place}{each}/" for place in ("", "evaluation/") for each in POLICY_REWARDS))
"""What names of the user's choice follow: those of metrics, and those of policies."""


def result_names() -> dict[str, str]:
    """Every result with its meaning: those of all runs, what the learners report, and those of evaluations."""
    names = dict(RESULT_NAMES)
    for kind in ALGORITHMS.values():
        for name, meaning in kind.results.items():
            names.setdefault(f"learner/{name}", meaning)
    return {**names, **EVALUATION_NAMES}


def is_result_name(name: str) -> bool:
    """Whether a result can have this name; metrics of the user's own are not known before the run."""
    own = name.startswith(OPEN_NAMES) and not name.endswith("/")
    place, _, rest = name.partition("/")
    if place == "learner" and rest.count("/") == 1:  # of one of several policies
        name = f"learner/{rest.partition('/')[2]}"
    return own or name in RESULT_NAMES or name in result_names()  # most names need no algorithm to be imported


def result_hint(name: str) -> str:
    """What to type instead of a name that no result has, as the end of a sentence."""
    foreign = FOREIGN_RESULTS.get(name.strip().lower())
    close = foreign or nearest(name, result_names())
    if close is None:
        last = name.replace(".", "/").rpartition("/")[2]
        close = nearest(last, result_names(), 0.85)
    if close is not None:
        return f"; did you mean {close}?"
    return "; `shoal config show stop` lists their names"
