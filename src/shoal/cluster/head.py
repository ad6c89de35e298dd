"""The head of a launch: gathers the ranks, has one Ray node started per host, and watches over them until the end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

from shoal.cluster.agent import AGENT_SILENCE_S, BEAT_S
from shoal.cluster.capacity_check import Resources
from shoal.cluster.control_connection import Message, Peer, accepted
from shoal.cluster.job_folder import Notice, note_event, own_addresses
from shoal.cluster.ports import PortRange, listening_socket
from shoal.errors import HeadFailed, NodeFailed, TimedOut
from shoal.machine.cores import usable_cpus
from shoal.machine.host_names import short_name
from shoal.machine.processes import allow_open_files

STOPPING_TIMEOUT_S = 6.0
HELLO_S = 30.0  # for an agent to look at its host, before it begins to beat
MOST_CALLING = 8192
GONE = ("failed", "lost", "left")
PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True)
class HeadPlan:
    """What the user and the launcher have said."""

    job_folder: Path
    secret: str
    num_ranks: int | None  # of a launch by ranks; None where agents are started for hosts
    host_names: tuple[str, ...]  # that should show up, as far as their names are known
    gives_cpus: bool  # whether this host is one of the allocation's
    is_local: bool  # on this machine, for this machine: nothing is opened to the network
    prefers_loopback: bool  # where all ranks turn out to be on this host
    min_nodes: int | None
    timeout_s: float
    ports: PortRange | None
    dashboard: bool
    environment: Mapping[str, str]  # for every host
    host_cpus: Mapping[str, int] = field(default_factory=dict)  # what the user grants of a host, by its short name
    num_cpus: int | None = None  # that Ray offers on every host, whatever it has


@dataclass
class Member:
    """One rank that has said hello."""

    peer: Peer
    hello: Mapping[str, Any]
    has_stopped: bool = False


@dataclass
class HostState:
    """One host, its ranks, and how far its Ray node is."""

    name: str
    members: list[Member] = field(default_factory=list)
    state: str = "here"  # then starting, up; or failed, lost, left
    reason: str = ""
    num_cpus: int = 0  # that Ray offers
    num_gpus: int = 0
    usable_cpus: int = 0
    answer: Mapping[str, Any] = field(default_factory=dict)  # of the node that is up
    asked_at: float = 0.0  # for its facts

    @property
    def node_rank(self) -> Member:
        """The rank that has the node."""
        return self.members[0]


class Head:
    """Everything that is known of the launch, changed by what the agents say."""

    def __init__(self, plan: HeadPlan, tell: Callable[[str], None]) -> None:
        self._plan, self._tell = plan, tell
        self._hosts: dict[tuple[str, str], HostState] = {}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._members: list[Member] = []  # everybody who has said hello
        self._own: HostState | None = None
        self._ip = ""
        self._is_ready = False
        self._is_stopping = False
        self._started_at = monotonic()
        self.losses: asyncio.Queue[HostState] = asyncio.Queue()  # of nodes that were up
        self.start_failures: dict[str, str] = {}  # of agents that could not even be started, by host

    async def open(self) -> Notice:
        """Listen for agents; what they have to know."""
        allow_open_files()  # each rank takes one, its ssh three, and a stranger who says nothing one for a while
        listener = listening_socket("127.0.0.1" if self._plan.is_local else "", self._plan.ports)
        # Thousands may call in the same moment; asyncio would let a hundred of them wait.
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=MOST_CALLING)
        addresses = (*(() if self._plan.is_local else own_addresses()), "127.0.0.1")
        return Notice(addresses, listener.getsockname()[1], self._plan.secret)

    async def bring_up(self, check: Callable[[Sequence[Resources]], Awaitable[None]] | None = None) -> HostState:
        """Return the head's host when Ray is up on as many hosts as were asked for; LaunchError if it cannot be.

        `check` is told what every host will offer before Ray is started on the first, and may refuse.
        """
        await self._until(self._all_are_here)
        if not self._enough(self._hosts.values()):
            raise TimedOut(f"{self._missing()} within {self._plan.timeout_s:g} s")
        for host in self._hosts.values():
            self._measure(host)
        self._tell_shared_cpus()
        if check is not None and self._plan.min_nodes is None:  # else more hosts may come, nobody knows how many
            await check([{"CPU": host.num_cpus, "GPU": host.num_gpus} for host in self._hosts.values()])
        head = self._head()
        self._ip = self._head_address()
        if head.state == "here":  # else it is lost already
            self._start_node(head, None)
        await self._until(lambda: head.state != "starting")
        if head.state != "up":
            kind = TimedOut if head.state == "starting" else HeadFailed
            raise kind(f"{head.name} (the head) {_did(head)}")
        for host in list(self._hosts.values()):
            if host.state == "here":
                self._start_node(host, head.answer["address"])
        self._is_ready = True  # whoever comes from now on starts its node at once
        await self._until(self._is_settled)
        up = [host for host in self._hosts.values() if host.state == "up"]
        if not self._enough(up):
            raise self._too_few()
        return head

    def _too_few(self) -> TimedOut | NodeFailed:
        """Why not as many nodes are up as were asked for."""
        bad = [host for host in self._hosts.values() if host.state != "up"]
        is_late = all(host.state in ("starting", "here") for host in bad)
        told = [f"{host.name} {_did(host)}" for host in bad if host.state in ("failed", "lost")]
        if not told:
            told = [f"{host.name} {_did(host)}" for host in bad]
        sentences = "\n".join(told or [self._missing()])
        return TimedOut(sentences) if is_late else NodeFailed(sentences)

    async def facts(self) -> dict[str, dict[str, Any]]:
        """What every host that shows up tells of itself, by its name."""
        await self._until(lambda: len(self._hosts) + len(self.start_failures) >= self._num_hosts())
        for host in self._hosts.values():
            host.asked_at = time()
            host.node_rank.peer.send("facts", folder=str(self._plan.job_folder))
        await self._until(lambda: all(host.answer or host.node_rank.has_stopped for host in self._hosts.values()))
        return {host.name: dict(host.answer) for host in self._hosts.values()}

    @property
    def absent(self) -> list[str]:
        """The hosts that should show up, by the names that are known, and have not."""
        here = {short_name(host.name) for host in self._hosts.values()}
        return [name for name in self._plan.host_names if short_name(name) not in here]

    @property
    def up(self) -> list[HostState]:
        """The hosts whose nodes are up."""
        return [host for host in self._hosts.values() if host.state == "up"]

    @property
    def seconds(self) -> float:
        """Since the launch began."""
        return monotonic() - self._started_at

    def could_not_start(self, host: str, reason: str) -> None:
        """An agent's own start has failed, before it could say anything."""
        self.start_failures[host] = reason
        self._changed.set()

    async def stop(self) -> None:
        """End all agents, keep their logs, and forget nobody who answers in time."""
        self._is_stopping = True
        members = self._members
        for member in members:
            member.peer.send("stop")
        deadline = monotonic() + STOPPING_TIMEOUT_S
        await self._until(lambda: all(member.has_stopped for member in members), deadline)
        silent = {member.hello["host"] for member in members if not member.has_stopped}
        if silent:
            self._tell(f"{', '.join(sorted(silent))} did not confirm that everything has ended there")
        if self._server is not None:
            self._server.close()
        for member in members:
            await member.peer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to one agent until it is gone."""
        peer = await accepted(reader, writer, self._plan.secret)
        if peer is None:
            return
        hello = await self._heard(peer, HELLO_S)
        if hello is None or hello["kind"] != "hello" or self._is_stopping:
            await peer.close()
            return
        member = Member(peer, hello)
        host = self._enter(member)
        beating = asyncio.create_task(_beat(peer))
        while (message := await self._heard(peer)) is not None:
            self._note(host, member, message)
            self._changed.set()
        beating.cancel()
        was_expected = member.has_stopped or self._is_stopping
        member.has_stopped = True
        if member is host.node_rank and not was_expected:
            gone = "nothing is heard of it" if peer.is_silent else "its agent is gone"
            self._lose(host, "lost", gone if host.state == "up" else "it was lost while it started")
        self._changed.set()
        await peer.close()

    async def _heard(self, peer: Peer, patience_s: float | None = None) -> Message | None:
        try:
            return await asyncio.wait_for(peer.receive(), patience_s or AGENT_SILENCE_S)
        except asyncio.TimeoutError:
            peer.give_up()
            return None

    def _enter(self, member: Member) -> HostState:
        """Note a rank that has said hello; the first of a host starts its node."""
        key = member.hello["host"], member.hello["boot"]
        host = self._hosts.get(key)
        if host is None or host.state in GONE:  # a host may come back
            host = self._hosts[key] = HostState(member.hello["host"])
        self._members.append(member)
        host.members.append(member)
        if self._own is None and member.hello["rank"] == 0:
            self._own = host
        if self._is_ready and host.state == "here" and self._head().state == "up":
            self._start_node(host, self._head().answer["address"])
        self._changed.set()
        return host

    def _start_node(self, host: HostState, head_address: str | None) -> None:
        """Tell a host to start its node."""
        is_head = head_address is None
        self._measure(host)
        host.state = "starting"
        if mismatch := self._mismatch(host):
            self._lose(host, "failed", mismatch)
            host.node_rank.peer.send("stop")
            return
        host.node_rank.peer.send(
            "start_node",
            ip=self._ip if is_head else host.node_rank.peer.remote_address,
            head_address=head_address,
            num_cpus=host.num_cpus,
            num_gpus=host.num_gpus,
            ports=str(self._plan.ports or ""),
            dashboard=self._plan.dashboard,
            environment=dict(self._plan.environment),
            hosts=sorted({self._ip, *(each.name for each in self._hosts.values())}),
        )

    def _measure(self, host: HostState) -> None:
        """Note what Ray shall offer on a host: what is ours of it, or one CPU per rank if there are more of these."""
        hellos = [member.hello for member in host.members]
        granted = hellos[0]["scheduler_cpus"] or self._plan.host_cpus.get(short_name(host.name))
        affinity = {cpu for hello in hellos for cpu in hello["cpus"]}
        host.usable_cpus = usable_cpus(affinity, hellos[0]["cgroup_cpus"], granted)
        host.num_cpus = hellos[0]["num_cpus"] or self._plan.num_cpus or max(host.usable_cpus, len(hellos))
        host.num_gpus = max(hello["num_gpus"] for hello in hellos)
        if self.is_head(host) and not self._plan.gives_cpus:
            host.num_cpus = host.num_gpus = 0

    def _tell_shared_cpus(self) -> None:
        """Say where Ray will offer more CPUs than there are."""
        shared = [host for host in self._hosts.values() if host.num_cpus > host.usable_cpus]
        if not shared:
            return
        first, num_others = shared[0], len(shared) - 1
        has = f"{first.name} has" if num_others == 0 else f"{first.name} and {_counted(num_others, 'other host')} have"
        example = f"{first.num_cpus} on {first.name}, which has {first.usable_cpus}"
        if self._plan.num_cpus is not None:
            self._tell(f"{has} fewer CPUs than --num-cpus, so Ray offers more CPUs than there are ({example})")
        else:
            self._tell(
                f"{has} more ranks than CPUs, so Ray offers one CPU for each rank ({example}); "
                "--num-cpus sets another number"
            )

    def _mismatch(self, host: HostState) -> str:
        """What a host has other versions of than the head."""
        ours, theirs = self._head().node_rank.hello["versions"], host.node_rank.hello["versions"]
        told = [f"{name} {theirs[name]} there, {ours[name]} on the head" for name in ours if ours[name] != theirs[name]]
        return f"has other versions: {', '.join(told)}" if told else ""

    def _note(self, host: HostState, member: Member, message: Message) -> None:
        """What an agent tells."""
        kind = message["kind"]
        if kind == "up" and host.state == "starting":  # not if it leaves again already
            host.state, host.answer = "up", message
            note_event(self._plan.job_folder, "node up", host=host.name, cpus=host.num_cpus, gpus=host.num_gpus)
            if self._is_ready and member.hello["is_joining"]:
                self._tell(f"{host.name} has joined with {_counted(host.num_cpus, 'CPU')}")
        elif kind in ("failed", "ended"):
            self._lose(host, "failed" if host.state == "starting" else "lost", str(message["reason"]))
            if host.state == "lost" and not self._is_stopping:  # nothing is left to do there
                for each in host.members:
                    each.peer.send("stop")
        elif kind == "leaving":
            self._lose(host, "left", "it was asked to leave")
        elif kind == "facts":
            times = {"asked_at": host.asked_at, "answered_at": time()}
            host.answer = {**message["facts"], **times, "reached_by": member.peer.remote_address}
        elif kind == "logs":
            with contextlib.suppress(OSError, tarfile.TarError, ValueError):
                save_logs(base64.b64decode(message["archive"]), self._plan.job_folder / "logs" / host.name)
        elif kind == "stopped":
            member.has_stopped = True
            if member is host.node_rank:  # without being told to, where it no longer hears us
                self._lose(host, "lost", "its agent has ended")

    def _lose(self, host: HostState, state: str, reason: str) -> None:
        """Note what became of a host; of what follows from that nobody is told."""
        if host.state in GONE:  # a node that has ended or left is lost once, whatever becomes of its agent
            return
        was_up = host.state == "up"
        host.state, host.reason = state, reason
        if not self._is_stopping:
            note_event(self._plan.job_folder, f"node {state}", host=host.name, reason=reason)
            if was_up:
                self.losses.put_nowait(host)

    def _head(self) -> HostState:
        assert self._own is not None
        return self._own

    def is_head(self, host: HostState) -> bool:
        """Whether losing this host means losing the cluster."""
        return self._own is host

    def _head_address(self) -> str:
        """The address by which the other hosts reach this one: what the first of them has called."""
        others = [
            member.hello["reached"]
            for host in self._hosts.values()
            for member in host.members
            if not self.is_head(host)
        ]
        if others:
            return str(others[0])
        return "127.0.0.1" if self._plan.prefers_loopback else (own_addresses() or ["127.0.0.1"])[0]

    def _all_are_here(self) -> bool:
        """Whether the ranks, or the hosts, that are expected have said hello, or enough of them."""
        if self.start_failures and not self._can_be_enough():
            raise NodeFailed("\n".join(f"{host}: {why}" for host, why in self.start_failures.items()))
        if self._own is None:
            return False
        if self._plan.min_nodes is not None and len(self._hosts) >= self._plan.min_nodes:
            return True
        if self._plan.num_ranks is not None:
            ranks = {member.hello["rank"] for host in self._hosts.values() for member in host.members}
            return len(ranks) >= self._plan.num_ranks
        return len(self._hosts) >= self._num_hosts()

    def _num_hosts(self) -> int:
        return len(self._plan.host_names) + (not self._plan.gives_cpus)

    def _can_be_enough(self) -> bool:
        needed = self._plan.min_nodes or self._num_hosts()
        return self._num_hosts() - len(self.start_failures) >= needed

    def _is_settled(self) -> bool:
        """Whether it is clear that enough hosts are up, or that they cannot be any more."""
        hosts = list(self._hosts.values())
        if self._plan.min_nodes is not None and self._enough(self.up):
            return True
        open_ones = [host for host in hosts if host.state in ("here", "starting", "up")]
        return not self._enough(open_ones) or all(host.state != "starting" for host in hosts)

    def _enough(self, hosts: Any) -> bool:
        """Whether these are as many hosts as have been asked for, or all."""
        count = len(list(hosts))
        if self._plan.min_nodes is not None:
            return count >= self._plan.min_nodes
        if self._plan.num_ranks is not None:
            ranks = {member.hello["rank"] for host in hosts for member in host.members}
            return len(ranks) >= self._plan.num_ranks
        return count >= self._num_hosts()

    def _missing(self) -> str:
        """Who has not appeared."""
        if absent := self.absent:
            return f"{', '.join(absent)} {'has' if len(absent) == 1 else 'have'} not appeared"
        ranks = {member.hello["rank"] for host in self._hosts.values() for member in host.members}
        missing = [str(rank) for rank in range(self._plan.num_ranks or 0) if rank not in ranks]
        if missing:
            return f"rank {', '.join(missing)} of {self._plan.num_ranks} has not appeared"
        return f"only {_counted(len(self._hosts), 'host')} of {self._plan.min_nodes or self._num_hosts()} have appeared"

    async def _until(self, holds: Callable[[], bool], deadline: float | None = None) -> None:
        """Wait for news until the claim holds or the time is over."""
        deadline = deadline or self._started_at + self._plan.timeout_s
        while not holds() and (left := deadline - monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)


def save_logs(archive: bytes, folder: Path) -> None:
    """Put a host's logs into the job's folder, by their last names only."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None:
                (folder / Path(entry.name).name).write_bytes(content.read())


async def _beat(peer: Peer) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        peer.send("alive")


def _did(host: HostState) -> str:
    """What became of a host that is not up."""
    if host.state in ("here", "starting"):
        return "was not ready in time"
    if host.state == "failed":
        return host.reason if host.reason.startswith("has ") else f"could not start Ray:\n{_indented(host.reason)}"
    return f"was lost: {host.reason}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
