"""Trajectories as a Parquet file: one row per observation, so that the last one of each episode is there too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.envs.recording import Trajectory
from shoal.envs.repeated import items_of
from shoal.envs.spaces import Path, Space, leaves_of, path_name
from shoal.errors import ConfigError


def check_trajectories(path: FilePath) -> None:
    """Refuse a file that cannot be written as Parquet."""
    if path.suffix.lower() != ".parquet":
        raise ConfigError(f"{path}: the name of a file of trajectories must end in .parquet")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow, which is not installed; type: pip install pyarrow"
        ) from error


def write_trajectories(
    path: FilePath,
    trajectories: Sequence[Trajectory],
    observation_space: Space,
    action_space: Space,
    cases: Sequence[str] = (),
) -> None:
    """Write `episode, step, obs, action, reward, terminated, truncated`; where an episode is over, only `obs` is there.

    Dict and Tuple spaces have a column for each leaf, such as `obs.position`. An array lies flat in its cell, and its
    shape in the column's metadata. The items of a Sequence lie one after another in one cell. The names of `cases`, one
    for each episode, are in the file's metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not trajectories:
        raise ConfigError(f"{path}: no episode ended, so there is nothing to write")
    tables = [
        _table(episode, trajectory, observation_space, action_space) for episode, trajectory in enumerate(trajectories)
    ]
    whole = pa.concat_tables(tables)
    if cases:
        whole = whole.replace_schema_metadata({"episodes": json.dumps(list(cases))})
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        pq.write_table(whole, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _table(episode: int, trajectory: Trajectory, observation_space: Space, action_space: Space) -> Any:
    import pyarrow as pa

    steps = len(trajectory.actions)
    over = np.arange(steps + 1) == steps
    last = np.arange(steps + 1) == steps - 1
    columns = [
        ("episode", pa.array(np.full(steps + 1, episode, np.int32)), ()),
        ("step", pa.array(np.arange(steps + 1, dtype=np.int32)), ()),
        *_columns("obs", observation_space, trajectory.obs, None),
        *_columns("action", action_space, [*trajectory.actions, trajectory.actions[-1]], over),
        ("reward", pa.array(np.array([*trajectory.rewards, 0.0]), mask=over), ()),
        ("terminated", pa.array(last & trajectory.terminated, mask=over), ()),
        ("truncated", pa.array(last & (not trajectory.terminated), mask=over), ()),
    ]
    fields = [
        pa.field(name, column.type, metadata={"shape": ",".join(map(str, shape))} if len(shape) > 1 else None)
        for name, column, shape in columns
    ]
    return pa.Table.from_arrays([column for _, column, _ in columns], schema=pa.schema(fields))


def _columns(name: str, space: Space, values: Sequence[Any], mask: Any) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """A column for each leaf of a space, with the shape of what is in its cells."""
    import pyarrow as pa

    for path, leaf in leaves_of(space):
        title, cells = _title(name, path), [_at(value, path) for value in values]
        if isinstance(leaf, spaces.Sequence):
            yield from _item_columns(title, leaf, cells)
            continue
        shape = tuple(leaf.shape or ())
        numbers = np.stack([np.asarray(cell, leaf.dtype).reshape(-1) for cell in cells])
        null = None if mask is None else pa.array(mask)
        if not shape:
            yield title, pa.array(numbers[:, 0], mask=mask), shape
        else:
            flat = pa.array(numbers.reshape(-1))
            yield title, pa.FixedSizeListArray.from_arrays(flat, numbers.shape[1], mask=null), shape


def _item_columns(
    name: str, space: spaces.Sequence, values: Sequence[Any]
) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """A column for each leaf of a sequence's items, which lie one after another in its cells."""
    import pyarrow as pa

    for path, leaf in leaves_of(space.feature_space):
        none = np.zeros(0, leaf.dtype)
        rows = [[np.asarray(_at(item, path), leaf.dtype).reshape(-1) for item in items_of(space, v)] for v in values]
        column = pa.array([np.concatenate([none, *row]) for row in rows], pa.list_(pa.from_numpy_dtype(none.dtype)))
        yield _title(name, path), column, (-1, *(leaf.shape or ()))


def _title(name: str, path: Path) -> str:
    return f"{name}.{path_name(path)}" if path else name


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value
