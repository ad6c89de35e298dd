"""The names of results, and which of them may end a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

from shoal.config.durations import seconds
from shoal.config.fields import number
from shoal.config.problems import got, printable
from shoal.config.vocabulary import FOREIGN_RESULTS, nearest


class ResultName(NamedTuple):
    """One number of a result: what it says, and which way it goes in a run that learns."""

    meaning: str
    direction: str  # "up", "down" or "either"


RESULT_NAMES: Mapping[str, ResultName] = MappingProxyType(
    {
        "timesteps_total": ResultName("environment steps since the run began", "up"),
        "training_iteration": ResultName("training iterations since the run began", "up"),
        "episode_reward_mean": ResultName("mean return of the last 100 episodes", "up"),
        "episode_reward_max": ResultName("largest return of the last 100 episodes", "up"),
        "episode_reward_min": ResultName("smallest return of the last 100 episodes", "up"),
        "episode_len_mean": ResultName("mean length of the last 100 episodes", "either"),
        "episodes_total": ResultName("finished episodes since the run began", "up"),
        "episodes_this_iter": ResultName("episodes that finished in this iteration", "either"),
        "timesteps_this_iter": ResultName("environment steps of this iteration", "either"),
        "time_total_s": ResultName('seconds of training; here a length of time such as "90m" may stand too', "up"),
        "time_this_iter_s": ResultName("seconds of this iteration", "either"),
        "timesteps_per_s": ResultName("environment steps per second in this iteration", "either"),
        "env_failures_total": ResultName("failures of environments since the run began", "up"),
        "timers/env_s": ResultName("seconds of this iteration spent in environments", "either"),
        "timers/policy_s": ResultName("seconds of this iteration spent on choosing actions", "either"),
        "timers/learn_s": ResultName("seconds of this iteration spent on learning", "either"),
        "timers/env_share": ResultName("share of this iteration spent in environments", "either"),
        "timers/policy_share": ResultName("share of this iteration spent on choosing actions", "either"),
        "timers/learn_share": ResultName("share of this iteration spent on learning", "either"),
        "learner/total_loss": ResultName("loss that is minimised, last pass", "either"),
        "learner/policy_loss": ResultName("policy's part of the loss", "either"),
        "learner/vf_loss": ResultName("value function's part of the loss", "down"),
        "learner/vf_explained_var": ResultName("share of the returns' variance that the values explain", "up"),
        "learner/kl": ResultName("KL divergence of the new policy from the one that sampled", "either"),
        "learner/entropy": ResultName("entropy of the policy", "down"),
        "learner/clip_fraction": ResultName("share of steps whose probability ratio was clipped", "either"),
        "learner/grad_gnorm": ResultName("norm of the gradients before clipping", "either"),
        "learner/refused_minibatches": ResultName(
            "minibatches left out because their gradient was not finite", "either"
        ),
        "learner/cur_lr": ResultName("learning rate now", "either"),
        "learner/cur_kl_coeff": ResultName("coefficient of the KL penalty now", "either"),
        "learner/entropy_coeff": ResultName("weight of the entropy bonus now", "either"),
    }
)

EVALUATION_NAMES: Mapping[str, ResultName] = MappingProxyType(
    {
        "evaluation/episode_reward_mean": ResultName("mean return in evaluation", "up"),
        "evaluation/episode_reward_max": ResultName("largest return in evaluation", "up"),
        "evaluation/episode_reward_min": ResultName("smallest return in evaluation", "up"),
        "evaluation/episode_reward_std": ResultName("standard deviation of the returns in evaluation", "either"),
        "evaluation/episode_len_mean": ResultName("mean length of episodes in evaluation", "either"),
    }
)
CUSTOM_METRICS = ("custom_metrics/", "evaluation/custom_metrics/")
"""What the user's own environments report stands under these."""


def stop_criteria(value: Any) -> dict[str, float]:
    """Checked stop criteria; a run ends when any result reaches its limit: `value >= limit`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping such as {timesteps_total: 100000}")
    limits: dict[str, float] = {}
    problems: list[str] = []
    for key, limit in value.items():
        name = printable(str(key))
        if not is_result_name(name):
            problems.append(f"stop.{name}: no result has this name{_hint(name)}")
            continue
        try:
            limits[name] = _limit(name, limit)
        except ValueError as error:
            problems.append(f"stop.{name}: {error} {got(limit)}")
    if problems:
        raise PydanticCustomError("stop", "stop criteria", {"problems": problems})
    return limits


def is_result_name(name: str) -> bool:
    """Whether a result can have this name; metrics of the user's own are not known before the run."""
    own = name.startswith(CUSTOM_METRICS) and not name.endswith("/")
    return own or name in RESULT_NAMES or name in EVALUATION_NAMES


def _limit(name: str, limit: Any) -> float:
    if name == "time_total_s" and isinstance(limit, str):
        return seconds(limit)
    return number(limit)


def _hint(name: str) -> str:
    foreign = FOREIGN_RESULTS.get(name.strip().lower())
    close = foreign or nearest(name, (*RESULT_NAMES, *EVALUATION_NAMES))
    if close is None:
        last = name.replace(".", "/").rpartition("/")[2]
        close = nearest(last, RESULT_NAMES, 0.85)
    if close is not None:
        return f"; did you mean {close}?"
    return "; type `shoal config show stop` for their names"
