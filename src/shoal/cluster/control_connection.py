"""The control connection between the head and its agents: JSON messages over TCP, between two who know a secret.

A frame is four bytes of length, a code and a JSON object. Before the first one both sides prove that they know the
job's secret without sending it; every frame's code is made with a key of that meeting. So nobody else on a shared
machine can join or stop a job, or change what is said, even by passing on what they hear. Nothing secret is ever said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from typing import Any

from shoal.errors import ClusterError
from shoal.machine.proofs import PROOF_BYTES, is_proof, proof

Message = dict[str, Any]

GREETING = b"shoal 1\n"
NONCE_BYTES = 32
PROVING_TIMEOUT_S = 10.0
CLOSING_TIMEOUT_S = 10.0
MOST_BYTES = 64 << 20  # of a frame: an archive of logs is the largest


class Peer:
    """The other end of a proven connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, is_head: bool) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._mine, self._theirs = (b"head", b"agent") if is_head else (b"agent", b"head")
        self._num_sent = self._num_received = 0
        self.is_silent = False  # whether it was given up

    @property
    def remote_address(self) -> str:
        """The address of the other end."""
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, kind: str, **values: Any) -> None:
        """Send a message; a lost connection is noticed by whoever receives."""
        body = json.dumps({"kind": kind, **values}).encode()
        if not self._writer.is_closing():
            code = proof(self._key, *self._words(self._mine, self._num_sent, body))
            self._writer.write(struct.pack(">I", len(body)) + code + body)
            self._num_sent += 1

    async def receive(self) -> Message | None:
        """The next message; None once the connection has ended, in whatever way."""
        try:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            if length > MOST_BYTES:
                return None
            code = await self._reader.readexactly(PROOF_BYTES)
            body = await self._reader.readexactly(length)
            if not is_proof(code, self._key, *self._words(self._theirs, self._num_received, body)):
                return None
            self._num_received += 1
            message = json.loads(body)
        except (OSError, EOFError, ValueError):
            return None
        return message if isinstance(message, dict) and isinstance(message.get("kind"), str) else None

    @staticmethod
    def _words(who: bytes, number: int, body: bytes) -> tuple[bytes, ...]:
        """What the code of a frame is made of."""
        return who, struct.pack(">Q", number), body

    def give_up(self) -> None:
        """End the connection to somebody who is not heard of: what was not sent yet is not waited for."""
        self.is_silent = True
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """End the connection; what is left is sent in time or never."""
        self._writer.close()

    async def close(self) -> None:
        """Send what is left, then end the connection, at once where the other end does not take it."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._send_rest(), CLOSING_TIMEOUT_S)
        self._writer.transport.abort()

    async def _send_rest(self) -> None:
        await self._writer.drain()
        self._writer.close()
        await self._writer.wait_closed()


async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> Peer | None:
    """Who has called, if they know the secret; otherwise they hear nothing that would help them."""
    known = secret.encode()
    try:
        ours = os.urandom(NONCE_BYTES)
        writer.write(GREETING + ours)
        answer = await asyncio.wait_for(reader.readexactly(NONCE_BYTES + PROOF_BYTES), PROVING_TIMEOUT_S)
        theirs, given = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if is_proof(given, known, b"agent", ours, theirs):
            writer.write(proof(known, b"head", theirs, ours))
            return Peer(reader, writer, proof(known, b"key", ours, theirs), is_head=True)
    except (OSError, EOFError, asyncio.TimeoutError):
        pass
    writer.close()
    return None


async def call(host: str, port: int, secret: str, timeout_s: float) -> Peer:
    """A proven connection to the head; ClusterError if somebody else, or nobody, answers there."""
    try:
        return await asyncio.wait_for(_call(host, port, secret), timeout_s)
    except asyncio.TimeoutError as error:
        raise ClusterError(f"{host}:{port} cannot be reached: no answer") from error
    except EOFError as error:
        raise ClusterError(f"{host}:{port} cannot be reached: it closed the connection") from error
    except OSError as error:
        raise ClusterError(f"{host}:{port} cannot be reached: {error}") from error


async def _call(host: str, port: int, secret: str) -> Peer:
    known = secret.encode()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        greeting = await reader.readexactly(len(GREETING) + NONCE_BYTES)
        if not greeting.startswith(GREETING):
            raise ClusterError(f"{host}:{port} is not a job of shoal")
        theirs, ours = greeting[len(GREETING) :], os.urandom(NONCE_BYTES)
        writer.write(ours + proof(known, b"agent", theirs, ours))
        if not is_proof(await reader.readexactly(PROOF_BYTES), known, b"head", ours, theirs):
            raise ClusterError(f"{host}:{port} does not know this job's secret")
    except BaseException:
        writer.close()
        raise
    return Peer(reader, writer, proof(known, b"key", theirs, ours), is_head=False)
