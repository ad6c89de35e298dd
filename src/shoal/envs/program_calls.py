"""Programs that call in: the connection of the one that knows the secret, whoever else tries."""

from __future__ import annotations

import hmac
import selectors
import socket
import subprocess
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any

from shoal.envs.line_protocol import read
from shoal.errors import EnvError

TOKEN = "SHOAL_TOKEN"
MOST_HELLO_BYTES = 16 << 20  # of the first line of somebody who is not known yet
MOST_STRANGERS = 8  # who have connected and not said who they are; of more, the first has to go
LOOK_S = 0.1  # between two looks at whether a program that was started lives


def called(
    listener: socket.socket, token: str, deadline: float, process: subprocess.Popen[bytes] | None
) -> tuple[socket.socket, bytes]:
    """The connection of the first that sends the token with its hello, and what it has sent; others are hung up on.

    Who connects and says nothing keeps nobody else out. An EnvError if nobody has come by the deadline, or if
    `process`, which was to call, has ended.
    """
    with _Door(listener, token) as door:
        while (found := door.look(min(LOOK_S, max(deadline - monotonic(), 0.0)))) is None:
            if process is not None and process.poll() is not None:
                raise EnvError(door.refused or f"the program ended with code {process.returncode} before it connected")
            if monotonic() > deadline:
                others = f"; of another that has: {door.refused}" if door.refused else ""
                raise EnvError(f"no program has connected in time{others}")
        return found


class _Door:
    """A listener with those who have connected and are not known yet."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._listener, self._token = listener, token
        self._strangers: dict[socket.socket, bytearray] = {}
        self.refused = ""  # why the last one was sent away

    def __enter__(self) -> _Door:
        with ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for stranger in self._strangers:
            stranger.close()
        self._stack.close()

    def look(self, wait_s: float) -> tuple[socket.socket, bytes] | None:
        """Deal with what comes within this time; the right one with what it has sent, if it was there."""
        for key, _ in self._selector.select(wait_s):
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj is self._listener:
                self._let_in()
            elif self._is_known(key.fileobj):
                self._selector.unregister(key.fileobj)
                return key.fileobj, bytes(self._strangers.pop(key.fileobj))
        return None

    def _let_in(self) -> None:
        with suppress(OSError):  # who has left already
            stranger = self._listener.accept()[0]
            stranger.setblocking(False)
            if len(self._strangers) == MOST_STRANGERS:
                self._send_away(next(iter(self._strangers)), "it did not say who it is")
            self._strangers[stranger] = bytearray()
            self._selector.register(stranger, selectors.EVENT_READ)

    def _is_known(self, stranger: socket.socket) -> bool:
        """Whether a stranger has sent its first line, and the token in it; who sent another line is sent away."""
        said = self._strangers[stranger]
        try:
            data = stranger.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        said += data
        line, end, _ = said.partition(b"\n")
        try:
            if end:
                check_token(read(bytes(line)).get("token"), self._token)
                return True
            if not data:
                raise EnvError(self.refused or "it hung up before it had sent a line")  # a look at the port, perhaps
            if len(said) > MOST_HELLO_BYTES:
                raise EnvError(f"its first line has more than {MOST_HELLO_BYTES >> 20} MB")
        except EnvError as error:
            self._send_away(stranger, str(error))
        return False

    def _send_away(self, stranger: socket.socket, why: str) -> None:
        self.refused = why
        self._selector.unregister(stranger)
        del self._strangers[stranger]
        stranger.close()


def check_token(given: Any, wanted: str) -> None:
    """Refuse who does not know the secret of a socket."""
    if not hmac.compare_digest(str(given).encode(), wanted.encode()):
        raise EnvError(f"a program does not know the secret: it must send the value of {TOKEN} as token")
