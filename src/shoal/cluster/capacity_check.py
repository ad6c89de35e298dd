"""Whether the command will find room on the hosts, asked before Ray is started there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import ConfigError

ANSWERING_TIMEOUT_S = 30.0  # then the command is started without a check: its own start tells, only later
REFUSED = 2  # the exit code of a command that refuses its own words

Resources = Mapping[str, float]
"""What Ray offers on one host: `{"CPU": 4, "GPU": 1}`."""


@dataclass(frozen=True)
class CapacityCheck:
    """How to learn what the user's command needs."""

    question: tuple[str, ...]  # the words of a command that prints it
    check: Callable[[str, Sequence[Resources]], None]  # given the answer and every host; ConfigError: there is no room


async def answer(words: Sequence[str], env: Mapping[str, str]) -> str | None:
    """What a question's command prints; None where it has no answer; ConfigError where it refuses its own words."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
    except OSError:
        return None
    try:
        out, err = await asyncio.wait_for(process.communicate(), ANSWERING_TIMEOUT_S)
    except asyncio.TimeoutError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    problems = re.split(r"^Error: ", err.decode(errors="replace"), flags=re.MULTILINE)[1:]
    if process.returncode == REFUSED and problems:
        raise ConfigError([problem.strip() for problem in problems])
    return out.decode(errors="replace") if process.returncode == 0 else None
