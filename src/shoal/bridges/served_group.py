"""A group of environments in an actor of Ray, and the connection over which a vector steps it.

Ray starts the actor, says where it listens, and notices its death. Commands and answers go over a socket between the
two: through Ray, every worker would cost each step a millisecond.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shoal.bridges.env_group import EnvGroup, GroupFacts
from shoal.config.settings import AlgorithmConfig
from shoal.envs.making import EnvMaker
from shoal.envs.process_messages import packed
from shoal.machine.proofs import PROOF_BYTES, is_proof, proof
from shoal.parallel.sampler_process import dumped, failure_of

Address = tuple[str, int]

CONNECTING_TIMEOUT_S = 60.0
GREETING_TIMEOUT_S = 5.0
SECRET_BYTES = 32
VECTOR, GROUP = b"I am the vector", b"I am the group"  # what each proves the secret by
HEAD = struct.Struct("<QQ")  # of a message: the number of the command, and the length of what follows


class GroupConnection:
    """Numbered messages over one socket; OSError or EOFError where the other side is gone."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    def send(self, number: int, message: bytes) -> None:
        """Send a command, or the answer to the command of that number."""
        with self._whole():
            self._socket.sendall(HEAD.pack(number, len(message)) + message)

    def receive(self) -> tuple[int, bytearray]:
        """The next message and its number; waits for it."""
        with self._whole():
            number, length = HEAD.unpack(_read(self._socket, HEAD.size))
            return number, _read(self._socket, length)

    def has_news(self, timeout_s: float) -> bool:
        """Whether a message has come, or the end of the connection; waits for either."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is interrupted within a message, as by Ctrl-C, ends the connection: nobody could read on."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave; the other side reads to the end of what was sent."""
        self._socket.close()


class ServedGroup:
    """What an actor of Ray is: its `EnvGroup`, for whoever knows the secret."""

    def __init__(
        self, config: AlgorithmConfig, maker: EnvMaker, worker_index: int, with_infos: bool, secret: bytes
    ) -> None:
        self._group, self._secret = EnvGroup(config, maker, worker_index, with_infos), secret

    def start(self) -> tuple[GroupFacts, Address]:
        """Make the environments; what they are, and where `serve` will listen."""
        import ray

        facts = self._group.start()
        host: Callable[[], str] = ray.util.get_node_ip_address
        self._listener = socket.create_server((host(), 0))
        return facts, self._listener.getsockname()[:2]

    def serve(self) -> None:
        """Do what the vector asks for until it hangs up; then close the environments."""
        try:
            connection = accepted(self._listener, self._secret)
            while True:
                try:
                    number, message = connection.receive()
                except (EOFError, OSError):
                    return
                try:
                    name, arguments = pickle.loads(message)
                    answer = dumped(getattr(self._group, name)(*arguments))
                except Exception as error:
                    answer = pickle.dumps(failure_of(error))
                connection.send(number, answer)
        finally:
            self._group.stop()


def command(name: str, *arguments: Any) -> bytes:
    """What a group is asked for."""
    return pickle.dumps((name, arguments))


def call_command(functions: Mapping[int, Any]) -> bytes:
    """The same for functions, which may be defined in a program that another Python does not find."""
    return packed(("call", (dict(functions),)), *functions.values())


def new_secret() -> bytes:
    """What a vector and one of its groups know, and nobody else."""
    return os.urandom(SECRET_BYTES)


def connected_to(address: Address, secret: bytes) -> GroupConnection:
    """The connection to a group that has been told to serve."""
    connected = socket.create_connection(address, timeout=CONNECTING_TIMEOUT_S)
    try:
        connected.sendall(proof(secret, VECTOR))
        if not is_proof(bytes(_read(connected, PROOF_BYTES)), secret, GROUP):
            raise ConnectionError(f"who listens at {address[0]}:{address[1]} is not the worker that was started")
    except BaseException:
        connected.close()
        raise
    return GroupConnection(connected)


def accepted(listener: socket.socket, secret: bytes) -> GroupConnection:
    """The connection of the first who knows the secret; anybody else is shut out."""
    with listener:
        while True:
            caller, _ = listener.accept()
            caller.settimeout(GREETING_TIMEOUT_S)
            try:
                if is_proof(bytes(_read(caller, PROOF_BYTES)), secret, VECTOR):
                    caller.sendall(proof(secret, GROUP))
                    return GroupConnection(caller)
            except (EOFError, OSError):
                pass
            caller.close()


def _read(connected: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    room, got = memoryview(found), 0
    while got < size:
        count = connected.recv_into(room[got:])
        if not count:
            raise EOFError("the other side has closed the connection")
        got += count
    return found
