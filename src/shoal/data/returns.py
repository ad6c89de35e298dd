"""Advantages and schedules: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> Array:
    """Generalised advantage estimates `[T, N]` (Schulman et al. 2016, eq. 16).

    `next_values[t]` is the value of the true successor of step t, so an end by truncation bootstraps and an end by
    termination does not, and no estimate reaches over either.
    """
    deltas = rewards + np.float32(gamma) * next_values * ~terminated - values
    decay = np.float32(gamma * lambda_) * ~(terminated | truncated)
    advantages = np.empty_like(deltas)
    running = np.zeros(rewards.shape[1], np.float32)
    for t in range(len(rewards) - 1, -1, -1):
        running = deltas[t] + decay[t] * running
        advantages[t] = running
    return advantages


def successor_values(values: Array, final_values: Array, final_at: NDArray[np.int64]) -> Array:
    """The value `[T, N]` of what follows each step: the next row, or the final observation where one is listed."""
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[-1] = 0.0
    following[final_at[:, 0], final_at[:, 1]] = final_values
    return following


def scheduled(constant: float, schedule: Sequence[Sequence[float]] | None, timestep: int) -> float:
    """The constant, or the value that a piecewise linear schedule `[[timestep, value], ...]` has now."""
    if schedule is None:
        return constant
    points: NDArray[Any] = np.asarray(schedule, np.float64)
    return float(np.interp(timestep, points[:, 0], points[:, 1]))
