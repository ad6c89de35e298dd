"""Where a person types commands: a home and a working folder, with the real `shoal` in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SHOAL = str(Path(sys.executable).with_name("shoal"))
DEADLINE_S = 200  # for a command of a second or two: the machine may be busy
GONE_S = 60  # within which the processes of a command that has ended are gone
MARK = "SHOAL_TEST_DESK"


@dataclass(frozen=True)
class Desk:
    """A person's desk: `home` has the results, `work` is the working folder."""

    home: Path
    work: Path
    command: str = SHOAL

    @classmethod
    def new(cls, folder: Path) -> Desk:
        """One with two empty folders."""
        desk = cls(folder / "home", folder / "work")
        desk.home.mkdir()
        desk.work.mkdir()
        return desk

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process; nothing of the tester's own terminal gets through."""
        own = ("NO_COLOR", "FORCE_COLOR", "SHOAL_DEBUG", "TERM", "COLUMNS", "PYTHONUNBUFFERED")
        kept = {name: value for name, value in os.environ.items() if name not in own}
        return {**kept, "HOME": str(self.home), **more}

    def shoal(self, *arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [SHOAL, *arguments],
            cwd=cwd or self.work,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that is listened to."""
        return subprocess.Popen(
            [SHOAL, *arguments],
            cwd=self.work,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: list[str]) -> str:
        """What a command prints; it must end well, and with nothing on stderr."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.work,
            env={**os.environ, "HOME": str(self.home), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", f"{command}\n{done.stderr}"
        return done.stdout

    def runs(self, name: str = "*") -> list[Path]:
        """Every run folder, or those of an experiment."""
        return sorted((self.home / "shoal_results").glob(f"{name}/*"))


@dataclass(frozen=True)
class WatchedDesk:
    """A desk in one folder, whose processes can all be found again by a mark in their environment.

    `before` are the words of a program that goes before the command and becomes it, such as `unshare`.
    """

    home: Path
    before: tuple[str, ...] = ()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command of shoal's."""
        return self._start(["-m", "shoal", *arguments], environment)

    def start_program(self, program: str) -> subprocess.Popen[str]:
        """Start a Python program."""
        return self._start(["-c", program], {})

    def _start(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """Python in a session of its own, so that a signal reaches it alone."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TUNE_"))}
        # A file of its own for each command: one that still runs writes on into the file that it was given.
        (self.home / "stderr").unlink(missing_ok=True)
        with open(self.home / "stderr", "w") as stderr:
            return subprocess.Popen(
                [*self.before, sys.executable, *words],
                cwd=self.home,
                env={**variables, "HOME": str(self.home), MARK: str(self.home), **environment},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def run(self, *arguments: str) -> str:
        """What a command of shoal's prints that ends well."""
        printed, code = self.end(self.start(*arguments))
        assert code == 0, printed + self.complaints()
        return printed

    def end(self, child: subprocess.Popen[str], number: signal.Signals | None = None) -> tuple[str, int]:
        """Signal a process if asked to, and hear it out; its exit code as a shell has it. Nothing of it may stay."""
        if number is not None:
            child.send_signal(number)
        with child:
            printed = child.stdout.read() if child.stdout is not None else ""
            code = child.wait(DEADLINE_S)
        _, alive = psutil.wait_procs(self.processes(), timeout=GONE_S)
        assert not alive
        assert "Traceback" not in printed + self.complaints(), self.complaints()
        return printed, 128 - code if code < 0 else code

    @staticmethod
    def wait_for(child: subprocess.Popen[str], condition: Callable[[], Any]) -> Any:
        """What a condition gives as soon as it is true; the process must live until then."""
        while not (value := condition()):
            assert child.poll() is None
            time.sleep(0.01)
        return value

    def complaints(self) -> str:
        """What the last command wrote to stderr."""
        return (self.home / "stderr").read_text()

    def kill_all(self) -> None:
        """End what a test that fails half-way has left running."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """Every living process that a command of this desk started, at whatever remove."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get(MARK) == str(self.home)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def shown(self, path: Path) -> str:
        """A path as the commands of this desk print it: they are typed in its home."""
        return str(path.relative_to(self.home))

    def run_folder(self) -> Path:
        """The one run that has results."""
        (file,) = (self.home / "shoal_results").glob("*/*/result.json")
        return file.parent
