"""The control connection: who knows the secret is let in, whatever else comes is turned away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from shoal.cluster import control_connection
from shoal.cluster.control_connection import Peer, accepted, call
from shoal.errors import ClusterError
from shoal.machine.proofs import proof

SECRET = "of the job"


async def with_server(body: Callable[[int, asyncio.Queue[Peer | None]], Awaitable[None]]) -> None:
    """Run the body with the port of a server, and a queue of those it has let in or turned away."""
    seen: asyncio.Queue[Peer | None] = asyncio.Queue()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(await accepted(reader, writer, SECRET))

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        await body(server.sockets[0].getsockname()[1], seen)
    finally:
        server.close()


def test_messages_go_both_ways_and_the_end_is_none() -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        agent = await call("127.0.0.1", port, SECRET, 5.0)
        head = await seen.get()
        assert head is not None
        agent.send("hello", rank=3, text="ü" * 100_000)
        assert await head.receive() == {"kind": "hello", "rank": 3, "text": "ü" * 100_000}
        head.send("stop")
        assert await agent.receive() == {"kind": "stop"}
        assert agent.remote_address == "127.0.0.1"
        await agent.close()
        assert await head.receive() is None
        await head.close()

    asyncio.run(with_server(body))


def test_a_wrong_secret_is_turned_away() -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        with pytest.raises(ClusterError, match="cannot be reached"):
            await call("127.0.0.1", port, "another job's", 5.0)
        assert await seen.get() is None

    asyncio.run(with_server(body))


@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, os.urandom(200)])
def test_junk_is_turned_away(junk: bytes) -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(junk)
        writer.write_eof()
        assert await seen.get() is None
        assert len(await reader.read()) == len(control_connection.GREETING) + control_connection.NONCE_BYTES
        writer.close()

    asyncio.run(with_server(body))


def test_an_answer_cannot_be_sent_back_as_ones_own() -> None:
    """Each side proves itself with words of its own, so a stranger gains nothing by passing them on."""

    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        greeting = await reader.readexactly(len(control_connection.GREETING) + control_connection.NONCE_BYTES)
        nonce = greeting[len(control_connection.GREETING) :]
        writer.write(nonce + proof(SECRET.encode(), b"head", nonce, nonce))
        assert await seen.get() is None
        writer.close()

    asyncio.run(with_server(body))


def test_a_frame_without_sense_ends_the_connection() -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        forged = b"\x00\x00\x00\x0f" + 32 * b"x" + b'{"kind":"stop"}'
        for junk in (b"\xff\xff\xff\xff", forged):
            agent = await call("127.0.0.1", port, SECRET, 5.0)
            head = await seen.get()
            assert head is not None
            agent._writer.write(junk)
            assert await head.receive() is None
            await agent.close()
            await head.close()

    asyncio.run(with_server(body))


def test_who_does_not_answer_is_named() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port} cannot be reached: no answer"):
            await call("127.0.0.1", port, SECRET, 0.1)
        server.close()
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port} cannot be reached"):
            await call("127.0.0.1", port, SECRET, 5.0)

    asyncio.run(body())


def test_who_passes_on_what_they_hear_cannot_say_it_twice() -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        agent = await call("127.0.0.1", port, SECRET, 5.0)
        head = await seen.get()
        assert head is not None
        said: list[bytes] = []
        write = agent._writer.write
        agent._writer.write = lambda data: (said.append(data), write(data))[1]  # type: ignore[method-assign]
        agent.send("alive")
        assert await head.receive() == {"kind": "alive"}
        write(said[0])
        assert await head.receive() is None
        await agent.close()
        await head.close()

    asyncio.run(with_server(body))


def test_an_end_does_not_wait_for_who_takes_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a host does that has lost its power while logs are sent to it."""
    monkeypatch.setattr(control_connection, "CLOSING_TIMEOUT_S", 0.1)

    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        agent = await call("127.0.0.1", port, SECRET, 5.0)
        head = await seen.get()
        assert head is not None
        agent.send("logs", archive="x" * 40_000_000)
        await asyncio.wait_for(agent.close(), 30.0)
        assert await head.receive() is None
        await head.close()

    asyncio.run(with_server(body))
