"""The control connection: who knows the secret is let in, whatever else comes is turned away."""

from __future__ import annotations

import asyncio
import hmac
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
        with pytest.raises(ClusterError, match="cannot be reached: it closed the connection"):
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
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port} cannot be reached: .*Connect call failed"):
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


KEY = b"k" * 32


class Bytes:
    """What a peer reads: these bytes, and how many of them it asked for at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.asked = data, list[int]()

    async def readexactly(self, count: int) -> bytes:
        self.asked.append(count)
        found, self.data = self.data[:count], self.data[count:]
        if len(found) < count:
            raise asyncio.IncompleteReadError(found, count)
        return found


class Written:
    """What a peer writes, and in which order it ends the connection."""

    def __init__(self) -> None:
        self.data, self.calls = b"", list[str]()
        self.transport = self

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return "close" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    async def drain(self) -> None:
        self.calls.append("drain")

    async def wait_closed(self) -> None:
        self.calls.append("wait closed")


def peer_of(data: bytes = b"", is_head: bool = False) -> tuple[Peer, Bytes, Written]:
    reader, writer = Bytes(data), Written()
    return Peer(reader, writer, KEY, is_head), reader, writer  # type: ignore[arg-type]


def frame(number: int, body: bytes, who: bytes = b"head") -> bytes:
    """As hosts of any version of this protocol write it."""
    code = hmac.digest(KEY, who + number.to_bytes(8, "big") + body, "sha256")
    return len(body).to_bytes(4, "big") + code + body


def test_frames_have_a_form_that_stays() -> None:
    head, _, written = peer_of(is_head=True)
    head.send("alive")
    head.send("stop", code=3)
    bodies = [b'{"kind": "alive"}', b'{"kind": "stop", "code": 3}']
    assert written.data == frame(0, bodies[0]) + frame(1, bodies[1])
    head.hang_up()
    head.send("alive")
    assert written.data.endswith(bodies[1]), "nothing is said to who has gone"

    async def hear() -> None:
        agent, _, _ = peer_of(written.data + frame(2, b'{"kind": "again"}') + frame(4, b'{"kind": "skipped"}'))
        heard = [await agent.receive() for _ in range(4)]
        assert heard == [{"kind": "alive"}, {"kind": "stop", "code": 3}, {"kind": "again"}, None]

    asyncio.run(hear())


@pytest.mark.parametrize("body", [b"[1]", b'"kind"', b'{"x": 1}', b'{"kind": 3}', b"no json"])
def test_a_proven_frame_that_is_no_message_ends_the_connection(body: bytes) -> None:
    agent, _, _ = peer_of(frame(0, body))
    assert asyncio.run(agent.receive()) is None


@pytest.mark.parametrize(("length", "asked"), [(64 * 2**20, [4, 32, 64 * 2**20]), (64 * 2**20 + 1, [4])])
def test_of_a_frame_that_is_too_long_nothing_is_read(length: int, asked: list[int]) -> None:
    agent, reader, _ = peer_of(length.to_bytes(4, "big") + bytes(40))
    assert asyncio.run(agent.receive()) is None
    assert reader.asked == asked


def test_the_ways_in_which_a_connection_ends() -> None:
    for end, calls, is_silent in (
        (Peer.give_up, ["abort"], True),
        (Peer.hang_up, ["close"], False),
        (lambda peer: asyncio.run(peer.close()), ["drain", "close", "wait closed", "abort"], False),
    ):
        peer, _, written = peer_of()
        assert not peer.is_silent
        end(peer)
        assert written.calls == calls
        assert peer.is_silent == is_silent


def test_a_greeting_is_a_line_and_32_bytes_and_a_stranger_is_hung_up_on() -> None:
    async def body(port: int, seen: asyncio.Queue[Peer | None]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        greeting = await reader.readexactly(40)
        assert greeting.startswith(b"shoal 1\n")
        writer.write(bytes(64))
        assert await seen.get() is None
        assert await reader.read() == b""
        writer.close()

    asyncio.run(with_server(body))


def test_a_caller_hangs_up_on_who_is_no_job() -> None:
    ended: asyncio.Queue[bytes] = asyncio.Queue()

    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 100)
        ended.put_nowait(await reader.read())
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(web_server, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ClusterError, match=rf"127\.0\.0\.1:{port} is not a job of shoal"):
            await call("127.0.0.1", port, SECRET, 30.0)
        assert await ended.get() == b"", "and has told nothing"
        server.close()

    asyncio.run(body())
