"""The process between an owner and the processes that it has many of: it forks them, and ends whole trees of them.

An owner is a worker with environments in processes of their own, or a host with samplers. It may hold Ray, PyTorch and
their threads, none of which survives a fork; a fresh Python for each process takes a second. So one fresh Python
imports what the processes need, a module with a function `serve`, and forks as often as it is asked: milliseconds.

What the owner can rely on:

- Every child leads a process group of its own and adopts whatever its simulator leaves behind; what a dead child
  leaves comes to this process, which ends it. So solvers, MPI ranks and daemons end with their environment.
- When the owner is gone, its end of the control socket closes, and everything here ends. When this process is killed,
  the children are killed by the kernel.
- What children print goes to this process's standard error, up to a limit; the last of it is kept for incidents.
- A child that takes more than its memory (with all that is below it), or than its room on the disk, is killed.

Messages on the control socket are JSON. From the owner: `{"fork": id, "memory": bytes or null, "folder": Folder or
null}` with the descriptors of the child, `{"end": id, "stack": bool}`, `{"import": module}` for what later children
need. To the owner: `{"died": id, "status": n, "tail": text, "memory": bytes or null, "disk": bytes or null}`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from shoal.envs.scratch import size_of
from shoal.machine.processes import adopt_orphans, below, children_of_all, end_with_parent, private_bytes

TAIL_BYTES = 16_384
MOST_FORWARDED = 10_000  # bytes of one child's output
MOST_HELD = 4096  # bytes of a line whose end has not come
FLOOD_PIPE_BYTES = 1 << 18  # for who prints much; a user may have 64 MB of pipes in all
FLOOD_PAUSE_S = 0.001  # between reading twice from who prints much
PY_SPY_S = 2.0  # for py-spy to write one down, where it is installed
STACK_S = 0.5  # for a child to write down its stack before it is killed
MEMORY_CHECK_S = 0.5
DISK_CHECK_S = 2.0
PARENT_CHECK_S = 1.0
LAST_GRACE_S = 2.0
MOST_DESCRIPTORS = 1 << 20


@dataclass(frozen=True)
class Folder:
    """Where an environment writes, and how much it may."""

    root: str
    name: str  # a pattern
    limit: int  # bytes


@dataclass
class Child:
    """One process."""

    id: int
    pid: int
    output: int  # the pipe of what it prints
    stack: int  # where it writes the stack of a fatal signal, which is for the incident and for nobody's terminal
    memory_limit: int | None = None  # bytes
    folder: Folder | None = None
    tail: bytearray = field(default_factory=bytearray)
    forwarded: int = 0
    held: bytes = b""  # of a line that has not ended: what others print must not come between
    kill_at: float | None = None
    memory_taken: int | None = None  # the bytes that it was killed for
    disk_taken: int | None = None


class ForkServer:
    """Forks children, reads their output, and reports their deaths."""

    def __init__(self, control: int, serve: Callable[..., int]) -> None:
        self._control, self._serve = socket.socket(fileno=control), serve
        self._parent = os.getppid()
        self._py_spy = shutil.which("py-spy")
        self._children: dict[int, Child] = {}  # by pid
        self._spies: dict[int, Child] = {}  # by the pid of the py-spy that writes down the child's stack
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        self._next_memory_check = self._next_disk_check = self._next_parent_check = 0.0

    def run(self) -> None:
        """Serve until the owner is gone."""
        adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # whoever sends these to a whole job means the owner
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while self._serve_once():
                pass
        finally:
            self._end_all()

    def _serve_once(self) -> bool:
        """Deal with what has happened; False when the owner is gone."""
        for key, _ in self._selector.select(self._timeout_s()):
            if key.fileobj is self._control:
                if not self._read_command():
                    return False
            elif key.fd == self._woken:
                os.read(self._woken, 4096)
            else:
                self._read_output(key.data)
        self._reap()
        now = monotonic()
        for child in self._children.values():
            if child.kill_at is not None and now >= child.kill_at:
                self._kill_late(child)
        if now >= self._next_memory_check and self._is_limited():
            self._next_memory_check = now + MEMORY_CHECK_S
            self._check_memory()
        if now >= self._next_disk_check and self._has_folders():
            self._next_disk_check = now + DISK_CHECK_S
            self._check_disk()
        if now >= self._next_parent_check:
            self._next_parent_check = now + PARENT_CHECK_S
            return os.getppid() == self._parent  # a fork of the owner's may hold the socket open after its death
        return True

    def _timeout_s(self) -> float:
        due = [self._next_parent_check, *(c.kill_at for c in self._children.values() if c.kill_at is not None)]
        if self._is_limited():
            due.append(self._next_memory_check)
        if self._has_folders():
            due.append(self._next_disk_check)
        return max(0.0, min(due) - monotonic())

    def _is_limited(self) -> bool:
        return any(child.memory_limit is not None for child in self._children.values())

    def _has_folders(self) -> bool:
        return any(child.folder is not None for child in self._children.values())

    def _read_command(self) -> bool:
        """One message of the owner; False when it is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 65_536, 4)
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "fork" in message:
            folder = None if message["folder"] is None else Folder(**message["folder"])
            self._fork(message["fork"], message["memory"], folder, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        elif "import" in message:
            with contextlib.suppress(Exception):  # who needs it will say what is wrong with it
                import_module(message["import"])
            gc.freeze()
        else:
            self._end(message["end"], message["stack"])
        return True

    def _end(self, id: int, stack: bool) -> None:
        """Kill a child, after it has written down its stack if that is wanted."""
        for child in self._children.values():
            if child.id == id:
                self._forget_spy(child)
                if not stack:
                    child.kill_at = monotonic()
                elif self._py_spy is None:
                    self._abort(child)
                else:
                    self._spy_on(child, self._py_spy)

    def _spy_on(self, child: Child, py_spy: str) -> None:
        """Have py-spy write down the stack, also of a process that is stopped and can do so no more."""
        child.kill_at = monotonic() + PY_SPY_S
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _become_program([py_spy, "dump", "--nonblocking", "--pid", str(child.pid)], server, child.stack)
            finally:
                os._exit(1)
        self._spies[pid] = child

    def _forget_spy(self, child: Child) -> bool:
        """Whether a child was spied on; who did that ends with the orphans, if it has not yet."""
        pids = [pid for pid, spied in self._spies.items() if spied is child]
        for pid in pids:
            del self._spies[pid]
        return bool(pids)

    def _abort(self, child: Child) -> None:
        """Have a child write down its stack by itself, and die."""
        child.kill_at = monotonic() + STACK_S
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGABRT)  # whose handler writes the stack in C, without the GIL

    def _kill_late(self, child: Child) -> None:
        """Kill a child whose time is over, or, if that was py-spy's time, have it write down its stack by itself."""
        if self._forget_spy(child):
            self._abort(child)
        else:
            self._kill_tree(child)

    def _fork(self, id: int, memory_limit: int | None, folder: Folder | None, descriptors: list[int]) -> None:
        output, printed = os.pipe()
        stack = os.memfd_create("shoal-stack", os.MFD_CLOEXEC)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(output)
                _become_child(server, printed, [*descriptors, stack], self._serve)
            finally:
                os._exit(1)
        os.close(printed)
        os.set_blocking(output, False)
        child = self._children[pid] = Child(id, pid, output, stack, memory_limit, folder)
        self._selector.register(output, selectors.EVENT_READ, child)

    def _read_output(self, child: Child) -> None:
        """Keep the last of what a child prints, and pass on the first."""
        try:
            words = os.read(child.output, FLOOD_PIPE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            _pass_on_rest(child)
            self._selector.unregister(child.output)
            os.close(child.output)
            child.output = -1
            return
        child.tail += words
        del child.tail[:-TAIL_BYTES]
        if child.forwarded >= MOST_FORWARDED:
            sleep(FLOOD_PAUSE_S)  # it prints on meanwhile: to be woken by every line would take longer than the lines
        else:
            child.forwarded += len(words)
            words = child.held + words
            whole = max(words.rfind(b"\n"), words.rfind(b"\r")) + 1
            if len(words) - whole > MOST_HELD or child.forwarded >= MOST_FORWARDED:
                whole = len(words)
            words, child.held = words[:whole], words[whole:]
            if child.forwarded >= MOST_FORWARDED:
                with contextlib.suppress(OSError):  # so that it seldom waits for us, who may wait for a core
                    fcntl.fcntl(child.output, fcntl.F_SETPIPE_SZ, FLOOD_PIPE_BYTES)
                words += b"\n[shoal] this process prints much; from here on only the last of it is kept.\n"
            with contextlib.suppress(OSError):
                os.write(2, words)

    def _reap(self) -> None:
        """Tell the owner of children that have died, after all that they left behind has ended too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            spied = self._spies.pop(pid, None)
            if spied is not None:
                self._abort(spied)
            child = self._children.pop(pid, None)
            if child is None:
                continue
            self._forget_spy(child)
            self._end_orphans()
            while child.output >= 0:  # what it wrote before it died
                before = len(child.tail), child.forwarded
                self._read_output(child)
                if (len(child.tail), child.forwarded) == before:
                    break
            if child.output >= 0:
                _pass_on_rest(child)
                self._selector.unregister(child.output)
                os.close(child.output)
            stack = os.pread(child.stack, TAIL_BYTES, 0).partition(b"\nExtension modules")[0]
            os.close(child.stack)
            self._report(
                {
                    "died": child.id,
                    "status": os.waitstatus_to_exitcode(status),
                    "tail": (bytes(child.tail) + stack).decode(errors="replace"),
                    "memory": child.memory_taken,
                    "disk": child.disk_taken,
                }
            )

    def _report(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode())

    def _check_memory(self) -> None:
        family = children_of_all()
        for child in self._children.values():
            if child.memory_limit is None or child.memory_taken is not None:
                continue
            taken = sum(map(private_bytes, [child.pid, *below([child.pid], family)]))
            if taken > child.memory_limit:
                child.memory_taken = taken
                self._kill_tree(child)

    def _check_disk(self) -> None:
        for child in self._children.values():
            folder = child.folder
            if folder is None or child.disk_taken is not None:
                continue
            taken = size_of(Path(folder.root), folder.name, enough=folder.limit)
            if taken > folder.limit:
                child.disk_taken = taken
                self._kill_tree(child)

    def _kill_tree(self, child: Child) -> None:
        """Kill a child with all that is below it; its burial takes care of who escapes by forking meanwhile."""
        child.kill_at = None
        for pid in [child.pid, *below([child.pid], children_of_all())]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Kill what dead children have left to us: everything below us that is not a living child or below one."""
        deadline = monotonic() + LAST_GRACE_S
        while monotonic() < deadline:
            family = children_of_all()
            known = self._children.keys() | self._spies.keys()
            roots = [pid for pid in family.get(os.getpid(), []) if pid not in known]
            if not roots:
                return
            for pid in [*roots, *below(roots, family)]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            sleep(0.005)
            for pid in roots:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _end_all(self) -> None:
        """Kill everything below this process."""
        for child in self._children.values():
            _pass_on_rest(child)
        self._children.clear()
        self._spies.clear()
        self._end_orphans()


def _pass_on_rest(child: Child) -> None:
    """Pass on a line that will not end anymore."""
    if child.held:
        with contextlib.suppress(OSError):
            os.write(2, child.held + b"\n")
        child.held = b""


def _become_child(server: int, printed: int, descriptors: list[int], serve: Callable[..., int]) -> NoReturn:
    """Serve as one of the processes; never returns."""
    os.setpgid(0, 0)  # no session: Linux would schedule each as fairly as all that the user does besides
    end_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    adopt_orphans()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # where memory runs out, a simulator is lost rather than the learner
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    # High first, so that no descriptor is overwritten before it has found its place.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
    kept = list(range(3, 3 + len(descriptors)))
    for place, descriptor in zip(kept, high, strict=True):
        os.dup2(descriptor, place, inheritable=False)
    os.closerange(kept[-1] + 1, MOST_DESCRIPTORS)
    *kept, stack = kept
    faulthandler.enable(stack)  # a fatal signal writes the stack of every thread
    gc.enable()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # children would all draw the same numbers from it
    code = serve(*kept)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become_program(words: list[str], server: int, output: int) -> NoReturn:
    """Run another program, which writes to this descriptor and ends with the server; never returns."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nowhere, 0), (output, 1), (nowhere, 2)):
        os.dup2(source, target)
    os.closerange(3, MOST_DESCRIPTORS)
    os.execv(words[0], words)


def main(control: int, serving: str) -> None:
    """Import the module whose `serve` every child is to run, with all that it needs, then serve."""
    serve = import_module(serving).serve
    if os.environ.pop("SHOAL_ONE_BLAS_THREAD", ""):  # the variable was for NumPy's import, not for the user's solvers
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
    gc.collect()
    gc.freeze()  # a collection would copy the pages that children share with us
    ForkServer(control, serve).run()
