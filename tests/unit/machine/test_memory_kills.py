"""What is told of processes that the kernel killed for memory, from files as kernels have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.machine import memory_kills
from shoal.machine.memory_kills import MemoryMarks, is_named, killed_for_memory, memory_marks

NO_ONE = 2**22 + 1  # above every pid


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_kills, "MOUNT", tmp_path)
    monkeypatch.setattr(memory_kills, "MESSAGES", tmp_path / "kmsg")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\nhigh 4\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_more_kills_in_the_group_are_the_likely_cause(group: Path, name: str, text: str) -> None:
    (group / name).write_text(text)
    told = killed_for_memory(NO_ONE, MemoryMarks({str(group / name): 1}))
    assert told is not None
    assert "likely cause: the kernel has killed 1 process of its control group for memory" in told
    assert killed_for_memory(NO_ONE, MemoryMarks({str(group / name): 2})) is None
    # After another start of the machine the counters begin at 0, or are another machine's.
    assert killed_for_memory(NO_ONE, MemoryMarks({str(group / name): 1}), is_this_boot=False) is None


def test_a_full_group_is_the_likely_cause() -> None:
    nearly = MemoryMarks({}, used=95 * 10**8, limit=10**10)
    told = killed_for_memory(NO_ONE, nearly, is_this_boot=False)
    assert told == "memory is the likely cause: 9.5 GB of 10 GB were taken when it was last seen"
    assert killed_for_memory(NO_ONE, MemoryMarks({}, used=89 * 10**8, limit=10**10), is_this_boot=False) is None


@pytest.mark.parametrize("name", ["/dev/zero", "memory.events", "sub/../../memory.events", "sub/other"])
def test_only_the_kernels_counters_are_read(group: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_kills, "text_in", lambda path: pytest.fail(f"{path} was read"))
    place = name if name.startswith("/") else str(group.parent / name)
    assert killed_for_memory(NO_ONE, MemoryMarks({place: 0})) is None
    assert killed_for_memory(NO_ONE, MemoryMarks({str(group / "sub/../../memory.events"): 0})) is None


def test_a_message_of_the_kernel_names_the_process(group: Path) -> None:
    message = "3,1107,99,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB\n"
    (group / "kmsg").write_text(message)
    assert is_named(4711, group / "kmsg")
    assert not is_named(471, group / "kmsg")
    assert not is_named(4711, group / "absent")
    assert killed_for_memory(4711, MemoryMarks()) == "the kernel killed it because memory ran out"


@pytest.mark.parametrize(
    "tree", [None, [], {"kills": 3, "used": 1, "limit": 1}, {"kills": {}, "used": "x", "limit": 1}]
)
def test_what_is_no_mark_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match=r"marks of memory|invalid literal"):
        MemoryMarks.from_json(tree)


def test_the_marks_of_this_process_are_read() -> None:
    marks = memory_marks()
    assert all(count >= 0 for count in marks.kills.values())
    assert MemoryMarks.from_json({"kills": dict(marks.kills), "used": marks.used, "limit": marks.limit}) == marks
    assert killed_for_memory(NO_ONE, MemoryMarks(marks.kills)) is None
