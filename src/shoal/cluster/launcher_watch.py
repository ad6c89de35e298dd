"""Notice that the launcher which started this process as one of many is gone: killed, it tells nobody.

`mpirun` and its daemons are processes of this host, above this one. `srun` may be on another: what is left of it here
is a connection of its daemon, and where that has gone, nobody listens at srun's own port any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from shoal.machine.launchers import Launcher, innermost_launcher

LOOKING_S = 2.0
CALLING_S = 5.0
ESTABLISHED = "01"

Connection = tuple[str, str]


async def launcher_gone(environ: Mapping[str, str]) -> str:
    """Return when the launcher of this process is gone, with its name; never where nobody launched it."""
    launcher = innermost_launcher(environ)
    if launcher is None:
        await asyncio.Event().wait()
    assert launcher is not None
    watching = [asyncio.create_task(_ended(launcher_pid(launcher)))]
    if launcher.name == "srun":
        watching.append(asyncio.create_task(_srun_gone(environ)))
    try:
        await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in watching:
            task.cancel()
    return launcher.name


def launcher_pid(launcher: Launcher, proc: Path = Path("/proc"), pid: int | None = None) -> int | None:
    """The nearest process above this one that is no rank itself; None where that cannot be told."""
    mark = f"{launcher.rank}=".encode()
    pid = os.getpid() if pid is None else pid
    while True:
        try:
            pid = int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if pid <= 1:
            return None
        try:
            variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # of another user, as a scheduler's daemon is
            return pid
        if not any(variable.startswith(mark) for variable in variables):
            return pid


async def _ended(pid: int | None) -> None:
    """Return when a process has ended; never where it is not known."""
    ended = asyncio.Event()
    if pid is None:
        await ended.wait()
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it is gone already, or Linux is older than 5.3
        while Path("/proc", str(pid)).exists():
            await asyncio.sleep(LOOKING_S)
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _srun_gone(environ: Mapping[str, str]) -> None:
    """Return when the srun of this step no longer listens where it did."""
    host, port = environ.get("SLURM_SRUN_COMM_HOST", ""), environ.get("SLURM_SRUN_COMM_PORT", "")
    if not host or not port.isdecimal():
        await asyncio.Event().wait()
    # Those that stay: of what Slurm's other daemons say to each other most is over at once.
    known = connections_to(host)
    await asyncio.sleep(LOOKING_S)
    known &= connections_to(host)
    while True:
        await asyncio.sleep(LOOKING_S)
        present = connections_to(host)
        # srun complains of whoever calls and says nothing: so it is called only where such a connection has ended.
        if known - present:
            listens = await _listens(host, int(port))
            if listens is False:
                return
            if listens:
                known &= present


async def _listens(host: str, port: int) -> bool | None:
    """Whether somebody listens at a port of a host; None where the host cannot be asked for now."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CALLING_S)
    except ConnectionRefusedError:
        return False
    except (OSError, asyncio.TimeoutError):
        return None
    writer.close()
    return True


def connections_to(host: str, table: Path = Path("/proc/net/tcp")) -> set[Connection]:
    """The open connections of this host to an IPv4 address, as the kernel writes both ends."""
    found: set[Connection] = set()
    with contextlib.suppress(OSError):
        address = socket.inet_aton(socket.gethostbyname(host))[::-1].hex().upper()
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            if state == ESTABLISHED and remote.partition(":")[0] == address:
                found.add((local, remote))
    return found
