"""What off-policy learning remembers: transitions in preallocated arrays, drawn alike or by priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Batch, Parts
from shoal.data.returns import multistep
from shoal.data.state import Ring, State
from shoal.data.sum_tree import SumTree

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Transitions:
    """B transitions, possibly over several steps each."""

    obs: Parts  # each [B, ...], raw: before filter and one-hot
    actions: NDArray[Any]  # [B] int32 where an action is one choice, else [B, A] float32
    returns: Array  # [B], discounted rewards of k steps
    next_obs: Parts  # each [B, ...], after those k steps
    discounts: Array  # [B], gamma^k, or 0 where the episode terminated


@dataclass(frozen=True)
class DrawnTransitions:
    """Transitions drawn from replay, where they lie, and their weights in the loss (None: all alike)."""

    transitions: Transitions
    places: Integers  # [B]
    weights: Array | None  # [B]


@dataclass(frozen=True)
class Priorities:
    """Prioritised replay (Schaul et al. 2016): P(i) ~ (|error| + eps)^alpha, made up for by (N P(i))^-beta."""

    alpha: float
    beta: float
    eps: float


def transitions_of(batch: Batch, rewards: Array, gamma: float, n_step: int) -> Transitions:
    """The valid steps of a fragment `[T, N]`, each with the sum of up to `n_step` of `rewards` from it."""
    ahead = multistep(rewards, batch.terminated, batch.truncated, batch.final_at, gamma, n_step)
    valid = batch.valid.reshape(-1)
    kept = slice(None) if valid.all() else np.flatnonzero(valid)
    after = ahead.successors.reshape(-1)[kept]
    obs, next_obs = [], []
    for part, final in zip(batch.obs, batch.final_obs, strict=True):
        flat = part.reshape(-1, *part.shape[2:])
        obs.append(flat[kept])
        next_obs.append(np.concatenate([flat, final]).take(after, axis=0))
    return Transitions(
        obs=tuple(obs),
        actions=_stored(batch.actions)[kept],
        returns=ahead.returns.reshape(-1)[kept],
        next_obs=tuple(next_obs),
        discounts=ahead.discounts.reshape(-1)[kept],
    )


def transitions_at(transitions: Transitions, rows: Integers) -> Transitions:
    """Those in these rows."""
    return Transitions(
        obs=tuple(part.take(rows, axis=0) for part in transitions.obs),
        actions=transitions.actions.take(rows, axis=0),
        returns=transitions.returns.take(rows),
        next_obs=tuple(part.take(rows, axis=0) for part in transitions.next_obs),
        discounts=transitions.discounts.take(rows),
    )


def joined_transitions(parts: Sequence[Transitions]) -> Transitions:
    """All of them, one after another."""
    return Transitions(
        obs=tuple(np.concatenate(each) for each in zip(*[part.obs for part in parts], strict=True)),
        actions=np.concatenate([part.actions for part in parts]),
        returns=np.concatenate([part.returns for part in parts]),
        next_obs=tuple(np.concatenate(each) for each in zip(*[part.next_obs for part in parts], strict=True)),
        discounts=np.concatenate([part.discounts for part in parts]),
    )


class Replay:
    """The newest `capacity` transitions, in arrays of `capacity + slack` rows that are written in a circle.

    `slack` is the most that is added between two states. A state holds views and no copies, for a large replay cannot
    be copied in every iteration. What is added next falls on the `slack` rows that no longer count, so the views stay
    what they were until `slack` further rows are in: a run that is cut short in its next iteration can still save it.
    Transitions are numbered as they come and never change, which a state tells (`Ring`): a checkpoint writes new ones.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype[Any]],
        capacity: int,
        slack: int,
        priorities: Priorities | None,
        rng: np.random.Generator,
        action_size: int | None = None,
    ) -> None:
        """`action_size` is the number of numbers of an action; None: it is one choice."""
        self.capacity, self.rows, self.added = capacity, capacity + slack, 0
        self._priorities, self._rng = priorities, rng
        self._obs = tuple(np.empty((self.rows, *shape), kind) for shape, kind in zip(shapes, dtypes, strict=True))
        self._next_obs = tuple(np.empty_like(part) for part in self._obs)
        self._actions: NDArray[Any] = np.empty(self.rows, np.int32)
        if action_size is not None:
            self._actions = np.empty((self.rows, action_size), np.float32)
        self._returns = np.empty(self.rows, np.float32)
        self._discounts = np.empty(self.rows, np.float32)
        self._tree = SumTree(self.rows) if priorities is not None else None
        self._highest = 1.0  # priority that any transition had
        self._numbering = uuid4().hex
        self._follows: tuple[str, int] | None = None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, new: Transitions) -> None:
        """Remember transitions, and forget the oldest beyond `capacity`."""
        count = len(new.actions)
        assert count <= self.rows - self.capacity
        for begin, end, part in _stretches(self.added, self.added + count, self.rows):
            for mine, theirs in self._pairs(new):
                mine[begin:end] = theirs[part]
        if self._tree is not None:
            forgotten = np.arange(max(self.added - self.capacity, 0), max(self.added + count - self.capacity, 0))
            self._tree.put(np.arange(self.added, self.added + count) % self.rows, self._highest)
            self._tree.put(forgotten % self.rows, 0.0)  # last, for a small replay forgets some of the new at once
        self.added += count

    def draw(self, batches: int, size: int) -> DrawnTransitions:
        """`batches` minibatches of `size`, one after another; with priorities as they are now."""
        weights: Array | None = None
        if self._tree is None or self._priorities is None:
            oldest = self.added - len(self)
            places = self._rng.integers(oldest, self.added, batches * size) % self.rows
        else:
            # One draw from each of as many equal parts of the whole, so that every minibatch spans all priorities.
            strata = np.arange(batches * size).reshape(size, batches).T.reshape(-1)
            total = self._tree.total
            places = self._tree.find((strata + self._rng.random(batches * size)) * (total / (batches * size)))
            rare = (self._tree.leaves[places] * (len(self) / total)) ** -self._priorities.beta
            rare = rare.reshape(batches, size)
            weights = (rare / rare.max(axis=1, keepdims=True)).astype(np.float32).reshape(-1)
        return DrawnTransitions(self._at(places), places, weights)

    def newest(self, span: int, count: int) -> Transitions:
        """Up to `count` transitions, evenly from the last `span` that were added."""
        span = min(span, len(self))
        back = np.unique(np.linspace(1, span, min(count, span)).astype(np.int64))
        return self._at((self.added - back) % self.rows)

    def learned(self, places: Integers, errors: Array) -> None:
        """Set priorities by how wrong the values of drawn transitions were; nothing to do where all are drawn alike."""
        if self._tree is None or self._priorities is None:
            return
        weights = (np.abs(errors.astype(np.float64)) + self._priorities.eps) ** self._priorities.alpha
        self._highest = max(self._highest, float(weights.max(initial=0.0)))
        self._tree.put(places, weights)

    def get_state(self) -> State:
        """Counters, the random stream, and every transition that counts, as views (see the class)."""
        arrays: dict[str, NDArray[Any]] = {}
        oldest = self.added - len(self)
        named = self._named()
        for number, (begin, end, _) in enumerate(_stretches(oldest, self.added, self.rows)):
            arrays |= {f"{name}.{number}": array[begin:end] for name, array in named.items()}
            if self._tree is not None:
                arrays[f"priorities.{number}"] = self._tree.leaves[begin:end].copy()
        values = {"added": self.added, "capacity": self.capacity, "rows": self.rows, "highest": self._highest}
        ring = Ring(self._numbering, oldest, self.added, self.rows, tuple(named), self._follows)
        return State({**values, "rng": self._rng.bit_generator.state}, arrays, rings={"": ring})

    def set_state(self, state: State) -> None:
        """Take over a saved replay; one of another size keeps its newest transitions."""
        same = (state.values["capacity"], state.values["rows"]) == (self.capacity, self.rows)
        kept = sum(len(array) for name, array in state.arrays.items() if name.startswith("actions."))
        self._rng.bit_generator.state = state.values["rng"]
        self._highest = float(state.values["highest"])
        count = min(kept, self.capacity)
        # In another size, transitions cannot lie where they lay.
        self.added = int(state.values["added"]) if same else count
        # Whoever else takes over the same state goes on with other transitions of the same numbers.
        saved = state.rings.get("") if same else None
        self._numbering = uuid4().hex
        self._follows = None if saved is None else (saved.numbering, saved.end)
        places = np.arange(self.added - count, self.added) % self.rows
        if self._tree is not None:
            self._tree = SumTree(self.rows)
        if not count:
            return
        for name, array in self._named().items():
            array[places] = _joined(state, name)[kept - count :]
        if self._tree is not None:
            known = "priorities.0" in state.arrays
            self._tree.put(places, _joined(state, "priorities")[kept - count :] if known else self._highest)

    def _at(self, places: Integers) -> Transitions:
        obs = tuple(part.take(places, axis=0) for part in self._obs)
        next_obs = tuple(part.take(places, axis=0) for part in self._next_obs)
        actions, returns, discounts = self._actions, self._returns, self._discounts
        return Transitions(obs, actions.take(places, axis=0), returns.take(places), next_obs, discounts.take(places))

    def _pairs(self, new: Transitions) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Each array beside what is to be added to it."""
        return [
            *zip(self._obs, new.obs, strict=True),
            *zip(self._next_obs, new.next_obs, strict=True),
            (self._actions, new.actions),
            (self._returns, new.returns),
            (self._discounts, new.discounts),
        ]

    def _named(self) -> dict[str, NDArray[Any]]:
        named = {f"obs{k}": part for k, part in enumerate(self._obs)}
        named |= {f"next_obs{k}": part for k, part in enumerate(self._next_obs)}
        return named | {"actions": self._actions, "returns": self._returns, "discounts": self._discounts}


def bytes_per_transition(
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
    prioritized: bool,
    action_size: int | None = None,
) -> int:
    """What one row of a replay takes."""
    observation = sum(prod(shape) * kind.itemsize for shape, kind in zip(shapes, dtypes, strict=True))
    action = 4 if action_size is None else 4 * action_size
    return 2 * observation + action + 8 + (8 if prioritized else 0)


def stored_action_size(actions: int, dtype: np.dtype[Any]) -> int | None:
    """The `action_size` of a replay for rows of so many numbers of a type: one whole number is one choice."""
    if actions == 1 and np.issubdtype(dtype, np.integer):
        return None
    return actions


def _stored(actions: NDArray[Any]) -> NDArray[Any]:
    """The actions `[T, N, A]` of a fragment as a replay has them."""
    size = stored_action_size(actions.shape[2], actions.dtype)
    if size is None:
        return actions.reshape(-1).astype(np.int32)
    return actions.reshape(-1, size).astype(np.float32)


def _stretches(begin: int, end: int, rows: int) -> list[tuple[int, int, slice]]:
    """The rows of a circle that `begin ... end` fall on, as at most two stretches, and which part falls on each."""
    if begin == end:
        return []
    first, last = begin % rows, (end - 1) % rows + 1
    if first < last:
        return [(first, last, slice(None))]
    split = rows - first
    return [(first, rows, slice(0, split)), (0, last, slice(split, None))]


def _joined(state: State, name: str) -> NDArray[Any]:
    """An array whose stretches were saved apart."""
    pieces = [state.arrays[key] for key in (f"{name}.0", f"{name}.1") if key in state.arrays]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces)
