"""What runs in a sampler's own process: one worker, told by its host what to do. It knows nothing of Ray.

A command is a pickled `(name, arguments)` in the socket, with its length before it; the memory with a policy's state
comes along as a descriptor. What users define (configuration, functions, tasks) is packed by the driver, and unpacked
here alone. The answer is `ANSWER` in the socket: whether the command failed, and how far its parts reach in the
memory that this process shares with its host: what it tells and the worker's state, as bytes, and a fragment, as a
message (`shared_messages.py`), valid until the next command. `prepare` and `stop` have no answer.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from threadpoolctl import ThreadpoolController

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch
from shoal.data.state import State
from shoal.envs.env_process import received
from shoal.envs.making import EnvMaker
from shoal.envs.process_messages import packed
from shoal.errors import ShoalError
from shoal.machine.broadcasts import ENDINGS, WARNINGS, leave_ending_to_starter
from shoal.models.build import PolicySpaces
from shoal.parallel.shared_messages import ANSWER, COMMAND, SharedMemory, message_in
from shoal.sampling.worker import Worker

Command = tuple[str, tuple[Any, ...], Any]  # its name, its arguments, and the policy's state that came with it


@dataclass(frozen=True)
class WorkerLocation:
    """Where a worker runs, and what only its environments could tell."""

    host: str
    pid: int
    num_envs: int
    agents: tuple[str, ...] = ()  # of each environment, if there are several
    others: PolicySpaces = field(default_factory=dict)  # the spaces of their policies, but for the first

    def resolved(self, config: AlgorithmConfig) -> AlgorithmConfig:
        """The configuration with what only the environments could tell."""
        return config.with_envs_per_worker(self.num_envs).with_agents(self.agents)


@dataclass(frozen=True)
class SamplerFailure:
    """Why a command failed: our own error as it is, any other in words."""

    error: ShoalError | None
    words: str
    traceback: str


@dataclass(frozen=True)
class Reply:
    """What comes of a command."""

    told: bytes
    state: bytes = b""  # of the worker, after a fragment
    batch: Batch | None = None
    has_failed: bool = False


class SamplerProcess:
    """Carries out what the host asks for, one command after another."""

    def __init__(self, connection: socket.socket, memory: int) -> None:
        self._connection, self._memory = connection, SharedMemory(memory)
        self._prepared: tuple[AlgorithmConfig, EnvMaker] | Exception | None = None
        self._threads: Any = None
        self.worker: Worker | None = None
        self._commands: dict[str, Callable[..., Reply]] = {
            "start": self.start,
            "sample": self.sample,
            "apply": self.apply,
            "get_state": self.get_state,
            "set_state": self.set_state,
        }

    def run(self) -> int:
        """Serve until the host hangs up, or says that it is over; the exit code."""
        while True:
            try:
                name, arguments, state = self._received_command()
            except (EOFError, OSError):
                return 0
            if name == "stop":
                if self.worker is not None:
                    self.worker.stop()
                return 0
            if name == "prepare":
                self._prepare(*arguments)
                continue
            if state is not None:
                arguments = (*arguments, state)
            try:
                reply = self._commands[name](*arguments)
            except BaseException as error:
                reply = Reply(pickle.dumps(failure_of(error)), has_failed=True)
            self._answer(reply)

    def start(self, index: int, state: bytes | None, host_slots: int | None) -> Reply:
        """Make the environments and bring them to where they stood; the place and the spaces of them."""
        if isinstance(self._prepared, Exception):
            raise self._prepared
        assert self._prepared is not None
        config, maker = self._prepared
        _name_process(f"shoal-worker{index}")
        worker = self.worker = Worker(config, maker, index, host_slots=host_slots if config.env_ranks else None)
        if state is not None:
            worker.set_state([pickle.loads(state)])
        location = WorkerLocation(
            socket.gethostname(), os.getpid(), worker.num_envs, worker.agents, worker.other_spaces
        )
        found = packed((location, worker.observation_space, worker.action_space))
        return Reply(pickle.dumps((os.getpid(), "torch" in sys.modules, found)))

    def sample(self, steps: int, task: bytes, policy_state: State) -> Reply:
        """One fragment with the given weights and filter; what it holds, and the worker's state after it."""
        worker = self._own()
        worker.policy.set_state(policy_state)
        worker.task = pickle.loads(task)
        sample = worker.sample(steps)
        return Reply(dumped(sample.summary), dumped(worker.get_state()[0]), sample.batch)

    def apply(self, fn: bytes, policy_state: State) -> Reply:
        """The result of `fn(worker)`, and the policy's state if it has set the weights."""
        worker = self._own()
        worker.policy.set_state(policy_state)
        result = pickle.loads(fn)(worker)
        changed = not worker.policy.has_weights_of(policy_state)
        return Reply(packed((result, worker.policy.get_state() if changed else None)))

    def get_state(self) -> Reply:
        """The worker's state."""
        return Reply(dumped(self._own().get_state()[0]))

    def set_state(self, state: bytes) -> Reply:
        """Take over a saved state; how many unfinished episodes begin anew."""
        return Reply(pickle.dumps(self._own().set_state([pickle.loads(state)])))

    def _prepare(self, plan: bytes, modules: tuple[str, ...], threads: int, niceness: int) -> None:
        """Take in what every worker here needs, so that a start takes no longer than its environments do."""
        os.nice(niceness)
        for module in modules:
            with suppress(ImportError):  # who needs it says what is missing
                import_module(module)
        try:
            self._prepared = pickle.loads(plan)
        except Exception as error:
            self._prepared = error
        self._threads = ThreadpoolController().limit(limits=threads)

    def _own(self) -> Worker:
        assert self.worker is not None, "a worker is started before it is asked for anything"
        return self.worker

    def _received_command(self) -> Command:
        """The next command; EOFError if the host is gone."""
        head, descriptors, _, _ = socket.recv_fds(self._connection, COMMAND.size, 1)
        if len(head) < COMMAND.size:
            head += received(self._connection, COMMAND.size - len(head))
        name, arguments = pickle.loads(received(self._connection, COMMAND.unpack(head)[0]))
        state = None
        for descriptor in descriptors:
            memory = SharedMemory(descriptor)
            state = message_in(memory.bytes_at(0, os.fstat(descriptor).st_size))
            memory.close()
        return name, arguments, state

    def _answer(self, reply: Reply) -> None:
        told = len(reply.told)
        state = told + len(reply.state)
        begin = end = self._memory.write_bytes(reply.told + reply.state)
        if reply.batch is not None:
            end = self._memory.write(reply.batch, begin)
        self._connection.sendall(ANSWER.pack(reply.has_failed, told, state, begin, end))


def dumped(value: Any) -> bytes:
    """A value as bytes; the slow way where it holds what a user's program alone defines, as tasks may."""
    try:
        return pickle.dumps(value)
    except Exception:
        return packed(value)


def failure_of(error: BaseException) -> SamplerFailure:
    """An error as the driver can have it."""
    own = error if isinstance(error, ShoalError) else None
    try:
        pickle.loads(pickle.dumps(own))
    except Exception:  # it may hold what only this process knows
        own = ShoalError(str(error))
    return SamplerFailure(own, repr(error), "".join(traceback.format_exception(error)))


def _name_process(name: str) -> None:
    """Tell a person who looks at the processes of the host which worker this is."""
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def serve(connection: int, memory: int) -> int:
    """Be the process of a sampler; the exit code."""
    leave_ending_to_starter(ENDINGS | WARNINGS)
    return SamplerProcess(socket.socket(fileno=connection), memory).run()
