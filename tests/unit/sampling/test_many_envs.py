"""Very many environments: what they take is told while they are made, and what does not fit is refused early."""

from __future__ import annotations

import logging

import pytest

from shoal.errors import ConfigError
from shoal.sampling import many_envs
from shoal.sampling.many_envs import EnvCreationMonitor

EACH = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that this process has, and bytes that are free."""
    now = [0, 10**9]
    monkeypatch.setattr(many_envs, "_own_bytes", lambda: now[0])
    monkeypatch.setattr(many_envs, "available_memory", lambda: now[1])
    return now


def make(count: int, memory: list[int], until: int | None = None) -> int:
    monitor = EnvCreationMonitor(count)
    made = 0
    while made < (until or count):
        made += 1
        memory[0] += EACH
        memory[1] -= EACH
        monitor.env_made()
    return made


def test_what_does_not_fit_is_refused_when_the_first_are_made(memory: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"1,000,000 environments take about 1049 GB .* num_envs_per_worker: 400$"):
        make(1_000_000, memory)
    assert memory[0] < 200 * EACH


def test_what_fits_is_made(memory: list[int]) -> None:
    assert make(900, memory) == 900


def test_modules_that_the_first_import_are_no_environments(memory: list[int]) -> None:
    memory[0] += 10**9
    assert make(500, memory) == 500


def test_a_long_wait_is_told_less_and_less_often(memory: list[int], monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(many_envs, "perf_counter", lambda: memory[0] / EACH)  # each takes a second
    with caplog.at_level(logging.INFO, "shoal.progress"):
        make(800, memory, until=200)
    assert [message.split("; ")[1] for message in caplog.messages] == [
        f"{count} are made" for count in (3, 6, 12, 24, 48, 96, 192)
    ]
    assert caplog.messages[-1].startswith("making 800 environments, which takes about 800 s and 0.8 GB in all; ")
