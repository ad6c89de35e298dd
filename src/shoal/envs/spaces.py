"""Between Gymnasium's spaces and our arrays: how observations are packed into rows, and rows of actions unpacked.

An observation becomes one row in each of its parts: every number of it lies in one float32 vector (in the order of the
space's leaves), and each image is a part of its own in its own dtype. Discrete values are stored as indices from 0.
An action is one row of numbers: an index per discrete choice, a bit per binary one, a float per continuous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.errors import ConfigError

Path = tuple[str | int, ...]
Space = spaces.Space[Any]

SMALLEST_IMAGE_SIDE = 8
SMALLEST_FIELD_SIDE = 16
MOST_INTEGER_CHOICES = 256
MOST_CHOICES = 1_000_000
LARGEST_EXACT_INTEGER = 2**23  # of twice this, single precision still knows every integer


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
class ObsLeaf:
    """One leaf of an observation space and where its numbers lie."""

    path: Path
    space: Space
    part: int
    columns: slice | None  # in the vector part; None for an image
    first: NDArray[np.int64] | None  # the value stored as 0, per number (discrete leaves)
    choices: NDArray[np.int64] | None  # how many values there are, per number (discrete leaves)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the environment must give."""
        return tuple(self.space.shape or ())


class ObsSpec:
    """How observations of one space lie in arrays."""

    def __init__(self, space: Space, images: bool = True) -> None:
        self.space = space
        self.leaves: list[ObsLeaf] = []
        found = list(leaves_of(space))
        in_vector = sum(prod(leaf.shape or ()) for _, leaf in found if not (images and is_image(leaf)))
        next_image = 1 if in_vector else 0
        shapes: list[tuple[int, ...]] = []
        dtypes: list[np.dtype[Any]] = []
        column = 0
        for path, leaf in found:
            if images and is_image(leaf):
                self.leaves.append(ObsLeaf(path, leaf, next_image, None, None, None))
                shapes.append(tuple(leaf.shape or ()))
                # Wide integers and doubles carry no more for a network than single precision does.
                dtypes.append(np.dtype(leaf.dtype) if leaf.dtype in (np.uint8, np.float32) else np.dtype(np.float32))
                next_image += 1
                continue
            first, choices = _discrete_range(leaf, path)
            size = prod(leaf.shape or ())
            self.leaves.append(ObsLeaf(path, leaf, 0, slice(column, column + size), first, choices))
            column += size
        if column:
            shapes.insert(0, (column,))
            dtypes.insert(0, np.dtype(np.float32))
        if not shapes:
            raise ConfigError(f"observation_space {space} holds no number at all; shoal needs something to see")
        self.vector_size = column
        self.shapes = tuple(shapes)
        self.dtypes = tuple(dtypes)
        self._put_rows = self._fast_put()

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the image parts."""
        return self.shapes[1:] if self.vector_size else self.shapes

    def allocate(self, *lead: int) -> Parts:
        """Room for `lead` observations."""
        return tuple(np.zeros((*lead, *shape), dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    def put(self, obs: Any, rows: Parts, index: int) -> None:
        """Write one observation; a ValueError says what does not fit."""
        for leaf in self.leaves:
            value = obs
            try:
                for key in leaf.path:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"observation lacks '{path_name(leaf.path)}'") from None
            array = np.asarray(value)
            if array.shape != leaf.shape:
                where = f"observation '{path_name(leaf.path)}'" if leaf.path else "observation"
                raise ValueError(f"{where} has shape {array.shape}, its space says {leaf.shape}")
            with np.errstate(over="ignore"):  # what is too large for single precision is refused below
                if leaf.columns is None:
                    rows[leaf.part][index] = array
                elif array.size:
                    numbers = array.reshape(-1)
                    # Before the cast: single precision cannot tell large neighbours apart.
                    rows[0][index, leaf.columns] = numbers if leaf.first is None else numbers - leaf.first
        problem = self.problem(tuple(part[index : index + 1] for part in rows))
        if problem is not None:
            raise ValueError(problem[1])

    def put_all(self, observations: Sequence[Any], rows: Parts) -> None:
        """Write one observation per row; raises some exception if any does not fit (then `put` tells which)."""
        self._put_rows(observations, rows)

    def problem(self, rows: Parts) -> tuple[int, str] | None:
        """The first row that holds a number no network may see, and what is wrong with it.

        A discrete value outside its space is none: the encoder takes the nearest one inside.
        """
        for part in rows:
            # One reduction over everything is the cheapest question; only a yes is worth asking further.
            if part.dtype != np.uint8 and not np.isfinite(part.sum()):
                bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
                if bad.any():
                    row = int(bad.argmax())
                    return row, f"observation is not finite: {_short(part[row])}"
        return None

    def get(self, parts: Parts, index: tuple[int, ...] | int) -> Any:
        """The observation that lies at an index, in its space's own structure."""
        values: dict[Path, Any] = {}
        for leaf in self.leaves:
            if leaf.columns is None:
                values[leaf.path] = np.array(parts[leaf.part][index], leaf.space.dtype)
                continue
            numbers = parts[0][index][leaf.columns] if prod(leaf.shape) else np.zeros(0)
            numbers = numbers if leaf.first is None else numbers.astype(np.int64) + leaf.first
            values[leaf.path] = numbers.reshape(leaf.shape).astype(leaf.space.dtype)
        return _nest(self.space, values)

    def _fast_put(self) -> Callable[[Sequence[Any], Parts], None]:
        """Most spaces are one flat leaf, and for those one call writes every row."""
        leaf = self.leaves[0]
        first = leaf.first
        exact = first is None or bool((np.abs(first) < LARGEST_EXACT_INTEGER).all())
        if len(self.leaves) == 1 and not leaf.path and self.vector_size and len(leaf.shape) <= 1 and exact:
            shift = first.astype(np.float32) if first is not None and first.any() else None
            size = self.vector_size

            def put_numbers(observations: Sequence[Any], rows: Parts) -> None:
                if leaf.shape:
                    # Concatenation beats a loop of assignments, and by itself it refuses a wrong total.
                    np.concatenate(observations, out=rows[0].reshape(-1))
                    if max(map(len, observations)) != size:
                        raise ValueError("observations of wrong sizes")
                else:
                    rows[0][:, 0] = observations
                if shift is not None:
                    np.subtract(rows[0], shift, out=rows[0])

            return put_numbers

        def put_each(observations: Sequence[Any], rows: Parts) -> None:
            for index, obs in enumerate(observations):
                self.put(obs, rows, index)

        return put_each


def _discrete_range(space: Space, path: Path) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if isinstance(space, spaces.Discrete):
        return np.array([space.start], np.int64), np.array([space.n], np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return start.reshape(-1).astype(np.int64), space.nvec.reshape(-1).astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        size = prod(space.shape)
        return np.zeros(size, np.int64), np.full(size, 2, np.int64)
    if isinstance(space, spaces.Box):
        return None, None
    where = f"observation '{path_name(path)}'" if path else "observation_space"
    raise ConfigError(
        f"{where}: {type(space).__name__} spaces cannot be learned from; "
        "encode it as Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple in the environment"
    )


def _nest(space: Space, values: dict[Path, Any], path: Path = ()) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest(child, values, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(child, values, (*path, i)) for i, child in enumerate(space.spaces))
    value = values[path]
    return value[()] if isinstance(space, spaces.Discrete) else value


def _short(values: NDArray[Any]) -> str:
    with np.printoptions(threshold=8, edgeitems=3, precision=4):
        return " ".join(str(values.reshape(-1)).split())


@dataclass(frozen=True)
class ActionLeaf:
    """One leaf of an action space: which choice it is, and where its numbers lie in a row of actions."""

    path: Path
    space: Space
    kind: Literal["categorical", "bernoulli", "gaussian"]
    choices: tuple[int, ...]  # per number, for categorical leaves
    columns: slice
    first: NDArray[np.int64]  # the value that index 0 stands for

    @property
    def size(self) -> int:
        """How many numbers the leaf has."""
        return int(self.columns.stop - self.columns.start)


class ActionSpec:
    """How rows of actions become what an environment's `step` takes.

    Continuous numbers live in the policy's own scale: with `normalize`, -1 and 1 are the bounds of a bounded number.
    With `clip`, what lies outside the bounds is moved onto them; the policy's log-probabilities are those of the number
    before that.
    """

    def __init__(self, space: Space, normalize: bool = True, clip: bool = True) -> None:
        self.space = space
        self.leaves: list[ActionLeaf] = []
        column = 0
        for path, leaf in leaves_of(space):
            kind, choices, first = _action_kind(leaf, path)
            size = len(choices) if kind == "categorical" else prod(leaf.shape or ())
            self.leaves.append(ActionLeaf(path, leaf, kind, choices, slice(column, column + size), first))
            column += size
        if not column:
            raise ConfigError(f"action_space {space} offers nothing to do")
        total = sum(sum(leaf.choices) for leaf in self.leaves)
        if total > MOST_CHOICES:
            raise ConfigError(
                f"action_space: {total:,} choices need as many network outputs, and {MOST_CHOICES:,} are the most; "
                "split them into a MultiDiscrete, or make them a Box"
            )
        self.size = column
        self.dtype = np.dtype(np.float32 if any(leaf.kind == "gaussian" for leaf in self.leaves) else np.int64)
        self._decoders = [_decoder(leaf, normalize, clip) for leaf in self.leaves]
        self._normalize = normalize

    def decode(self, rows: NDArray[Any]) -> Sequence[Any]:
        """One environment action per row of `[N, A]`, each a member of the action space."""
        columns = [decode(rows[:, leaf.columns]) for leaf, decode in zip(self.leaves, self._decoders, strict=True)]
        if len(columns) == 1 and not self.leaves[0].path:
            return columns[0]
        paths = [leaf.path for leaf in self.leaves]
        return [
            _nest_action(self.space, dict(zip(paths, values, strict=True))) for values in zip(*columns, strict=True)
        ]

    def encode(self, actions: Sequence[Any]) -> NDArray[Any]:
        """Rows `[N, A]` of which `decode` makes these actions; a ValueError says which is none."""
        rows = np.zeros((len(actions), self.size), self.dtype)
        for leaf in self.leaves:
            scaling = _scaling(leaf.space, self._normalize) if leaf.kind == "gaussian" else None
            for row, action in enumerate(actions):
                value = action
                try:
                    for key in leaf.path:
                        value = value[key]
                    numbers = np.asarray(value, np.float64).reshape(leaf.size)
                except (KeyError, IndexError, TypeError, ValueError):
                    raise ValueError(f"{action!r} is no action of {self.space}") from None
                if leaf.kind == "categorical":
                    numbers = numbers - leaf.first
                    if (numbers < 0).any() or (numbers >= leaf.choices).any():
                        raise ValueError(f"{action!r} is no action of {self.space}")
                elif scaling is not None:
                    scale, middle = scaling
                    numbers = (numbers - middle) / np.where(scale, scale, 1)
                rows[row, leaf.columns] = numbers
        return rows


def _nest_action(space: Space, values: dict[Path, Any], path: Path = ()) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest_action(child, values, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest_action(child, values, (*path, i)) for i, child in enumerate(space.spaces))
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
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    integer = np.issubdtype(space.dtype or np.float32, np.integer)
    scale, middle = _scaling(space, normalize)
    lowest, highest = space.low.reshape(-1), space.high.reshape(-1)
    if integer:
        # The double nearest to a 64-bit bound may lie beyond it, where the cast back turns the sign.
        pairs = zip(high.tolist(), highest.tolist(), strict=True)
        lowest, highest = low, np.array([near if int(near) <= top else np.nextafter(near, 0) for near, top in pairs])

    def continuous(rows: NDArray[Any]) -> Sequence[Any]:
        with np.errstate(over="ignore"):
            values: NDArray[Any] = rows * scale + middle
        values = np.rint(values).astype(np.float64) if integer else values.astype(space.dtype)
        if clip or integer:
            values = np.clip(values, lowest, highest)
        return list(values.astype(space.dtype, copy=False).reshape(shape))

    return continuous


def _scaling(space: Space, normalize: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Half the width and the middle of each number's range; 1 and 0 where the policy has the environment's scale."""
    assert isinstance(space, spaces.Box)
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    bounded = (space.bounded_below & space.bounded_above).reshape(-1) & normalize
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
        middle = np.where(bounded, (high + low) / 2, 0.0).astype(np.float32)
    return scale, middle
