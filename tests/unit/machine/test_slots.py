"""Slots: nobody has one twice, in whatever process, and who is gone has none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.machine import slots
from shoal.machine.cores import cores, cpus_of_this_process
from shoal.machine.slots import RankSlot, held_descriptors, take_slots

HOLDER = """
import sys
from shoal.machine import slots
slots.NAME = sys.argv[1]
taken = slots.take_slots(3)
print(*[slot.number for slot in taken.slots], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run beside these, and have slots too."""
    monkeypatch.setattr(slots, "NAME", f"shoal-test-{os.getpid()}-slot-{{}}")


def test_cores_come_first_and_then_places_beyond_them() -> None:
    count = cores() + 3
    taken = take_slots(count)
    try:
        own = sorted(cpus_of_this_process())[: cores()]
        assert [slot.number for slot in taken.slots[: cores()]] == own
        assert [slot.is_core for slot in taken.slots] == [True] * cores() + [False] * 3
        assert min(slot.number for slot in taken.slots[cores() :]) >= (os.cpu_count() or 1)
        assert len(set(taken.slots)) == count
        assert {slot.host for slot in taken.slots} == {os.uname().nodename}
    finally:
        taken.release()


def test_a_slot_is_free_when_it_is_given_back() -> None:
    first = take_slots(2)
    second = take_slots(2)
    assert not {*first.slots} & {*second.slots}
    first.release()
    first.release()
    third = take_slots(2)
    assert third.slots == first.slots
    second.release()
    third.release()
    assert held_descriptors() == []


def test_the_slots_of_a_process_that_was_killed_are_free_and_waited_for() -> None:
    words = [sys.executable, "-c", HOLDER, slots.NAME]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    theirs = [int(word) for word in other.stdout.readline().split()]
    mine = take_slots(1)
    assert mine.slots[0].number not in theirs
    mine.release()
    other.kill()
    # Nobody says when it is gone: whoever is offered no others waits for these.
    again = take_slots(3, offered=3)
    assert [slot.number for slot in again.slots] == theirs
    again.release()
    other.communicate()


def test_slots_of_others_are_left_to_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(slots, "PATIENCE_S", 0.0)
    theirs = take_slots(2)
    mine = take_slots(2, offered=2)
    assert not {*mine.slots} & {*theirs.slots}
    assert "2 ranks share cores" in caplog.text
    mine.release()
    theirs.release()


def test_a_slot_says_where_it_is() -> None:
    assert sorted([RankSlot("b", 0), RankSlot("a", 1), RankSlot("a", 0)]) == [
        RankSlot("a", 0),
        RankSlot("a", 1),
        RankSlot("b", 0),
    ]
