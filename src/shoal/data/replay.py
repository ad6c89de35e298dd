"""What off-policy learning remembers: transitions in preallocated arrays, drawn alike or by priority.

Of images the arrays have ids of frames, each of which is kept once (`data/frames.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Batch, Parts
from shoal.data.frames import FrameLayout, Frames, ImageFrames
from shoal.data.returns import multistep
from shoal.data.state import Ring, State
from shoal.data.sum_tree import SumTree
from shoal.errors import ConfigError
from shoal.machine.memory import available_memory, bytes_text

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
    A frame is forgotten only when the last row that has it is overwritten, so what a state has ids of is there too.
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
        layouts = [FrameLayout.of(shape, kind) for shape, kind in zip(shapes, dtypes, strict=True)]
        self._images = tuple(None if layout is None else ImageFrames(layout) for layout in layouts)
        self._obs, self._next_obs = self._observations(shapes, dtypes), self._observations(shapes, dtypes)
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
        new = self._with_ids(new)
        for begin, end, part in _stretches(self.added, self.added + count, self.rows):
            self._drop(slice(begin, end))
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
        frames = self._frames()
        ring = Ring(self._numbering, oldest, self.added, self.rows, tuple(named), self._follows, frames)
        return State({**values, "rng": self._rng.bit_generator.state}, arrays, rings={"": ring})

    def set_state(self, state: State) -> None:
        """Take over a saved replay; one of another size keeps its newest transitions."""
        same = (state.values["capacity"], state.values["rows"]) == (self.capacity, self.rows)
        kept = sum(len(array) for name, array in state.arrays.items() if name.startswith("actions."))
        count = min(kept, self.capacity)
        saved = state.rings.get("")
        shared = {} if saved is None else saved.frames
        images = self._held_images(state, shared, count)  # first, for it may refuse them
        self._rng.bit_generator.state = state.values["rng"]
        self._highest = float(state.values["highest"])
        # In another size, transitions cannot lie where they lay.
        self.added = int(state.values["added"]) if same else count
        # Whoever else takes over the same state goes on with other transitions of the same numbers.
        self._numbering = uuid4().hex
        self._follows = None
        if same and saved is not None and shared.keys() == self._frames().keys():
            self._follows = saved.numbering, saved.end
        places = np.arange(self.added - count, self.added) % self.rows
        if self._tree is not None:
            self._tree = SumTree(self.rows)
        self._drop(slice(None))
        for k, image in enumerate(self._images):
            if image is not None and f"frames{k}" in shared:
                image.store = shared[f"frames{k}"].store
        if not count:
            return
        for name, array in self._named().items():
            array[places] = images[name] if name in images else _joined(state, name)[kept - count :]
        if self._tree is not None:
            known = "priorities.0" in state.arrays
            self._tree.put(places, _joined(state, "priorities")[kept - count :] if known else self._highest)

    def _at(self, places: Integers) -> Transitions:
        obs, next_obs = self._taken(self._obs, places), self._taken(self._next_obs, places)
        actions, returns, discounts = self._actions, self._returns, self._discounts
        return Transitions(obs, actions.take(places, axis=0), returns.take(places), next_obs, discounts.take(places))

    def _observations(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> Parts:
        """An array for each part of observations: their numbers, or ids of an image's frames."""
        parts: list[NDArray[Any]] = []
        for image, shape, kind in zip(self._images, shapes, dtypes, strict=True):
            if image is None:
                parts.append(np.empty((self.rows, *shape), kind))
            else:
                parts.append(np.full((self.rows, image.layout.count), -1, np.int32))
        return tuple(parts)

    def _taken(self, columns: Parts, places: Integers) -> Parts:
        """Observations of these places."""
        rows = [part.take(places, axis=0) for part in columns]
        return tuple(
            part if image is None else image.take(part) for part, image in zip(rows, self._images, strict=True)
        )

    def _with_ids(self, new: Transitions) -> Transitions:
        """Transitions with ids in the place of images, whose frames are held from now on."""
        obs, next_obs = list(new.obs), list(new.next_obs)
        with self._enough_memory():
            for k, image in enumerate(self._images):
                if image is not None:
                    obs[k], next_obs[k] = image.put(obs[k]), image.put(next_obs[k])
        return replace(new, obs=tuple(obs), next_obs=tuple(next_obs))

    def _drop(self, places: slice) -> None:
        """Let go of the frames in rows that will be overwritten."""
        for image, *columns in zip(self._images, self._obs, self._next_obs, strict=True):
            if image is not None:
                for column in columns:
                    image.drop(column[places])
                    column[places] = -1

    def _held_images(self, state: State, shared: Mapping[str, Frames], count: int) -> dict[str, NDArray[Any]]:
        """Ids of the images of the newest `count` transitions of a state, by column; their frames are held."""
        found: dict[str, NDArray[Any]] = {}
        for k, image in enumerate(self._images):
            for name in (f"obs{k}", f"next_obs{k}"):
                newest = _newest(state, name, count)
                if image is None or not newest:
                    continue
                if f"frames{k}" in shared:
                    found[name] = image.shared(shared[f"frames{k}"], np.concatenate(newest))
                else:  # before format 3 of checkpoints, images were kept whole
                    with self._enough_memory():
                        found[name] = np.concatenate([image.put(part) for part in newest])
        return found

    def _frames(self) -> dict[str, Frames]:
        """The stores of frames, and the columns that have ids of theirs, by names of this ring."""
        images = {k: image for k, image in enumerate(self._images) if image is not None}
        return {f"frames{k}": Frames(image.store, (f"obs{k}", f"next_obs{k}")) for k, image in images.items()}

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        """Say what to do where memory is not enough: how many frames there will be is not known before."""
        try:
            yield
        except MemoryError:
            taken = sum(image.store.nbytes for image in self._images if image is not None)
            raise ConfigError(
                f"config.replay_buffer_config.capacity: the images of {len(self):,} transitions take "
                f"{bytes_text(taken)}, and with {bytes_text(available_memory())} available there is no room for more; "
                f"resume where there is more memory, or use at most {max(len(self) * 9 // 10, 1)} in a new run"
            ) from None

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
    """What one row of a replay takes; about so much where frames are shared, for episodes that begin bring more."""
    observations = 0
    for shape, kind in zip(shapes, dtypes, strict=True):
        layout = FrameLayout.of(shape, kind)
        if layout is None:
            observations += 2 * prod(shape) * kind.itemsize
        else:
            observations += layout.bytes_per_step + 2 * 4 * layout.count
    action = 4 if action_size is None else 4 * action_size
    return observations + action + 8 + (8 if prioritized else 0)


def shares_frames(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> bool:
    """Whether what transitions take can be known only about, for they share frames of images."""
    return any(FrameLayout.of(shape, kind) is not None for shape, kind in zip(shapes, dtypes, strict=True))


def drawn_bytes(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> int:
    """What a transition that was drawn takes, of a choice as action."""
    return 2 * sum(prod(shape) * kind.itemsize for shape, kind in zip(shapes, dtypes, strict=True)) + 12


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


def _pieces(state: State, name: str) -> list[NDArray[Any]]:
    """The stretches of an array, which are saved apart."""
    return [state.arrays[key] for key in (f"{name}.0", f"{name}.1") if key in state.arrays]


def _joined(state: State, name: str) -> NDArray[Any]:
    """An array whose stretches were saved apart."""
    pieces = _pieces(state, name)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _newest(state: State, name: str, count: int) -> list[NDArray[Any]]:
    """The last rows of an array, as views of its stretches."""
    found: list[NDArray[Any]] = []
    for piece in reversed(_pieces(state, name)):
        found.insert(0, piece[max(len(piece) - count, 0) :])
        count -= len(found[0])
    return found
