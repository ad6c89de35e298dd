"""How observations of a space lie in arrays: one row in each of their parts.

- Every number lies in one float32 vector, in the order of the space's leaves; discrete values as indices from 0.
- Each image is a part of its own in its own dtype.
- Each sequence (`gymnasium.spaces.Sequence`, `Repeated`) is a part `[max_len, 1 + R]`: one item of R numbers in each
  row, padded with zeros, and in front a 1 where there is an item.
- `avail_actions`, the embeddings of actions that are on offer, are a part `[n, E]`.
- `action_mask` is the last part, of bools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.envs.masks import MASK, MaskSpec, flags_of, mask_spec
from shoal.envs.repeated import Repeated, items_of
from shoal.envs.spaces import ActionSpec, Path, Space, is_image, leaves_of, nest, path_name
from shoal.errors import ConfigError

AVAIL = "avail_actions"
LARGEST_EXACT_INTEGER = 2**23  # of twice this, single precision still knows every integer

NUMBERS = "biuf"  # the kinds of NumPy's types that are numbers
ROUNDING = 1e-5  # by which an observation may be outside of its space, for each 1 of the bound

_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

Kind = Literal["vector", "image", "items", "avail", "mask"]
PutRows = Callable[[Sequence[Any], Parts], None]


@dataclass(frozen=True)
class ObsLeaf:
    """One leaf of an observation space and where its numbers lie."""

    path: Path
    space: Space
    kind: Kind
    part: int
    columns: slice | None  # in the vector or the mask; None where the whole part is the leaf's
    first: NDArray[np.int64] | None = None  # the value stored as 0, per number (discrete leaves)
    choices: NDArray[np.int64] | None = None  # how many values there are, per number (discrete leaves)
    items: Items | None = None  # of a sequence

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the environment must give; of a sequence, the most that fits."""
        if self.items is not None:
            return (self.items.max_len,)
        return tuple(self.space.shape or ())

    @property
    def name(self) -> str:
        """How the leaf is called in messages."""
        return f"observation '{path_name(self.path)}'" if self.path else "observation"

    def stored(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Numbers `[..., size]` as the columns hold them."""
        if self.kind == "mask":
            return flags_of(numbers)
        # Before the cast: single precision cannot tell large neighbours apart.
        return numbers if self.first is None else numbers - self.first


class ObsSpec:
    """How observations of one space lie in arrays.

    With `actions`, the keys `action_mask` and `avail_actions` of a Dict are about those actions; without, they are
    numbers as any others. `max_len` is the most items of a sequence whose space does not say.
    """

    def __init__(
        self, space: Space, images: bool = True, actions: ActionSpec | None = None, max_len: int | None = None
    ) -> None:
        self.space = space
        self.mask: MaskSpec | None = None if actions is None else mask_spec(space, actions)
        found = [(path, leaf, _kind(path, leaf, images, actions)) for path, leaf in leaves_of(space)]
        self.vector_size = sum(prod(leaf.shape or ()) for _, leaf, kind in found if kind == "vector")
        self.kinds: tuple[Kind, ...] = ()  # of the parts
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.dtypes: tuple[np.dtype[Any], ...] = ()
        own: dict[Path, tuple[int, Items | None]] = {}  # the part that is a leaf's own, and its items
        if self.vector_size:
            self._add_part("vector", (self.vector_size,), np.float32)
        for wanted in ("image", "items", "avail"):
            for path, leaf, kind in found:
                if kind == wanted:
                    own[path] = self._add_leaf(path, leaf, kind, max_len)
        if not self.kinds:
            alone = f"but {MASK}; add what the agent sees as `observations`" if self.mask else "that shoal could see"
            raise ConfigError(f"observation_space {space} holds no number {alone}")
        if self.mask is not None:
            self._add_part("mask", (self.mask.size,), np.bool_)

        self.leaves: list[ObsLeaf] = []
        column = 0
        for path, leaf, kind in found:
            if kind == "vector":
                size = prod(leaf.shape or ())
                columns = slice(column, column + size)
                if not isinstance(leaf, _NUMBERS):
                    raise _unlearnable(path, leaf, space)
                self.leaves.append(ObsLeaf(path, leaf, kind, 0, columns, *_discrete_range(leaf)))
                column += size
            elif kind == "mask":
                assert self.mask is not None
                self.leaves.append(ObsLeaf(path, leaf, kind, len(self.kinds) - 1, self.mask.columns[path]))
            else:
                part, items = own[path]
                self.leaves.append(ObsLeaf(path, leaf, kind, part, None, items=items))
        self._put_rows: PutRows = self._fast_put()

    def _add_part(self, kind: Kind, shape: tuple[int, ...], dtype: Any) -> int:
        """Give observations one more part; returns which it is."""
        self.kinds += (kind,)
        self.shapes += (shape,)
        self.dtypes += (np.dtype(dtype),)
        return len(self.kinds) - 1

    def _add_leaf(self, path: Path, leaf: Space, kind: Kind, max_len: int | None) -> tuple[int, Items | None]:
        """Give a leaf a part of its own; returns which it is, and how the items of a sequence lie in it."""
        if isinstance(leaf, spaces.Sequence):
            items = _items(path, leaf, max_len)
            return self._add_part(kind, (items.max_len, 1 + items.spec.vector_size), np.float32), items
        # Wide integers and doubles carry no more for a network than single precision does.
        dtype = np.uint8 if kind == "image" and leaf.dtype == np.uint8 else np.float32
        return self._add_part(kind, tuple(leaf.shape or ()), dtype), None

    @property
    def num_bytes(self) -> int:
        """The memory that one observation takes."""
        sizes = zip(self.shapes, self.dtypes, strict=True)
        return sum(prod(shape) * dtype.itemsize for shape, dtype in sizes)

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the image parts."""
        return tuple(shape for kind, shape in zip(self.kinds, self.shapes, strict=True) if kind == "image")

    def allocate(self, *lead: int) -> Parts:
        """Room for `lead` observations: zeros, and masks that allow everything."""
        parts = []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            make = np.ones if dtype == np.bool_ else np.zeros
            parts.append(make((*lead, *shape), dtype))
        return tuple(parts)

    def put(self, obs: Any, rows: Parts, index: int, ended: bool = False) -> None:
        """Write one observation; a ValueError says what does not fit.

        Only where the episode has `ended` may a mask allow nothing.
        """
        for leaf in self.leaves:
            value = obs
            try:
                for key in leaf.path:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"observation lacks '{path_name(leaf.path)}'") from None
            if leaf.items is not None:
                leaf.items.put(value, rows[leaf.part][index], leaf.name)
                continue
            array = np.asarray(value)
            if array.shape != leaf.shape:
                raise ValueError(f"{leaf.name} has shape {array.shape}, its space says {leaf.shape}")
            if array.dtype.kind not in NUMBERS:
                raise ValueError(f"{leaf.name} is {_array_text(array)} of type {array.dtype}, and not numbers")
            with np.errstate(over="ignore"):  # what is too large for single precision is refused below
                if leaf.columns is None:
                    rows[leaf.part][index] = array
                elif array.size:
                    rows[leaf.part][index, leaf.columns] = leaf.stored(array.reshape(-1))
        problem = self.problem(tuple(part[index : index + 1] for part in rows), np.array([ended]))
        if problem is not None:
            raise ValueError(problem[1])

    def put_all(self, observations: Sequence[Any], rows: Parts) -> None:
        """Write one observation per row; raises some exception if any does not fit (then `put` tells which)."""
        self._put_rows(observations, rows)

    def problem(self, rows: Parts, *ended: NDArray[np.bool_]) -> tuple[int, str] | None:
        """The first row that holds what no network may see, and what is wrong with it.

        A mask may allow nothing in rows where one of the flags of `ended` is set. A discrete value outside its space is
        no problem: the encoder takes the nearest one inside.
        """
        for part in rows:
            # One reduction over everything is the cheapest question; only a yes is worth asking further.
            if part.dtype == np.float32 and not np.isfinite(part.sum()):
                bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
                if bad.any():
                    row = int(bad.argmax())
                    return row, f"observation is not finite: {_array_text(part[row])}"
        if self.mask is not None:
            stuck = self.mask.stuck(rows[-1])
            for flags in ended:
                stuck &= ~flags
            if stuck.any():
                row = int(stuck.argmax())
                return row, self.mask.trouble(rows[-1][row])
        return None

    def outside(self, rows: Parts) -> str | None:
        """Which number of observations `[..., *shape]` is not in its space, in words; None if all are."""
        for leaf in self.leaves:
            space = leaf.space
            if not isinstance(space, spaces.Box) or leaf.kind not in ("vector", "image") or space.dtype == np.uint8:
                continue
            part = rows[leaf.part] if leaf.columns is None else rows[leaf.part][..., leaf.columns]
            numbers = part.reshape(-1, prod(leaf.shape))
            if not numbers.size:
                continue
            for bound, most, sign in ((space.low, numbers.min(axis=0), -1), (space.high, numbers.max(axis=0), 1)):
                limits = bound.reshape(-1).astype(np.float64)
                beyond = sign * (most - limits) > ROUNDING * np.maximum(1, np.abs(limits))
                if beyond.any():
                    return _outside_text(leaf, space, int(beyond.argmax()), most)
        return None

    def get(self, parts: Parts, index: tuple[int, ...] | int) -> Any:
        """The observation that lies at an index, in its space's own structure."""
        values: dict[Path, Any] = {}
        for leaf in self.leaves:
            row = parts[leaf.part][index]
            if leaf.items is not None:
                values[leaf.path] = leaf.items.get(row)
                continue
            numbers = row
            if leaf.columns is not None:
                numbers = row[leaf.columns] if prod(leaf.shape) else np.zeros(0)
            if leaf.first is not None:
                numbers = numbers.astype(np.int64) + leaf.first
            value = np.array(numbers, leaf.space.dtype).reshape(leaf.shape)
            values[leaf.path] = value[()] if isinstance(leaf.space, spaces.Discrete) else value
        return nest(self.space, values)

    def _fast_put(self) -> PutRows:
        """Most spaces are one flat leaf, and for those one call writes every row; others are written leaf by leaf."""
        leaf = self.leaves[0]
        first = leaf.first
        exact = first is None or bool((np.abs(first) < LARGEST_EXACT_INTEGER).all())
        if len(self.leaves) == 1 and not leaf.path and self.vector_size and len(leaf.shape) <= 1 and exact:
            return _put_numbers(leaf, self.vector_size)
        return _put_leaves(self.leaves)


def _put_numbers(leaf: ObsLeaf, size: int) -> PutRows:
    """What writes observations that are one flat leaf of numbers."""
    shift: NDArray[np.float32] | None = None
    if leaf.first is not None and leaf.first.any():
        shift = leaf.first.astype(np.float32)

    def put(observations: Sequence[Any], rows: Parts) -> None:
        if leaf.shape:
            # Concatenation beats a loop of assignments, and by itself it refuses a wrong total.
            np.concatenate(observations, out=rows[0].reshape(-1))
            if max(map(len, observations)) != size:
                raise ValueError("observations of wrong sizes")
        else:
            numbers = np.array(observations)
            _check_numbers(numbers)
            rows[0][:, 0] = numbers
        if shift is not None:
            np.subtract(rows[0], shift, out=rows[0])

    return put


def _put_leaves(leaves: Sequence[ObsLeaf]) -> PutRows:
    """What writes observations leaf by leaf."""
    found = [(leaf, _getter(leaf.path)) for leaf in leaves]

    def put(observations: Sequence[Any], rows: Parts) -> None:
        count = len(observations)
        for leaf, get in found:
            room, values = rows[leaf.part], [get(obs) for obs in observations]
            if leaf.items is not None:
                for index, value in enumerate(values):
                    leaf.items.put(value, room[index], leaf.name)
            elif leaf.columns is None:
                for index, value in enumerate(values):
                    image = np.asarray(value)
                    if image.shape != leaf.shape:
                        raise ValueError("observations of wrong shapes")
                    _check_numbers(image)
                    room[index] = image
            else:
                array = np.array(values)
                if array.shape != (count, *leaf.shape):
                    raise ValueError("observations of wrong shapes")
                _check_numbers(array)
                if array.size:
                    room[:, leaf.columns] = leaf.stored(array.reshape(count, -1))

    return put


def _outside_text(leaf: ObsLeaf, space: spaces.Box, at: int, numbers: NDArray[Any]) -> str:
    where = ", ".join(str(index) for index in np.unravel_index(at, leaf.shape))
    place = f"{leaf.name}[{where}]" if leaf.shape else leaf.name
    return f"{place} was {numbers[at]:g}, and its space is from {space.low.flat[at]:g} to {space.high.flat[at]:g}"


def _check_numbers(array: NDArray[Any]) -> None:
    """Refuse text, which NumPy would read as numbers, and objects; `put` tells which it is."""
    if array.dtype.kind not in NUMBERS:
        raise ValueError("observations that are not numbers")


@dataclass(frozen=True)
class Items:
    """How the items of a sequence lie in its part `[max_len, 1 + R]`."""

    space: spaces.Sequence
    spec: ObsSpec  # of one item: R numbers
    max_len: int

    def put(self, value: Any, room: NDArray[np.float32], name: str) -> None:
        """Write a sequence; a ValueError says what does not fit."""
        try:
            items = items_of(self.space, value)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{name} {error}") from None
        count = len(items)
        if count > self.max_len:
            limit = "its space's max_len" if isinstance(self.space, Repeated) else "model.sequence_max_len"
            raise ValueError(f"{name} has {count} items, and {limit} is {self.max_len}; make it larger")
        rows = self.spec.allocate(count)
        try:
            if count:
                self.spec.put_all(items, rows)
        except Exception:
            for index, item in enumerate(items):
                try:
                    self.spec.put(item, rows, index)
                except ValueError as error:
                    raise ValueError(f"item {index} of {name}: {error}") from None
        room[:] = 0
        room[:count, 0] = 1
        room[:count, 1:] = rows[0]

    def get(self, part: NDArray[np.float32]) -> Any:
        """The sequence that lies in a part, in its space's own structure."""
        count = int(part[:, 0].sum())
        items = tuple(self.spec.get((part[:, 1:],), index) for index in range(count))
        if not self.space.stack:
            return items
        room: Any = create_empty_array(self.space.feature_space, count)
        return concatenate(self.space.feature_space, items, room) if items else room  # of none there is no stack


def _kind(path: Path, leaf: Space, images: bool, actions: ActionSpec | None) -> Kind:
    """What a leaf is to us."""
    if actions is not None and path[:1] == (MASK,):
        return "mask"
    if actions is not None and path[:1] == (AVAIL,):
        first = actions.leaves[0]
        is_choice = len(actions.leaves) == 1 and first.kind == "categorical" and first.size == 1
        is_table = path == (AVAIL,) and isinstance(leaf, spaces.Box) and len(leaf.shape) == 2
        if not (is_choice and is_table and leaf.shape is not None and leaf.shape[0] == first.choices[0]):
            raise ConfigError(
                f"observation '{AVAIL}' must be a Box of shape (n, size), a row of numbers for each of Discrete(n) "
                f"actions (got {leaf} and {actions.space}); call a mask {MASK}, and anything else by another name"
            )
        return "avail"
    if isinstance(leaf, spaces.Sequence):
        return "items"
    return "image" if images and is_image(leaf) else "vector"


def _items(path: Path, space: spaces.Sequence, max_len: int | None) -> Items:
    name = f"observation '{path_name(path)}'" if path else "observation_space"
    longest = space.max_len if isinstance(space, Repeated) else max_len
    if longest is None:
        raise ConfigError(
            f"{name}: a Sequence has no maximum length; set model: {{sequence_max_len: 32}}, "
            "or make it a shoal.Repeated(space, 32) in the environment"
        )
    if any(isinstance(leaf, spaces.Sequence) for _, leaf in leaves_of(space.feature_space)):
        raise ConfigError(f"{name}: a sequence of sequences cannot be learned from; flatten it in the environment")
    return Items(space, ObsSpec(space.feature_space, images=False), longest)


def _getter(path: Path) -> Callable[[Any], Any]:
    """What takes a leaf's value out of an observation."""
    if len(path) == 1:
        return itemgetter(path[0])

    def walk(obs: Any) -> Any:
        for key in path:
            obs = obs[key]
        return obs

    return walk


def _discrete_range(space: Space) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if isinstance(space, spaces.Discrete):
        return np.array([space.start], np.int64), np.array([space.n], np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return start.reshape(-1).astype(np.int64), space.nvec.reshape(-1).astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        size = prod(space.shape)
        return np.zeros(size, np.int64), np.full(size, 2, np.int64)
    return None, None


def _unlearnable(path: Path, leaf: Space, space: Space) -> ConfigError:
    """The sentence for a leaf that holds no numbers, with what leaves it out where there is something else to see."""
    where = f"observation '{path_name(path)}'" if path else "observation_space"
    encode = "encode it as Box, Discrete, MultiDiscrete, MultiBinary, Sequence, Dict or Tuple in the environment"
    children: dict[Any, Space] = {}
    if isinstance(space, spaces.Dict):
        children = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        children = dict(enumerate(space.spaces))
    kept = [str(key) for key, child in children.items() if _is_learnable(child)]
    if kept:
        words = f"FilterObservation:filter_keys=[{','.join(kept)}]"
        encode = f"leave it out with --wrap '{words}' (wrappers: in a file), or {encode}"
    return ConfigError(f"{where}: {type(leaf).__name__} spaces cannot be learned from; {encode}")


def _is_learnable(space: Space) -> bool:
    return all(isinstance(leaf, (*_NUMBERS, spaces.Sequence)) for _, leaf in leaves_of(space))


def _array_text(values: NDArray[Any]) -> str:
    with np.printoptions(threshold=8, edgeitems=3, precision=4):
        return " ".join(str(values.reshape(-1)).split())
