"""Memory that a worker and the processes of its environments share: one row of each array per environment.

It has no name (a memfd), so nothing of it is left when the last process that maps it is gone, however that ended. A row
has two writers that never write at the same time: the worker until it has sent a command, then the environment's
process until it has answered.

What is written last tells that the rest is there: `answered` after the numbers of a step, `phase` after `began`. A
processor of another kind than x86 may show stores, and do loads, in another order: `memory_barrier` is between them.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
from dataclasses import dataclass
from enum import IntEnum
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec

CACHE_LINE = 64  # bytes
LONGEST_STRETCH = 256  # steps
MOST_STRETCH_BYTES = 1 << 20  # of an environment


_KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")
_barrier = Lock()


def memory_barrier() -> None:
    """Let others see what was written before this no later than what is written after it; and for reading, the same.

    A lock that is let go and taken again is a full barrier on every processor; x86 needs none for this.
    """
    if not _KEEPS_ORDER:
        for _ in range(2):
            with _barrier:
                pass


class Phase(IntEnum):
    """What an environment's process is at; each has its own deadline."""

    IDLE = 0  # nothing, or it has not seen its command yet
    STEP = 1
    RESET = 2
    MAKE = 3
    REST = 4  # it waits before it makes the environment again
    OTHER = 5  # whatever has no deadline: replaying, a function of the user's


@dataclass(frozen=True)
class ActorShape:
    """What a policy reads and gives for one action, beside the observation."""

    num_outputs: int
    num_noise: int
    num_weights: int  # all numbers that it acts by


class SharedRows:
    """N rows of what one step needs and gives, and of what a stretch of steps does.

    A stretch (`env_process.py`) is the step that was asked for and plain ones before it, for which the environment's
    process acts by itself. `stretch` is how many steps it may take, `taken` how many there are before the last; of
    these `passed` has the observation after each, `passed_rewards` the reward, `passed_seeded` whether an episode began
    with a seed, and `passed_lengths` and `passed_returns` the episode that ended there, whose length is 0 if none did.
    The k-th action of a stretch, with the outputs of the policy, is row k of `chosen` and `outputs`, and the noise for
    it row k of `noise`; the worker has those of the first. All processes act by the same `weights`, whose `version`
    tells when they have changed; without chance where `explores` is False; and over the ends of episodes where
    `through_ends` is set.
    """

    obs: Parts  # where the next action is taken
    final: Parts  # the last observation of an episode that was truncated
    actions: NDArray[np.generic]  # [N, A], as the policy has them
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    failed: NDArray[np.bool_]  # the step did not happen
    seeded: NDArray[np.bool_]  # an episode began with a seed
    ended: NDArray[np.bool_]  # the step happened and ended an episode, whatever becomes of the reset after it
    has_report: NDArray[np.bool_]  # episodes, incidents or an answer follow through the socket
    quiet: NDArray[np.bool_]  # only the last of a group wakes the worker
    phase: NDArray[np.int8]
    began: NDArray[np.float64]  # when the phase began, by the clock that all processes of a host share
    seedings: NDArray[np.int64]
    seeded_by: NDArray[np.int64]  # the seeding that `since_seed` counts from
    lengths: NDArray[np.int64]  # of the unfinished episode
    since_seed: NDArray[np.int64]
    resets: NDArray[np.int64]  # since the last seed
    answered: NDArray[np.int64]  # steps that the row's processes have taken in all
    episode_reward: NDArray[np.float64]  # of the finished episode, where `ended`
    episode_length: NDArray[np.int64]
    stretch: NDArray[np.int64]
    taken: NDArray[np.int64]
    passed: Parts  # [N, S, ...]
    passed_rewards: NDArray[np.float32]  # [N, S]
    passed_terminated: NDArray[np.bool_]  # [N, S]
    passed_seeded: NDArray[np.bool_]  # [N, S]
    passed_lengths: NDArray[np.int64]  # [N, S]
    passed_returns: NDArray[np.float64]  # [N, S]
    chosen: NDArray[np.generic]  # [N, S, A]
    outputs: NDArray[np.float32]  # [N, S, K]
    noise: NDArray[np.float32]  # [N, S, M]
    weights: NDArray[np.float32]  # [W]
    version: NDArray[np.int64]  # [1]
    explores: NDArray[np.bool_]  # [1]
    through_ends: NDArray[np.bool_]  # [1]

    def __init__(
        self,
        num_envs: int,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        descriptor: int | None = None,
        actor: ActorShape | None = None,
    ) -> None:
        """Without an `actor` the environments take one step at a time."""
        kinds = list(zip(obs_spec.shapes, obs_spec.dtypes, strict=True))
        longest = 0 if actor is None else _longest_stretch(obs_spec, action_spec, actor)
        self.longest_stretch = longest
        given = actor or ActorShape(0, 0, 0)
        fields: list[tuple[str, tuple[int, ...], np.dtype[np.generic]]] = [
            *((f"obs{k}", shape, dtype) for k, (shape, dtype) in enumerate(kinds)),
            *((f"final{k}", shape, dtype) for k, (shape, dtype) in enumerate(kinds)),
            ("actions", (action_spec.size,), action_spec.dtype),
            ("rewards", (), np.dtype(np.float32)),
            *(
                (name, (), np.dtype(np.bool_))
                for name in ("terminated", "truncated", "valid", "failed", "seeded", "ended", "has_report", "quiet")
            ),
            ("phase", (), np.dtype(np.int8)),
            *((name, (), np.dtype(np.float64)) for name in ("began", "episode_reward")),
            *(
                (name, (), np.dtype(np.int64))
                for name in ("seedings", "seeded_by", "lengths", "since_seed", "resets", "answered", "episode_length")
            ),
            *((name, (), np.dtype(np.int64)) for name in ("stretch", "taken")),
            *((f"passed{k}", (longest, *shape), dtype) for k, (shape, dtype) in enumerate(kinds)),
            ("passed_rewards", (longest,), np.dtype(np.float32)),
            ("passed_terminated", (longest,), np.dtype(np.bool_)),
            ("passed_seeded", (longest,), np.dtype(np.bool_)),
            ("passed_lengths", (longest,), np.dtype(np.int64)),
            ("passed_returns", (longest,), np.dtype(np.float64)),
            ("chosen", (longest, action_spec.size), action_spec.dtype),
            ("outputs", (longest, given.num_outputs), np.dtype(np.float32)),
            ("noise", (longest, given.num_noise), np.dtype(np.float32)),
        ]
        # All that is an environment's own lies together: cores that write into one cache line wait for each other.
        places, row_bytes = [], 0
        for _, shape, dtype in fields:
            row_bytes = -(-row_bytes // dtype.itemsize) * dtype.itemsize
            places.append(row_bytes)
            row_bytes += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        row_bytes = -(-row_bytes // CACHE_LINE) * CACHE_LINE
        weights_at = num_envs * row_bytes
        version_at = -(-(weights_at + 4 * given.num_weights) // CACHE_LINE) * CACHE_LINE
        size = version_at + CACHE_LINE
        if descriptor is None:
            descriptor = os.memfd_create("shoal-envs", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        memory = mmap.mmap(descriptor, size)
        arrays = {
            name: np.ndarray(
                (num_envs, *shape), dtype, memory, place, strides=(row_bytes, *np.empty(shape, dtype).strides)
            )
            for (name, shape, dtype), place in zip(fields, places, strict=True)
        }
        self.obs = tuple(arrays.pop(f"obs{k}") for k in range(len(kinds)))
        self.final = tuple(arrays.pop(f"final{k}") for k in range(len(kinds)))
        self.passed = tuple(arrays.pop(f"passed{k}") for k in range(len(kinds)))
        for name, array in arrays.items():
            setattr(self, name, array)
        self.weights = np.ndarray((given.num_weights,), np.float32, memory, weights_at)
        self.version = np.ndarray((1,), np.int64, memory, version_at)
        self.explores = np.ndarray((1,), np.bool_, memory, version_at + 8)
        self.through_ends = np.ndarray((1,), np.bool_, memory, version_at + 9)


def _longest_stretch(obs_spec: ObsSpec, action_spec: ActionSpec, actor: ActorShape) -> int:
    """How many steps there is room for."""
    numbers = sum(map(math.prod, obs_spec.shapes)) + 2 * action_spec.size + actor.num_outputs + actor.num_noise + 6
    return min(LONGEST_STRETCH, MOST_STRETCH_BYTES // (4 * numbers))
