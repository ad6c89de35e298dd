"""What becomes of a private Ray's daemons is found out, on processes that stand for them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from time import monotonic

import psutil
import pytest

from shoal.parallel.private_ray import STOPPED_LOOKS, PrivateRay


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def ray(daemon: subprocess.Popen[bytes]) -> Iterator[PrivateRay]:
    made = PrivateRay()
    made._daemons = {psutil.Process(daemon.pid): "raylet"}
    yield made
    made.remove()


def until(process: subprocess.Popen[bytes], *states: str) -> None:
    deadline = monotonic() + 60
    while psutil.Process(process.pid).status() not in states:
        assert monotonic() < deadline


def test_a_daemon_that_is_killed_is_a_loss_at_once(daemon: subprocess.Popen[bytes], ray: PrivateRay) -> None:
    assert ray._lost_daemon() == ""
    daemon.kill()
    until(daemon, psutil.STATUS_ZOMBIE)
    assert ray._lost_daemon() == f"its process raylet (pid {daemon.pid}) has died"


def test_a_daemon_that_stays_stopped_is_a_loss_and_is_ended(daemon: subprocess.Popen[bytes], ray: PrivateRay) -> None:
    daemon.send_signal(signal.SIGSTOP)
    until(daemon, psutil.STATUS_STOPPED)
    looks = [ray._lost_daemon() for _ in range(STOPPED_LOOKS)]
    assert looks == [""] * (STOPPED_LOOKS - 1) + [f"its process raylet (pid {daemon.pid}) is stopped (SIGSTOP)"]
    assert daemon.wait(60) == -signal.SIGKILL, "who waits for its answer would wait for good"


def test_a_daemon_that_is_stopped_for_a_moment_is_none(daemon: subprocess.Popen[bytes], ray: PrivateRay) -> None:
    for _ in range(2):
        daemon.send_signal(signal.SIGSTOP)
        until(daemon, psutil.STATUS_STOPPED)
        assert [ray._lost_daemon() for _ in range(STOPPED_LOOKS - 1)] == [""] * (STOPPED_LOOKS - 1)
        daemon.send_signal(signal.SIGCONT)
        until(daemon, psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING)
        assert ray._lost_daemon() == ""
    assert daemon.poll() is None
