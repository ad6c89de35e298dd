"""The user's command on the head, below a keeper that ends all of it even if we are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence

from shoal.machine.keeper import keeper_words

GRACE_S = 5.0  # for what the command leaves running, and for itself when the launcher is killed


class UserCommand:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process, control: int) -> None:
        self._process, self._control = process, control

    @classmethod
    async def start(cls, words: Sequence[str], env: Mapping[str, str]) -> UserCommand:
        """Start it on this terminal, in this folder."""
        readable, control = os.pipe()
        os.set_inheritable(readable, True)
        kept = [*keeper_words(readable, GRACE_S), *words]
        try:
            process = await asyncio.create_subprocess_exec(*kept, env=dict(env), pass_fds=(readable,))
        finally:
            os.close(readable)
        return cls(process, control)

    async def wait(self) -> int:
        """The command's exit code; 128 and more for a signal, as shells do."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Pass a signal on."""
        self._tell(f"{number}\n")

    def end(self) -> None:
        """End it with everything below it, asking first."""
        self._tell("end\n")

    def _tell(self, word: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._control, word.encode())
