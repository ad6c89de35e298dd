"""What every rank of a launch does: call the head, start this host's Ray node if it is told to, end it when told to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import socket
import sys
import tarfile
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from shoal.cluster.control_connection import Message, Peer, call
from shoal.cluster.exit_codes import HEAD_FAILED
from shoal.cluster.job_folder import Notice
from shoal.cluster.os_variables import variables_for_ray
from shoal.cluster.ports import port_range
from shoal.cluster.ray_node import GRACE_S, NodePlan, RayNode
from shoal.errors import ClusterError
from shoal.machine.host_names import short_name
from shoal.machine.keeper import copy_logs, end_descendants
from shoal.machine.processes import adopt_orphans
from shoal.version import __version__

LOOKING_S = 0.1  # a shared file system tells nobody that a file has appeared
CALLING_TIMEOUT_S = 10.0
PATIENCE_S = 30.0  # with a head that has published where it listens and does not answer
BEAT_S = 2.0
AGENT_SILENCE_S = 8.0  # after which the head takes a host for lost, where the network swallows the news
HEAD_SILENCE_S = 15.0  # after which an agent takes the head for lost; a slow disk may hold the head up for a while
MOST_LOG_BYTES = 20 << 20

T = TypeVar("T")


async def found_head(look: Callable[[], Notice | None], timeout_s: float) -> tuple[Peer, str, Notice]:
    """A connection to the head, once it has published where it listens; the address that reaches it; its notice."""
    deadline = monotonic() + timeout_s
    problem = "it has not appeared"
    known, since = None, 0.0
    while monotonic() < deadline:
        notice = look()
        if notice is not None and notice != known:
            known, since = notice, monotonic()
        if notice is not None:
            # A killed head leaves its notice behind; so may an earlier launch, until the new head writes its own.
            if monotonic() - since > PATIENCE_S:
                raise ClusterError(f"{socket.gethostname()} found a head that no longer answers: {problem}")
            calls = [asyncio.create_task(_called(address, notice)) for address in notice.addresses]
            peer, problem = await _first(calls)
            if peer is not None:
                return peer, problem, notice
        await asyncio.sleep(LOOKING_S)
    raise ClusterError(f"{socket.gethostname()} found no head within {timeout_s:g} s: {problem}")


async def _called(address: str, notice: Notice) -> tuple[Peer, str]:
    return await call(address, notice.port, notice.secret, CALLING_TIMEOUT_S), address


async def _first(calls: list[asyncio.Task[tuple[Peer, str]]]) -> tuple[Peer | None, str]:
    """The first call that is answered and its address; the others hang up. Or None, and why the last one failed."""
    problem, chosen = "it has no address", None
    try:
        for done in asyncio.as_completed(calls):
            try:
                chosen = await done
                return chosen
            except ClusterError as error:
                problem = str(error)
        return None, problem
    finally:
        for each in calls:
            each.cancel()
            each.add_done_callback(lambda task: _hang_up(task, chosen))


def _hang_up(called: asyncio.Task[tuple[Peer, str]], chosen: tuple[Peer, str] | None) -> None:
    """End a call that was answered too, but later than another."""
    if not called.cancelled() and called.exception() is None and called.result() is not chosen:
        called.result()[0].hang_up()


def hello(
    environ: Mapping[str, str], rank: int | None, reached: str, is_joining: bool, num_cpus: int | None = None
) -> dict[str, Any]:
    """What the head has to know of this process and its host; `num_cpus` is what its user wants Ray to offer here."""
    from shoal.cluster.allocation import allocation
    from shoal.machine.cores import cgroup_cpus, cpus_of_this_process
    from shoal.machine.gpus import gpus_of_this_host

    name = socket.gethostname()
    given = None
    with contextlib.suppress(ClusterError):  # some schedulers have their files on the first host only
        given = allocation(environ)
    own = [host for host in given.hosts if short_name(host.name) == short_name(name)] if given else []
    return {
        "rank": rank,
        "host": name,
        "boot": _boot_id(),
        "pid": os.getpid(),
        "reached": reached,
        "is_joining": is_joining,
        "num_cpus": num_cpus,
        "cpus": sorted(cpus_of_this_process()),
        "cgroup_cpus": cgroup_cpus(),
        "scheduler_cpus": own[0].num_cpus if own else None,
        "num_gpus": len(gpus_of_this_host(environ)),
        "versions": {
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "ray": _version("ray"),
            "shoal": __version__,
        },
    }


class HostAgent:
    """One rank, from its hello until the head, or the loss of it, ends it."""

    def __init__(self, peer: Peer, token: str, environ: Mapping[str, str], job_folder: Path | None) -> None:
        self._peer, self._token, self._environ = peer, token, environ
        self._logs = job_folder / "logs" / socket.gethostname() if job_folder and job_folder.is_dir() else None
        self._node: RayNode | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_ending = False
        self._head_is_lost = False
        self._leaving = asyncio.Event()
        self._drains = False
        self._all_ends = asyncio.Event()  # then nobody waits for a node that leaves

    async def run(self) -> int:
        """Do what the head says; the exit code of this rank."""
        adopt_orphans()  # so that nothing is left even if a keeper is killed
        self._start_task(self._beat())
        leaving = self._start_task(self._leaving.wait())
        try:
            while True:
                receiving = self._start_task(self._peer.receive())
                await asyncio.wait({receiving, leaving}, timeout=HEAD_SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    self._peer.send("leaving")
                    self._start_task(self._watch_the_end(receiving))
                    await self._end(self._drains)
                    return 0
                message = receiving.result() if receiving.done() else None
                if message is None:
                    self._head_is_lost = True
                    return HEAD_FAILED
                if message["kind"] == "stop":
                    await self._end()
                    return 0
                if message["kind"] == "start_node":
                    self._start_task(self._start_node(message))
                elif message["kind"] == "facts":
                    self._start_task(self._tell_facts(message.get("folder")))
        finally:
            await self._end()
            for task in self._tasks:
                task.cancel()
            await self._peer.close()

    def _start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch_the_end(self, receiving: asyncio.Task[Message | None]) -> None:
        """Hear, while this host leaves, that the whole job ends or is lost."""
        message = await receiving
        while message is not None and message["kind"] != "stop":
            message = await self._peer.receive()
        self._all_ends.set()

    def leave(self, drains: bool) -> None:
        """Take this host out of its cluster; where the cluster goes on, `drains` lets work move away first."""
        self._drains = drains
        self._leaving.set()

    async def _start_node(self, message: Message) -> None:
        """Start this host's Ray node and watch over it."""
        env, _ = variables_for_ray(self._environ, message["hosts"])
        plan = NodePlan(
            ip=message["ip"],
            head_address=message["head_address"],
            num_cpus=message["num_cpus"],
            num_gpus=message["num_gpus"],
            token=self._token,
            ports=port_range(message["ports"]) if message["ports"] else None,
            dashboard=message["dashboard"],
        )
        try:
            self._node = RayNode(plan, {**env, **message["environment"]}, self._logs)
            await self._node.start()
            token = str(self._node.folder.path / "token")
            if self._is_ending:
                return
            self._peer.send("up", address=self._node.address, dashboard=self._node.dashboard, token_path=token)
            reason = await self._node.wait()
            if not self._is_ending:
                self._peer.send("ended", reason=reason)
                await self._node.stop()  # where it was lost by being stopped
                await asyncio.to_thread(end_descendants, GRACE_S)  # and of a keeper that was killed
        except (ClusterError, OSError) as error:
            if not self._is_ending:
                self._peer.send("failed", reason=str(error))

    async def _end(self, drains: bool = False) -> None:
        """End what was started here, hand its logs on, and leave nothing behind."""
        if self._is_ending:
            return
        self._is_ending = True
        node = self._node
        if node is not None:
            await node.stop(self._all_ends if drains else None)
            await asyncio.to_thread(end_descendants, GRACE_S)
            with contextlib.suppress(OSError, tarfile.TarError):
                if not self._head_is_lost:
                    self._peer.send("logs", archive=base64.b64encode(archived_logs(node.folder.path)).decode())
                elif self._logs is not None:
                    copy_logs(node.folder.path, self._logs)
            node.remove_folder()
        self._peer.send("stopped")

    async def _beat(self) -> None:
        while True:
            self._peer.send("alive")
            await asyncio.sleep(BEAT_S)

    async def _tell_facts(self, asking: str | None) -> None:
        from shoal.cluster.host_facts import facts

        self._peer.send("facts", facts=await asyncio.to_thread(facts, self._environ, asking))


def archived_logs(folder: Path) -> bytes:
    """The logs below a private folder as a compressed archive, newest first, as far as they fit."""
    found = [*folder.glob("*/session_2*/logs/*"), *folder.glob("*.log")]
    files = sorted(
        (path for path in found if path.is_file() and not path.is_symlink()), key=lambda p: -p.stat().st_mtime
    )
    archive, room = io.BytesIO(), MOST_LOG_BYTES
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        for path in files:
            size = path.stat().st_size
            if size <= room:
                room -= size
                tar.add(path, arcname=path.name, recursive=False)
    return archive.getvalue()


def _boot_id() -> str:
    """What tells two hosts of the same name apart."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _version(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return "not installed"
