"""A launcher that was killed is noticed: a process above this one, or srun on another host."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cluster import launcher_watch
from shoal.cluster.launcher_watch import connections_to, launcher_gone, launcher_pid
from shoal.machine.launchers import innermost_launcher

RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
# A launcher, the shell that it starts as a rank, and a rank below that one that waits until its launcher is gone.
LAUNCHER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run(["sh", "-c", '"$0" -c "$1"; exit', sys.executable, sys.argv[1]], env={**os.environ, **{rank}})
"""
WAITING = """
import asyncio, os, sys
from shoal.cluster.launcher_watch import launcher_gone
async def main():
    watching = asyncio.create_task(launcher_gone(os.environ))
    await asyncio.sleep(0)  # it knows its launcher then
    print('waits', flush=True)
    print(await watching, flush=True)
asyncio.run(main())
"""


def test_a_killed_launcher_is_noticed_through_the_shell_between() -> None:
    program = LAUNCHER.replace("{rank}", repr(RANK))
    launcher = subprocess.Popen([sys.executable, "-c", program, WAITING], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert int(launcher.stdout.readline()) == launcher.pid
    assert launcher.stdout.readline() == "waits\n"
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    assert launcher.stdout.readline() == "openmpi\n"


def test_the_launcher_is_the_nearest_process_that_is_no_rank(tmp_path: Path) -> None:
    launcher = innermost_launcher(RANK)
    assert launcher is not None
    for pid, parent, variables in (
        (7, 6, b"A=1\0OMPI_COMM_WORLD_RANK=0"),
        (6, 5, b"OMPI_COMM_WORLD_RANK=0"),
        (5, 1, b""),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
        (tmp_path / str(pid) / "environ").write_bytes(variables)
    assert launcher_pid(launcher, tmp_path, 7) == 5
    assert launcher_pid(launcher, tmp_path, 5) is None, "who started it is gone already"


@pytest.fixture
def srun() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """What listens as srun does, and the variables of its step."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
        yield listener, {**step, "SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": port}


def test_an_srun_that_no_longer_listens_is_gone(
    srun: tuple[socket.socket, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, environ = srun
    looks = 0

    def looked(host: str) -> set[tuple[str, str]]:
        nonlocal looks
        looks += 1
        return connections_to(host)

    monkeypatch.setattr(launcher_watch, "LOOKING_S", 0.05)
    monkeypatch.setattr(launcher_watch, "connections_to", looked)

    async def watched() -> str:
        # As slurmstepd has one to its srun, and somebody else has one to srun's host.
        own, other = (socket.create_connection(listener.getsockname()) for _ in range(2))
        served = [listener.accept()[0] for _ in range(2)]
        watching = asyncio.create_task(launcher_gone(environ))
        while looks < 3:
            await asyncio.sleep(0.01)
        other.close()
        called, _ = await asyncio.to_thread(listener.accept)  # it asks whether srun is there, which is so
        called.close()
        assert not watching.done()
        listener.close()
        own.close()
        gone = await asyncio.wait_for(watching, 60)
        for each in served:
            each.close()
        return gone

    listener.settimeout(60)
    assert asyncio.run(watched()) == "srun"


def test_nobody_waits_for_a_launcher_that_there_is_not() -> None:
    async def watched() -> None:
        await asyncio.wait_for(launcher_gone({"PATH": os.environ["PATH"]}), 0.01)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(watched())
