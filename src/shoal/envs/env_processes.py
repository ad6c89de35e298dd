"""The fork server of a worker whose environments have processes of their own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from shoal.envs.fork_server import Folder
from shoal.envs.forked_processes import ForkedProcesses
from shoal.errors import ConfigError


class EnvProcesses(ForkedProcesses):
    """The fork server of this process, for as long as any vector uses it."""

    _instance: ClassVar[EnvProcesses | None] = None

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError("config.env_isolation: environments in processes of their own need Linux")
        self._users = 0
        environ = dict(os.environ)
        if not environ.get("OPENBLAS_NUM_THREADS"):
            # Each environment has a core at best; as many threads as cores in each would fight for them.
            environ |= {"OPENBLAS_NUM_THREADS": "1", "SHOAL_ONE_BLAS_THREAD": "1"}
        super().__init__("shoal.envs.env_process", environ)

    @classmethod
    def use(cls) -> EnvProcesses:
        """The one of this process; who uses it calls `release` in the end."""
        found = cls._instance
        if found is None or found.is_broken:
            found = cls._instance = cls()
        found._users += 1
        return found

    def release(self) -> None:
        """Say that one user less is there; the last one takes the server along."""
        self._users -= 1
        if self._users:
            return
        if EnvProcesses._instance is self:
            EnvProcesses._instance = None
        self.close()

    def start(
        self, ready: int, memory: int, group: int, memory_limit: int | None, folder: Folder | None = None
    ) -> tuple[int, socket.socket]:
        """Start a process: its number here, and the socket to it.

        `ready` is the pipe for its answers, `memory` the rows that it shares, `group` the semaphore of quiet ones.
        """
        return self.fork([ready, memory, group], memory_limit, folder)


@contextmanager
def env_processes() -> Iterator[EnvProcesses]:
    """The fork server of this process, for as long as the block lasts."""
    processes = EnvProcesses.use()
    try:
        yield processes
    finally:
        processes.release()
