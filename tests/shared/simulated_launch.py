"""`shoal launch` on virtual hosts, with faults that a seed says: the real head, the real agents, and four claims.

The command runs at most once; nothing survives the head; every loss is reported once; nobody accepts a wrong proof.
Beside these: no exception goes unhandled, a launch ends in time, and a signal is not lost.

python tests/shared/simulated_launch.py 4711         one seed, with everything that happens
python tests/shared/simulated_launch.py 1 --count 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any
from unittest.mock import patch

from virtual_hosts import End, Host, Listener, Pipe, Process, Stuck, VirtualLoop, host_name, this_process

from shoal.cluster import agent, agent_entry, agent_processes, control_connection, head, launching, ray_node
from shoal.cluster import user_command as user_command_module
from shoal.cluster.agent import HEAD_SILENCE_S
from shoal.cluster.control_connection import Message, Peer, accepted, call
from shoal.cluster.host_lists import Host as NamedHost
from shoal.cluster.job_folder import Notice, published
from shoal.cluster.job_folder import note_event as really_note_event
from shoal.cluster.launching import LaunchContext, LaunchOptions
from shoal.cluster.ranks import Rank
from shoal.errors import ClusterError, LaunchError
from shoal.machine import keeper

SLACK_S = 12.0  # for what takes its time beside the silence: a node that ends, a beat that was just missed
ENDING_S = 45.0  # within which everything of a lost head has ended, where nothing is paused
UNWINDING_S = 600.0
ENVIRON = {"PATH": "/usr/bin:/bin", "SHOAL_SSH": "/bin/sh", "HOME": "/nowhere"}
TOGETHER_S = 20.0  # a fault that is shorter kills an agent and its Ray
CODES = {0, 3, 81, 82, 83, 84, 85, 129, 130, 138, 140, 143}  # of commands here, signals, and docs/exit_codes


class Violation(AssertionError):
    """A claim that a seed has refuted."""


@dataclass
class Plan:
    """What a seed says, before anything happens."""

    mode: str  # ssh, ranks or alone
    hosts: list[str]
    ranks: list[str]  # the host of each rank after the first, where there are ranks
    min_nodes: int | None
    on_node_loss: str
    timeout_s: float
    command_s: float
    command_code: int
    faults: list[tuple[float, str, str, float]]  # when, what, to which host, how long


KINDS = (
    "kill agent", "lose power", "cut", "cut one way", "reset", "pause agent", "pause host", "kill head",
    "head loses power", "pause head", "ray ends", "ray cannot start", "ray port taken", "ray hangs", "kill keeper",
    "signal head", "signal head twice", "signal agent", "signal all agents", "tamper", "intruder", "false head",
    "relay", "join", "join and leave", "ssh refused", "kill ssh", "slow", "big log", "stale notice", "late rank",
)  # fmt: skip
TOUCHES_ALL = ("kill head", "head loses power", "pause head", "signal all agents")
HARMLESS = ("intruder", "false head", "relay", "slow", "big log", "stale notice", "signal head", "signal head twice")


def plan_of(seed: int, kinds: Sequence[str] = KINDS) -> Plan:
    """What this seed says, with faults of these kinds alone."""
    random = Random(seed)
    mode = random.choice(["ssh", "ssh", "ranks", "ranks", "alone"])
    num_hosts = 1 if mode == "alone" else random.choice([1, 2, 2, 3, 3, 4])
    hosts = [f"n{index + 1}" for index in range(num_hosts)]
    others = hosts[1:] + ([random.choice(hosts) for _ in range(random.choice([0, 0, 1, 2]))])
    timeout_s = random.choice([30.0, 60.0, 120.0])
    command_s = random.choice([0.1, 5.0, 20.0, 45.0])
    faults = []
    for _ in range(random.choice([0, 1, 1, 2, 2, 3, 4])):
        at = random.choice([random.uniform(0, 6), random.uniform(3, 20), random.uniform(5, 60)])
        length = random.choice([random.uniform(0.1, 5), random.uniform(5, 40), random.uniform(15, 30), 1e6])
        faults.append((at, random.choice(kinds), random.choice(hosts), length))
    return Plan(
        mode=mode,
        hosts=hosts,
        ranks=others,
        min_nodes=random.choice([None, None, None, random.randint(1, num_hosts)]),
        on_node_loss=random.choice(["continue", "continue", "stop"]),
        timeout_s=timeout_s,
        command_s=command_s,
        command_code=random.choice([0, 0, 3, 85]),
        faults=sorted(faults),
    )


@dataclass
class Seen:
    """What happened, as far as the claims need it."""

    commands: list[Process] = field(default_factory=list)
    command_signals: list[int] = field(default_factory=list)
    head_signals: list[tuple[float, int]] = field(default_factory=list)
    events: list[tuple[float, str, str]] = field(default_factory=list)  # time, event, host
    told: list[tuple[float, str]] = field(default_factory=list)
    gone: list[tuple[float, str, str]] = field(default_factory=list)  # time, host, why: the truth about its node
    peers: dict[tuple[bytes, bool], list[Message]] = field(default_factory=dict)  # what was sent, by key and side
    wrong: list[str] = field(default_factory=list)
    folders: list[VirtualFolder] = field(default_factory=list)
    killed: list[Process] = field(default_factory=list)  # agents and keepers, by a fault
    paused_s: float = 0.0


class World:
    """One launch of one seed."""

    def __init__(self, seed: int, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        self.seed, self.plan = seed, plan_of(seed, kinds)
        self.random = Random(f"world {seed}")
        self.last_said = b""  # by an agent, to prove itself
        self.loop = VirtualLoop(self.random, self._program)
        self.network = self.loop.network
        self.folder, self.job = folder, folder / "job"
        self.seen = Seen()
        self.hosts = {name: self.network.host(name) for name in self.plan.hosts}
        self.first = self.hosts[self.plan.hosts[0]]
        self.head: Process | None = None
        self.cannot_start: Counter[str] = Counter()
        self.ray_faults: dict[str, str] = {}
        self.refused: set[str] = set()
        self.big_logs: set[str] = set()
        self.has_relay = any(kind == "relay" for _, kind, _, _ in self.plan.faults)
        self.untouched = (
            set()
            if self._touches_all()
            else set(self.plan.hosts) - {host for _, kind, host, _ in self.plan.faults if kind not in HARMLESS}
        )
        self._lags: dict[Notice, float] = {}
        self.network.on_connection = self._listen_in

    def _touches_all(self) -> bool:
        first = self.plan.hosts[0]
        return any(
            kind in TOUCHES_ALL or (host == first and kind not in HARMLESS) for _, kind, host, _ in self.plan.faults
        )

    # What is started.

    def run(self) -> None:
        """Let it happen; Violation if a claim does not hold."""
        try:
            self.loop.run_until_complete(self._live())
            self._check()
        finally:
            self._unwind()

    async def _live(self) -> None:
        for fault in self.plan.faults:
            self.loop.call_later(fault[0], self._strike, *fault[1:])
        if any(kind == "stale notice" for _, kind, _, _ in self.plan.faults):
            self._leave_stale_notice()
        self.head = Process(self.loop, self.first, "head")
        self.head.run(self._lead())
        if self.plan.mode == "ranks":
            late = any(kind == "late rank" for _, kind, _, _ in self.plan.faults)
            for number, name in enumerate(self.plan.ranks, start=1):
                self.loop.call_later(self.random.uniform(0, 15 if late else 2), self._start_rank, number, name)
        most = self.plan.timeout_s * 2 + self.plan.command_s + 200
        await self._until(lambda: not self.head_lives, lambda: most, "the launch did not end")
        await self._until(lambda: not self._alive("ray", "command"), self._ending_s, "survived the head")
        late = self.plan.timeout_s
        others = ("agent", "ssh", "keeper")
        await self._until(lambda: not self._alive(*others), lambda: late + self._ending_s(), "survived the head")

    def _ending_s(self) -> float:
        """Within which everything of a lost head has ended, also where something is paused after its loss."""
        return ENDING_S + self.seen.paused_s

    @property
    def head_lives(self) -> bool:
        """Whether the launch goes on."""
        return self.head is not None and self.head.is_alive

    def _alive(self, *kinds: str) -> list[Process]:
        return [
            process
            for host in self.network.hosts.values()
            if host.has_power
            for process in host.living()
            if process.kind in kinds
        ]

    async def _until(self, holds: Callable[[], bool], within_s: Callable[[], float], problem: str) -> None:
        began = self.loop.time()
        while not holds():
            most_s = within_s()
            if self.loop.time() > began + most_s:
                names = ", ".join(str(each) for each in self._alive("head", "ray", "command", "agent", "ssh", "keeper"))
                raise Violation(f"{problem}: {names} after {most_s:g} s")
            await asyncio.sleep(0.5)

    async def _lead(self) -> int:
        names = self.plan.hosts
        options = LaunchOptions(
            command=("work",),
            hosts=tuple(NamedHost(name) for name in names) if self.plan.mode == "ssh" else (),
            min_nodes=self.plan.min_nodes,
            timeout_s=self.plan.timeout_s,
            on_node_loss=self.plan.on_node_loss,
        )
        rank = Rank("srun", 0, len(self.plan.ranks) + 1, "srun-1") if self.plan.mode == "ranks" else None
        scheduler = "ssh" if self.plan.mode == "ssh" else ""
        where = LaunchContext(rank, scheduler, options.hosts, "job")
        try:
            return await launching._lead(options, where, self.job, ENVIRON, self._tell)
        except LaunchError as error:
            self._tell(f"Error: {error}")
            return error.exit_code

    def _tell(self, text: str) -> None:
        self.loop.log(f"told: {text}")
        self.seen.told.append((self.loop.time(), text))

    def _start_rank(self, number: int, name: str) -> None:
        process = Process(self.loop, self.hosts[name], "agent")
        self.loop.log(f"rank {number} starts as {process}")
        work = agent_entry.run_agent(self._look, ENVIRON, self.plan.timeout_s, number, self.job)
        process.run(self._exit_code(work))

    @staticmethod
    async def _exit_code(work: Any) -> int:
        try:
            return int(await work)
        except ClusterError:
            return 1

    def _look(self) -> Notice | None:
        """The notice, as a shared file system shows it some time after it was written."""
        notice = published(self.job)
        if notice is not None and self.loop.time() >= self._lags.setdefault(notice, self.loop.time() + 0.3):
            return notice
        return None

    def _leave_stale_notice(self) -> None:
        launching.make_job_folder(self.job)
        launching.publish(self.job, Notice((self.first.ip, "127.0.0.1"), 19_999, "of an earlier launch"))

    # What programs do.

    def _program(self, words: tuple[str, ...]) -> tuple[str, Any]:
        """What a process of this command line is and does."""
        if keeper.START in words:
            kept = words[words.index("--") + 1 :]
            return ("keeper", self._keeper) if kept[0] == sys.executable else ("command", self._command)
        if words[0] == "/bin/sh":
            return "ssh", self._ssh
        assert "--agent" in words
        return "agent", self._agent

    def _agent(self, process: Process, words: tuple[str, ...], _: Pipe | None) -> Any:
        rank = int(words[words.index("--rank") + 1]) if "--rank" in words else None
        return self._exit_code(agent_entry.run_agent_by_pipe(ENVIRON, self.plan.timeout_s, rank, False))

    async def _ssh(self, process: Process, words: tuple[str, ...], _: Pipe | None) -> int:
        """Start the agent on its host; its standard input, its end and its code go through."""
        host = self.hosts[words[-2]]
        await asyncio.sleep(self.random.uniform(0.1, 1.5))
        if host.name in self.refused:
            process.output(b"Permission denied (publickey).\n")
            return 255
        if not self.network.passes(process.host, host) or not self.network.passes(host, process.host):
            await asyncio.sleep(10.0)
            process.output(f"ssh: connect to host {host.name} port 22: Connection timed out\n".encode())
            return 255
        remote = Process(self.loop, host, "agent")
        process.stdin.listen(_Forward(self, process, remote))
        process.at_end.append(lambda _: self._when_passing(process.host, host, remote.stdin.close))
        remote.run(self._agent(remote, words, None))
        silent_since = None
        while remote.is_alive or not self.network.passes(host, process.host):
            await asyncio.sleep(1.0)
            passes = self.network.passes(process.host, host) and self.network.passes(host, process.host)
            silent_since = None if passes else silent_since or self.loop.time()
            if silent_since is not None and self.loop.time() - silent_since > 15.0:
                return 255
        return (remote.code or 0) % 256

    def _when_passing(self, one: Host, other: Host, work: Callable[[], None]) -> None:
        """Do it once the network passes; never if a host has lost its power."""
        if self.network.passes(one, other):
            self.loop.call_later(self.network.latency(one, other), work)
        elif one.has_power and other.has_power:
            self.network.when_changed(lambda: self._when_passing(one, other, work))

    async def _keeper(self, process: Process, words: tuple[str, ...], control: Pipe | None) -> int:
        """What stands between an agent and its Ray, with the steps of the real one."""
        assert control is not None
        heard = _Heard(control)
        folder = Path(next(word for word in words if word.startswith("--temp-dir=")).partition("=")[2])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        ray = Process(self.loop, process.host, "ray", process)
        ray.output = process.output
        process.at_end.append(lambda _: ray.signal(signal.SIGKILL))
        ray.at_end.append(lambda _: self.loop.call_soon(heard.wake, context=process.context))
        heard.on_signal = lambda _: ray.signal(signal.SIGTERM)
        ray.run(self._ray(ray, folder, is_head="--head" in words))
        while ray.is_alive and not heard.is_over:
            await heard.wake_up()
        ended_by_us, was_left = ray.is_alive, heard.has_ended
        ray.signal(signal.SIGKILL)
        await asyncio.sleep(self.random.uniform(0.0, 0.8))  # for all that Ray has left
        if was_left or self._is_left(process):
            shutil.rmtree(folder.parent, ignore_errors=True)
        if not ended_by_us:
            self._note_gone(process.host, "its Ray ended")
        return keeper._code(ray.code or 0)

    def _is_left(self, keeper: Process) -> bool:
        """Whether nobody but this keeper can clean up, as it sees at its end."""
        return keeper.parent is not None and not keeper.parent.is_alive

    async def _ray(self, process: Process, folder: Path, is_head: bool) -> int:
        """A node of Ray, which nobody but its keeper ends."""
        leaving = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
        fault = self.ray_faults.get(process.host.name, "")
        await asyncio.sleep(self.random.uniform(0.5, 4.0))
        if fault == "ray port taken" and self.cannot_start[process.host.name] < 2:
            self.cannot_start[process.host.name] += 1
            process.output(b"bind: address already in use\n")
            return 1
        if fault == "ray cannot start" or not (is_head or self._ray_of_head()):
            process.output(b"RuntimeError: cannot connect\n")
            return 1
        if fault == "ray hangs":
            await asyncio.sleep(1e9)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ray_current_cluster").write_text(f"{process.host.ip}:6379")
        if process.host.name in self.big_logs:
            (folder.parent / "big.log").write_bytes(self.random.randbytes(600_000))
        process.output(b"--block\nThis command will now block forever\n")
        await leaving.wait()
        await asyncio.sleep(self.random.uniform(0.5, 12.0))
        process.output(b"the node ended\n")
        return 0

    def _ray_of_head(self) -> bool:
        return any(process.kind == "ray" for process in self.first.living())

    async def _command(self, process: Process, words: tuple[str, ...], control: Pipe | None) -> int:
        """A keeper with the user's command below it."""
        assert control is not None
        self.seen.commands.append(process)
        heard = _Heard(control)
        heard.on_signal = self.seen.command_signals.append
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.data_received, b"15\n")
        await heard.wait(self.plan.command_s)
        if not heard.words and not heard.has_ended:
            return self.plan.command_code
        if not heard.is_over:  # a signal: it saves
            await heard.wait(self.random.choice([0.5, 5.0, 70.0]), until=b"end\n")
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        return 143

    # What goes wrong.

    def _strike(self, kind: str, name: str, seconds: float) -> None:
        self.loop.log(f"fault: {kind} {name} {seconds:.1f}")
        getattr(self, "_" + kind.replace(" ", "_"))(self.hosts[name], seconds)

    def _agents(self, host: Host) -> list[Process]:
        return [process for process in host.living() if process.kind == "agent"]

    def _note_gone(self, host: Host, why: str) -> None:
        self.seen.gone.append((self.loop.time(), host.name, why))

    def _kill_agent(self, host: Host, seconds: float) -> None:
        if seconds < TOGETHER_S:  # Ray goes first, and its keeper is still ending what Ray has left
            self._ray_ends(host, 0.0)
            self.loop.call_later(0.8 * seconds / TOGETHER_S, self._kill_agent, host, TOGETHER_S)
            return
        agents = self._agents(host)
        if agents:
            killed = self.random.choice(agents)
            self.seen.killed.append(killed)
            killed.signal(signal.SIGKILL)
            if len(agents) == 1:
                self._note_gone(host, "its agent was killed")

    def _lose_power(self, host: Host, _: float) -> None:
        host.has_power = False
        self._note_gone(host, "its power went")
        for process in host.living():
            process.end(-signal.SIGKILL)

    def _cut(self, host: Host, seconds: float, directions: tuple[bool, ...] = (True, False)) -> None:
        others = [each for each in self.network.hosts.values() if each is not host]
        pairs = [(host, each) if outwards else (each, host) for each in others for outwards in directions]
        for pair in pairs:
            self.network.cut(*pair)
        if seconds < 1e6:
            self.loop.call_later(seconds, self._mend, pairs)
        if host is not self.first and seconds > HEAD_SILENCE_S + SLACK_S:
            self._note_gone(host, "it was cut off")

    def _mend(self, pairs: list[tuple[Host, Host]]) -> None:
        self.loop.log("the network is whole again")
        for pair in pairs:
            self.network.mend(*pair)

    def _cut_one_way(self, host: Host, seconds: float) -> None:
        self._cut(host, seconds, (self.random.random() < 0.5,))

    def _ends_of(self, host: Host) -> list[End]:
        return [end for end in self.network.ends if end.process.host is host and end.process.kind == "agent"]

    def _reset(self, host: Host, _: float) -> None:
        for end in self._ends_of(host):
            if end.process.is_alive:
                end.reset()

    def _pause_agent(self, host: Host, seconds: float) -> None:
        seconds = min(seconds, 60.0)
        self.seen.paused_s += seconds
        for process in self._agents(host):
            process.pause(seconds)

    def _pause_host(self, host: Host, seconds: float) -> None:
        seconds = min(seconds, 60.0)
        self.seen.paused_s += seconds
        for process in host.living():
            process.pause(seconds)

    def _kill_head(self, *_: object) -> None:
        assert self.head is not None
        self.head.signal(signal.SIGKILL)

    def _head_loses_power(self, *_: object) -> None:
        self._lose_power(self.first, 0.0)

    def _pause_head(self, _: Host, seconds: float) -> None:
        assert self.head is not None
        self.seen.paused_s += min(seconds, 60.0)
        self.head.pause(min(seconds, 60.0))

    def _ray_ends(self, host: Host, _: float) -> None:
        for process in [each for each in host.living() if each.kind == "ray"]:
            self._note_gone(host, "its Ray was killed")
            process.output(b"killed\n")
            process.end(1)

    def _ray_cannot_start(self, host: Host, _: float) -> None:
        self.ray_faults[host.name] = "ray cannot start"

    def _ray_port_taken(self, host: Host, _: float) -> None:
        self.ray_faults[host.name] = "ray port taken"

    def _ray_hangs(self, host: Host, _: float) -> None:
        self.ray_faults[host.name] = "ray hangs"

    def _kill_keeper(self, host: Host, _: float) -> None:
        for process in [each for each in host.living() if each.kind == "keeper"]:
            self.seen.killed.append(process)
            self._note_gone(host, "its keeper was killed")
            process.signal(signal.SIGKILL)

    def _signal_head(self, *_: object) -> None:
        assert self.head is not None
        number = self.random.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
        if self.head.is_alive:
            self.seen.head_signals.append((self.loop.time(), number))
        self.head.signal(number)

    def _signal_head_twice(self, *_: object) -> None:
        self._signal_head()
        self.loop.call_later(self.random.uniform(0.05, 3.0), self._signal_head)

    def _signal_agent(self, host: Host, _: float) -> None:
        for process in self._agents(host):
            for _ in range(self.random.choice([1, 2])):
                process.signal(signal.SIGTERM)

    def _signal_all_agents(self, *_: object) -> None:
        for host in self.hosts.values():
            self._signal_agent(host, 0.0)

    def _slow(self, host: Host, seconds: float) -> None:
        self.network.slowness[host.name] = min(seconds, 40.0) / 40.0

    def _big_log(self, host: Host, _: float) -> None:
        self.big_logs.add(host.name)

    def _stale_notice(self, *_: object) -> None:
        """It is there from the start."""

    def _late_rank(self, *_: object) -> None:
        """It is late from the start."""

    def _ssh_refused(self, host: Host, _: float) -> None:
        self.refused.add(host.name)

    def _kill_ssh(self, host: Host, _: float) -> None:
        for process in self.first.living():
            if process.kind == "ssh":
                process.signal(signal.SIGKILL)
        self.untouched = set()

    def _tamper(self, host: Host, _: float) -> None:
        """Somebody on the way changes what is said from now on, once."""
        for end in self._ends_of(host):
            for each in (end, end.other):
                if each.process.is_alive and self.random.random() < 0.7:
                    each.tamper = _Tampering(self.random, each)

    def _listen_in(self, end: End) -> None:
        """Somebody hears how an agent proves itself."""
        if end.process.kind == "agent" and end.tamper is None:
            end.tamper = self._hear_proof(end)

    def _hear_proof(self, end: End) -> Callable[[bytes], list[bytes]]:
        def hear(data: bytes) -> list[bytes]:
            self.last_said, end.tamper = data, None
            return [data]

        return hear

    def _intruder(self, host: Host, _: float) -> None:
        """Somebody without the secret calls the head."""
        process = Process(self.loop, host, "intruder")
        process.run(self._intrude())

    async def _intrude(self) -> int:
        notice = published(self.job)
        if notice is None:
            return 0
        address = self.first.ip if this_process().host is not self.first else "127.0.0.1"
        way = self.random.randrange(4)
        if way == 0:
            with contextlib.suppress(ClusterError):
                peer = await call(address, notice.port, "a guess", 30.0)
                peer.send("hello", rank=1, host="evil", boot="")
            return 0
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection(address, notice.port)
            if way == 1:
                writer.write(self.random.randbytes(self.random.randrange(1, 300)))
            elif way == 2:  # what an agent has said before
                writer.write(self.last_said)
            await asyncio.wait_for(reader.read(), 60.0)
        return 0

    def _false_head(self, host: Host, _: float) -> None:
        """Somebody listens on the head's port where agents look for it too."""
        self._listen_as_head(host, self._deceive)

    def _relay(self, host: Host, _: float) -> None:
        """Somebody passes on all that is said, and changes some of it."""
        self._listen_as_head(host, self._pass_on)

    def _listen_as_head(self, host: Host, serve: Any) -> None:
        notice = published(self.job)
        if notice is None or notice.port in host.listeners or not host.has_power:
            return
        process = Process(self.loop, host, "intruder")

        async def main() -> int:
            server = await asyncio.start_server(serve, sock=Listener(process, notice.port))
            await asyncio.sleep(1e8)
            server.close()
            return 0

        process.run(main())

    async def _deceive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = self.random.randrange(3)
        if way == 0:
            peer = await accepted(reader, writer, "a guess")
            if peer is not None:
                peer.send("start_node", evil=True)
            return
        writer.write(control_connection.GREETING + self.random.randbytes(control_connection.NONCE_BYTES))
        with contextlib.suppress(OSError, EOFError):
            said = await reader.readexactly(control_connection.NONCE_BYTES + control_connection.PROOF_BYTES)
            writer.write(said[control_connection.NONCE_BYTES :] if way == 1 else self.random.randbytes(32))
        await asyncio.sleep(5.0)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        notice = published(self.job)
        head = None if notice is None else self.first.listeners.get(notice.port)
        if notice is None or head is None or head.process.kind == "intruder":  # itself, where the head was: for ever
            writer.close()
            return
        with contextlib.suppress(OSError):
            to_head = await asyncio.open_connection(self.first.ip, notice.port)
            await asyncio.gather(self._copy(reader, to_head[1]), self._copy(to_head[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                if self.random.random() < 0.02:
                    data = _changed(data, self.random)
                writer.write(data)
        writer.close()

    def _join(self, _: Host, seconds: float, leaves: bool = False) -> None:
        """Another host joins the running job, and may leave it again."""
        name = f"j{len(self.network.hosts)}"
        host = self.hosts[name] = self.network.host(name)
        if published(self.job) is None:
            return
        process = Process(self.loop, host, "agent")
        notice = published(self.job)
        work = agent_entry.run_agent(lambda: notice, ENVIRON, self.plan.timeout_s, None, self.job, is_joining=True)
        process.run(self._exit_code(work))
        if leaves:
            self.loop.call_later(min(seconds, 40.0), process.signal, signal.SIGTERM)

    def _join_and_leave(self, host: Host, seconds: float) -> None:
        self._join(host, seconds, leaves=True)

    # What must hold.

    def note_event(self, folder: Path, event: str, **values: object) -> None:
        """What the head writes down for the command."""
        really_note_event(folder, event, **values)
        self.loop.log(f"event: {event} {values.get('host')} {values.get('reason', '')}")
        self.seen.events.append((self.loop.time(), event, str(values["host"])))

    def _check(self) -> None:
        self._check_command()
        self._check_losses()
        self._check_leftovers()
        problems = self.seen.wrong + self.loop.failures
        if problems:
            raise Violation("; ".join(problems))

    def _check_command(self) -> None:
        assert self.head is not None
        if len(self.seen.commands) > 1:
            raise Violation(f"the command ran {len(self.seen.commands)} times")
        code = self.head.code
        if code is not None and code >= 0 and code not in CODES:
            raise Violation(f"the launch ended with {code}")
        for command in self.seen.commands:
            early = [number for at, number in self.seen.head_signals if at < command.started_at]
            if (
                self.head.handlers
                and early
                and not self.seen.command_signals
                and command.ended_at > command.started_at + 1
            ):
                raise Violation(f"signal {early[0]} came before the command, which ran and was not told")

    def _check_losses(self) -> None:
        for name in self.hosts:
            self._check_losses_of(name)
        for at, name, why in self.seen.gone:
            self._check_reported(at, name, why)

    def _check_losses_of(self, name: str) -> None:
        reports = [event for _, event, host in self.seen.events if host == name and event != "node up"]
        agents = [process for process in self.hosts[name].processes if process.kind == "agent"]
        if len(reports) > len(agents):  # each of them has, and is, one node at most
            raise Violation(f"the loss of {name} is reported twice: {self._events_of(name)}")
        if reports and name in self.untouched:
            raise Violation(f"{name} is reported as lost, and nothing has happened to it")
        words = (f"{name} was lost:", f"{name} has left:", f"{name} has ended")
        told = [text for _, text in self.seen.told if text.startswith(words)]
        ups = [event for _, event, host in self.seen.events if host == name and event == "node up"]
        if len(told) > len(ups):
            raise Violation(f"{name} was up {len(ups)} times, and the user heard of {len(told)} losses: {told}")

    def _events_of(self, name: str) -> list[str]:
        return [event for _, event, host in self.seen.events if host == name]

    def _check_reported(self, at: float, name: str, why: str) -> None:
        """A node that was up and is gone is known to be, where the head lived on for long enough to learn it."""
        assert self.head is not None
        due = at + HEAD_SILENCE_S + SLACK_S + self.seen.paused_s
        command_ended = min((command.ended_at for command in self.seen.commands), default=0.0)
        if self.head.ended_at <= due or command_ended <= due:
            return
        ups = [when for when, event, host in self.seen.events if host == name and event == "node up" and when <= at]
        if not ups:
            return
        losses = [when for when, event, host in self.seen.events if host == name and event != "node up"]
        if not any(ups[-1] <= when <= due for when in losses):
            raise Violation(f"{name} is gone ({why}), and nobody says so: {self._events_of(name)}")
        words = (f"{name} was lost:", f"{name} has left:", f"{name} has ended")
        told = [when for when, text in self.seen.told if text.startswith(words)]
        if not any(ups[-1] <= when <= due for when in told):
            raise Violation(f"{name} is gone ({why}), and the user is not told")

    def _check_leftovers(self) -> None:
        """Nothing of a job is left on the disk of a host that has power, unless nobody was there to remove it."""
        left = [each for each in self.seen.folders if each.owner.host.has_power and each.path.exists()]
        if unexcused := [str(each.path) for each in left if not self._is_abandoned(each)]:
            raise Violation(f"left on disk: {', '.join(unexcused)}")

    def _is_abandoned(self, folder: VirtualFolder) -> bool:
        """Whether its agent was killed when it had no keeper any more, or that one was too; the next launch sweeps."""
        agent_process = folder.owner
        keepers = [each for each in agent_process.host.processes if each.parent is agent_process]
        gone = [each for each in keepers if each in self.seen.killed or each.ended_at <= agent_process.ended_at]
        return agent_process in self.seen.killed and len(gone) == len(keepers)

    def _unwind(self) -> None:
        """Let every coroutine end, so that none of them is found half done later; nothing that they do counts."""
        self.loop.is_over = True
        self.loop.take_back(self.loop.lost)
        for host in self.network.hosts.values():
            for process in host.processes:
                self.loop.take_back(process.backlog)

        async def end_all() -> None:
            mine = asyncio.current_task()
            deadline = self.loop.time() + UNWINDING_S
            while self.loop.time() < deadline and (left := [task for task in asyncio.all_tasks() if task is not mine]):
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=100.0)

        with contextlib.suppress(Stuck):
            self.loop.run_until_complete(end_all())
        self.loop.close()


class _Heard(asyncio.Protocol):
    """What a keeper hears through its pipe."""

    def __init__(self, control: Pipe) -> None:
        self.words = b""
        self.has_ended = False
        self.on_signal: Callable[[int], None] = lambda _: None
        self._news = asyncio.Event()
        control.listen(self)

    @property
    def is_over(self) -> bool:
        """Whether everything is to end now."""
        return self.has_ended or b"end\n" in self.words

    def data_received(self, data: bytes) -> None:
        self.words += data
        for line in data.split():
            if line.isdigit():
                self.on_signal(int(line))
        self._news.set()

    def eof_received(self) -> None:
        self.has_ended = True
        self._news.set()

    def wake(self) -> None:
        """Let whoever sleeps look around."""
        self._news.set()

    async def wake_up(self) -> None:
        """Sleep until there is something to look at."""
        await self._news.wait()
        self._news.clear()

    async def wait(self, seconds: float, until: bytes = b"\n") -> None:
        """Wait for a word, or the end of the pipe."""
        deadline = asyncio.get_running_loop().time() + seconds
        while until not in self.words and not self.has_ended:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)


class _Forward(asyncio.Protocol):
    """Hands an ssh's standard input to the agent on the other host."""

    def __init__(self, world: World, process: Process, remote: Process) -> None:
        self._world, self._process, self._remote = world, process, remote

    def data_received(self, data: bytes) -> None:
        self._world._when_passing(self._process.host, self._remote.host, lambda: self._remote.stdin.write(data))

    def eof_received(self) -> None:
        self._world._when_passing(self._process.host, self._remote.host, self._remote.stdin.close)


def _changed(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


class _Tampering:
    """Changes, repeats, drops or swaps what goes along a wire, once."""

    def __init__(self, random: Random, end: End) -> None:
        self._random, self._end = random, end
        self._way = random.randrange(5)
        self._kept: list[bytes] = []

    def __call__(self, data: bytes) -> list[bytes]:
        if self._way == 0:
            out = [_changed(data, self._random)]
        elif self._way == 1:
            out = [data, data]
        elif self._way == 2:
            out = []
        elif self._way == 3:
            out = [data, self._random.randbytes(40)]
        elif not self._kept:
            self._kept.append(data)
            return []
        else:
            out = [data, *self._kept]
        self._end.tamper = None
        return out


# What stands in for the operating system while seeds run.

WORLDS: list[World] = []


class SeenPeer(Peer):
    """A real peer that notes what is said, to hold it against what is heard."""

    def __init__(self, reader: Any, writer: Any, key: bytes, is_head: bool) -> None:
        super().__init__(reader, writer, key, is_head)
        self._side = (key, is_head)
        self._other = (key, not is_head)
        self._is_stranger = this_process().kind == "intruder"
        self._num_heard = 0
        if self._is_stranger:
            return
        seen = WORLDS[-1].seen
        seen.peers[self._side] = []
        if not is_head and self._other not in seen.peers:
            seen.wrong.append(f"{this_process()} accepts a head that does not know the secret")
        if is_head and writer.transport.other.process.kind == "intruder" and not WORLDS[-1].has_relay:
            seen.wrong.append("the head accepts somebody who does not know the secret")

    def send(self, kind: str, **values: Any) -> None:
        if not self._is_stranger and not self._writer.is_closing():
            WORLDS[-1].seen.peers[self._side].append({"kind": kind, **values})
        super().send(kind, **values)

    async def receive(self) -> Message | None:
        message = await super().receive()
        if message is not None and not self._is_stranger and not WORLDS[-1].loop.is_over:
            said = WORLDS[-1].seen.peers.get(self._other, [])
            if self._num_heard >= len(said) or not _is_same(said[self._num_heard], message):
                WORLDS[-1].seen.wrong.append(f"{this_process()} takes {message['kind']} for what its peer has said")
            self._num_heard += 1
        return message


def _is_same(said: Message, heard: Message) -> bool:
    return said == heard or control_connection.json.loads(control_connection.json.dumps(said)) == heard


class VirtualFolder:
    """A private folder on a virtual host's disk."""

    def __init__(self, environ: object) -> None:
        world, host = WORLDS[-1], this_process().host
        self.path = world.folder / host.name / f"shl-{len(world.seen.folders):03d}"
        self.path.mkdir(parents=True)
        self.ray = self.path / "r"
        self.lock = -1
        self.owner = this_process()
        host.private_folders.append(self)
        world.seen.folders.append(self)

    def write(self, name: str, text: str) -> Path:
        """As of a private folder."""
        path = self.path / name
        path.write_text(text)
        return path

    def remove(self) -> None:
        """As of a private folder."""
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep_all(environ: object) -> None:
    """As of private folders: those that no living process holds."""
    for folder in this_process().host.private_folders:
        if not folder.owner.is_alive and not folder.owner.below():
            folder.remove()


async def _end_descendants(grace_s: float, spared: int = 0) -> None:
    """As the keeper's: asks first, then makes them."""
    loop = WORLDS[-1].loop
    asked: set[int] = set()
    deadline = loop.time() + grace_s
    while not loop.is_over and (left := this_process().below()):
        for process in left:
            if loop.time() >= deadline:
                process.signal(signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                process.signal(signal.SIGTERM)
        await asyncio.sleep(0.02)


def _hello(environ: object, rank: int | None, reached: str, is_joining: bool, num_cpus: int | None = None) -> Message:
    host = this_process().host
    return {
        "rank": rank, "host": host.name, "boot": host.ip, "pid": this_process().pid, "reached": reached,
        "is_joining": is_joining, "num_cpus": num_cpus, "cpus": [0, 1], "cgroup_cpus": None, "scheduler_cpus": None,
        "num_gpus": 0, "versions": {"python": "3", "ray": "2", "shoal": "1"},
    }  # fmt: skip


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Os:
    """The present world's `os`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(WORLDS[-1].loop.os, name)


@contextlib.contextmanager
def virtual_system() -> Iterator[None]:
    """Put the virtual hosts in the place of the operating system, for the head and the agents."""
    virtual_os = _Os()

    def own_addresses() -> list[str]:
        return [this_process().host.ip]

    replaced: list[tuple[Any, str, Any]] = [
        (agent.socket, "gethostname", host_name),
        (head, "monotonic", _now),
        (agent, "monotonic", _now),
        (head, "listening_socket", lambda *_: Listener(this_process(), next(WORLDS[-1].loop.ports))),
        (head, "own_addresses", own_addresses),
        (head, "note_event", lambda folder, event, **values: WORLDS[-1].note_event(folder, event, **values)),
        (launching, "is_this_host", lambda name: name == this_process().host.name),
        (launching, "_is_from_terminal", lambda: False),
        (launching, "adopt_orphans", lambda: None),
        (launching, "end_descendants", _end_descendants),
        (launching, "sweep_all", _sweep_all),
        (agent, "adopt_orphans", lambda: None),
        (agent, "end_descendants", _end_descendants),
        (agent_entry, "hello", _hello),
        (agent_processes, "os", virtual_os),
        (ray_node, "os", virtual_os),
        (ray_node, "children_of_all", dict),  # no daemon of theirs has a pid of this machine
        (ray_node, "PrivateFolder", VirtualFolder),
        (user_command_module, "os", virtual_os),
        (control_connection, "Peer", SeenPeer),
    ]
    with contextlib.ExitStack() as stack:
        for where, name, what in replaced:
            stack.enter_context(patch.object(where, name, what))
        yield


def run_seed(seed: int, kinds: Sequence[str] = KINDS) -> World:
    """Run one seed; Violation, with the seed, if a claim does not hold. `virtual_system` must be in place."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place, prefix="shoal-seed-") as folder:
        world = World(seed, Path(folder), kinds)
        WORLDS.append(world)
        try:
            world.run()
        except (Violation, Stuck) as error:
            only = "" if kinds is KINDS else f" --kinds '{','.join(kinds)}'"
            error.args = (f"seed {seed}: {error}; python tests/shared/simulated_launch.py {seed}{only} replays it",)
            error.trace = world.loop.trace  # type: ignore[union-attr]
            raise
        finally:
            WORLDS.pop()
    return world


def run_seeds(seeds: range, told: Callable[[str], None] = lambda _: None, kinds: Sequence[str] = KINDS) -> list[str]:
    """Run many; what was refuted, a line for each seed."""
    refuted = []
    with virtual_system():
        for seed in seeds:
            try:
                run_seed(seed, kinds)
            except (Violation, Stuck) as error:
                refuted.append(str(error))
                told(str(error))
    return refuted


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1, help="run this many, from SEED on, and print what is refuted")
    parser.add_argument("--kinds", help=f"faults of these kinds alone: {','.join(KINDS)}")
    given = parser.parse_args()
    kinds = given.kinds.split(",") if given.kinds else KINDS
    if given.count > 1:
        started = perf_counter()
        refuted = run_seeds(range(given.seed, given.seed + given.count), lambda line: print(line, flush=True), kinds)
        print(f"{given.count} seeds in {perf_counter() - started:.1f} s: {len(refuted)} refuted")
        sys.exit(1 if refuted else 0)
    with virtual_system():
        print(plan_of(given.seed, kinds))
        try:
            trace = run_seed(given.seed, kinds).loop.trace
        except (Violation, Stuck) as error:
            trace = [*error.trace, "", str(error)]  # type: ignore[union-attr]
    print("\n".join(trace))


if __name__ == "__main__":
    main()
