"""Slots of this host: places for one rank each, of which none is given out twice.

A slot is a core that this process may use; where more ranks than cores are wanted, further numbers stand for places on
shared cores. Who takes a slot binds a name in the kernel (an abstract socket of the host), so that every process of the
host sees it, whatever run, sweep or Ray it belongs to. It is free again when the last process that holds it is gone,
however that ends. Nothing is written to any disk.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as counted_from
from itertools import islice
from time import monotonic, sleep
from typing import Any

from shoal.errors import ConfigError
from shoal.machine.cores import cores, cpus_of_this_process

PATIENCE_S = 10.0  # for those who had the slots before to be gone
POLL_S = 0.05
NAME = "shoal-slot-{}"

log = logging.getLogger("shoal")

_held: set[int] = set()  # the descriptors of all slots that this process holds


@dataclass(frozen=True, order=True)
class RankSlot:
    """A place for one rank; `number` is a core of the host, or one beyond all of them that stands for a shared core."""

    host: str
    number: int
    is_core: bool = True


class TakenSlots:
    """Slots that belong to this process, and to the processes that it hands their descriptors to."""

    def __init__(self, sockets: dict[RankSlot, socket.socket]) -> None:
        self._sockets = sockets
        self.slots = tuple(sockets)
        _held.update(taken.fileno() for taken in sockets.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return TakenSlots, ({},)  # a copy, as users make of a config, has nothing to give back

    def release(self) -> None:
        """Give them back; may be called twice."""
        for taken in self._sockets.values():
            _held.discard(taken.fileno())
            taken.close()
        self._sockets = {}


def take_slots(count: int, offered: int | None = None) -> TakenSlots:
    """Take slots of this host, cores first.

    Where the host offers a number of them, the answer is among these, and those who are about to leave them are waited
    for; if they stay, they are of another program, and further places are on cores that are shared with it.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigError("config.env_ranks: ranks on slots of their own need Linux")
    until = monotonic() + PATIENCE_S
    while (taken := _taken_of(count, offered)) is None:
        if monotonic() > until:
            log.warning("other programs have slots of %s: %d ranks share cores with them", socket.gethostname(), count)
            offered = None
        sleep(POLL_S)
    return taken


def _taken_of(count: int, offered: int | None) -> TakenSlots | None:
    """So many of the first slots of this host; None if fewer of them are free."""
    taken: dict[RankSlot, socket.socket] = {}
    for slot in islice(_slots_of_this_host(), offered):
        if found := _bound(slot):
            taken[slot] = found
        if len(taken) == count:
            return TakenSlots(taken)
    for found in taken.values():
        found.close()
    return None


def held_descriptors() -> list[int]:
    """What a process that must end before its slots are free is to be given."""
    return sorted(_held)


def _slots_of_this_host() -> Iterator[RankSlot]:
    """The cores of this process in their order, then places beyond all cores, without end."""
    host, allowed = socket.gethostname(), sorted(cpus_of_this_process())
    for number in allowed[: cores()]:
        yield RankSlot(host, number)
    beyond = max(allowed[-1] + 1, os.cpu_count() or 1)
    yield from (RankSlot(host, number, is_core=False) for number in counted_from(beyond))


def _bound(slot: RankSlot) -> socket.socket | None:
    """The socket that has the slot's name; None if somebody else has it."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        found.bind("\0" + NAME.format(slot.number))
    except OSError:
        found.close()
        return None
    return found
