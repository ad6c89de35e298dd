"""The numbers of a `result.json` as columns, read in batches: a hundred long runs are a million lines.

The lines of a run mostly have the same names and kinds of values, so how one is taken apart is worked out once for all
lines of its shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.data.results import flat, is_number
from shoal.reports.curves import Floats
from shoal.runs.bounded_files import bounded_lines, reading

MOST_LINES = 50_000  # of a run's results that are read
BATCH = 500  # lines that are parsed together
LARGEST = 1e38  # in size; figures have single precision, and sums and squares of more could overflow
NO_RESULT = (ValueError, RecursionError)

Shape: TypeAlias = "tuple[tuple[str, ...], tuple[type, ...], tuple[Shape, ...]]"
"""The names of a result, the kinds of their values, and the shapes of the results inside of it."""
Group: TypeAlias = "tuple[tuple[str, ...], tuple[str, ...]]"
"""Where a result inside of a result is, and the names of its numbers."""


@dataclass(frozen=True)
class Block:
    """The numbers of lines that have the same names."""

    names: tuple[str, ...]
    at: np.ndarray  # [n], the places of the lines
    values: Floats  # [n, names], as they were written


def read_columns(path: Path, most_lines: int = MOST_LINES) -> tuple[dict[str, Floats], dict[str, int]]:
    """The numbers of a `result.json`, a column for each name with NaN where a line lacks it.

    Numbers that are not finite, or larger than `LARGEST`, are lacking too; beside the columns is how many of a name
    are. Of a very long file, every so many lines are read, and the last. Lines that are no result are passed over.
    """
    blocks: list[Block] = []
    count = 0
    lines = _lines_of(path, most_lines)
    while batch := list(islice(lines, BATCH)):
        results = parsed_results(batch)
        blocks += _blocks(results, count)
        count += len(results)
    columns: dict[str, Floats] = {}
    unusable: dict[str, int] = {}
    for block in blocks:
        is_usable = np.abs(block.values) <= LARGEST
        for place, name in enumerate(block.names):
            column = columns.setdefault(name, np.full(count, np.nan))
            column[block.at] = np.where(is_usable[:, place], block.values[:, place], np.nan)
            if lost := int((~is_usable[:, place]).sum()):
                unusable[name] = unusable.get(name, 0) + lost
    return {name: column for name, column in columns.items() if not np.isnan(column).all()}, unusable


def parsed_results(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The results in lines of JSON; what is none, and a line that is half written, is left out."""
    with suppress(*NO_RESULT):
        together = json.loads(b"[" + b",".join(lines) + b"]")
        if len(together) == len(lines) and set(map(type, together)) == {dict}:
            return list(together)
    found = []
    for line in lines:
        with suppress(*NO_RESULT):
            result = json.loads(line)
            if isinstance(result, dict):
                found.append(result)
    return found


def _blocks(results: Sequence[dict[str, Any]], first: int) -> list[Block]:
    """The numbers of results, of which the first has the place `first`, those of one shape together."""
    shapes: dict[Shape, tuple[list[int], list[Mapping[str, Any]]]] = {}
    for place, result in enumerate(results, start=first):
        with suppress(RecursionError):
            places, members = shapes.setdefault(_shape(result), ([], []))
            places.append(place)
            members.append(result)
    found = []
    for shape, (places, members) in shapes.items():
        groups = _groups(shape)
        if not groups:
            continue
        names = tuple("/".join((*inside, name)) for inside, own in groups for name in own)
        try:
            parts = [_values(members, inside, own) for inside, own in groups]
            found.append(Block(names, np.array(places), np.concatenate(parts, axis=1)))
        except OverflowError:  # an integer that no float can hold
            found += [_alone(place, result) for place, result in zip(places, members)]
    return found


def _shape(result: Mapping[str, Any]) -> Shape:
    values = result.values()
    kinds = tuple(map(type, values))
    inner = tuple(_shape(value) for value in values if type(value) is dict) if dict in kinds else ()
    return tuple(result), kinds, inner


@cache
def _groups(shape: Shape, inside: tuple[str, ...] = ()) -> tuple[Group, ...]:
    """All numbers of a shape, by the result inside of it that has them."""
    names, kinds, inner = shape
    own = tuple(name for name, kind in zip(names, kinds) if kind is float or kind is int)
    found: list[Group] = [(inside, own)] if own else []
    nested = (name for name, kind in zip(names, kinds) if kind is dict)
    for name, one in zip(nested, inner):
        found += _groups(one, (*inside, name))
    return tuple(found)


def _values(members: Sequence[Mapping[str, Any]], inside: tuple[str, ...], own: tuple[str, ...]) -> Floats:
    """The numbers of one part of each result, `[n, names]`."""
    parts: Sequence[Mapping[str, Any]] = members
    for name in inside:
        parts = [part[name] for part in parts]
    return np.array([[part[name] for name in own] for part in parts], np.float64)


def _alone(place: int, result: Mapping[str, Any]) -> Block:
    """The numbers of one result, NaN where no float can hold one."""
    known = {name: value for name, value in flat(result).items() if type(value) in (int, float)}
    found = {name: value if is_number(value) else np.nan for name, value in known.items()}
    return Block(tuple(found), np.array([place]), np.array([list(found.values())], np.float64))


def _lines_of(path: Path, most: int) -> Iterator[bytes]:
    with suppress(FileNotFoundError), reading(path) as file:
        count = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) + 1
        file.seek(0)
        stride = -(-count // most)
        for number, line in enumerate(bounded_lines(file)):
            if number % stride == 0 or number >= count - 2:
                yield line
