"""Advantages, multi-step returns and schedules: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Schedule = Sequence[Sequence[float]] | Mapping[str, Any] | None


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


def vtrace(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    ratios: Array,
    gamma: float,
    lambda_: float,
    clip_rho: float,
) -> tuple[Array, Array]:
    """Targets of the values and advantages, each `[T, N]`, where another policy has sampled (Espeholt et al. 2018).

    `ratios` are the probabilities of the actions by the policy that is judged over those by the one that sampled. With

        delta_t = r_t + gamma V(s_t+1) - V(s_t),   rho_t = min(ratio_t, clip_rho),   c_t = lambda min(ratio_t, 1)
        v_t - V(s_t) = rho_t delta_t + gamma c_t (v_t+1 - V(s_t+1))                  (equation 1, remark 2)
        A_t = delta_t + gamma lambda (v_t+1 - V(s_t+1))

    the advantages are those of `gae` where all ratios are 1. The weight rho_t of A_t is left to the objective.
    """
    deltas = rewards + np.float32(gamma) * next_values * ~terminated - values
    decay = np.float32(gamma * lambda_) * ~(terminated | truncated)
    rho = np.minimum(ratios, np.float32(clip_rho))
    trace = decay * np.minimum(ratios, np.float32(1))
    advantages = np.empty_like(deltas)
    corrections = np.empty_like(deltas)
    running = np.zeros(rewards.shape[1], np.float32)
    for t in range(len(rewards) - 1, -1, -1):
        advantages[t] = deltas[t] + decay[t] * running
        running = rho[t] * deltas[t] + trace[t] * running
        corrections[t] = running
    return values + corrections, advantages


def successor_values(values: Array, final_values: Array, final_at: NDArray[np.int64]) -> Array:
    """The value `[T, N]` of what follows each step: the next row, or the final observation where one is listed."""
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[-1] = 0.0
    following[final_at[:, 0], final_at[:, 1]] = final_values
    return following


def scheduled(constant: float, schedule: Schedule, timestep: int) -> float:
    """The constant, or the value that a schedule has now; its forms are told in `config/schedules.py`."""
    if schedule is None:
        return constant
    if not isinstance(schedule, Mapping):
        points: NDArray[Any] = np.asarray(schedule, np.float64)
        return float(np.interp(timestep, points[:, 0], points[:, 1]))
    if schedule["type"] == "step":
        return float([level for step, level in schedule["endpoints"] if step <= timestep][-1])
    initial, final = schedule["initial"], schedule["final"]
    done = min(timestep / schedule["timesteps"], 1.0)
    if schedule["type"] == "exponential":
        return float(initial * (final / initial) ** done)
    return float(final + (initial - final) * (1 + cos(pi * done)) / 2)


@dataclass(frozen=True)
class Multistep:
    """What n-step learning knows of each step of a fragment; each `[T, N]`."""

    returns: Array  # discounted rewards of the k steps from here
    discounts: Array  # gamma^k, or 0 where the last of them terminated
    successors: NDArray[np.int64]  # place of the observation after them: `t * N + n`, or `T * N + f` for `final_obs[f]`


def multistep(
    rewards: Array,
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    final_at: NDArray[np.int64],
    gamma: float,
    n_step: int,
) -> Multistep:
    """Sums of up to `n_step` rewards `[T, N]`, and where each sum ends.

    A sum never reaches over the end of an episode or of the fragment: there it is shorter, and the value of the true
    successor takes the place of what is missing.
    """
    steps, num_envs = rewards.shape
    times, envs = np.divmod(np.arange(steps * num_envs).reshape(steps, num_envs), num_envs)
    after = times * num_envs + envs
    after[:-1] += num_envs  # the last row terminated where no final observation is listed, and nothing follows it
    after[final_at[:, 0], final_at[:, 1]] = steps * num_envs + np.arange(len(final_at))
    if n_step == 1:
        return Multistep(rewards, np.float32(gamma) * ~terminated, after)
    is_last = terminated | truncated
    is_last[-1] = True
    returns, weights = rewards.copy(), np.full(rewards.shape, gamma, np.float32)
    for _ in range(n_step - 1):
        goes_on = ~is_last[times, envs]
        times = times + goes_on
        returns += weights * rewards[times, envs] * goes_on
        weights[goes_on] *= np.float32(gamma)
    return Multistep(returns, weights * ~terminated[times, envs], after[times, envs])
