"""Sums between learners in different processes, over TCP.

A gradient is small and wanted often, so what counts is how many times a process has to wake. Here the learner's own
thread sends and receives, log2 N times one after another; gloo's ring has 2 (N - 1) messages, and a thread in between.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.machine.proofs import PROOF_BYTES, is_proof, proof
from shoal.parallel.group import Numbers

Address = tuple[str, int]

MEETING_TIMEOUT_S = 60.0
GREETING_TIMEOUT_S = 5.0
SUM_TIMEOUT_S = 1800.0  # a learner that dies is noticed by the driver, which ends the others


def listen(host: str) -> socket.socket:
    """Where the learners of higher rank will call."""
    return socket.create_server((host, 0), backlog=64)


class SocketGroup:
    """Keeps the `Group` contract by recursive doubling.

    Partners at distance 1, 2, 4, ... exchange what they have and both add it, which is the same to the bit for all.
    Those beyond the last power of two give theirs to a partner first, and get the whole back. Only who knows the
    secret of this meeting is let in.
    """

    def __init__(self, listener: socket.socket, addresses: Sequence[Address], rank: int, secret: bytes) -> None:
        self.rank, self.size = rank, len(addresses)
        self._power = 1 << (self.size.bit_length() - 1)
        self._sockets: dict[int, socket.socket] = {}
        partners = list(self._partners())
        try:
            # Nobody waits for an answer before all have called, so nobody waits in a circle.
            for partner in partners:
                if partner < rank:
                    connection = socket.create_connection(addresses[partner], timeout=MEETING_TIMEOUT_S)
                    connection.sendall(rank.to_bytes(4, "big") + proof(secret, _call(rank, partner)))
                    self._sockets[partner] = connection
            self._accept(listener, {partner for partner in partners if partner > rank}, secret)
            for partner in partners:
                if partner < rank and not _proves(self._sockets[partner], secret, partner, rank):
                    raise ConnectionError(f"learner {partner} does not know the secret of this meeting")
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()
        self._polls: dict[int, Any] = {}
        for partner, connection in self._sockets.items():
            connection.settimeout(SUM_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._polls[partner] = select.poll()

    def sum(self, x: Numbers) -> Numbers:
        """See `Group`."""
        mine = np.ascontiguousarray(x)
        theirs = np.empty_like(mine)
        beyond = self.rank + self._power
        if self.rank >= self._power:
            self._send(self.rank - self._power, mine)
            self._receive(self.rank - self._power, mine)
        else:
            if beyond < self.size:
                self._receive(beyond, theirs)
                mine += theirs
            for partner in self._doubling():
                self._exchange(partner, mine, theirs)
                mine += theirs
            if beyond < self.size:
                self._send(beyond, mine)
        if mine is not x:
            x[...] = mine
        return x

    def close(self) -> None:
        """Leave the group; may be called twice."""
        for connection in self._sockets.values():
            connection.close()

    def _doubling(self) -> Iterator[int]:
        distance = 1
        while distance < self._power:
            yield self.rank ^ distance
            distance *= 2

    def _partners(self) -> Iterator[int]:
        if self.rank >= self._power:
            yield self.rank - self._power
            return
        yield from self._doubling()
        if self.rank + self._power < self.size:
            yield self.rank + self._power

    def _accept(self, listener: socket.socket, awaited: set[int], secret: bytes) -> None:
        """Let those in that are awaited and know the secret; anybody else is shut out."""
        deadline = monotonic() + MEETING_TIMEOUT_S
        while awaited:
            listener.settimeout(max(deadline - monotonic(), 0.01))
            connection, _ = listener.accept()
            connection.settimeout(GREETING_TIMEOUT_S)
            try:
                rank = int.from_bytes(_read(connection, 4), "big")
                welcome = _proves(connection, secret, rank, self.rank) and rank in awaited
            except OSError:
                welcome = False
            if not welcome:
                connection.close()
                continue
            connection.sendall(proof(secret, _call(self.rank, rank)))
            self._sockets[rank] = connection
            awaited.remove(rank)

    def _send(self, partner: int, x: NDArray[Any]) -> None:
        self._sockets[partner].sendall(_bytes(x))

    def _receive(self, partner: int, x: NDArray[Any]) -> None:
        room, got = _bytes(x), 0
        while got < len(room):
            got += _some(self._sockets[partner].recv_into(room[got:]))

    def _exchange(self, partner: int, mine: NDArray[Any], theirs: NDArray[Any]) -> None:
        """Send and receive at once: two that only send would wait for each other when their buffers are full."""
        connection, poll = self._sockets[partner], self._polls[partner]
        out, room = _bytes(mine), _bytes(theirs)
        sent = got = 0
        while sent < len(out) or got < len(room):
            wanted = select.POLLIN * (got < len(room)) | select.POLLOUT * (sent < len(out))
            poll.register(connection, wanted)
            ready = poll.poll(SUM_TIMEOUT_S * 1000)
            if not ready:
                raise TimeoutError(f"learner {partner} did not answer")
            (_, events), *_ = ready  # an error shows as neither, and is raised by whichever comes first
            if sent < len(out) and events & ~select.POLLIN:
                sent += connection.send(out[sent:])
            if got < len(room) and events & ~select.POLLOUT:
                got += _some(connection.recv_into(room[got:]))


def _bytes(x: NDArray[Any]) -> memoryview:
    return x.reshape(-1).view(np.uint8).data


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        _some(len(piece))
        found += piece
    return found


def _some(count: int) -> int:
    if not count:
        raise ConnectionError("a learner has closed its connection")
    return count


def _call(sender: int, receiver: int) -> bytes:
    """What a sender proves the secret by."""
    return f"{sender} calls {receiver}".encode()


def _proves(connection: socket.socket, secret: bytes, sender: int, receiver: int) -> bool:
    return is_proof(_read(connection, PROOF_BYTES), secret, _call(sender, receiver))
