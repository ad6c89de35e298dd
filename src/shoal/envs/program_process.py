"""A program that is an environment: started, spoken to with a deadline, and ended with all that it has started.

One thread does everything: while it waits for an answer it also empties what the program prints, so that nobody waits
for the other.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from shoal.envs.context import EnvContext
from shoal.envs.line_protocol import MOST_BYTES, read, written
from shoal.envs.mpi import mpi_start
from shoal.errors import ConfigError, EnvError, EnvStartError
from shoal.machine.processes import end_with_parent

ENDING_S = 2.0  # between being told to end and being killed
PRINTED_BYTES = 4000  # of what the program printed last
ADDRESS, TOKEN = "SHOAL_ADDRESS", "SHOAL_TOKEN"
FAREWELL = written({"close": True})


class Link:
    """A stream of lines to a program and back, with what it prints beside; a message is one line."""

    def __init__(self, reading: int, writing: int, printing: Sequence[int] = (), life: int | None = None) -> None:
        self._writing = writing
        self._life = life  # becomes readable when the program ends: what it has started may hold its streams open
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        self._printed = bytearray()
        self._selector = selectors.DefaultSelector()
        self._reading = reading
        for file in (reading, *printing):
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ)
        if life is not None:
            self._selector.register(life, selectors.EVENT_READ)

    @property
    def printed(self) -> str:
        """The last that the program printed, in one line."""
        lines = self._printed.decode(errors="replace").split("\n")
        return " | ".join(line.strip() for line in lines if line.strip())[-300:]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; an OSError means that nobody is there."""
        self.write(written(message))

    def write(self, data: bytes) -> None:
        """Send whole lines; an OSError means that nobody is there."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._writing, rest) :]

    def receive(self, deadline: float | None) -> dict[str, Any] | None:
        """The next message; None if the program has ended the stream. A TimeoutError if it is not there in time."""
        while (line := self.line(deadline)) is not None:
            if line.strip():
                return read(line)
        return None

    def line(self, deadline: float | None) -> bytes | None:
        """The next line without its end, also an empty one; None and TimeoutError as for `receive`."""
        while not self._lines:
            wait = None if deadline is None else deadline - monotonic()
            if wait is not None and wait <= 0:
                raise TimeoutError
            ready = {key.fd for key, _ in self._selector.select(wait)}
            for file in ready - {self._reading, self._life}:
                self._empty(file)
            # What it has said before its end is there before its end is.
            if self._reading in ready:
                if not self._read():
                    return None
            elif self._life in ready:
                return None
        return self._lines.popleft()

    def empty(self) -> None:
        """Take what the program has printed until now."""
        for key, _ in self._selector.select(0):
            if key.fd not in (self._reading, self._life):
                self._empty(key.fd)

    def close(self) -> None:
        """Forget the streams, which their owners close."""
        self._selector.close()

    def _read(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            try:
                data = os.read(self._reading, 2**20)
            except OSError:
                data = b""
            if not data:
                return False
            self._buffer += data
            if b"\n" in data:
                *lines, rest = self._buffer.split(b"\n")
                self._lines.extend(bytes(line) for line in lines)
                self._buffer = bytearray(rest)
            elif len(self._buffer) > MOST_BYTES:
                raise EnvError(f"the program sent a line of more than {MOST_BYTES >> 20} MB")
        return True

    def _empty(self, file: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(file, 2**16)
            if not data:
                self._selector.unregister(file)
            self._printed = (self._printed + data)[-PRINTED_BYTES:]


class ProgramProcess:
    """The program that one environment starts; `link` is how to speak with it."""

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        variables: Mapping[str, str],
        connection: str,
        start_timeout_s: float,
        ctx: EnvContext | None = None,
        farewell: bytes = FAREWELL,
    ) -> None:
        self._farewell = farewell
        self._private: str | None = None
        self._socket: socket.socket | None = None
        listener, own = self._listener(connection)
        piped = subprocess.PIPE
        words, environ = [_found(command[0], folder), *command[1:]], {**os.environ, **variables, **own}
        if ctx is not None and ctx.slots:
            words, environ = mpi_start(words, ctx, environ)
        try:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=environ,
                stdin=piped if listener is None else subprocess.DEVNULL,
                stdout=piped,
                stderr=piped,
                start_new_session=True,
                # It gets the end of its stream when we die; one that does not read is killed by the kernel.
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )
        except OSError as error:
            self._remove()
            raise EnvStartError(f"the program {command[0]!r} cannot be started: {error.strerror or error}") from None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        self._life = _life(self.process.pid)
        if listener is None:
            assert self.process.stdin is not None
            self.link = Link(out, self.process.stdin.fileno(), [err], self._life)
            return
        try:
            self._socket = _called(listener, monotonic() + start_timeout_s, self.process)
        except BaseException as error:
            self.link = Link(out, out, [err])
            self.link.empty()
            self.close()
            if isinstance(error, EnvError) and (printed := self.link.printed):
                raise EnvError(f"{error}; it printed last: {printed}") from None
            raise
        finally:
            listener.close()
        file = self._socket.fileno()
        self.link = Link(file, file, [out, err], self._life)
        os.set_blocking(file, True)  # for writing; reading waits in the selector
        self.token = own[TOKEN]

    token: str | None = None

    def fate(self) -> str:
        """How the program ended, and what it printed last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_S)
        with contextlib.suppress(OSError, ValueError):
            self.link.empty()
        code = self.process.poll()
        if code is None:
            how = "closed the connection"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        printed = self.link.printed
        return f"{how}; it printed last: {printed}" if printed else how

    def close(self) -> None:
        """End the program and whatever it has started; never raises."""
        with contextlib.suppress(OSError, ValueError):
            self.link.write(self._farewell)
        for stream in (self.process.stdin, self._socket):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDING_S if number == signal.SIGTERM else None)
        self.link.close()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        life, self._life = self._life, None
        if life is not None:
            os.close(life)
        self._remove()

    def kill(self) -> None:
        """End it at once: it does not answer."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _listener(self, connection: str) -> tuple[socket.socket | None, dict[str, str]]:
        """A socket for the program to call, and the variables that tell it where and with what secret."""
        if connection == "pipe":
            return None, {}
        token = secrets.token_hex(16)
        if connection == "tcp":
            listener = socket.create_server(("127.0.0.1", 0))
            host, port = listener.getsockname()
            return listener, {ADDRESS: f"tcp:{host}:{port}", TOKEN: token}
        self._private = tempfile.mkdtemp(prefix="shl-env-")
        path = os.path.join(self._private, "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        return listener, {ADDRESS: f"unix:{path}", TOKEN: token}

    def _remove(self) -> None:
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)


class Caller:
    """A program that somebody else starts and that calls in at HOST:PORT; one at a time."""

    process = None

    def __init__(self, host: str, port: int, token: str, start_timeout_s: float) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host.strip("[]"), port), family=family)
        except OSError as error:
            raise EnvStartError(f"env.listen: {host}:{port} cannot be opened: {error.strerror or error}") from None
        self.token = token
        try:
            self._socket = _called(self._listener, monotonic() + start_timeout_s, None)
        except BaseException:
            self._listener.close()
            raise
        file = self._socket.fileno()
        self.link = Link(file, file)
        os.set_blocking(file, True)

    def fate(self) -> str:
        """How the program ended."""
        return "closed the connection"

    def kill(self) -> None:
        """Hang up: the program is not ours to end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError, ValueError):
            self.link.send({"close": True})
        self.link.close()
        self._socket.close()
        self._listener.close()


def _life(pid: int) -> int | None:
    """A file that becomes readable when the process ends; None where the kernel has none (before Linux 5.3)."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def check_token(given: Any, wanted: str | None) -> None:
    """Refuse who does not know the secret of a socket."""
    if wanted is not None and not hmac.compare_digest(str(given).encode(), wanted.encode()):
        raise EnvError(f"a program does not know the secret: it must send the value of {TOKEN} as token")


def _called(listener: socket.socket, deadline: float, process: subprocess.Popen[bytes] | None) -> socket.socket:
    listener.settimeout(0.1)
    while True:
        try:
            return listener.accept()[0]
        except TimeoutError:
            if process is not None and process.poll() is not None:
                raise EnvError(f"the program ended with code {process.returncode} before it connected") from None
            if monotonic() > deadline:
                raise EnvError("no program has connected in time") from None


def _found(program: str, folder: str) -> str:
    """The program's file; a path is meant from the experiment's folder."""
    if os.sep not in program and not Path(folder, program).is_file():
        path = shutil.which(program)
        if path is None:
            raise ConfigError(f"env.command: there is no program {program!r} here, neither in {folder} nor in PATH")
        return path
    file = Path(folder, program)
    if not file.is_file():
        raise ConfigError(f"env.command: there is no program {program!r} in {folder}")
    if not os.access(file, os.X_OK):
        raise ConfigError(f"env.command: {file} may not be executed; type chmod +x {file}, or name its interpreter")
    return str(file)
