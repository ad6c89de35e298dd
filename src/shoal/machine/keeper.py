"""A small process between us and what we started, which ends all of it, whatever kills us.

`keeper_words` begins its command line, and the command follows, which it runs. It adopts every process that the command
leaves behind (Linux's subreaper), so that nothing has to be found by name. It ends them all when the command ends, when
`end` comes through the pipe `control`, or when its parent is gone; then nobody else cleans up, and it also saves the
logs in `folder` to `rescue` and removes `folder`. Its code is the command's. A command with a `folder` is a Ray: it is
deaf to the signals that schedulers send to a whole job, and is ended by force. Without a command it keeps the folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from shoal.machine.broadcasts import ENDINGS, WARNINGS
from shoal.machine.processes import adopt_orphans, allow_open_files, below, children_of_all, end_with_parent, processes

POLL_S = 0.02
LAST_GRACE_S = 2.0
REMOVING_S = 2.0  # for a folder in which processes that just end have still written
STANDARD_INPUT = 0
# A file of the user's in the working folder must not stand for one of Python's modules: that folder is looked at last.
START = "import sys; sys.path.sort(key=bool, reverse=True); from shoal.machine.keeper import main; main()"


def keeper_words(control: int, grace_s: float, folder: str = "", rescue: str = "") -> list[str]:
    """What stands before a command that is to be kept; `control` is a descriptor that the keeper inherits."""
    return [sys.executable, "-c", START, str(control), str(grace_s), folder, rescue, "--"]


def end_descendants(grace_s: float, spared: int = 0) -> None:
    """Ask everything below this process to end, then make it, and bury it, but for one whose code is still wanted."""
    asked: set[int] = set()
    deadline = monotonic() + grace_s
    while left := below([os.getpid()], children_of_all()):
        number = signal.SIGTERM if monotonic() < deadline else signal.SIGKILL
        for pid in left:
            if number == signal.SIGKILL or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        if monotonic() > deadline + LAST_GRACE_S:
            return  # a process that even SIGKILL cannot end waits for a disk or a device
        sleep(POLL_S)
    _bury_orphans(spared)


def keep(control: int, grace_s: float, folder: str, rescue: str, command: list[str]) -> int:
    """Run the command, and end all of it; returns its exit code."""
    parent = os.getppid()
    adopt_orphans()
    is_ray = bool(folder)
    # Whoever sends these to a whole group means our parent, who tells us; under nohup one is ignored, and stays so.
    heard = {number for number in ENDINGS | WARNINGS if signal.getsignal(number) is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, lambda *_: None)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    end_with_parent(signal.SIGCHLD)  # to look around: a fork of the parent's may hold the pipe open after its death
    given = subprocess.DEVNULL if control == STANDARD_INPUT else None
    try:
        at_birth = functools.partial(_at_birth, heard, is_ray)
        child = subprocess.Popen(command, stdin=given, preexec_fn=at_birth) if command else None
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    is_left = _left_by_parent(child, parent, control, woken)
    if child is not None:
        _end(child, is_ray, grace_s)
    if is_left or os.getppid() != parent:  # it may have ended together with the command, or since
        _clean_up(folder, rescue)
    return 0 if child is None else _code(child.returncode)


def _left_by_parent(child: subprocess.Popen[bytes] | None, parent: int, control: int, woken: int) -> bool:
    """Wait until the command ends or is to end, and pass signals on; whether the parent has let go or has ended."""
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    told, is_left = b"", False  # what the parent says; whether it is gone
    while (child is None or child.poll() is None) and not is_left and b"end\n" not in told:
        for key, _ in waiting.select():
            if key.fd == woken:
                os.read(woken, 4096)
                _bury_orphans(child.pid if child else 0)
                is_left |= os.getppid() != parent
            else:
                word = os.read(control, 4096)
                told += word
                is_left |= not word
        while not is_left and b"end\n" not in told and b"\n" in told:  # the number of a signal to pass on
            line, told = told.split(b"\n", 1)
            if child is not None:
                with contextlib.suppress(OSError):
                    child.send_signal(int(line))
    return is_left


def _end(child: subprocess.Popen[bytes], is_ray: bool, grace_s: float) -> None:
    """End the command with all that it leaves."""
    if is_ray:
        child.kill()  # its daemons end with it
    end_descendants(grace_s, child.pid)
    child.wait()


def _at_birth(heard: set[signal.Signals], is_ray: bool) -> None:
    for number in (*heard, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if is_ray:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        for number in WARNINGS:
            signal.signal(number, signal.SIG_IGN)
    # Hundreds of processes that dump core fill a disk; as many that talk to each other want many descriptors.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    allow_open_files()
    end_with_parent(signal.SIGKILL if is_ray else signal.SIGTERM)


def _clean_up(folder: str, rescue: str) -> None:
    """Save the logs and remove the folder of an agent that cannot do it any more."""
    if not folder:
        return
    if rescue:
        with contextlib.suppress(OSError):
            copy_logs(Path(folder), Path(rescue))
    until = monotonic() + REMOVING_S
    while os.path.exists(folder) and monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        sleep(POLL_S)


def copy_logs(folder: Path, target: Path) -> None:
    """Copy what Ray and we have logged below a private folder."""
    for logs in [*folder.glob("*/session_2*/logs"), *folder.glob("*.log")]:
        if logs.is_dir():
            shutil.copytree(logs, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(logs, target)


def _bury_orphans(spared: int) -> None:
    """Bury the dead that were left to us, where no init does it; not the command, whose code is still wanted."""
    for pid, parent, is_dead in processes():
        if is_dead and parent == os.getpid() and pid != spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


def main() -> None:
    """Run as a program."""
    control, grace, folder, rescue, dashes, *command = sys.argv[1:]
    assert dashes == "--"
    sys.exit(keep(int(control), float(grace), folder, rescue, command))
