"""The connection between a vector and a group of environments: who is let in, and what comes through."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.bridges import served_group
from shoal.bridges.served_group import GroupConnection, accepted, connected_to, new_secret
from shoal.machine.proofs import PROOF_BYTES


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_only_who_knows_the_secret_is_let_in(listener: socket.socket) -> None:
    secret, address = new_secret(), listener.getsockname()
    with ThreadPoolExecutor() as pool:
        accepting = pool.submit(accepted, listener, secret)
        for greeting in (b"\0" * PROOF_BYTES, b"GET / HTTP/1.1\r\n\r\n" + b"x" * PROOF_BYTES):
            with socket.create_connection(address) as stranger:
                stranger.sendall(greeting)
                with pytest.raises((EOFError, ConnectionError)):
                    GroupConnection(stranger).receive()
        with pytest.raises((EOFError, ConnectionError)):
            connected_to(address, new_secret())
        with socket.create_connection(address):
            pass  # and says nothing
        ours, theirs = connected_to(address, secret), accepting.result(30)
        sent = b"x" * 300_000
        sending = pool.submit(ours.send, 7, sent)
        assert theirs.has_news(30)
        assert theirs.receive() == (7, sent)
        sending.result(30)
        ours.close()
        assert theirs.has_news(30)
        with pytest.raises(EOFError):
            theirs.receive()
        theirs.close()


def test_what_is_interrupted_within_a_message_is_not_read_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener:
        ours = GroupConnection(socket.create_connection(listener.getsockname()))
        theirs = GroupConnection(listener.accept()[0])
    theirs.send(1, b"half of it is read")
    read, parts = served_group._read, iter([False, True])

    def interrupted(connected: socket.socket, size: int) -> bytearray:
        if next(parts):
            raise KeyboardInterrupt
        return read(connected, size)

    with monkeypatch.context() as patch:
        patch.setattr(served_group, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.receive()
    assert ours.has_news(0)
    with pytest.raises(OSError, match="descriptor"):
        ours.receive()
    with pytest.raises(OSError, match="descriptor"):
        ours.send(2, b"")
    assert theirs.has_news(30)
    with pytest.raises((EOFError, ConnectionError)):
        theirs.receive()


def test_who_listens_without_the_secret_is_no_group(listener: socket.socket) -> None:
    with ThreadPoolExecutor() as pool, listener:
        connecting = pool.submit(connected_to, listener.getsockname(), new_secret())
        caller, _ = listener.accept()
        with caller:
            caller.sendall(b"\0" * PROOF_BYTES)
            with pytest.raises(ConnectionError, match="is not the worker that was started"):
                connecting.result(30)
