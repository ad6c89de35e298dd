"""The keeper: whatever it started ends, with all that it left behind, however we end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from shoal.machine.broadcasts import ENDINGS, WARNINGS
from shoal.machine.keeper import keeper_words

DEADLINE_S = 100.0
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for generation in range(2):
    if os.fork():
        if generation == 0:
            os.waitpid(-1, 0)
            time.sleep(float(sys.argv[2]))
        os._exit(int(sys.argv[3]))
    os.setsid()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(1000)
"""


class Kept:
    """A keeper with a command that has left a stubborn daemon behind."""

    def __init__(self, folder: Path, seconds: float = 1000.0, code: int = 0) -> None:
        self.pid_file, self.kept = folder / "pid", folder / "kept"
        (self.kept / "r" / "session_2026" / "logs").mkdir(parents=True)
        (self.kept / "r" / "session_2026" / "logs" / "raylet.out").write_text("said\n")
        readable, self.control = os.pipe()
        os.set_inheritable(readable, True)
        words = keeper_words(readable, 0.2, str(self.kept), str(folder / "saved"))
        command = [sys.executable, "-c", DAEMON, str(self.pid_file), str(seconds), str(code)]
        self.process = subprocess.Popen([*words, *command], pass_fds=(readable,))
        os.close(readable)

    def daemon(self) -> psutil.Process:
        """The process that the command has left, once it is there."""
        return psutil.Process(int(waited_for(lambda: self.pid_file.exists() and self.pid_file.read_text())))


def waited_for(get):  # type: ignore[no-untyped-def]
    deadline = monotonic() + DEADLINE_S
    while not (value := get()):
        assert monotonic() < deadline
        sleep(0.01)
    return value


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    with contextlib.suppress(psutil.Error):
        made.daemon().kill()
    made.process.kill()
    made.process.wait()


def test_it_ends_everything_when_told(kept: Kept) -> None:
    daemon = kept.daemon()
    os.write(kept.control, b"end\n")
    assert kept.process.wait(DEADLINE_S) == 128 + signal.SIGKILL
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE
    assert kept.kept.exists()  # who tells it wants the logs


def test_it_ends_everything_and_saves_the_logs_when_its_parent_is_gone(kept: Kept, tmp_path: Path) -> None:
    daemon = kept.daemon()
    os.close(kept.control)
    kept.process.wait(DEADLINE_S)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE
    assert not kept.kept.exists()
    assert (tmp_path / "saved" / "raylet.out").read_text() == "said\n"


def test_what_the_command_leaves_ends_with_it_and_its_code_is_the_keepers(tmp_path: Path) -> None:
    made = Kept(tmp_path, seconds=0.0, code=85)
    daemon = made.daemon()
    assert made.process.wait(DEADLINE_S) == 85
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


def test_a_parent_that_ends_while_the_keeper_ends_what_is_left_has_its_folder_removed(tmp_path: Path) -> None:
    """As when a host's Ray and its agent are killed together: the command is gone before the parent is."""
    parent = subprocess.Popen([sys.executable, "-c", LEAVING, str(tmp_path), SLOW_TO_END], stdout=-1, text=True)
    assert parent.stdout is not None
    kept, slow = (psutil.Process(int(parent.stdout.readline())) for _ in range(2))
    try:
        waited_for((tmp_path / "asked").exists)  # by the keeper, whose command has ended by itself
        parent.kill()
        parent.wait(DEADLINE_S)
        slow.kill()
        assert psutil.wait_procs([kept], timeout=DEADLINE_S)[0]
        assert not (tmp_path / "folder").exists()
    finally:
        with contextlib.suppress(psutil.Error):
            slow.kill()
        parent.stdout.close()


SLOW_TO_END = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1] + "/asked", "w").close())
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print(os.getpid(), flush=True)
while True:
    time.sleep(1000)
"""
LEAVING = """
import os, subprocess, sys, time
from shoal.machine.keeper import keeper_words
folder, slow = sys.argv[1:]
os.mkdir(folder + "/folder")
readable, writable = os.pipe()
os.set_inheritable(readable, True)
command = ["sh", "-c", '"$0" -c "$1" "$2" & read go', sys.executable, slow, folder]
words = [*keeper_words(readable, 1000.0, folder + "/folder"), *command]
process = subprocess.Popen(words, stdin=-1, stdout=-1, pass_fds=(readable,), text=True)
print(process.pid, flush=True)
print(process.stdout.readline(), end="", flush=True)
process.stdin.close()
time.sleep(1000)
"""


def test_signals_go_to_the_command_alone(tmp_path: Path) -> None:
    readable, control = os.pipe()
    os.set_inheritable(readable, True)
    words = keeper_words(readable, 1)
    script = 'trap "echo heard; exit 7" USR1; echo ready; while :; do sleep 0.05; done'
    process = subprocess.Popen([*words, "bash", "-c", script], pass_fds=(readable,), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)  # as a scheduler that signals everybody does
    process.send_signal(signal.SIGTERM)
    os.write(control, f"{int(signal.SIGUSR1)}\n".encode())
    assert process.communicate(timeout=DEADLINE_S)[0] == "heard\n"
    assert process.returncode == 7


DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: print("ended", flush=True))
print("on", flush=True)
sys.stdin.readline()
print("here", flush=True)
sys.stdin.read()
"""


def test_a_ray_is_deaf_to_what_a_scheduler_tells_everybody(tmp_path: Path) -> None:
    """Its daemons have handlers of their own, which must not be called; who started it ends it."""
    readable, control = os.pipe()
    os.set_inheritable(readable, True)
    words = keeper_words(readable, 1, str(tmp_path))
    command = [sys.executable, "-c", DEAF]
    process = subprocess.Popen([*words, *command], pass_fds=(readable,), stdin=-1, stdout=-1, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    (ray,) = psutil.Process(process.pid).children()
    for number in ENDINGS | WARNINGS:
        process.send_signal(number)
        ray.send_signal(number)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "here\n"
    os.write(control, b"end\n")
    assert process.stdout.read() == "", "it is not asked"
    assert process.wait(DEADLINE_S) == 128 + signal.SIGKILL
    process.stdin.close()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    readable, _ = os.pipe()
    os.set_inheritable(readable, True)
    words = [*keeper_words(readable, 1), str(tmp_path / "nothing")]
    done = subprocess.run(words, pass_fds=(readable,), capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr.endswith("nothing: No such file or directory\n")


def test_a_fork_of_the_parent_that_holds_the_pipe_does_not_hold_the_keeper(tmp_path: Path) -> None:
    """As a simulator that forks the driver does: only the parent's own death counts."""
    parent = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=-1, text=True)
    assert parent.stdout is not None
    told = dict(parent.stdout.readline().split() for _ in range(2))
    kept, holder = psutil.Process(int(told["kept"])), psutil.Process(int(told["holder"]))
    parent.kill()
    parent.wait(DEADLINE_S)
    try:
        assert psutil.wait_procs([kept], timeout=DEADLINE_S)[0]
        assert waited_for(lambda: not (tmp_path / "folder").exists())
    finally:
        holder.kill()
        parent.stdout.close()


HOLDING = """
import os, subprocess, sys, time
from shoal.machine.keeper import keeper_words
folder = sys.argv[1] + "/folder"
os.mkdir(folder)
process = subprocess.Popen([*keeper_words(0, 0.0, folder), "sh", "-c", "echo kept $$; exec sleep 1000"], stdin=-1)
if os.fork() == 0:
    print("holder", os.getpid(), flush=True)
time.sleep(1000)
"""
