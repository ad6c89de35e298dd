"""Statistics over episodes, as results report them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.data.batch import Episode
from shoal.data.state import State

WINDOW = 100
RESAMPLES, RESAMPLED_AT_ONCE = 2000, 1 << 20


class EpisodeWindow:
    """The last 100 episodes; if more finish in one iteration, all of those."""

    def __init__(self) -> None:
        self.total = 0
        self._recent: deque[Episode] = deque(maxlen=WINDOW)

    def add(self, episodes: list[Episode], counted: list[Episode] | None = None) -> dict[str, Any]:
        """Take in the episodes of one iteration and give the statistics; None where no episode has finished yet.

        `counted` are those of them that statistics are about, where these are not all.
        """
        found = self.with_episodes(episodes, counted)
        self.total += len(episodes)
        self._recent.extend(episodes if counted is None else counted)
        return found

    def with_episodes(self, episodes: list[Episode], counted: list[Episode] | None = None) -> dict[str, Any]:
        """The statistics that `add` would give, without taking anything in."""
        counted = episodes if counted is None else counted
        shown = counted if len(counted) > WINDOW else [*self._recent, *counted][-WINDOW:]
        return {
            "episodes_total": self.total + len(episodes),
            "episodes_this_iter": len(episodes),
            **episode_statistics(shown),
            "episode_reward_per_call": reward_per_call(shown),
            "custom_metrics": custom_metrics(shown),
        }

    def clear(self) -> None:
        """Forget the episodes: the statistics of the next ones are theirs alone."""
        self._recent.clear()

    def get_state(self) -> State:
        """The window's rewards, lengths and metrics."""
        recent = [[e.env_index, e.reward, e.length, e.metrics] for e in self._recent]
        values: dict[str, Any] = {"total": self.total, "recent": recent}
        if any(e.policy_rewards for e in self._recent):
            values["policy_rewards"] = [e.policy_rewards for e in self._recent]
        return State(values)

    def set_state(self, state: State) -> None:
        """Take over a saved window."""
        self.total = int(state.values["total"])
        recent = [Episode(*saved) for saved in state.values["recent"]]
        for place, rewards in enumerate(state.values.get("policy_rewards", [])):
            recent[place] = replace(recent[place], policy_rewards=rewards)
        self._recent = deque(recent, maxlen=WINDOW)


def episode_statistics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Mean, smallest and largest return, and mean length; with several agents, also the returns of each policy's."""
    rewards = [e.reward for e in episodes]
    lengths = [e.length for e in episodes]
    return {
        "episode_reward_mean": _mean(rewards),
        "episode_reward_min": min(rewards, default=None),
        "episode_reward_max": max(rewards, default=None),
        "episode_len_mean": _mean(lengths),
        **policy_statistics(episodes),
    }


def policy_statistics(episodes: Iterable[Episode]) -> dict[str, dict[str, float]]:
    """Mean, smallest and largest return of an agent, for each policy by its name; empty without several agents."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, rewards in episode.policy_rewards.items():
            found.setdefault(name, []).extend(rewards)
    if not found:
        return {}
    return {
        "policy_reward_mean": {name: float(np.mean(rewards)) for name, rewards in sorted(found.items())},
        "policy_reward_min": {name: min(rewards) for name, rewards in sorted(found.items())},
        "policy_reward_max": {name: max(rewards) for name, rewards in sorted(found.items())},
    }


def reward_per_call(episodes: Iterable[Episode]) -> float | None:
    """The sum of all returns over the simulator's calls for it: every step, and a reset for each episode."""
    returns = calls = 0.0
    for episode in episodes:
        returns += episode.reward
        calls += episode.length + 1
    return returns / calls if calls else None


def _mean(numbers: Sequence[float]) -> float | None:
    if not numbers:
        return None
    return float(np.mean(numbers))


def custom_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """`NAME_mean`, `NAME_min` and `NAME_max` of each number that the last `info` of an episode, or a hook, holds."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            found.setdefault(name, []).append(value)
    metrics: dict[str, float] = {}
    for name, values in sorted(found.items()):
        metrics[f"{name}_mean"] = float(np.mean(values))
        metrics[f"{name}_min"] = float(min(values))
        metrics[f"{name}_max"] = float(max(values))
    return metrics


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Where the true mean lies, by the bootstrap: percentiles of the means of resamples; None of fewer than two values.

    The same values always give the same interval.
    """
    count = len(values)
    if count < 2:
        return None, None
    numbers, rng = np.asarray(values, np.float64), np.random.default_rng(0)
    rows = max(1, min(RESAMPLES, RESAMPLED_AT_ONCE // count))
    means = [numbers[rng.integers(0, count, (rows, count))].mean(axis=1) for _ in range(-(-RESAMPLES // rows))]
    outside = 50 * (1 - confidence)
    low, high = np.percentile(np.concatenate(means), [outside, 100 - outside])
    return float(low), float(high)
