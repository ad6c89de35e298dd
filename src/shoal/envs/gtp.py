"""The Go Text Protocol (GTP, version 2): how an environment speaks with a program that plays a board game.

    environment  play black E5
    program      =
    environment  genmove white
    program      = C5

An answer begins with `=`, a refusal with `?`, and either ends with an empty line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic

from shoal.envs.line_protocol import shown
from shoal.envs.program_files import located, runnable
from shoal.envs.program_process import ProgramProcess
from shoal.errors import ConfigError, EnvError

_GAMES = ("/usr/games", "/usr/local/games")  # Debian installs games where root's PATH does not look


class GtpEngine:
    """A program that is started here and answers commands of GTP, each within `timeout_s`.

    The first answer has `start_timeout_s`. A program that ends, hangs or answers nonsense raises EnvError. It runs in a
    process group of its own, which ends with `close`, with the first deadline that is passed, and with the process
    that has started it.
    """

    def __init__(self, command: Sequence[str], timeout_s: float, start_timeout_s: float | None = None) -> None:
        self.program = command[0]
        self.timeout_s = timeout_s if start_timeout_s is None else start_timeout_s
        words = [_found(command[0]), *command[1:]]
        self._process = ProgramProcess(words, os.getcwd(), {}, "pipe", self.timeout_s, farewell=b"quit\n")
        try:
            self.name = self.ask("name")
        except EnvError as error:
            self.close()
            raise EnvError(f"{self.program} does not speak GTP: {error}") from None
        self.timeout_s = timeout_s

    def ask(self, command: str) -> str:
        """The answer to one command, without its `=`."""
        link, deadline = self._process.link, monotonic() + self.timeout_s
        lines: list[str] = []
        try:
            link.write(f"{command}\n".encode(), deadline)
            while not lines or lines[-1]:
                line = link.line(deadline)
                if line is None:
                    raise EnvError(f"{self.program} {self._process.fate()}")
                text = line.decode(errors="replace").strip()
                if text or lines:
                    lines.append(text)
                if lines and lines[0][0] not in "=?":
                    self._process.kill()
                    what = f"{command!r} with {shown(text)}, which is not an answer of GTP"
                    raise EnvError(f"{self.program} answered {what}")
        except TimeoutError:
            self._process.kill()
            raise EnvError(f"{self.program} did not answer {command!r} within {self.timeout_s:g} s") from None
        except (OSError, ValueError):
            raise EnvError(f"{self.program} {self._process.fate()}") from None
        answer = "\n".join(lines).strip()
        if answer[0] == "?":
            raise EnvError(f"{self.program} refused {command!r}: {shown(answer[1:].strip())}")
        return answer[1:].strip()

    def close(self) -> None:
        """End the program and whatever it has started; never raises."""
        self._process.close()


def _found(program: str) -> str:
    """The file of a program: a path, or a name in PATH or where games are."""
    where = os.pathsep.join([os.environ.get("PATH", os.defpath), *_GAMES])
    file = located(program, where)
    if file is None:
        raise ConfigError(f"there is no program {program!r} here, neither in PATH nor in {' or '.join(_GAMES)}")
    return os.path.abspath(runnable(file, "the program"))
