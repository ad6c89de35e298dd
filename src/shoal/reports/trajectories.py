"""Trajectories of `shoal evaluate --trajectories`, read for drawing: each number is a curve in each episode."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.number_text import counted
from shoal.errors import ConfigError
from shoal.reports.bands import Band, thinned
from shoal.reports.curves import Curve, Floats
from shoal.reports.plot_data import Panel, PlotData, PlotLine

MOST_NUMBERS = 64  # of one array; an image is no curve
MOST_EPISODES = 1000
MOST_POINTS = 1000  # of one curve in a figure
MOST_TURNS = 100  # of a line that is not restless
MOST_NAMED = 8  # episodes that are told apart
MOST_PANELS = 24
NO_VARIABLES = ("episode", "step", "terminated", "truncated")
NAMES = b"episodes"
"""The key of the file's metadata that has the names of its cases."""


@dataclass(frozen=True)
class Trajectories:
    """Curves over the steps of an episode: of each variable, one for each episode that has it."""

    file: str
    episodes: tuple[str, ...]
    curves: Mapping[str, tuple[Curve, ...]]
    left_out: tuple[str, ...] = ()  # columns that are no curves, with the reason

    def of(self, name: str, option: str) -> tuple[Curve, ...]:
        """The curves of one variable; one that is not there is refused with the near ones."""
        if name not in self.curves:
            close = get_close_matches(name, self.curves, n=3, cutoff=0.3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(self.curves)}"
            raise ConfigError(f"{option}: {self.file} has no variable {name!r}; {hint}")
        return self.curves[name]


def read_trajectories(path: Path) -> Trajectories:
    """The curves of a file; what is no such file is refused."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(f"--trajectories {path}: Parquet needs pyarrow; type: pip install pyarrow") from None
    asked = "give a file of `shoal evaluate --trajectories`"
    if not path.is_file():
        raise ConfigError(f"--trajectories {path}: there is no such file; {asked}")
    try:
        schema = pq.read_schema(path)
        kept = [name for name in schema.names if not _reason(schema.field(name).type)]
        if not {"episode", "step"} <= set(kept):
            raise ConfigError(f"--trajectories {path}: has no columns episode and step of numbers; {asked}")
        table = pq.read_table(path, columns=kept)
    except (OSError, pa.ArrowException) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"--trajectories {path}: cannot be read: {why}; {asked}") from None
    left_out = [f"{name} ({_reason(schema.field(name).type)})" for name in schema.names if name not in kept]
    return _curves(path.name, table, _names(schema.metadata), left_out)


def _reason(kind: Any) -> str:
    """Why a column is no curve, or no few of them; empty if it is."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        size = int(kind.list_size)
        return f"{size:,} numbers" if size > MOST_NUMBERS else _reason(kind.value_type)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return "" if is_number else "no number" if not pa.types.is_list(kind) else "of changing length"


def _names(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """The names of the cases, if it was cases."""
    try:
        found = json.loads((metadata or {}).get(NAMES, b"[]"))
    except ValueError:
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _curves(file: str, table: Any, names: Sequence[str], left_out: Sequence[str]) -> Trajectories:
    episode, step = (np.asarray(table.column(name).to_numpy(), np.float64) for name in ("episode", "step"))
    numbers = np.unique(episode[np.isfinite(episode)]).astype(np.int64)[:MOST_EPISODES]
    rows = [np.flatnonzero(episode == number) for number in numbers]
    columns: dict[str, Floats] = {}
    for name in table.column_names:
        if name not in NO_VARIABLES:
            columns |= _columns(name, table.column(name))
    curves = {}
    for name, values in columns.items():
        own = []
        for places in rows:
            known = places[np.isfinite(values[places])]
            own.append(Curve(step[known], values[known]))
        if any(len(curve.x) for curve in own):
            curves[name] = tuple(own)
    if not curves:
        raise ConfigError(f"--trajectories {file}: has no numbers that could be drawn")
    labels = [f"case {names[number]}" if number < len(names) else f"episode {number}" for number in map(int, numbers)]
    return Trajectories(file, tuple(labels), curves, tuple(left_out))


def _columns(name: str, column: Any) -> dict[str, Floats]:
    """A column as arrays of numbers, one for each place of its cells; what is missing is NaN."""
    import pyarrow as pa

    whole = column.combine_chunks()
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    if not pa.types.is_fixed_size_list(whole.type):
        return {name: _floats(whole)}
    size = whole.type.list_size
    missing = np.asarray(whole.is_null().to_numpy(zero_copy_only=False))
    flat = np.full((len(whole), size), np.nan)
    flat[~missing] = _floats(whole.flatten()).reshape(-1, size)  # without the cells that are missing
    return {f"{name}[{place}]": flat[:, place] for place in range(size)}


def _floats(array: Any) -> Floats:
    import pyarrow as pa

    return np.asarray(array.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def curves_plot(found: Trajectories, names: Sequence[str] = ()) -> PlotData:
    """A panel for each variable, over the steps of an episode; without names, those that there are."""
    chosen = list(names) or list(found.curves)[:MOST_PANELS]
    panels = tuple(Panel(name, "step", _lines(found, found.of(name, "--metric"))) for name in chosen)
    words = [f"{found.file}: {counted(len(found.episodes), 'episode')}"]
    if len(found.episodes) > MOST_NAMED:
        words.append("thin lines are episodes; the thick one is their median, as far as half of them went")
    if len(chosen) < len(found.curves) and not names:
        words.append(f"the first {len(chosen)} of {len(found.curves)} variables (--metric NAME chooses)")
    if found.left_out:
        words.append(f"left out: {', '.join(found.left_out)}")
    return PlotData("", panels, "; ".join(words), "; ".join(words))


def paths_plot(found: Trajectories, given: str) -> PlotData:
    """One variable over another: the path of each episode, from its first step to its last."""
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", given)]
    if len(names) != 2 or not all(names):
        raise ConfigError(f"--paths: give two variables, e.g. --paths {','.join([*found.curves, 'reward'][:2])}")
    across, up = (found.of(name, "--paths") for name in names)
    lines = []
    for label, x, y in zip(_labels(found), across, up):
        steps = np.intersect1d(x.x, y.x)
        if len(steps):
            path = x.y[np.isin(x.x, steps)], y.y[np.isin(y.x, steps)]
            lines.append(PlotLine(label, Band(path[0], path[1], path[1], path[1], 1)))
    if not lines:
        raise ConfigError(f"--paths: no step of {found.file} has both {names[0]} and {names[1]}")
    caption = f"{found.file}: {counted(len(lines), 'path')}; a dot is where one begins, a cross where it ends"
    return PlotData("", (Panel(names[1], names[0], tuple(lines), is_path=True),), caption, caption)


def _labels(found: Trajectories) -> list[str]:
    """The names of the lines: of few episodes their own, of many none."""
    return list(found.episodes) if len(found.episodes) <= MOST_NAMED else [""] * len(found.episodes)


def _lines(found: Trajectories, curves: Sequence[Curve]) -> tuple[PlotLine, ...]:
    lines = []
    for label, curve in zip(_labels(found), curves):
        if len(curve.x):
            thin = thinned(curve, MOST_POINTS)
            turns = int(np.count_nonzero(np.diff(np.sign(np.diff(thin.y)))))
            lines.append(PlotLine(label, Band(thin.x, thin.y, thin.y, thin.y, 1), is_restless=turns > MOST_TURNS))
    if len(curves) > MOST_NAMED:
        middle = median_of(curves)
        lines.append(PlotLine("median", Band(middle.x, middle.y, middle.y, middle.y, 1)))
    return tuple(lines)


def median_of(curves: Sequence[Curve]) -> Curve:
    """The median of the episodes at each step that at least half of them have."""
    steps = np.unique(np.concatenate([curve.x for curve in curves]))
    rows = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(rows, curves):
        row[np.searchsorted(steps, curve.x)] = curve.y
    kept = np.count_nonzero(~np.isnan(rows), axis=0) >= len(curves) / 2
    kept |= ~kept.any()  # no step is of so many
    return thinned(Curve(steps[kept], np.nanmedian(rows[:, kept], axis=0)), MOST_POINTS)
