"""Where recorded steps are: which files an `input` means, whether they fit a policy, and where their episodes begin."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.data.experience import Integers
from shoal.envs.experience_columns import check_spaces, told_spaces
from shoal.envs.spaces import Space
from shoal.errors import ConfigError

MINARI = "minari:"
MARKS = ("terminated", "truncated")


@dataclass(frozen=True)
class RecordedSteps:
    """Steps that are read when they are asked for: those of Parquet files in their order, or of one table."""

    name: str  # as messages call them
    files: tuple[str, ...]  # none where the steps are in `made`
    made: Any = None  # a pyarrow.Table, of what does not come as Parquet

    @cached_property
    def schemas(self) -> list[Any]:
        """The schema of each file; reading it finds those that are damaged or half written."""
        if self.made is not None:
            return [self.made.schema]
        import pyarrow as pa
        import pyarrow.parquet as pq

        schemas: list[Any] = []
        for file in self.files:
            try:
                schemas.append(pq.read_schema(file))
            except (pa.ArrowException, OSError) as error:
                why = (str(error).splitlines() or ["unknown"])[0].rstrip(".")
                raise ConfigError(
                    f"config.input: {file} is not a whole Parquet file ({why}); remove it, or write it again"
                ) from None
        return schemas

    @property
    def places(self) -> list[str]:
        """How messages call each file."""
        return [f"config.input: {file}" for file in self.files or (self.name,)]

    def spaces(self) -> tuple[Space, Space] | None:
        """The spaces that the first file tells; None if it tells none."""
        return told_spaces(self.schemas[0].metadata, self.places[0])

    def check(self, spaces: tuple[Space, Space], names: Sequence[str]) -> None:
        """Refuse files of other spaces, or without the columns of these names."""
        for schema, where in zip(self.schemas, self.places, strict=True):
            check_spaces(schema.metadata, spaces, where)
            missing = [name for name in names if name not in schema.names]
            if missing:
                there = ", ".join(schema.names) or "none"
                raise ConfigError(
                    f"{where} lacks the column {missing[0]!r} (it has {there}); docs/offline.md has the columns"
                )

    def table(self, names: Sequence[str] | None = None) -> Any:
        """All steps, or the columns of these names, as far as there are any, as one pyarrow.Table."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.made is not None:
            return self.made if names is None else self.made.select([n for n in names if n in self.made.column_names])
        tables: list[Any] = []
        for file, schema, where in zip(self.files, self.schemas, self.places, strict=True):
            kept = self.columns(names or schema.names)
            try:
                tables.append(pq.read_table(file, columns=kept, partitioning=None).replace_schema_metadata(None))
            except (pa.ArrowException, OSError) as error:
                raise ConfigError(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise ConfigError(
                f"config.input: the columns of {self.name} differ between files: {str(error).splitlines()[0]}"
            ) from None

    def columns(self, names: Sequence[str]) -> list[str]:
        """Those of these columns that every file has."""
        return [name for name in names if all(name in schema.names for schema in self.schemas)]

    @cached_property
    def num_rows(self) -> int:
        """How many steps there are."""
        return sum(self._counts) if self.made is None else int(self.made.num_rows)

    @cached_property
    def starts(self) -> Integers:
        """The first row of every episode, over all files."""
        table = self.table(["episode_id", "t", *MARKS])
        total = self.num_rows
        if not total:
            raise ConfigError(f"config.input: {self.name} has no steps in it")
        begins = np.zeros(total, bool)
        begins[0] = True
        begins[self._first_rows()] = True
        if "episode_id" in table.column_names:
            ids = table["episode_id"].to_numpy()
            begins[1:] |= ids[1:] != ids[:-1]
        for mark in MARKS:
            if mark in table.column_names:
                begins[1:] |= table[mark].to_numpy().astype(bool)[:-1]
        if "t" in table.column_names:
            begins |= table["t"].to_numpy() == 0
        return np.flatnonzero(begins)

    def _first_rows(self) -> list[int]:
        """The first row of every file that has any."""
        firsts = np.cumsum([0, *self._counts])[:-1].tolist()
        return [first for first, count in zip(firsts, self._counts, strict=True) if count]

    @cached_property
    def _counts(self) -> list[int]:
        """The rows of every file."""
        import pyarrow.parquet as pq

        return [pq.read_metadata(file).num_rows for file in self.files]


def find_steps(source: str | Sequence[str] | None) -> RecordedSteps:
    """The recorded steps that an `input` means; a ConfigError says why there are none."""
    if source is None:
        raise ConfigError(
            'config.input: is missing; write the recorded steps to learn from, e.g. input: "folder/*.parquet", '
            "which output: folder of another run has written"
        )
    patterns = [source] if isinstance(source, str) else list(source)
    if any(pattern.startswith(MINARI) for pattern in patterns):
        if len(patterns) > 1:
            raise ConfigError("config.input: one Minari dataset is learned from at a time, and by itself")
        from shoal.envs.minari_data import minari_table

        return RecordedSteps(patterns[0], (), minari_table(patterns[0].removeprefix(MINARI)))
    files: list[str] = []
    for pattern in patterns:
        files += _files_of(pattern)
    return RecordedSteps(", ".join(patterns), tuple(dict.fromkeys(files)))


def _files_of(pattern: str) -> list[str]:
    """The files of a pattern or a folder, in the order of their names."""
    path = os.path.expanduser(os.path.expandvars(pattern))
    is_folder = os.path.isdir(path)
    found = sorted(glob.glob(os.path.join(glob.escape(path), "*.parquet") if is_folder else path, recursive=True))
    found = [os.path.abspath(file) for file in found if os.path.isfile(file)]
    if not found:
        what = "the folder has no *.parquet in it" if is_folder else "there is no such file"
        raise ConfigError(f"config.input: {pattern}: {what}")
    return found
