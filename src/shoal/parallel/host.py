"""The samplers of one host: plain processes of which it starts, asks, hears, replaces and ends every one.

It knows nothing of Ray, and nothing of what users define: that passes through as bytes. The contract is in
docs/architecture.md, "One actor per host".

A thread of its own, the keeper, has all the state; it sleeps until a sampler answers, one dies, or somebody asks. What
is asked for is a generator that the keeper resumes after every event: it yields while it has to wait. So samplers are
replaced at any time, also while nobody asks.
"""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from shoal.envs.forked_processes import Death, ForkedProcesses
from shoal.parallel.ray_logs import crash_summary
from shoal.parallel.shared_messages import ANSWER, COMMAND, Bytes, SharedMemory

SERVING = "shoal.parallel.sampler_process"
CLOSING_S = 4.0  # for simulators to close: they may own processes and files
STOPPING_TICK_S = 0.2
MOST_DEATHS_IN_A_ROW = 3  # of one worker, without a fragment in between

T = TypeVar("T")
Work = Generator[None, None, T]


@dataclass(frozen=True)
class HostPlan:
    """What a host needs to know of its samplers."""

    packed: bytes  # configuration and maker of environments, for samplers alone
    recreates: bool  # whether a lost one is replaced
    threads: int  # of each
    niceness: int = 0  # of each: where nobody waits for them, a learner comes first
    modules: tuple[str, ...] = ()  # that each will need, and that are slow to import
    host_slots: int | None = None  # that the host offers to ranks


@dataclass(frozen=True)
class HostRequest:
    """A fragment that is asked for."""

    steps: int
    task: bytes
    restarts_left: int
    version: int = 0  # of the weights
    workers: tuple[int, ...] | None = None  # None: all who rest
    waits: bool = False  # for the first worker if none is up
    epoch: int = 0  # how often the workers were given other states: what was sampled before is not taken


@dataclass(frozen=True)
class Told:
    """What a worker tells of its fragment."""

    index: int
    version: int
    epoch: int
    summary: bytes
    state: bytes  # of the worker, after it


@dataclass(frozen=True)
class Loss:
    """A worker that was lost."""

    index: int
    words: str
    deaths_in_a_row: int
    is_replaced: bool


@dataclass
class HostAnswer:
    """What a host answers, whatever it was asked; losses and failures since the answer before."""

    host: str
    up: list[int]  # workers that can be asked
    fragments: list[Told] = field(default_factory=list)
    results: list[tuple[int, bytes]] = field(default_factory=list)  # by worker
    losses: list[Loss] = field(default_factory=list)
    failure: tuple[int, bytes] | None = None  # the worker, and its `SamplerFailure`
    first: bytes = b""  # place and spaces of the first that has started


@dataclass(eq=False)
class SamplerHandle:
    """One process, and what it was asked last."""

    id: int
    connection: socket.socket
    memory: SharedMemory
    index: int = 0  # of the worker that it is; 0: it is a spare
    asked: str = ""  # the command that it has not answered yet


@dataclass
class HostedSampler:
    """One worker of this host, whichever process is that worker at the moment."""

    index: int
    state: bytes | None  # after its last fragment
    handle: SamplerHandle
    is_up: bool = False
    pid: int = 0
    version: int = 0  # of the weights that it samples with
    epoch: int = 0
    deaths_in_a_row: int = 0

    @property
    def rests(self) -> bool:
        """Whether it can be asked for something."""
        return self.is_up and not self.handle.asked


class SamplerHost:
    """The samplers of one host; see the module. Any thread may call its methods."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")  # Ray's actors are lost first where memory runs out; with this one all samplers would be
        self._modules = plan.modules
        self._name = socket.gethostname()
        self._restarts_left = 0
        self._members: dict[int, HostedSampler] = {}
        self._handles: dict[int, SamplerHandle] = {}  # by the number of the process
        self._spare: SamplerHandle | None = None
        self._has_started = False
        self._busy: set[int] = set()  # workers that sample
        self._finished: dict[int, tuple[Told, Bytes]] = {}
        self._results: dict[int, bytes] = {}
        self._losses: list[Loss] = []
        self._failure: tuple[int, bytes] | None = None
        self._first = b""
        self._has_news = False  # that a worker is up
        self._processes = self._new_processes()
        self._works: deque[tuple[Work[Any], Future[Any]]] = deque()
        self._mail: deque[tuple[Work[Any], Future[Any]]] = deque()
        self._over_at: float | None = None
        self._is_over = False
        self._woken, self._waker = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._processes.control, selectors.EVENT_READ)
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def add(
        self, workers: Mapping[int, bytes | None], restarts_left: int, waits: bool = True, replaces: bool = True
    ) -> HostAnswer:
        """Start these workers where their states say; waits until all of them are up, or one cannot be.

        With `replaces`, one that dies meanwhile is started again. Who does not wait hears the rest with a later answer.
        """
        return self._done(self._adding(workers, restarts_left, waits, replaces), self._nothing())

    def news(self) -> HostAnswer:
        """Which workers are up, and what has happened since the answer before."""
        return self._done(self._telling(), self._nothing())

    def sample(self, asked: HostRequest, policy_state: Any) -> tuple[HostAnswer, list[Bytes]]:
        """A fragment of every worker that is up; those that are lost meanwhile are replaced and not waited for."""
        return self._done(self._sampling(asked, self._shared(policy_state)), (self._nothing(), []))

    def begin(self, asked: HostRequest, policy_state: Any) -> None:
        """Let workers that rest begin a fragment; `collect` has it when it is finished."""
        self._done(self._beginning(asked, self._shared(policy_state)), None)

    def collect(self) -> tuple[HostAnswer, list[Bytes]]:
        """The fragments that are finished; waits for the first, or for news of workers if nobody samples."""
        return self._done(self._collecting(), (self._nothing(), []))

    def ask(
        self, name: str, arguments: Mapping[int, tuple[Any, ...]], restarts_left: int, policy_state: Any = None
    ) -> HostAnswer:
        """What each of these workers answers to a command; one that is lost meanwhile is replaced and asked again."""
        memory = None if policy_state is None else self._shared(policy_state)
        return self._done(self._asking(name, arguments, restarts_left, memory), self._nothing())

    def stop(self) -> None:
        """Let every worker close its environments, for some seconds; then end all processes. May be called twice."""
        self._done(self._stopping(), None)
        self._keeper.join(CLOSING_S)

    def _done(self, work: Work[T], otherwise: T) -> T:
        """What comes of work that the keeper does; something else where the host is stopped before."""
        future: Future[T] = Future()
        self._mail.append((work, future))
        with suppress(OSError):
            os.write(self._waker, b".")
        if self._is_over:
            self._refuse_mail()
        try:
            return future.result()
        except CancelledError:
            return otherwise

    def _keep(self) -> None:
        """The keeper's life: take in what has happened, and carry on with what was asked for."""
        reason: BaseException = CancelledError()
        try:
            while self._over_at is None or monotonic() < self._over_at:
                self._take_events()
                while self._mail:
                    self._works.append(self._mail.popleft())
                for _ in range(len(self._works)):
                    work, future = self._works.popleft()
                    if not _resumed(work, future):
                        self._works.append((work, future))
        except BaseException as error:
            reason = error
        finally:
            self._processes.close()
            self._is_over = True
            for _, future in self._works:
                future.set_exception(reason)
            self._works.clear()
            self._refuse_mail()

    def _refuse_mail(self) -> None:
        with suppress(IndexError):
            while True:
                self._mail.popleft()[1].cancel()

    def _take_events(self) -> None:
        """Wait for something to happen, and take it in."""
        timeout_s = None if self._over_at is None else STOPPING_TICK_S
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._woken:
                os.read(self._woken, 4096)
            elif key.data is None:
                self._bury()
            else:
                self._take_answer(key.data)

    def _take_answer(self, handle: SamplerHandle) -> None:
        """An answer of a sampler, or the end of its socket, after which its death is reported."""
        if self._handles.get(handle.id) is not handle:  # it was buried in the same moment
            return
        try:
            data = handle.connection.recv(ANSWER.size, socket.MSG_WAITALL)
        except OSError:
            data = b""
        if len(data) < ANSWER.size:
            self._selector.unregister(handle.connection)
            handle.connection.close()
            self._processes.end(handle.id)
            return
        has_failed, told, state, begin, end = ANSWER.unpack(data)
        words = bytes(handle.memory.bytes_at(0, told))
        command, handle.asked = handle.asked, ""
        member = self._members[handle.index]
        self._busy.discard(member.index)
        if has_failed:
            self._failure = self._failure or (member.index, words)
        elif command == "start":
            self._take_start(member, words)
        elif command == "sample":
            member.deaths_in_a_row = 0
            member.state = bytes(handle.memory.bytes_at(told, state))
            tells = Told(member.index, member.version, member.epoch, words, member.state)
            self._finished[member.index] = tells, handle.memory.bytes_at(begin, end)
        else:
            self._results[member.index] = words

    def _take_start(self, member: HostedSampler, words: bytes) -> None:
        """A worker is up."""
        member.is_up, self._has_news = True, True
        member.pid, has_torch, found = pickle.loads(words)
        self._first = self._first or found
        if has_torch and "torch" not in self._modules:
            self._modules = (*self._modules, "torch")
            self._processes.import_for_all("torch")

    def _bury(self) -> None:
        """Take in which processes have died, and replace them; their server first, if it is gone with all of them."""
        deaths = self._processes.deaths()
        dead = [(self._handles.pop(id), death) for id, death in deaths.items() if id in self._handles]
        if self._spare in [handle for handle, _ in dead]:
            self._spare = None
        if self._processes.is_broken:
            self._selector.unregister(self._processes.control)
            self._processes.close()
            if self._over_at is None:
                self._processes = self._new_processes()
                self._selector.register(self._processes.control, selectors.EVENT_READ)
        for handle, death in dead:
            self._lose(handle, death)

    def _lose(self, handle: SamplerHandle, death: Death) -> None:
        """Forget a process, and put another in its place if it was a worker."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(handle.connection)
        handle.connection.close()
        handle.memory.close()
        member = self._members.get(handle.index)  # a spare one is none
        if member is None or self._over_at is not None:
            return
        self._finished.pop(member.index, None)
        self._busy.discard(member.index)
        member.deaths_in_a_row += 1
        is_replaced = self._may_replace(member)
        self._losses.append(Loss(member.index, self._loss_words(member, death), member.deaths_in_a_row, is_replaced))
        if not is_replaced:
            del self._members[member.index]
            return
        self._restarts_left -= 1
        member.is_up, member.pid = False, 0
        # Where going on from the old place kills it again, it begins anew.
        self._start(member, member.state if member.deaths_in_a_row == 1 else None)
        self._keep_spare()

    def _may_replace(self, member: HostedSampler) -> bool:
        is_often = member.deaths_in_a_row > MOST_DEATHS_IN_A_ROW
        return self._plan.recreates and not is_often and self._restarts_left > 0

    def _loss_words(self, member: HostedSampler, death: Death) -> str:
        """Who was lost, where, and what it said last."""
        if not member.pid:
            who = f"worker {member.index} on {self._name} was lost while it started"
        else:
            who = f"worker {member.index} on {self._name} (pid {member.pid}) was lost"
        said = crash_summary([line.strip() for line in death.output.splitlines() if line.strip()])
        words = f"; its last words: {said}" if said else ""
        return f"{who}: its process died, it {death.words}{words}"

    def _new_processes(self) -> ForkedProcesses:
        """A fork server whose processes have so many threads as each may use, unless the user has said otherwise."""
        environ = dict(os.environ)
        if environ.get("OMP_NUM_THREADS", "1") == "1":  # which Ray sets where nobody has
            environ["OMP_NUM_THREADS"] = str(self._plan.threads)
        processes = ForkedProcesses(SERVING, environ)
        for module in self._modules:
            processes.import_for_all(module)
        return processes

    def _new_handle(self) -> SamplerHandle:
        """A process that can be any worker of this host."""
        memory = SharedMemory()
        id, connection = self._processes.fork([memory.descriptor])
        handle = self._handles[id] = SamplerHandle(id, connection, memory)
        self._selector.register(connection, selectors.EVENT_READ, handle)
        self._send(handle, "prepare", self._plan.packed, self._modules, self._plan.threads, self._plan.niceness)
        return handle

    def _start(self, member: HostedSampler, state: bytes | None) -> None:
        """Let a spare process, or a new one, be a worker."""
        handle, self._spare = self._spare or self._new_handle(), None
        handle.index, handle.asked, member.handle = member.index, "start", handle
        self._send(handle, "start", member.index, state, self._plan.host_slots)

    def _keep_spare(self) -> None:
        """Have a process ready to be the next worker that is lost."""
        if self._spare is None and self._has_started and self._plan.recreates:
            self._spare = self._new_handle()

    def _send(self, handle: SamplerHandle, name: str, *arguments: Any, memory: SharedMemory | None = None) -> None:
        """Send a command; of one that is gone its death will be reported."""
        data = pickle.dumps((name, arguments))
        head = COMMAND.pack(len(data))
        with suppress(OSError):
            if memory is None:
                handle.connection.sendall(head + data)
            else:
                socket.send_fds(handle.connection, [head], [memory.descriptor])
                handle.connection.sendall(data)

    def _adding(
        self, workers: Mapping[int, bytes | None], restarts_left: int, waits: bool, replaces: bool
    ) -> Work[HostAnswer]:
        self._restarts_left = restarts_left if replaces else 0
        for index, state in workers.items():
            handle = self._new_handle()
            self._members[index] = HostedSampler(index, state, handle)
            handle.index, handle.asked = index, "start"
            self._send(handle, "start", index, state, self._plan.host_slots)
        if not waits:
            return self._nothing()
        while (
            not self._failure
            and not self._is_lacking(workers)
            and not all(member.is_up for member in self._members.values())
        ):
            yield
        self._restarts_left = restarts_left
        self._has_started = True
        self._keep_spare()
        return self._answer()

    def _telling(self) -> Work[HostAnswer]:
        yield from ()
        return self._answer()

    def _sampling(self, asked: HostRequest, memory: SharedMemory) -> Work[tuple[HostAnswer, list[Bytes]]]:
        self._restarts_left = asked.restarts_left
        try:
            while self._busy and not self._failure:  # fragments of a call that was given up
                yield
            self._finished.clear()
            while asked.waits and self._members and not self._failure and not self._up():
                yield
            self._begin(asked, memory)
        finally:
            memory.close()
        while self._busy and not self._failure:
            yield
        return self._answer_with_fragments()

    def _beginning(self, asked: HostRequest, memory: SharedMemory) -> Work[None]:
        self._restarts_left = asked.restarts_left
        self._begin(asked, memory)
        memory.close()
        yield from ()

    def _begin(self, asked: HostRequest, memory: SharedMemory) -> None:
        """Have workers that rest sample."""
        for member in self._chosen(asked.workers):
            if member.rests:
                member.version, member.epoch = asked.version, asked.epoch
                member.handle.asked = "sample"
                self._busy.add(member.index)
                self._send(member.handle, "sample", asked.steps, asked.task, memory=memory)

    def _chosen(self, workers: Sequence[int] | None) -> Iterable[HostedSampler]:
        if workers is None:
            return self._members.values()
        return [self._members[index] for index in workers if index in self._members]

    def _collecting(self) -> Work[tuple[HostAnswer, list[Bytes]]]:
        while not self._finished and not self._is_troubled() and not self._has_news and self._is_awaited():
            yield
        answer, batches = self._answer_with_fragments()
        return answer, [batch.copy() for batch in batches]  # their workers may be asked again before these are read

    def _asking(
        self,
        name: str,
        arguments: Mapping[int, tuple[Any, ...]],
        restarts_left: int,
        memory: SharedMemory | None,
    ) -> Work[HostAnswer]:
        self._restarts_left = restarts_left
        self._results.clear()
        try:
            while True:
                missing = [index for index in arguments if index in self._members and index not in self._results]
                at_it = [index for index in missing if self._members[index].handle.asked == name]
                if not missing or (self._failure and not at_it):
                    break
                for member in self._chosen(missing):
                    if member.rests and not self._failure:
                        self._keep_fragment(member)
                        member.handle.asked = name
                        self._send(member.handle, name, *arguments[member.index], memory=memory)
                yield
        finally:
            if memory is not None:
                memory.close()
        if name == "set_state":
            for member in self._chosen(list(self._results)):
                (member.state,) = arguments[member.index]
        return self._answer()

    def _keep_fragment(self, member: HostedSampler) -> None:
        """Copy a fragment that nobody has fetched yet, before its worker's next answer takes its place."""
        if member.index in self._finished:
            told, batch = self._finished[member.index]
            self._finished[member.index] = told, batch.copy()

    def _stopping(self) -> Work[None]:
        if self._over_at is None:
            self._over_at = monotonic() + CLOSING_S
            for handle in self._handles.values():
                self._send(handle, "stop")
        while self._handles:
            yield
        self._over_at = monotonic()

    def _shared(self, policy_state: Any) -> SharedMemory:
        """Memory with a policy's state, which every sampler can read."""
        memory = SharedMemory()
        memory.write(policy_state)
        return memory

    def _nothing(self) -> HostAnswer:
        """An answer that nobody hears."""
        return HostAnswer(self._name, [])

    def _up(self) -> list[int]:
        return sorted(member.index for member in self._members.values() if member.is_up)

    def _is_troubled(self) -> bool:
        """Whether there is something that the driver has to hear."""
        return bool(self._losses or self._failure)

    def _is_lacking(self, workers: Iterable[int]) -> bool:
        """Whether one of these workers is lost for good."""
        return not self._members.keys() >= set(workers)

    def _is_awaited(self) -> bool:
        """Whether a fragment or a worker is on its way."""
        return bool(self._busy) or not all(member.is_up for member in self._members.values())

    def _answer(self) -> HostAnswer:
        """What there is to tell, which is told once."""
        results, self._results = sorted(self._results.items()), {}
        losses, self._losses = self._losses, []
        failure, self._failure = self._failure, None
        self._has_news = False
        return HostAnswer(self._name, self._up(), results=results, losses=losses, failure=failure, first=self._first)

    def _answer_with_fragments(self) -> tuple[HostAnswer, list[Bytes]]:
        """As `_answer`, with all fragments that are finished, in the order of workers."""
        finished = [self._finished[index] for index in sorted(self._finished)]
        self._finished.clear()
        answer = self._answer()
        answer.fragments = [told for told, _ in finished]
        return answer, [batch for _, batch in finished]


def _resumed(work: Work[Any], future: Future[Any]) -> bool:
    """Carry on with some work; whether it is done, and its result with it."""
    try:
        next(work)
    except StopIteration as done:
        future.set_result(done.value)
    except Exception as error:
        future.set_exception(error)
    else:
        return False
    return True
