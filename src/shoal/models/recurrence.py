"""How a policy with memory takes its steps: the network's state, and the action and reward before each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.spaces import ActionLeaf, ActionSpec
from shoal.models.network import Array, Inputs


class PreviousStep:
    """Encodes what was done before a step, and what came of it, as a network sees it: `[B, size]`.

    Choices are indicators, bits and continuous numbers stand for themselves (as the environment took them: -1 and 1
    are the bounds of a bounded number), and the reward is as the environment gave it. Zeros: an episode begins.
    """

    def __init__(self, spec: ActionSpec, with_action: bool = False, with_reward: bool = False) -> None:
        self._spec = spec
        self.with_action, self.with_reward = with_action, with_reward
        self._clips = any(leaf.kind == "gaussian" for leaf in spec.leaves)
        self.action_size = 0
        if with_action:
            self.action_size = sum(_width(leaf) for leaf in spec.leaves)
        self.size = self.action_size + with_reward

    def __call__(self, actions: NDArray[Any], rewards: NDArray[Any]) -> Array:
        """Features `[B, size]` of actions `[B, A]` as the policy has them, and rewards `[B]`."""
        if self.with_action and self._clips:  # what was clipped on its way to the environment is remembered so
            actions = self._spec.encode(self._spec.decode(actions))
        return self._features(actions, rewards)

    def _features(self, actions: NDArray[Any], rewards: NDArray[Any]) -> Array:
        """The same of actions as the environment took them, in the policy's scale."""
        out = np.zeros((len(actions), self.size), np.float32)
        if self.with_action:
            column = 0
            for leaf in self._spec.leaves:
                numbers = actions[:, leaf.columns]
                if leaf.kind != "categorical":
                    out[:, column : column + leaf.size] = numbers
                    column += leaf.size
                    continue
                for choice, count in zip(numbers.T.astype(np.int64), leaf.choices, strict=True):
                    out[np.arange(len(out)), column + choice] = 1
                    column += count
        if self.with_reward:
            out[:, -1] = rewards
        return out

    def from_env(self, actions: Sequence[Any], rewards: Sequence[Any]) -> Array:
        """The same for actions and rewards as an environment has them, each None where an episode begins."""
        for name, given, seen in (("action", actions, self.with_action), ("reward", rewards, self.with_reward)):
            if not seen and any(value is not None for value in given):
                raise ValueError(f"prev_{name}: this policy does not use it; leave it out")
        out = np.zeros((len(actions), self.size), np.float32)
        for row, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
            if action is not None:
                taken = self._spec.encode([action])
                if not np.isfinite(taken).all():
                    raise ValueError(f"prev_action: must be finite numbers (got {action!r})")
                out[row, : self.action_size] = self._features(taken, np.zeros(1))[0, : self.action_size]
            if reward is not None:
                out[row, -1] = _finite(reward)
        return out


def _finite(reward: Any) -> float:
    """A reward as the network takes it; what is none would stay in the memory to the end of the episode."""
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise ValueError(f"prev_reward: must be a number (got {reward!r})") from None
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ValueError(f"prev_reward: must be a finite number (got {reward!r})")
    return number


def _width(leaf: ActionLeaf) -> int:
    """How many features an action's leaf becomes."""
    if leaf.kind == "categorical":
        return sum(leaf.choices)
    return leaf.size


@dataclass(frozen=True)
class Recurrence:
    """The memory of a policy."""

    step: Callable[[Inputs, Inputs], tuple[Array, Inputs]]  # see `Network`
    initial_state: Inputs  # of one environment, each [...]
    previous: PreviousStep
    window: int  # the longest sequence that is learned from

    def begin(self, count: int) -> Inputs:
        """What is carried into the first step of `count` episodes: nothing before it, and the initial state."""
        carried = [np.zeros((count, self.previous.size), np.float32)]
        for part in self.initial_state:
            carried.append(np.repeat(part[None], count, axis=0))
        return tuple(carried)

    def stacked(self, states: Sequence[Sequence[Any]]) -> Inputs:
        """The states of several environments as the network takes them; a ValueError says what does not fit."""
        expected = [part.shape for part in self.initial_state]
        for state in states:
            shapes: Any = state
            if isinstance(state, list | tuple | np.ndarray):
                shapes = [np.shape(part) for part in state]
            if shapes != expected:
                wanted = "as get_initial_state() returns them"
                raise ValueError(f"state: must be arrays of shapes {expected}, {wanted} (got {shapes})")
        stacked = []
        for parts in zip(*states, strict=True):
            stacked.append(np.stack(parts).astype(np.float32, copy=False))
        return tuple(stacked)
