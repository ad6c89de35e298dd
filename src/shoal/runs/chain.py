"""The receipt of a run: `chain.jsonl`, one line per iteration that binds its weights to all that came before.

The first line is the head: seed, versions, BLAS, processor, layout, and hashes of the user's code. Every other line has
the SHA-256 of the iteration's weights, optimiser and counters, and

    link = SHA-256(link before, weights, optimiser, counters)

A trial of a population that takes over another's weights has a second line for its iteration, marked `again`, which
stands in the place of the first.

So the last link stands for the whole run: who trains it again and gets the same link has computed the same in every
iteration. The head is no part of the links: what computes the same has the same links, on whatever machine.

Replay buffers, the states of environments, returns and what the clock says are not hashed: the first would cost more
than the iteration itself, workers tell of episodes in another order, and a difference shows in the next weights.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.appended_file import AppendedFile
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import bounded_bytes
from shoal.runs.folders import CHAIN_FILE as CHAIN_FILE

logger = logging.getLogger("shoal.runs")

LIMIT = 1 << 30
MOST_PROBLEMS = 3  # that are worth a sentence
FORMAT = 1
PARTS = ("weights", "optimiser", "counters")
"""What a link is made of, in its order."""
COUNTERS = ("training_iteration", "timesteps_total", "env_failures_total")
_OF_POLICY = ("spaces", "layers")  # what is the same in every iteration
_START = sha256(b"shoal chain 1").hexdigest()


@dataclass(frozen=True)
class ChainLink:
    """One iteration's line; all but the first two are SHA-256 in hex."""

    iteration: int
    timesteps_total: int
    weights: str
    optimiser: str
    counters: str
    link: str

    def differing(self, other: ChainLink) -> list[str]:
        """The parts in which two iterations are not the same."""
        return [part for part in PARTS if getattr(self, part) != getattr(other, part)]


@dataclass(frozen=True)
class ChainRecord:
    """What a `chain.jsonl` says: its head, the machines that the run went on with, its links, and what is wrong.

    `begins_after` is the iteration before its first link: 0, or that of a checkpoint of a time before chains.
    """

    head: dict[str, Any]
    links: dict[int, ChainLink]
    machines: tuple[tuple[int, dict[str, Any]], ...] = ()
    begins_after: int = 0
    problems: tuple[str, ...] = ()
    is_cut_off: bool = False
    """Whether its last line is not whole: the writer was killed in it, or is just writing it."""


class Chain:
    """The chain of a run that trains; `iteration` is that of its last link, and `last` the newest that it has made."""

    def __init__(self, folder: Path, iteration: int, head: Mapping[str, Any]) -> None:
        """Open the chain of a run that goes on from `iteration`: what is after it will happen again."""
        self.path = folder / CHAIN_FILE
        self.last: ChainLink | None = None
        self._lock = threading.RLock()
        self._complained = False
        self._head = dict(head)
        self.iteration = iteration
        self._link = self._link_before = _START
        self._open(iteration)

    def append(self, state: State) -> None:
        """Add the link of an iteration, unless it has one; a disk that is full now is tried again with the next."""
        with self._lock:
            iteration = int(state.values["training_iteration"])
            if iteration <= self.iteration:
                return
            link = next_link(self._link, state)
            self._link_before = self._link
            self.iteration, self._link, self.last = iteration, link.link, link
            self._write(_line(asdict(link)))

    def again(self, state: State) -> None:
        """Put another link in the place of the last iteration's, whose state is another from now on."""
        with self._lock:
            assert int(state.values["training_iteration"]) == self.iteration
            self.last = next_link(self._link_before, state)
            self._link = self.last.link
            self._write(_line({**asdict(self.last), "again": True}))

    def sync(self) -> None:
        """Return when every link is on the disk: a checkpoint must not be older than its receipt."""
        with suppress(OSError):  # whose failure the checkpoint will meet too, and tell
            with self._lock:
                self._file.append(b"")
            self._file.sync()  # which may take long, and training goes on

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self, iteration: int) -> None:
        found = _cut_back(self.path, iteration) if self.path.exists() else None
        self._file = AppendedFile(self.path)
        if found is None:
            self._write(_line(_sealed({"chain": FORMAT, **self._head})))
        elif (machine := _machine(self._head)) != _last_machine(found):
            self._write(_line({"after": iteration, "machine": machine}))
        if found is not None and iteration in found.links:
            self._link = found.links[iteration].link
            self._link_before = found.links[iteration - 1].link if iteration - 1 in found.links else _START
        elif iteration and (found is None or found.begins_after != iteration):
            self._write(_line({"begins_after": iteration}))

    def _write(self, line: bytes) -> None:
        try:
            self._file.append(line)
        except OSError as error:
            if not self._complained:
                logger.warning("%s cannot be written (%s); training continues.", self.path, error.strerror)
            self._complained = True


def next_link(before: str, state: State) -> ChainLink:
    """The link of an iteration's state after another."""
    parts = hashes_of(state)
    return ChainLink(
        iteration=int(state.values["training_iteration"]),
        timesteps_total=int(state.values["timesteps_total"]),
        **parts,
        link=_joined(before, parts.values()),
    )


def hashes_of(state: State) -> dict[str, str]:
    """The SHA-256 of each part of a trainer's state."""
    values = state.values
    policy = {name: value for name, value in values["policy"].items() if name not in _OF_POLICY}
    counters = [values["episodes"]["total"], *(values[name] for name in COUNTERS)]
    learned = {name: array for name, array in state.arrays.items() if _is_learned(name)}
    return {
        "weights": _hash([], {name: array for name, array in state.arrays.items() if name.startswith("policy/")}),
        "optimiser": _hash(values["learner"], learned),
        "counters": _hash([counters, policy], {}),
    }


def has_chain(state: State) -> bool:
    """Whether there are weights to hash: not of algorithms whose state is in somebody else's files."""
    return not state.files and "learner" in state.values and "policy" in state.values


def read_chain(folder: Path) -> ChainRecord | None:
    """The chain of a run, with every link computed again; None if the run has none."""
    path = folder / CHAIN_FILE
    if not path.exists():
        return None
    return _parsed(bounded_bytes(path, LIMIT).splitlines(keepends=True))


def machines_of(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """What a chain says of the machines that trained, each with the iteration after which it did; no link is read."""
    try:
        content = b"\n" + bounded_bytes(folder / CHAIN_FILE, LIMIT)
    except CheckpointError:
        return []
    found = []
    place = 0
    while place >= 0:
        line = content[place + 1 : content.find(b"\n", place + 1)]
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            entry = json.loads(line)
            found.append((int(entry["after"]), dict(entry["machine"])) if place else (0, _machine(entry)))
        place = content.find(b'\n{"after"', place + 1)
    return found


def machine_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is different about two machines, in a sentence for each fact."""
    flat_there, flat_here = _flat(_machine(there)), _flat(_machine(here))
    return [
        f"{name}: {_short(flat_there.get(name))} there, {_short(flat_here.get(name))} here"
        for name in sorted({*flat_there, *flat_here})
        if flat_there.get(name) != flat_here.get(name)
    ]


def _parsed(lines: list[bytes]) -> ChainRecord:
    head: dict[str, Any] = {}
    links: dict[int, ChainLink] = {}
    machines: list[tuple[int, dict[str, Any]]] = []
    problems: list[str] = []
    begins_after, at, before = 0, 0, _START
    is_cut_off = bool(lines) and not lines[-1].endswith(b"\n")
    for number, line in enumerate(lines, start=1):
        problem: str | None = None
        try:
            if not line.endswith(b"\n"):
                break  # the writer was cut off in it
            entry = json.loads(line)
            if number == 1:
                problem = _head_problem(entry)
                head = {key: value for key, value in entry.items() if key != "sha256"}
            elif "begins_after" in entry:
                begins_after = at = int(entry["begins_after"])
                links, before = {}, _START
            elif "machine" in entry:
                machines.append((int(entry["after"]), dict(entry["machine"])))
            else:
                if entry.pop("again", False):
                    at -= 1
                    before = links[at].link if at in links else _START
                link = ChainLink(**entry)
                problem = _link_problem(link, at, before)
                links[link.iteration] = link
                at, before = link.iteration, link.link
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
            problem = "it cannot be parsed"
        if problem is not None:
            problems.append(f"line {number}: {problem}")
        if len(problems) > MOST_PROBLEMS:
            break
    return ChainRecord(head, links, tuple(machines), begins_after, tuple(problems), is_cut_off)


def _head_problem(entry: dict[str, Any]) -> str | None:
    """What is wrong with the first line, if anything is."""
    if _sealed({key: value for key, value in entry.items() if key != "sha256"}) != entry:
        return "the head is not what was written (its SHA-256 differs)"
    if entry.get("chain") != FORMAT:
        return f"its format is {entry.get('chain')}, this shoal reads {FORMAT}"
    return None


def _link_problem(link: ChainLink, at: int, before: str) -> str | None:
    """Why a link does not follow from the one of iteration `at`, if it does not."""
    if link.iteration != at + 1:
        return f"iteration {link.iteration} follows iteration {at}"
    if link.link != _joined(before, (getattr(link, part) for part in PARTS)):
        return f"the link of iteration {link.iteration} does not follow from the one before it"
    return None


def _cut_back(path: Path, iteration: int) -> ChainRecord | None:
    """The chain up to an iteration, which alone stays in the file; what is no chain is put aside, and gives None."""
    old = bounded_bytes(path, LIMIT).splitlines(keepends=True)
    kept = [line for number, line in enumerate(old) if _is_kept(line, number, iteration)]
    found = _parsed(kept)
    if not found.head:
        replace_file(path.with_name(f"{path.name}.damaged"), b"".join(old))
        replace_file(path, b"")
        return None
    if kept != old:
        replace_file(path, b"".join(kept))
    return found


def _is_kept(line: bytes, number: int, iteration: int) -> bool:
    try:
        entry = json.loads(line)
        at = entry.get("iteration", entry.get("after", entry.get("begins_after", 0)))
        return line.endswith(b"\n") and (number == 0 or int(at) <= iteration)
    except (ValueError, TypeError, AttributeError):
        return False


def _last_machine(found: ChainRecord) -> dict[str, Any]:
    return found.machines[-1][1] if found.machines else _machine(found.head)


def _machine(head: Mapping[str, Any]) -> dict[str, Any]:
    """What a head tells of the machine, versions and code, and not of the run."""
    return {key: head[key] for key in ("shoal", "versions", "blas", "cpu", "layout", "code") if key in head}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name} "))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text


def _sealed(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "sha256": sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()}


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _is_learned(name: str) -> bool:
    return name.startswith("learner/") and "replay." not in name


def _joined(before: str, parts: Iterable[str]) -> str:
    return sha256("\n".join((before, *parts)).encode()).hexdigest()


def _hash(values: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The SHA-256 of plain values and named arrays: names, types, shapes and bytes."""
    total = sha256(json.dumps(values, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()
