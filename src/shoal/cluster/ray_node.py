"""One host's part of a Ray cluster: `ray start --block` below a keeper, in a private folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.cluster.ports import PortRange, port_options
from shoal.errors import ClusterError
from shoal.machine.broadcasts import LEAVE
from shoal.machine.keeper import keeper_words
from shoal.machine.private_folder import PrivateFolder
from shoal.machine.processes import below, children_of_all, is_stopped, process_name
from shoal.machine.ray_variables import LOOPBACK, token_variables

GRACE_S = 0.7  # Ray has nothing to save; what it logs is written by then
LEAVING_GRACE_S = 24.0  # for work to move away when a node leaves a cluster that goes on, and for Ray to end then
LOOKING_S = 1.0
STOPPED_S = 3.0  # after which a daemon that somebody has stopped counts as lost
DAEMONS = ("raylet", "gcs_server")
MOST_TRIES = 3
MOST_LINES = 15
DASHBOARD = re.compile(r"RAY_API_SERVER_ADDRESS='http://([^']+)'")
TAKEN = re.compile(r"address already in use|port .*(in use|conflict|occupied)|not able to bind", re.IGNORECASE)
NOISE = re.compile(r"^\s*$|^-+$|Local node IP|Usage stats|Traceback \(most recent|^\s+File |^\s+\^+|^\s{4,}\S")


@dataclass(frozen=True)
class NodePlan:
    """What the head tells a host to start."""

    ip: str
    head_address: str | None  # None: this is the head
    num_cpus: int
    num_gpus: int
    token: str
    ports: PortRange | None
    dashboard: bool


class RayNode:
    """A node that is being started, is up, or has ended."""

    def __init__(self, plan: NodePlan, environ: Mapping[str, str], rescue: Path | None) -> None:
        self._plan, self._environ, self._rescue = plan, environ, rescue
        self._lines: deque[str] = deque(maxlen=200)
        self._process: asyncio.subprocess.Process | None = None
        self._control = -1
        self._reading: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.address = ""
        self.dashboard = ""
        self.folder = PrivateFolder(environ)

    async def start(self) -> None:
        """Return when the node is part of the cluster; ClusterError with Ray's last lines if it cannot be."""
        for attempt in range(1, MOST_TRIES + 1):
            process = await self._spawn()
            up, ended = asyncio.create_task(self._up.wait()), asyncio.create_task(process.wait())
            await asyncio.wait({up, ended}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if self._up.is_set():
                return
            assert self._reading is not None
            await self._reading
            if attempt == MOST_TRIES or not any(TAKEN.search(line) for line in self._lines):
                raise ClusterError(self.last_lines() or f"ray start ended with code {process.returncode}")
            self._lines.clear()

    async def wait(self) -> str:
        """Wait until the node ends by itself, and return its last lines; or until somebody has stopped it for long."""
        assert self._process is not None
        assert self._reading is not None
        ended = asyncio.create_task(self._process.wait())
        stopped = asyncio.create_task(self._stopped_daemon(self._process.pid))
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            return f"its {stopped.result()} is stopped (SIGSTOP)"
        stopped.cancel()
        await self._reading
        return self.last_lines() or f"ray ended with code {self._process.returncode}"

    async def _stopped_daemon(self, keeper: int) -> str:
        """Wait until a daemon of this node is found stopped several times in a row; its name."""
        pids = below([keeper], children_of_all())
        daemons = {pid: name for pid in pids if (name := process_name(pid)) in DAEMONS}
        times = dict.fromkeys(daemons, 0)
        while True:
            await asyncio.sleep(LOOKING_S)
            for pid, name in daemons.items():
                times[pid] = times[pid] + 1 if is_stopped(pid) else 0
                if times[pid] * LOOKING_S >= STOPPED_S:
                    return name

    async def stop(self, all_ends: asyncio.Event | None = None) -> None:
        """End everything that was started here; the folder is left for its logs.

        With `all_ends`, work has time to move to other nodes first, until that is set.
        """
        if self._process is None or self._process.returncode is not None:
            return
        if all_ends is not None:
            self._tell(f"{int(LEAVE)}\n".encode())
            await _first_of(self._process.wait(), all_ends.wait(), LEAVING_GRACE_S)
        self._tell(b"end\n")
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    def remove_folder(self) -> None:
        """Remove what the node has left on this host's disk."""
        self.folder.remove()

    def last_lines(self) -> str:
        """What Ray said last, without its decoration."""
        said = [line for line in self._lines if not NOISE.search(line)]
        return "\n".join(said[-MOST_LINES:])

    async def _spawn(self) -> asyncio.subprocess.Process:
        token = self.folder.write("token", self._plan.token)
        env = {**self._environ, **token_variables(token)}
        if self._plan.ip == "127.0.0.1":
            env |= LOOPBACK
        readable, self._control = os.pipe()
        os.set_inheritable(readable, True)
        keeper = keeper_words(readable, GRACE_S, str(self.folder.path), str(self._rescue or ""))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *keeper,
                *ray_command(self._plan, self.folder.ray),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(readable, self.folder.lock),
                start_new_session=True,
            )
        finally:
            os.close(readable)
        self._reading = asyncio.create_task(self._read(self._process))
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Follow what `ray start` says, for the moment when it is up and for the reason when it is not."""
        assert process.stdout is not None
        with (self.folder.path / "ray_start.log").open("ab") as log:
            while line := await process.stdout.readline():
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                if match := DASHBOARD.search(text):
                    self.dashboard = match[1]
                if "will now block forever" in text:  # said when the node is registered and its address written down
                    self.address = (self.folder.ray / "ray_current_cluster").read_text().strip()
                    self._up.set()

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._control, word)


async def _first_of(one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], timeout_s: float) -> None:
    """Wait until either is done, or the time is over."""
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def ray_command(plan: NodePlan, folder: Path) -> list[str]:
    """The command that starts a node."""
    words = [sys.executable, "-m", "shoal.cluster.ray_start", "start", "--block", "--disable-usage-stats"]
    words += [f"--node-ip-address={plan.ip}", f"--num-cpus={plan.num_cpus}", f"--num-gpus={plan.num_gpus}"]
    words += [f"--temp-dir={folder}", *port_options(plan.ports, plan.head_address is None)]
    if plan.head_address is not None:
        return [*words, f"--address={plan.head_address}"]
    # Without its client server and autoscaler, Ray opens no port that is fixed or that the token does not guard.
    words += ["--head", "--no-monitor", *(["--ray-client-server-port=0"] if find_spec("grpc") else [])]
    if plan.dashboard:
        return [*words, "--include-dashboard=true", "--dashboard-host=127.0.0.1"]
    return [*words, "--include-dashboard=false"]
