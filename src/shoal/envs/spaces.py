"""Between Gymnasium's spaces and our arrays: the leaves of a space, which of them are images, and rows of actions.

An action is one row of numbers: an index per discrete choice, a bit per binary one, a float per continuous one. How
observations lie in arrays is told in `observations.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.errors import ConfigError

Path = tuple[str | int, ...]
Space = spaces.Space[Any]

SMALLEST_IMAGE_SIDE = 8
SMALLEST_FIELD_SIDE = 16
MOST_INTEGER_CHOICES = 256
MOST_CHOICES = 1_000_000
LARGEST_SQUASHED = 1 - 1e-6  # of a number that has passed a tanh, where the one before it is asked for


def leaves_of(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """The space's leaves in order, with the keys and positions that lead to each."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from leaves_of(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from leaves_of(child, (*path, position))
    else:
        yield path, space


def path_name(path: Path) -> str:
    """How a leaf is called in messages and tables."""
    return "/".join(str(key) for key in path)


def channels_first(shape: Sequence[int]) -> bool:
    """Whether an image `[A, B, C]` has its channels in front.

    Two equal sides next to each other are height and width; otherwise the shorter of the outer axes holds the channels.
    """
    first, middle, last = shape
    return first != middle and (middle == last or first < last)


def image_sides(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of an image; a field `[H, W]` has one channel."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) != 3:
        raise ConfigError(f"an image has two or three axes (got shape {tuple(shape)}); reshape it in the environment")
    first, middle, last = shape
    return (first, middle, last) if channels_first(shape) else (last, first, middle)


def is_image(space: Space) -> bool:
    """Whether a leaf is seen by convolutions: three axes, or two of a field, large enough to have neighbours."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        return False
    _, height, width = image_sides(space.shape)
    return min(height, width) >= (SMALLEST_FIELD_SIDE if len(space.shape) == 2 else SMALLEST_IMAGE_SIDE)


@dataclass(frozen=True)
class ActionLeaf:
    """One leaf of an action space: which choice it is, and where its numbers lie in a row of actions."""

    path: Path
    space: Space
    kind: Literal["categorical", "bernoulli", "gaussian"]
    choices: tuple[int, ...]  # per number, for categorical leaves
    columns: slice
    first: NDArray[np.int64]  # the value that index 0 stands for
    squashed: NDArray[np.bool_]  # [size], which numbers pass a tanh on their way to the environment

    @property
    def size(self) -> int:
        """How many numbers the leaf has."""
        return int(self.columns.stop - self.columns.start)


class ActionSpec:
    """How rows of actions become what an environment's `step` takes.

    Continuous numbers live in the policy's own scale: with `normalize`, -1 and 1 are the bounds of a bounded number.
    With `clip`, what lies outside the bounds is moved onto them; the policy's log-probabilities are those of the number
    before that. With `squash`, a bounded number is instead the tanh of the one in the row, which no bound cuts.
    """

    def __init__(self, space: Space, normalize: bool = True, clip: bool = True, squash: bool = False) -> None:
        self.space = space
        self.leaves: list[ActionLeaf] = []
        column = 0
        for path, leaf in leaves_of(space):
            kind, choices, first = _action_kind(leaf, path)
            size = len(choices) if kind == "categorical" else prod(leaf.shape or ())
            squashed = _bounded(leaf) & squash if kind == "gaussian" else np.zeros(size, bool)
            self.leaves.append(ActionLeaf(path, leaf, kind, choices, slice(column, column + size), first, squashed))
            column += size
        if not column:
            raise ConfigError(f"action_space {space} has no actions")
        total = sum(sum(leaf.choices) for leaf in self.leaves)
        if total > MOST_CHOICES:
            raise ConfigError(
                f"action_space: {total:,} choices need as many network outputs, and at most {MOST_CHOICES:,} work; "
                "split them into a MultiDiscrete, or make them a Box"
            )
        self.size = column
        is_continuous = any(leaf.kind == "gaussian" for leaf in self.leaves)
        self.dtype = np.dtype(np.float32 if is_continuous else np.int64)
        self._decoders = [_decoder(leaf, normalize, clip) for leaf in self.leaves]
        self.normalize, self.clip = normalize, clip

    def decode(self, rows: NDArray[Any]) -> Sequence[Any]:
        """One environment action per row of `[N, A]`, each a member of the action space."""
        columns = [decode(rows[:, leaf.columns]) for leaf, decode in zip(self.leaves, self._decoders, strict=True)]
        if len(columns) == 1 and not self.leaves[0].path:
            return columns[0]
        paths = [leaf.path for leaf in self.leaves]
        return [nest(self.space, dict(zip(paths, values, strict=True))) for values in zip(*columns, strict=True)]

    def decoded(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """What `decode` gives, leaf by leaf: the numbers `[N, size]` of each, in the environment's units."""
        leaves = zip(self.leaves, self._decoders, strict=True)
        return [np.asarray(decode(rows[:, leaf.columns])).reshape(len(rows), leaf.size) for leaf, decode in leaves]

    def encoded(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Rows `[N, A]` that `decode` turns into the numbers `[N, size]` of each leaf; a ValueError says what is none.

        A squashed number on its bound, which only an infinite one would become, is one just inside.
        """
        rows = np.zeros((len(columns[0]), self.size), self.dtype)
        for leaf, given in zip(self.leaves, columns, strict=True):
            numbers = np.asarray(given, np.float64)
            bad = ~np.isfinite(numbers)
            if leaf.kind == "categorical":
                numbers = numbers - leaf.first
                bad |= (numbers < 0) | (numbers >= np.array(leaf.choices)) | (numbers % 1 != 0)
            elif leaf.kind == "bernoulli":
                bad |= (numbers != 0) & (numbers != 1)
            else:
                scale, middle = action_scale(leaf, self.normalize)
                numbers = (numbers - middle) / np.where(scale, scale, 1)
                inside = np.arctanh(np.clip(numbers, -LARGEST_SQUASHED, LARGEST_SQUASHED))
                numbers = np.where(leaf.squashed, inside, numbers)
            if bad.any():
                row = int(bad.any(axis=1).argmax())
                raise ValueError(f"row {row}: the action {given[row].tolist()} is none of {leaf.space}")
            rows[:, leaf.columns] = numbers
        return rows

    def encode(self, actions: Sequence[Any]) -> NDArray[Any]:
        """The numbers `[N, A]` of environment actions; a ValueError says which is none.

        They are the rows that `decode` takes, except that what was clipped or squashed on its way stays so.
        """
        rows = np.zeros((len(actions), self.size), self.dtype)
        for leaf in self.leaves:
            scaling = action_scale(leaf, self.normalize) if leaf.kind == "gaussian" else None
            for row, action in enumerate(actions):
                value = action
                try:
                    for key in leaf.path:
                        value = value[key]
                    numbers = np.asarray(value, np.float64).reshape(leaf.size)
                except (KeyError, IndexError, TypeError, ValueError):
                    raise ValueError(f"{action!r} is not an action of {self.space}") from None
                if leaf.kind == "categorical":
                    numbers = numbers - leaf.first
                    if (numbers < 0).any() or (numbers >= leaf.choices).any() or (numbers % 1).any():
                        raise ValueError(f"{action!r} is not an action of {self.space}")
                elif scaling is not None:
                    scale, middle = scaling
                    numbers = (numbers - middle) / np.where(scale, scale, 1)
                rows[row, leaf.columns] = numbers
        return rows


def nest(space: Space, values: dict[Path, Any], path: Path = ()) -> Any:
    """The leaves' values in the structure of their space."""
    if isinstance(space, spaces.Dict):
        return {key: nest(child, values, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nest(child, values, (*path, i)) for i, child in enumerate(space.spaces))
    return values[path]


def _action_kind(
    space: Space, path: Path
) -> tuple[Literal["categorical", "bernoulli", "gaussian"], tuple[int, ...], NDArray[np.int64]]:
    none = np.zeros(0, np.int64)
    if isinstance(space, spaces.Discrete):
        return "categorical", (int(space.n),), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return "categorical", tuple(int(n) for n in space.nvec.reshape(-1)), start.reshape(-1).astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return "bernoulli", (), none
    if isinstance(space, spaces.Box):
        if np.issubdtype(space.dtype or np.float32, np.integer):
            choices = space.high.astype(np.int64) - space.low.astype(np.int64) + 1
            if space.is_bounded() and (choices > 0).all() and (choices <= MOST_INTEGER_CHOICES).all():
                return "categorical", tuple(int(n) for n in choices.reshape(-1)), space.low.reshape(-1).astype(np.int64)
        return "gaussian", (), none
    where = f"action '{path_name(path)}'" if path else "action_space"
    raise ConfigError(
        f"{where}: {type(space).__name__} spaces cannot be acted in; "
        "use Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple in the environment"
    )


def _bounded(space: Space) -> NDArray[np.bool_]:
    """Which numbers of a Box have a bound on either side."""
    assert isinstance(space, spaces.Box)
    return np.asarray(space.bounded_below & space.bounded_above).reshape(-1)


def action_scale(leaf: ActionLeaf, normalize: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Half the width and the middle of each number's range; 1 and 0 where the policy has the environment's scale."""
    assert isinstance(leaf.space, spaces.Box)
    low, high = leaf.space.low.reshape(-1).astype(np.float64), leaf.space.high.reshape(-1).astype(np.float64)
    bounded = _bounded(leaf.space) & (leaf.squashed | normalize)
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
        middle = np.where(bounded, (high + low) / 2, 0.0).astype(np.float32)
    return scale, middle


def action_bounds(space: spaces.Box) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the numbers of a continuous action are clipped to, in the type in which they are: integers as doubles."""
    if not np.issubdtype(space.dtype or np.float32, np.integer):
        return space.low.reshape(-1), space.high.reshape(-1)
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    # The double nearest to a 64-bit bound may lie beyond it, where the cast back turns the sign.
    tops = space.high.reshape(-1).tolist()
    beyond = [int(near) > top for near, top in zip(high.tolist(), tops, strict=True)]
    return low, np.where(beyond, np.nextafter(high, 0), high)


def _decoder(leaf: ActionLeaf, normalize: bool, clip: bool) -> Callable[[NDArray[Any]], Sequence[Any]]:
    space = leaf.space
    shape = (-1, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        first = int(leaf.first[0])
        # Plain ints: gymnasium's own check of them is far cheaper than of NumPy's, and json and C take them too.
        return lambda rows: (rows[:, 0].astype(np.int64, copy=False) + first).tolist()
    if leaf.kind == "categorical":
        return lambda rows: list((rows.astype(np.int64) + leaf.first).astype(space.dtype).reshape(shape))
    if leaf.kind == "bernoulli":
        return lambda rows: list(rows.astype(space.dtype).reshape(shape))
    assert isinstance(space, spaces.Box)
    integer = np.issubdtype(space.dtype or np.float32, np.integer)
    scale, middle = action_scale(leaf, normalize)
    lowest, highest = action_bounds(space)
    squashed = leaf.squashed if leaf.squashed.any() else None

    def continuous(rows: NDArray[Any]) -> Sequence[Any]:
        if squashed is not None:
            rows = np.where(squashed, np.tanh(rows), rows)
        with np.errstate(over="ignore"):
            values: NDArray[Any] = rows * scale + middle
        values = np.rint(values).astype(np.float64) if integer else values.astype(space.dtype)
        if clip or integer:  # a squashed number too, which may round past its bound
            values = np.clip(values, lowest, highest)
        return list(values.astype(space.dtype, copy=False).reshape(shape))

    return continuous
