"""Reads lists of hosts in the ways that schedulers and people write them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import ClusterError

MAX_HOSTS = 100_000

# A name becomes a word of a command line and must not look like an option; ssh also takes user@host and IPv6 addresses.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:%@-]*")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
_ITEM = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Host:
    """One machine of an allocation, and what of it is ours where the scheduler says so."""

    name: str
    num_cpus: int | None = None
    num_gpus: int | None = None


def expand(text: str, where: str = "The host list") -> list[str]:
    """The names in Slurm's grammar, `n[1-3,07-10],gpu-[a]01`, in its order; `where` says whose list it is."""
    names: list[str] = []
    for start, part in _parts(text, where):
        pieces = re.split(r"\[([^\]]*)\]", part)  # every second piece stood in brackets
        choices = [
            [piece] if index % 2 == 0 else _bracket(piece, text, start, where) for index, piece in enumerate(pieces)
        ]
        if len(names) + math.prod(len(choice) for choice in choices) > MAX_HOSTS:
            raise _too_many(text, start, where)
        new = ["".join(choice) for choice in itertools.product(*choices)]
        wrong = next((name for name in new if not _NAME.fullmatch(name)), None)
        if wrong is not None:
            raise _nonsense(f"{wrong!r} is not a host name", text, start, where)
        names += new
    return names


def host_names(text: str) -> list[Host]:
    """The hosts of `--hosts n1,n2,n[3-5]`, each once."""
    return _merged((name, None) for name in expand(text, "--hosts"))


def host_file(text: str, where: str = "The host file") -> list[Host]:
    """The hosts of a file for `--hostfile`: one a line, with `slots=N` or `:N` for the CPUs, and comments after `#`."""
    found: list[tuple[str, int | None]] = []
    for line, words in _lines(text):
        place = f"{where}, line {line}"
        given = re.fullmatch(r"([^:]+):(\d+)", words[0])  # one colon only: an IPv6 address has more
        names, counts = (given[1], [given[2]]) if given else (words[0], [])
        for word in words[1:]:
            if not word.startswith("slots="):
                raise ClusterError(f"{place}: cannot read {word!r}; write `host slots=N`, `host:N` or only `host`.")
            counts.append(word.removeprefix("slots="))
        if len(counts) > 1:
            raise ClusterError(f"{place}: {names} has two numbers of CPUs; write `{names} slots=N`.")
        cpus = _count(counts[0], place) if counts else None
        found += [(name, cpus) for name in expand(names, place)]
    if not found:
        raise ClusterError(f"{where} names no host; write one on each line.")
    return _merged(found)


def hosts_of_lines(text: str, where: str) -> list[Host]:
    """The hosts of a node file such as PBS's: one line for each process, so that repeats add up to CPUs."""
    return _merged((_name(words[0], f"{where}, line {line}"), 1) for line, words in _lines(text))


def hosts_and_slots(text: str, where: str) -> list[Host]:
    """The hosts of `h1 16 h2 16`, as LSF writes them."""
    words = text.split()
    if len(words) % 2:
        raise ClusterError(f"{where}: {words[-1]!r} is not followed by a number of slots; name the hosts with --hosts.")
    return _merged((_name(name, where), _count(slots, where)) for name, slots in zip(words[::2], words[1::2]))


def hosts_with_slots(text: str, where: str) -> list[Host]:
    """The hosts of lines `host slots ...`, as Grid Engine writes them; a host has a line for each of its queues."""
    found = []
    for line, words in _lines(text):
        place = f"{where}, line {line}"
        if len(words) < 2:
            raise ClusterError(
                f"{place}: {words[0]!r} is not followed by a number of slots; name the hosts with --hosts."
            )
        found.append((_name(words[0], place), _count(words[1], place)))
    return _merged(found)


def _parts(text: str, where: str) -> Iterator[tuple[int, str]]:
    """The names between commas outside of brackets, with the place where each starts."""
    start, opened = 0, None
    for place, letter in enumerate(f"{text},"):
        if letter == "[":
            if opened is not None:
                raise _nonsense("a bracket inside a bracket", text, place, where)
            opened = place
        elif letter == "]":
            if opened is None:
                raise _nonsense("a bracket that was never opened", text, place, where)
            opened = None
        elif letter == "," and (opened is None or place == len(text)):
            if opened is not None:
                raise _nonsense("a bracket that is never closed", text, opened, where)
            part = text[start:place].strip()
            if not part:
                raise _nonsense("a name is missing", text, start, where)
            yield start, part
            start = place + 1


def _bracket(inside: str, text: str, start: int, where: str) -> list[str]:
    """What stands in one pair of brackets, counted out; a range keeps the zeros of its first number."""
    items: list[str] = []
    for item in inside.split(","):
        bounds = _RANGE.fullmatch(item)
        if bounds:
            first, last = int(bounds[1]), int(bounds[2])
            if last < first:
                raise _nonsense(f"the range {item} runs backwards", text, start, where)
            if len(items) + last - first >= MAX_HOSTS:  # before counting it out
                raise _too_many(text, start, where)
            items += [str(number).zfill(len(bounds[1])) for number in range(first, last + 1)]
        elif _ITEM.fullmatch(item):
            items.append(item)
        else:
            raise _nonsense(f"{item!r} is neither a number nor a range", text, start, where)
    return items


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each line that has any, with its number; `#` starts a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def _merged(found: Iterable[tuple[str, int | None]]) -> list[Host]:
    """Each host once, in the order of first appearance, with its CPUs added up."""
    cpus: dict[str, int | None] = {}
    for name, count in found:
        before = cpus.get(name)
        cpus[name] = count if before is None else before + (count or 0)
    return [Host(name, count) for name, count in cpus.items()]


def _name(word: str, where: str) -> str:
    if not _NAME.fullmatch(word):
        raise ClusterError(f"{where}: {word!r} is not a host name; name the hosts with --hosts.")
    return word


def _count(word: str, where: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", word):
        raise ClusterError(f"{where}: {word!r} is not a number of CPUs; write a whole number, 1 or more.")
    return int(word)


def _nonsense(problem: str, text: str, place: int, where: str) -> ClusterError:
    return ClusterError(f"{where}: {problem}, at character {place + 1} of {_shown(text)}; write it like n1,n[2-4].")


def _too_many(text: str, place: int, where: str) -> ClusterError:
    return ClusterError(f"{where}: more than {MAX_HOSTS} hosts, at character {place + 1} of {_shown(text)}.")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")
