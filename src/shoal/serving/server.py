"""Serves an application on sockets until a signal: what was accepted is answered first."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from shoal.errors import ConfigError
from shoal.machine.signals import ECHO_S, exit_code
from shoal.serving.connections import connection_type

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LONGEST_END_S = 30
"""That requests may take to be answered after the signal."""
IDLE_S = 75
"""That a connection may stay open between two requests."""
SPARE_FILES = 64  # that this process may need beside its connections
MOST_CONNECTIONS = 4096
BACKLOG = 1024
LONGEST_SOCKET_PATH = 107

logger = logging.getLogger("shoal.serve")


class PolicyServer(uvicorn.Server):
    """uvicorn's server, which leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take who has connected already, before nobody can any more."""
        for _ in range(3):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


def server_of(app: ASGIApp) -> PolicyServer:
    """A server of an application, which `run(sockets)` starts and `should_exit = True` ends."""
    config = uvicorn.Config(
        app,
        http=connection_type(_room_for_connections()),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=LONGEST_END_S,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a bad client is no news; our guard logs failures
    return PolicyServer(config)


def serve_until_signalled(app: ASGIApp, sockets: Sequence[socket.socket]) -> int:
    """Answer requests until a signal; returns the exit code that follows from it.

    The first signal stops accepting, and lets what was accepted be answered; a second ends it at once.
    """
    server = server_of(app)

    def end() -> None:
        server.should_exit = True

    with listening_to_signals(end) as heard:
        server.run(list(sockets))
    return exit_code(heard[0]) if heard else 1


@contextmanager
def listening_to_signals(end: Callable[[], None]) -> Iterator[list[int]]:
    """Call `end` at the first signal, which the list then holds; a second, unless it is an echo, ends the process."""
    heard: list[int] = []
    heard_at = 0.0

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal heard_at
        if heard and monotonic() - heard_at > ECHO_S:
            os._exit(exit_code(number))
        if not heard:
            heard_at = monotonic()
            heard.append(number)
            end()

    # Of a shell script's background job, or under nohup: it must not hear what is not for it.
    for_us = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in for_us}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tcp_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; an OSError if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """A Unix socket that only this user can connect to; its file is removed after. A ConfigError says why not."""
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"--socket: {path} is longer than {LONGEST_SOCKET_PATH} bytes; use a shorter path")
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)  # the file has its mode from the beginning
        try:
            listening.bind(str(path))
        except OSError as error:
            raise ConfigError(f"--socket: {path} cannot be made: {error.strerror or error}") from None
        finally:
            os.umask(mask)
        listening.listen(BACKLOG)
        made = os.lstat(path)
        yield listening
    finally:
        listening.close()
    try:
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            path.unlink()
    except OSError:  # it is gone already
        pass


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that was killed; refuse anything else that is in the way."""
    if not os.path.lexists(path):
        return
    if not path.is_socket() or path.is_symlink():
        raise ConfigError(f"--socket: {path} exists, and is not a socket; use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(2)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise ConfigError(f"--socket: {path} cannot be used: {error.strerror or error}") from None
    raise ConfigError(f"--socket: {path} is in use by another server; use another path")


def _room_for_connections() -> int:
    """How many connections this process may have, after it has asked for as many as it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    room = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return max(room - SPARE_FILES, 16)
