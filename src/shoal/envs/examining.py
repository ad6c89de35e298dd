"""Runs an examination in a process of its own, which may hang, die or flood its output with the simulator in it."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from shoal.data.findings import Finding
from shoal.envs.copies import end_copy
from shoal.envs.env_errors import error_text
from shoal.envs.examination import CHECKS, CLOSE_REMEDY, Examination, closing_limit_s
from shoal.envs.examination_of_agents import agents_play
from shoal.envs.examination_of_states import batch_play, own_state
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.making import env_maker
from shoal.errors import ConfigError, EnvError

START_S = 60.0  # for the process itself, whose imports may come from a slow file system
POLL_S = 0.2
CUT_S = 5.0  # for a close() that hangs to be cut short
LAST_LINES = 3

_NOT_MADE = "; the checks after it were not made"


@dataclass(frozen=True)
class Wanted:
    """What to examine, in values that another process can take."""

    env: Any
    env_config: dict[str, Any]
    user_code: UserCode = INSTALLED
    wrappers: tuple[Any, ...] = ()
    preprocessor_pref: str | None = None
    episodes: int = 10
    max_steps: int = 10_000
    budget_s: float = 20.0
    timeout_s: float = 60.0
    env_ranks: int = 0
    is_randomized: bool = False  # whether training draws values for each episode


def examine(wanted: Wanted) -> Iterator[Finding]:
    """All findings, as they come; a simulator that ends or hangs its process is a finding too.

    Raises ConfigError where the environment's name or `env_config` makes no sense: there is nothing to examine.
    """
    context = multiprocessing.get_context("spawn")
    answers, end = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as folder:
        output = Path(folder, "output.txt")
        process = context.Process(target=_child, args=(wanted, end, str(output)), name="shoal check")
        process.start()
        end.close()
        try:
            yield from _findings(wanted, answers, process, output)
        finally:
            _end(process)


def _findings(wanted: Wanted, answers: Connection, process: Any, output: Path) -> Iterator[Finding]:
    check, call = "first steps", "the start"
    heard = monotonic() + START_S
    while True:
        if answers.poll(POLL_S):
            try:
                kind, value = answers.recv()
            except EOFError:
                break
            heard = monotonic()
            if kind == "finding":
                yield value
            elif kind == "check":
                check = value
            elif kind == "call":
                call = value
            elif kind == "refused":
                raise ConfigError(value)
            elif kind == "done":
                return
        elif call == "close()" and monotonic() - heard > closing_limit_s(wanted.timeout_s) + CUT_S:
            text = f"close() did not return within {closing_limit_s(wanted.timeout_s):g} s{_NOT_MADE}"
            yield Finding(check, "problem", text, CLOSE_REMEDY)
            return
        elif call != "close()" and monotonic() - heard > wanted.timeout_s:
            remedy = "find out why; set a deadline for it (env_step_timeout_s, env_reset_timeout_s) to train anyway"
            yield Finding(check, "problem", f"{call} did not return within {wanted.timeout_s:g} s{_NOT_MADE}", remedy)
            return
    process.join(START_S)
    yield Finding(
        check,
        "problem",
        f"{call} ended the process ({_cause(process.exitcode)}){_tail(output)}{_NOT_MADE}",
        "a simulator that may crash is trained in a process of its own: --set config.env_isolation=process",
    )


def _end(process: Any) -> None:
    """End the process and whatever it has started; it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join(START_S)


def _child(wanted: Wanted, answers: Connection, output: str) -> None:
    os.setpgid(0, 0)
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    last, pid = [""], os.getpid()

    def alive(call: str) -> None:
        # The name of a call is sent when it changes, a sign of life at most every second.
        end_copy(pid, last[0])
        now = monotonic()
        if call != last[0] or now - sent[0] > 1:
            last[0], sent[0] = call, now
            answers.send(("call", call))

    sent = [0.0]
    try:
        maker = env_maker(wanted.env, wanted.user_code, wanted.wrappers, wanted.preprocessor_pref)
    except ConfigError as error:
        answers.send(("refused", error.problems))
        return
    exam = Examination(
        maker,
        wanted.env_config,
        wanted.episodes,
        wanted.max_steps,
        wanted.budget_s,
        alive,
        wanted.env_ranks,
        wanted.timeout_s,
    )
    exam.is_randomized = wanted.is_randomized
    left = list({**CHECKS, "own state": own_state}.items())
    while left:
        name, check = left.pop(0)
        answers.send(("check", name))
        try:
            for finding in check(exam):
                answers.send(("finding", finding))
        except ConfigError as error:
            answers.send(("refused", error.problems))
            return
        except BaseException as error:
            text = str(error) if isinstance(error, EnvError) else f"{last[0]} raised {error_text(error)}"
            if text not in exam.said:
                answers.send(("finding", Finding(name, "problem", text, "fix the environment's code there")))
            exam.said.add(text)
            if name == "first steps":
                break
        finally:
            end_copy(pid, last[0])
            for finding in exam.close_findings():
                answers.send(("finding", finding))
        if exam.is_batch and name == "first steps":
            left = [("random actions", agents_play if exam.has_agents else batch_play)]
    answers.send(("done", None))


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _tail(output: Path) -> str:
    """The last lines that it printed, which often say why; of a crash, the innermost line of Python."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    for number, line in enumerate(lines[:-1]):
        if line.startswith(("Current thread", "Thread")) and "most recent call first" in line:
            return f" in {_user_line(lines[number + 1 :])}"
    return f"; it printed last: {' | '.join(lines[-LAST_LINES:])[:300]}" if lines else ""


def _user_line(stack: list[str]) -> str:
    """The innermost frame that is no library's, of a stack that faulthandler printed."""
    frames = [line for line in stack if line.startswith("File ")]
    own = [line for line in frames if "/lib/python" not in line]
    return (own or frames or ["its native code"])[0]
