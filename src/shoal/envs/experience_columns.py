"""How steps stand in a table: which columns there are for given spaces, and between those and our arrays.

A table holds one step per row, and the rows of an episode one after another:

- `episode_id`, `t`: which episode of its writer, and which step of it, from 0 on;
- `obs`: what the policy saw, and `final_obs`, null but in the last row of an episode that did not terminate: what it
  would have seen next. Each leaf of a Dict or Tuple space has a column of its own, `obs.NAME`;
- `action`: what the environment got, in its own units, or `action.NAME`;
- `reward`, `terminated`, `truncated`: what the environment gave.

A column of a leaf with a shape holds lists of its numbers in a row. Numbers of a Box are of single precision, as
networks see them; discrete values are integers. The spaces are in the table's metadata under the key `shoal`, as JSON:
by them a table is bound to the policies that can learn from it. A table without them, made by other programs, is bound
by its columns alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.data.experience import Experience, Integers
from shoal.envs.catalogue import in_short
from shoal.envs.observations import ObsLeaf, ObsSpec
from shoal.envs.space_trees import space_from, space_tree
from shoal.envs.spaces import ActionSpec, Path, Space, leaves_of
from shoal.errors import ConfigError
from shoal.version import __version__

METADATA_KEY = b"shoal"
FORMAT = 1


@dataclass(frozen=True)
class Column:
    """A column of the table: one leaf of observations or actions, `size` numbers a row, or a single one."""

    name: str
    size: int
    is_list: bool

    def to_arrow(self, rows: NDArray[Any], present: NDArray[np.bool_] | None = None) -> Any:
        """Numbers `[R, size]` as an Arrow array; where rows are not `present`, they are null."""
        import pyarrow as pa

        if not self.is_list:
            return pa.array(rows.reshape(-1), mask=None if present is None else ~present)
        kept = rows if present is None else rows[present]
        sizes = np.full(len(rows), self.size) if present is None else np.where(present, self.size, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        mask = None if present is None else pa.array(~present)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(kept.reshape(-1)), mask=mask)

    def from_arrow(self, column: Any, where: str) -> NDArray[Any]:
        """The numbers `[R, size]` of a column without nulls."""
        import pyarrow as pa

        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise ConfigError(f"{where}: row {row} of the column {self.name!r} is empty; remove or fill such rows")
        kind = array.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        numbers = array.flatten() if is_list else array
        if is_list and len(numbers) != len(array) * self.size:
            widths = np.diff(array.offsets.to_numpy()) if hasattr(array, "offsets") else np.array([kind.list_size])
            raise ConfigError(f"{where}: the column {self.name!r} has {int(widths[0])} numbers a row, not {self.size}")
        if not is_list and self.size != 1:
            raise ConfigError(f"{where}: the column {self.name!r} has one number a row, not {self.size}")
        if not _is_numeric(numbers.type):
            raise ConfigError(f"{where}: the column {self.name!r} holds {numbers.type}, not numbers")
        return np.asarray(numbers.to_numpy(zero_copy_only=False)).reshape(len(array), self.size)


class ExperienceColumns:
    """Between tables of steps and the arrays of a policy with given specs."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self._obs = [(leaf, _obs_column("obs", leaf, obs_spec)) for leaf in obs_spec.leaves]
        self._final = [(leaf, _obs_column("final_obs", leaf, obs_spec)) for leaf in obs_spec.leaves]
        self._actions = [
            (leaf, Column(_name("action", leaf.path), leaf.size, bool(leaf.space.shape))) for leaf in action_spec.leaves
        ]

    @property
    def names(self) -> list[str]:
        """The columns that no policy can learn without."""
        return [column.name for _, column in (*self._obs, *self._actions) if column.size]

    @property
    def final_names(self) -> list[str]:
        """The columns of what followed an episode's end."""
        return [column.name for _, column in self._final if column.size]

    def metadata(self, env: str) -> dict[bytes, bytes]:
        """What a table says of where its steps come from."""
        spaces = [space_tree(spec.space) for spec in (self.obs_spec, self.action_spec)]
        told = {"format": FORMAT, "shoal": __version__, "env": env, "spaces": spaces}
        return {METADATA_KEY: json.dumps(told).encode()}

    def observations(self, parts: Parts, present: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """The columns of observations; with `present`, those of final ones, which have a row only there."""
        pairs = self._obs if present is None else self._final
        return {column.name: column.to_arrow(_stored(leaf, parts), present) for leaf, column in pairs if column.size}

    def actions(self, rows: NDArray[Any]) -> dict[str, Any]:
        """The columns of actions, which policies take as rows `[R, A]`, in the environment's own units."""
        return self.given_actions(self.action_spec.decoded(rows))

    def given_actions(self, values: Sequence[NDArray[Any]]) -> dict[str, Any]:
        """The columns of actions that are in the environment's units already, `[R, size]` of each leaf."""
        pairs = zip(self._actions, values, strict=True)
        return {column.name: column.to_arrow(numbers) for (_, column), numbers in pairs}

    def observed(self, table: Any, where: str) -> Parts:
        """The observations of a table."""
        return self._parts(table, self._obs, where)

    def experience(self, table: Any, starts: Integers, where: str) -> Experience:
        """The steps of a table whose episodes begin at `starts`; a ConfigError says what is wrong with them."""
        obs = self.observed(table, where)
        numbers = [column.from_arrow(table[column.name], where) for _, column in self._actions]
        try:
            actions = self.action_spec.encoded(numbers)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        rewards = _plain(table, "reward", np.float32, where)
        terminated = _plain(table, "terminated", np.bool_, where)
        final_obs, final_of = self._finals(table, starts, terminated, where)
        experience = Experience(obs, actions, rewards, terminated, starts, final_obs, final_of)
        told = self._problem(experience)
        if told is not None:
            raise ConfigError(f"{where}: {told}; remove such episodes")
        return experience

    def _problem(self, experience: Experience) -> str | None:
        """What no policy can learn from, in words; None if there is nothing of that kind."""
        rewards, finals = experience.rewards, experience.final_obs
        problem = self.obs_spec.problem(experience.obs)
        if problem is not None:
            return f"row {problem[0]}: {problem[1]}"
        problem = self.obs_spec.problem(finals, np.ones(len(finals[0]), bool))
        if problem is not None:
            episode = int(np.flatnonzero(experience.final_of == problem[0])[0])
            return f"after the last row of episode {episode}: {problem[1]}"
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            return f"row {row}: the reward is not finite ({rewards[row]})"
        if self.obs_spec.mask is not None:
            ruled_out = self.obs_spec.mask.ruled_out(experience.obs[-1], experience.actions)
            if ruled_out.any():
                return f"row {int(ruled_out.argmax())}: the action is ruled out by its action_mask"
        return None

    def _parts(self, table: Any, pairs: Sequence[tuple[ObsLeaf, Column]], where: str) -> Parts:
        """The observations of a table as arrays."""
        parts = self.obs_spec.allocate(table.num_rows)
        for leaf, column in pairs:
            if not column.size:
                continue
            rows = column.from_arrow(table[column.name], where)
            if leaf.columns is None:
                parts[leaf.part][:] = rows.reshape(parts[leaf.part].shape)
                continue
            try:
                parts[leaf.part][:, leaf.columns] = leaf.stored(rows)
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
        return parts

    def _finals(
        self, table: Any, starts: Integers, terminated: NDArray[np.bool_], where: str
    ) -> tuple[Parts, Integers]:
        """The observations after episodes that did not terminate, and which of them follows each episode."""
        last = np.append(starts[1:], table.num_rows) - 1
        names = self.final_names
        final_of = np.full(len(starts), -1, np.int64)
        if not all(name in table.column_names for name in names):
            return self.obs_spec.allocate(0), final_of
        ends = table.take(last)
        there = ends[names[0]].combine_chunks().is_valid().to_numpy(zero_copy_only=False) & ~terminated[last]
        final_of[there] = np.arange(np.count_nonzero(there))
        return self._parts(ends.take(np.flatnonzero(there)), self._final, where), final_of


def check_spaces(metadata: dict[bytes, bytes] | None, spaces: tuple[Space, Space] | None, where: str) -> None:
    """Refuse a table of other spaces than these; one that does not tell its spaces is judged by its columns."""
    found = told_spaces(metadata, where)
    if found is None or spaces is None:
        return
    for what, theirs, ours in zip(("observations", "actions"), found, spaces, strict=True):
        if _form(theirs) != _form(ours):
            raise ConfigError(f"{where} has other {what}: {in_short(theirs)} there, {in_short(ours)} here")


def told_spaces(metadata: dict[bytes, bytes] | None, where: str) -> tuple[Space, Space] | None:
    """The spaces that a table says its steps are of; None if it says none."""
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    told = json.loads(text)
    if told["format"] != FORMAT:
        raise ConfigError(f"{where} is of format {told['format']}, and this shoal reads {FORMAT}; update shoal")
    trees = told["spaces"]
    return None if None in trees else (space_from(trees[0]), space_from(trees[1]))


def _form(space: Space) -> list[tuple[Any, ...]]:
    """What arrays must fit: structure, shapes and choices; bounds may differ, for numbers are in the space's units."""
    form: list[tuple[Any, ...]] = []
    for path, leaf in leaves_of(space):
        choices = getattr(leaf, "n", getattr(leaf, "nvec", None))
        first = getattr(leaf, "start", None)
        form.append((path, type(leaf).__name__, leaf.shape, np.asarray(choices).tolist(), np.asarray(first).tolist()))
    return form


def _name(prefix: str, path: Path) -> str:
    return ".".join([prefix, *map(str, path)])


def _obs_column(prefix: str, leaf: ObsLeaf, spec: ObsSpec) -> Column:
    """The column of a leaf of observations."""
    if leaf.columns is None:
        return Column(_name(prefix, leaf.path), prod(spec.shapes[leaf.part]), True)
    return Column(_name(prefix, leaf.path), prod(leaf.shape), bool(leaf.shape))


def _stored(leaf: ObsLeaf, parts: Parts) -> NDArray[Any]:
    """A leaf's numbers `[R, size]` as a table has them."""
    part = parts[leaf.part]
    if leaf.columns is None:
        return part.reshape(len(part), -1)
    numbers: NDArray[Any] = part[:, leaf.columns]
    return numbers if leaf.first is None else numbers.astype(np.int64) + leaf.first


def _plain(table: Any, name: str, dtype: Any, where: str) -> NDArray[Any]:
    """A column of single numbers `[R]`; zeros where there is none, for who does not need it."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, dtype)
    return Column(name, 1, False).from_arrow(table[name], where)[:, 0].astype(dtype)


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
