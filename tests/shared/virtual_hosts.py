"""Hosts, processes, pipes and a network that exist in one event loop, with a clock of its own and a seed for chance.

What runs here is real asyncio code: it opens connections, starts programs, sleeps and handles signals as ever, and
`VirtualLoop` answers in place of the operating system. A process that is killed never runs another line, not even a
`finally`; one that is paused runs late; a host that loses its power says nothing to anybody; a cut network delivers
what was said once it is whole again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import os
import signal
import socket
from asyncio import base_events
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

KERNEL_BYTES = 256 << 10  # that a closed or killed process leaves to the kernel to send
HIGH_WATER = 64 << 10
NO_ANSWER_S = 130.0  # after which Linux gives up calling a host that is silent
FIRST_PIPE = 1 << 30  # descriptors of virtual pipes, which no real one reaches

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def this_process() -> Process:
    """The process that runs now."""
    process = PROCESS.get()
    assert process is not None
    return process


class Host:
    """A machine: on or off, reachable or not."""

    def __init__(self, name: str, ip: str) -> None:
        self.name, self.ip = name, ip
        self.has_power = True
        self.processes: list[Process] = []
        self.listeners: dict[int, Listener] = {}
        self.private_folders: list[Any] = []  # on its disk

    def living(self) -> list[Process]:
        """Its processes, the oldest first."""
        return [process for process in self.processes if process.is_alive]


class Process:
    """What runs in its context ends with it."""

    def __init__(self, loop: VirtualLoop, host: Host, kind: str, parent: Process | None = None) -> None:
        self.loop, self.host, self.kind, self.parent = loop, host, kind, parent
        self.pid = next(loop.pids)
        self.is_alive = host.has_power
        self.started_at, self.ended_at = loop.time(), float("inf")
        self.code: int | None = None
        self.paused_until = 0.0
        self.backlog: list[asyncio.Handle] = []
        self.handlers: dict[int, Callable[[], object]] = {}
        self.stdin = Pipe(self)
        self.output: Callable[[bytes], None] = lambda _: None
        self.at_end: list[Callable[[bool], None]] = []  # told whether the power went
        self.main: asyncio.Task[int] | None = None
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        host.processes.append(self)

    def run(self, main: Coroutine[Any, Any, int]) -> None:
        """Run its main function; its result is the process's code."""
        self.main = self.context.copy().run(self.loop.create_task, main)
        self.main.add_done_callback(self._finished, context=contextvars.Context())

    def _finished(self, task: asyncio.Task[int]) -> None:
        if task.cancelled() or not self.is_alive:
            return
        error = task.exception()
        if error is not None and not hasattr(error, "exit_code"):
            self.loop.note_failure(self, error)
        self.end(task.result() if error is None else int(getattr(error, "exit_code", 1)))

    def end(self, code: int) -> None:
        """The kernel's part of an end, whatever the reason: what was open closes, the parent is told."""
        if not self.is_alive:
            return
        self.is_alive, self.code, self.ended_at = False, code, self.loop.time()
        self.loop.log(f"{self} ends with {code}")
        for tell in self.at_end:
            tell(not self.host.has_power)

    def signal(self, number: int) -> None:
        """As kill(2)."""
        if not self.is_alive:
            return
        self.loop.log(f"{self} gets signal {number}")
        handler = self.handlers.get(number)
        if handler is None or number == signal.SIGKILL:
            self.end(-number)
        else:
            self.loop.call_soon(handler, context=self.context)

    def pause(self, seconds: float) -> None:
        """Let none of its lines run for a while."""
        self.paused_until = max(self.paused_until, self.loop.time() + seconds)
        self.loop.call_at(self.paused_until, self._go_on, context=contextvars.Context())

    def _go_on(self) -> None:
        if self.loop.time() >= self.paused_until:
            self.loop.take_back(self.backlog)
            self.backlog = []

    def below(self) -> list[Process]:
        """The living processes below this one on its host; an orphan's parent is the next that lives."""
        return [process for process in self.host.living() if process is not self and self in process.ancestors()]

    def ancestors(self) -> list[Process]:
        """Its parent, that one's parent, and so on."""
        found, each = [], self.parent
        while each is not None:
            found.append(each)
            each = each.parent
        return found

    def __str__(self) -> str:
        return f"{self.kind} on {self.host.name} ({self.pid})"


class Pipe:
    """Bytes to a process; whoever holds the other end writes or closes it."""

    def __init__(self, reader: Process) -> None:
        self.reader = reader
        self._protocol: asyncio.Protocol | None = None
        self._kept: list[bytes] = []  # until somebody listens; b"" is the end
        self.is_closed = False

    def write(self, data: bytes) -> None:
        """Hand the bytes over; b"" is the end."""
        if self.is_closed:
            return
        self.is_closed = not data
        self._kept.append(data)
        self.reader.loop.call_soon(self._deliver, context=self.reader.context)

    def close(self, *_: object) -> None:
        """Nobody will write any more."""
        self.write(b"")

    def listen(self, protocol: asyncio.Protocol) -> None:
        """Hand all of it to a protocol."""
        self._protocol = protocol
        self._deliver()

    def _deliver(self) -> None:
        while self._protocol is not None and self._kept:
            data = self._kept.pop(0)
            if data:
                self._protocol.data_received(data)
            else:
                self._protocol.eof_received()


class Listener:
    """A port on which a process is called; it stands in for the socket, and for asyncio's server."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self.port = process, port
        self.protocol_factory: Callable[[], asyncio.BaseProtocol] | None = None
        process.host.listeners[port] = self
        process.at_end.append(lambda _: self.close())

    @property
    def sockets(self) -> tuple[Listener, ...]:
        """As of asyncio's server."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """As of a socket."""
        return self.process.host.ip, self.port

    def close(self) -> None:
        """Refuse whoever calls from now on."""
        if self.process.host.listeners.get(self.port) is self:
            del self.process.host.listeners[self.port]

    async def wait_closed(self) -> None:
        """As of asyncio's server."""


Item = bytes | None | ConnectionResetError
"""What goes along a wire: bytes, the end (None), or a reset."""


class End(asyncio.Transport):
    """One process's end of a connection, as asyncio's transport over a TCP socket."""

    def __init__(self, process: Process, remote: str, port: int) -> None:
        super().__init__()
        self.process, self._remote = process, remote
        self.port = port
        self.other: End
        self.protocol: asyncio.Protocol
        self.tamper: Callable[[bytes], list[bytes]] | None = None
        self._loop = process.loop
        self._unsent: deque[Item] = deque()
        self._outstanding = 0  # bytes that the other host has not confirmed
        self._last_arrival = 0.0
        self._is_closing = self._is_lost = self._is_paused_writing = self._is_held = False
        self._other_is_gone = False
        self._inbox: deque[Item] = deque()
        self._is_reading = True
        process.at_end.append(self._process_ended)

    # What asyncio asks of a transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._remote, self.port) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return max(0, self._outstanding - KERNEL_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._loop.call_soon(self._read, context=self.process.context)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._send(None)

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost:
            return
        if self._other_is_gone:  # its host answers with a reset
            self._lose(ConnectionResetError("connection reset by peer"))
            return
        self._outstanding += len(data)
        self._send(bytes(data))
        if self._outstanding > KERNEL_BYTES + HIGH_WATER and not self._is_paused_writing:
            self._is_paused_writing = True
            self.protocol.pause_writing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._close_if_sent()

    def abort(self) -> None:
        if self._is_lost:
            return
        self._is_closing = True
        self._unsent.clear()
        self._send(ConnectionResetError("connection reset by peer"))
        self._lose(None)

    # What the hosts' kernels do.

    def _close_if_sent(self) -> None:
        if self._is_closing and not self._is_lost and self._outstanding <= KERNEL_BYTES:
            self._send(None)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, error, context=self.process.context)

    def _process_ended(self, power_went: bool) -> None:
        if power_went:
            self._unsent.clear()
        elif not self._is_lost:
            self._is_lost = self._is_closing = True
            self._send(None)

    def _send(self, item: Item) -> None:
        self._unsent.append(item)
        self._pump()

    def _pump(self) -> None:
        """Send what the network takes."""
        network = self._loop.network
        if self._is_held or not self._unsent:
            return
        if not network.passes(self.process.host, self.other.process.host):
            self._is_held = True
            network.when_changed(self._try_again)
            return
        while self._unsent:
            item = self._unsent.popleft()
            tampered = self.tamper(item) if self.tamper is not None and isinstance(item, bytes) else [item]
            confirmed = len(item) if isinstance(item, bytes) else 0
            for index, each in enumerate(tampered or [b""]):
                self._fly(each, confirmed if index == 0 else 0)

    def _try_again(self) -> None:
        self._is_held = False
        self._pump()

    def _fly(self, item: Item, confirmed: int) -> None:
        network = self._loop.network
        delay = network.latency(self.process.host, self.other.process.host)
        self._last_arrival = max(self._last_arrival + 1e-9, self._loop.time() + delay)
        self._loop.call_at(self._last_arrival, self._arrive, item, confirmed, context=contextvars.Context())

    def _arrive(self, item: Item, confirmed: int) -> None:
        """The other host has it; its process may read it."""
        other = self.other
        if not other.process.host.has_power:
            return
        self._outstanding -= confirmed
        if self._is_paused_writing and self._outstanding <= KERNEL_BYTES:
            self._is_paused_writing = False
            if not self._is_lost:
                self._loop.call_soon(self.protocol.resume_writing, context=self.process.context)
        if self.process.is_alive:
            self._close_if_sent()
        for part in self._loop.network.parts(item):
            other._inbox.append(part)
        self._loop.call_soon(other._read, context=other.process.context)

    def _read(self) -> None:
        while self._inbox and self._is_reading:
            item = self._inbox.popleft()
            if self._is_lost:
                continue
            if isinstance(item, bytes):
                if item:
                    self.protocol.data_received(item)
            elif item is None:
                self._other_is_gone = self.other._is_closing
                self.protocol.eof_received()
            else:
                self._lose(item)

    def reset(self) -> None:
        """As by a device between the hosts that forgets the connection."""
        for end in (self, self.other):
            end._unsent.clear()
            if end.process.is_alive:
                end._lose(ConnectionResetError("connection reset by peer"))


class Network:
    """Between the hosts: how long it takes, and who is cut off."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop, self._random = loop, random
        self.hosts: dict[str, Host] = {}
        self.slowness: dict[str, float] = {}  # of a host, in seconds
        self._cuts: Counter[tuple[Host, Host]] = Counter()  # one pair may be cut twice at a time
        self._waiting: list[Callable[[], None]] = []
        self.ends: list[End] = []
        self.on_connection: Callable[[End], None] = lambda _: None

    def host(self, name: str) -> Host:
        """A new host."""
        host = self.hosts[name] = Host(name, f"10.0.0.{len(self.hosts) + 1}")
        return host

    def at(self, address: str, caller: Host) -> Host | None:
        """The host that has this address."""
        if address == "127.0.0.1":
            return caller
        return next((host for host in self.hosts.values() if host.ip == address), None)

    def cut(self, one: Host, other: Host) -> None:
        """Nothing goes from the one to the other any more."""
        self._cuts[one, other] += 1

    def mend(self, one: Host, other: Host) -> None:
        """What waited goes on."""
        self._cuts[one, other] -= 1
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def when_changed(self, again: Callable[[], None]) -> None:
        """Call back once a cut is mended."""
        self._waiting.append(again)

    def passes(self, one: Host, other: Host) -> bool:
        """Whether anything gets from the one to the other."""
        return one is other or (one.has_power and other.has_power and not self._cuts[one, other])

    def latency(self, one: Host, other: Host) -> float:
        """How long it takes this time."""
        slow = self.slowness.get(one.name, 0.0) + self.slowness.get(other.name, 0.0)
        return self._random.uniform(0.0001, 0.002) + slow * self._random.random()

    def parts(self, item: Item) -> Sequence[Item]:
        """What arrives at once may be read in pieces."""
        if not isinstance(item, bytes) or len(item) < 2 or self._random.random() < 0.8:
            return [item]
        at = self._random.randrange(1, len(item))
        return [item[:at], item[at:]]


class Child(asyncio.SubprocessTransport):
    """A program that a process has started, as asyncio's transport for it."""

    def __init__(self, parent: Process, process: Process, has_stdin: bool, has_stdout: bool) -> None:
        super().__init__()
        self._parent, self.process = parent, process
        self._pipes: dict[int, Any] = {0: _Stdin(process.stdin) if has_stdin else None}
        self._pipes[1] = asyncio.ReadTransport() if has_stdout else None
        self._waiters: list[asyncio.Future[int]] = []
        self._code: int | None = None
        self.protocol: asyncio.SubprocessProtocol
        process.output = self._said if has_stdout else lambda _: None
        process.at_end.append(self._child_ended)
        parent.at_end.append(process.stdin.close)

    def _said(self, data: bytes) -> None:
        self._in_parent(self.protocol.pipe_data_received, 1, data)

    def _child_ended(self, _: bool) -> None:
        self._in_parent(self._bury)

    def _bury(self) -> None:
        self._code = self.process.code
        self.protocol.process_exited()
        if self._pipes[1] is not None:
            self.protocol.pipe_connection_lost(1, None)
        for waiter in self._waiters:
            if not waiter.cancelled():
                waiter.set_result(self._code or 0)

    def _in_parent(self, tell: Callable[..., object], *words: object) -> None:
        if self._parent.is_alive:
            self._parent.loop.call_soon(tell, *words, context=self._parent.context)

    async def _wait(self) -> int:
        if self._code is None:
            self._waiters.append(asyncio.get_running_loop().create_future())
            return await self._waiters[-1]
        return self._code

    def get_pid(self) -> int:
        return self.process.pid

    def get_returncode(self) -> int | None:
        return self._code

    def get_pipe_transport(self, fd: int) -> Any:
        return self._pipes.get(fd)

    def send_signal(self, number: int) -> None:
        self.process.signal(number)

    def terminate(self) -> None:
        self.process.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)

    def close(self) -> None:
        pass


class _Stdin(asyncio.WriteTransport):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def write(self, data: Any) -> None:
        self._pipe.write(bytes(data))

    def close(self) -> None:
        self._pipe.close()

    def is_closing(self) -> bool:
        return self._pipe.is_closed


class VirtualOs:
    """Pipes between virtual processes, for modules that make them by `os`; everything else is the real one's."""

    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST_PIPE)
        self.writers: dict[int, list[Pipe]] = {}  # by either descriptor; filled when a child inherits it

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pipe(self) -> tuple[int, int]:
        """The descriptors of a new pipe."""
        readable, writable = next(self._numbers), next(self._numbers)
        pipes: list[Pipe] = []
        self.writers[readable] = self.writers[writable] = pipes
        this_process().at_end.append(lambda _: [pipe.close() for pipe in pipes])
        return readable, writable

    def set_inheritable(self, descriptor: int, inheritable: bool) -> None:
        """A virtual one is inherited by whoever starts with it."""

    def close(self, descriptor: int) -> None:
        """A virtual reading end is its child's alone."""
        if descriptor < FIRST_PIPE:
            os.close(descriptor)

    def write(self, descriptor: int, data: bytes) -> int:
        """Write to whoever has inherited the other end."""
        for pipe in self.writers[descriptor]:
            if not pipe.reader.is_alive:
                raise BrokenPipeError
            pipe.write(data)
        return len(data)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it is in memory."""

    def __init__(self, coroutine: Any, *, loop: VirtualLoop, **more: Any) -> None:
        self._number = loop.number_of_tasks = loop.number_of_tasks + 1
        super().__init__(coroutine, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Stuck(Exception):
    """Nothing is left to happen."""


Program = Callable[[Process, tuple[str, ...], Pipe | None], Coroutine[Any, Any, int]]
"""From a new process, its words and the pipe that it inherits to its main function."""


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop for many virtual processes; its time passes when nothing is left to do at this moment."""

    def __init__(self, random: Random, program: Callable[[tuple[str, ...]], tuple[str, Program]]) -> None:
        super().__init__()
        self._now = 1000.0
        self._program = program
        self.random = random
        self.number_of_tasks = 0
        self.pids = itertools.count(100)
        self.ports = itertools.count(20_001)
        self.network = Network(self, random)
        self.os = VirtualOs()
        self.trace: list[str] = []
        self.lost: list[asyncio.Handle] = []  # what killed processes would have done next
        self.failures: list[str] = []
        self.is_over = False  # then what is left is unwound, and none of it has any effect
        self.set_task_factory(lambda loop, coroutine, **more: _Task(coroutine, loop=self, **more))
        self.set_exception_handler(self._not_handled)

    def log(self, text: str) -> None:
        """Note what happens, for who replays a seed."""
        self.trace.append(f"{self._now - 1000.0:10.4f}  {text}")

    def note_failure(self, process: Process, error: BaseException) -> None:
        """An exception that ended a process, or would have been printed by it."""
        if not self.is_over:
            self.failures.append(f"{process}: {type(error).__name__}: {error}")

    def _not_handled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.is_over and error is not None:
            process = PROCESS.get()
            self.failures.append(f"{process}: {context['message']}: {type(error).__name__}: {error}")

    # Time.

    def time(self) -> float:
        return self._now

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Run what a paused process has left."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        while not self._ready:
            if not self._scheduled:
                raise Stuck("nothing is left to happen")
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if timer._cancelled:
                continue
            self._now = max(self._now, timer._when)
            self._ready.append(timer)
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and not self.is_over:
            if not process.is_alive:
                self.lost.append(handle)
                return
            if process.paused_until > self._now:
                process.backlog.append(handle)
                return
        handle._run()

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    # What processes ask of their operating system.

    def add_signal_handler(self, number: int, handler: Callable[..., object], *words: Any) -> None:
        this_process().handlers[number] = lambda: handler(*words)

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *words: Any) -> asyncio.Future[Any]:
        """Work that takes time is a coroutine here, since a thread would take real time."""

        async def in_thread() -> Any:
            await asyncio.sleep(self.random.uniform(0.001, 0.3))
            result = work(*words)
            return await result if asyncio.iscoroutine(result) else result

        return self.create_task(in_thread())

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        protocol = protocol_factory()
        transport = asyncio.ReadTransport()
        protocol.connection_made(transport)
        this_process().stdin.listen(protocol)
        return transport, protocol

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        sock.protocol_factory = protocol_factory
        return sock

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        caller = this_process()
        called = self.network.at(host, caller.host)
        if called is None:
            raise OSError("no route to host")
        if not self.network.passes(caller.host, called) or not self.network.passes(called, caller.host):
            await asyncio.sleep(NO_ANSWER_S)
            raise TimeoutError("connection timed out")
        await asyncio.sleep(self.network.latency(caller.host, called))
        listener = called.listeners.get(port)
        if listener is None or not listener.process.is_alive or listener.protocol_factory is None:
            raise ConnectionRefusedError(f"connection refused by {called.name}")
        ours, theirs = End(caller, host, port), End(listener.process, caller.host.ip, port)
        ours.other, theirs.other = theirs, ours
        self.network.ends.append(ours)
        factory = listener.protocol_factory

        def accept() -> None:
            theirs.protocol = factory()
            theirs.protocol.connection_made(theirs)

        ours.protocol = protocol_factory()
        theirs.protocol = asyncio.Protocol()  # until its process accepts
        self.network.on_connection(ours)
        self.call_soon(accept, context=listener.process.context)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    async def subprocess_exec(self, protocol_factory: Any, *words: Any, **more: Any) -> Any:
        parent = this_process()
        kind, program = self._program(words)
        await asyncio.sleep(self.random.uniform(0.001, 0.01))
        process = Process(self, parent.host, kind, parent)
        self.log(f"{parent} starts {process}")
        pipe = None
        for descriptor in more.get("pass_fds", ()):
            if descriptor in self.os.writers:
                pipe = Pipe(process)
                self.os.writers[descriptor].append(pipe)
        has_stdin, has_stdout = (more.get(name) == asyncio.subprocess.PIPE for name in ("stdin", "stdout"))
        child = Child(parent, process, has_stdin, has_stdout)
        child.protocol = protocol_factory()
        child.protocol.connection_made(child)
        process.run(program(process, words, pipe))
        return child, child.protocol


def host_name(real: Callable[[], str] = socket.gethostname) -> str:
    """The name of the host that this runs on, be it virtual or not."""
    process = PROCESS.get()
    return real() if process is None else process.host.name
