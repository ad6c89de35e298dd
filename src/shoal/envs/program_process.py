"""A program that is an environment: started, spoken to with a deadline, and ended with all that it has started.

One thread does everything: while it waits for an answer it also empties what the program prints, so that nobody waits
for the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import select
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
from shoal.envs.line_protocol import MOST_BYTES, read, shown, written
from shoal.envs.mpi import mpi_start
from shoal.envs.program_calls import TOKEN, called
from shoal.envs.program_files import located, runnable
from shoal.errors import ConfigError, EnvError, EnvStartError
from shoal.machine.processes import end_with_parent

ENDING_S = 2.0  # between being told to end and being killed
PRINTED_BYTES = 4000  # of what the program printed last
ADDRESS = "SHOAL_ADDRESS"
MOST_LINES = 10_000  # that a program may send ahead
FAREWELL = written({"close": True})


class Link:
    """A stream of lines to a program and back, with what it prints beside; a message is one line."""

    def __init__(
        self,
        reading: int,
        writing: int,
        printing: Sequence[int] = (),
        life: int | None = None,
        heard: bytes = b"",
    ) -> None:
        """`heard` is what the program has sent already."""
        self._writing = writing
        self._life = life  # becomes readable when the program ends: what it has started may hold its streams open
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        self._printed = bytearray()
        self._has_ended = False
        self._selector = selectors.DefaultSelector()
        self._reading = reading
        os.set_blocking(writing, False)
        for file in (reading, *printing):
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ)
        if life is not None:
            self._selector.register(life, selectors.EVENT_READ)
        self._hear(heard)

    @property
    def output(self) -> str:
        """The last that the program printed."""
        return self._printed.decode(errors="replace")

    @property
    def printed(self) -> str:
        """The last that the program printed, in one line."""
        return " | ".join(line.strip() for line in self.output.split("\n") if line.strip())[-300:]

    def last_words(self) -> str:
        """What the program has sent of a line, and printed, for the end of a sentence; empty if there is nothing."""
        with contextlib.suppress(OSError, ValueError):
            self.empty()
        begun = self._buffer.decode(errors="replace").strip()
        words = f", in the middle of the line {shown(begun)}" if begun else ""
        return f"{words}; it printed last: {self.printed}" if self.printed else words

    def send(self, message: Mapping[str, Any], deadline: float | None) -> None:
        """Send a message; an OSError means that nobody is there, the TimeoutError that it is not taken in time."""
        self.write(written(message), deadline)

    def write(self, data: bytes, deadline: float | None) -> None:
        """Send whole lines; errors as for `send`. What the program says or prints meanwhile is taken in."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._writing, rest) :]
            except BlockingIOError:
                self._await_room(deadline)

    def receive(self, deadline: float | None) -> dict[str, Any] | None:
        """The next message; None if the program has ended the stream. A TimeoutError if it is not there in time."""
        while (line := self.line(deadline)) is not None:
            if line.strip():
                return read(line)
        return None

    def line(self, deadline: float | None) -> bytes | None:
        """The next line without its end, also an empty one; None and TimeoutError as for `receive`."""
        while not self._lines:
            if self._has_ended:
                return None
            self._take_in(_left(deadline))
        return self._lines.popleft()

    def unasked(self, wait_s: float) -> bytes | None:
        """A line that comes within this time although nothing was asked since the last one; None if there is none."""
        if not self._lines:
            self._take_in(wait_s)
        return next((line for line in self._lines if line.strip()), None)

    def empty(self) -> None:
        """Take what the program has printed until now."""
        for key, _ in self._selector.select(0):
            if key.fd not in (self._reading, self._life):
                self._empty(key.fd)

    def close(self) -> None:
        """Forget the streams, which their owners close."""
        self._selector.close()

    def _await_room(self, deadline: float | None) -> None:
        """Wait until the program may take more."""
        if self._has_ended:
            raise BrokenPipeError
        poll = select.poll()
        poll.register(self._writing, select.POLLOUT)
        poll.register(self._selector.fileno(), select.POLLIN)  # or it says something
        wait = _left(deadline)
        for file, _ in poll.poll(None if wait is None else math.ceil(wait * 1000)):
            if file != self._writing:
                self._take_in(0)

    def _take_in(self, wait: float | None) -> None:
        """Take in what comes within this time."""
        ready = {key.fd for key, _ in self._selector.select(wait)}
        for file in ready - {self._reading, self._life}:
            self._empty(file)
        # What it has said before its end is there before its end is.
        if self._reading in ready:
            self._read()
        elif self._life in ready:
            self._has_ended = True

    def _read(self) -> None:
        try:
            data = os.read(self._reading, 2**20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._has_ended = not data
        self._hear(data)

    def _hear(self, data: bytes) -> None:
        self._buffer += data
        if b"\n" in data:
            *lines, rest = self._buffer.split(b"\n")
            self._lines.extend(bytes(line) for line in lines)
            self._buffer = bytearray(rest)
        if len(self._buffer) > MOST_BYTES:
            raise EnvError(f"the program sent a line of more than {MOST_BYTES >> 20} MB")
        if len(self._lines) > MOST_LINES:
            raise EnvError(f"the program sent {len(self._lines):,} lines that nobody had asked for")

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
            self._socket, heard = called(listener, own[TOKEN], monotonic() + start_timeout_s, self.process)
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
        self.link = Link(file, file, [out, err], self._life, heard)

    def fate(self) -> str:
        """How the program ended, and what it printed last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_S)
        code = self.status
        if code is None:
            how = "closed the connection"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        return how + self.link.last_words()

    @property
    def status(self) -> int | None:
        """The exit code of its process, a signal as a negative number; None while it lives."""
        return self.process.poll()

    def close(self) -> None:
        """End the program and whatever it has started; never raises."""
        end_together([self])

    def say_farewell(self) -> None:
        """Tell it to end."""
        with contextlib.suppress(OSError, ValueError):
            self.link.write(self._farewell, monotonic())  # who has no room for it does not read
        for stream in (self.process.stdin, self._socket):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def signal_all(self, number: int) -> None:
        """Send a signal to the program and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def give_back(self) -> None:
        """Give back what was open for a program that has ended."""
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
        self.signal_all(signal.SIGKILL)

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
        listener.listen(8)
        return listener, {ADDRESS: f"unix:{path}", TOKEN: token}

    def _remove(self) -> None:
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)


class Caller:
    """A program that somebody else starts and that calls in at HOST:PORT; one at a time."""

    process = None
    status = None  # nobody here can tell

    def __init__(self, host: str, port: int, token: str, start_timeout_s: float) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host.strip("[]"), port), family=family)
        except OSError as error:
            raise EnvStartError(f"env.listen: {host}:{port} cannot be opened: {error.strerror or error}") from None
        try:
            self._socket, heard = called(self._listener, token, monotonic() + start_timeout_s, None)
        except BaseException:
            self._listener.close()
            raise
        file = self._socket.fileno()
        self.link = Link(file, file, heard=heard)

    def fate(self) -> str:
        """How the program ended."""
        return "closed the connection" + self.link.last_words()

    def kill(self) -> None:
        """Hang up: the program is not ours to end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError, ValueError):
            self.link.write(FAREWELL, monotonic())
        self.link.close()
        self._socket.close()
        self._listener.close()


def end_together(programs: Sequence[ProgramProcess]) -> None:
    """End programs and whatever they have started: all are told before any is waited for; never raises."""
    for program in programs:
        program.say_farewell()
    _await_ends(programs)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for program in programs:
            program.signal_all(number)
        if number == signal.SIGTERM:
            _await_ends(programs)
    for program in programs:
        program.process.wait()
        program.give_back()


def _await_ends(programs: Sequence[ProgramProcess]) -> None:
    """Wait until all have ended, for as long as one may take."""
    deadline = monotonic() + ENDING_S
    for program in programs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(max(deadline - monotonic(), 0))


def _life(pid: int) -> int | None:
    """A file that becomes readable when the process ends; None where the kernel has none (before Linux 5.3)."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def _left(deadline: float | None) -> float | None:
    """The seconds until then; a TimeoutError if there are none."""
    if deadline is None:
        return None
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _found(program: str, folder: str) -> str:
    """The program's file; a path is meant from the experiment's folder."""
    file: Path | None = Path(folder, program)
    if os.sep not in program and not Path(folder, program).is_file():
        file = located(program, os.pathsep.join([os.environ.get("PATH", os.defpath), folder]))
    if file is None:
        raise ConfigError(f"env.command: there is no program {program!r} here, neither in {folder} nor in PATH")
    if not file.exists():
        raise ConfigError(f"env.command: there is no program {program!r} in {folder}")
    return runnable(file, "env.command")
