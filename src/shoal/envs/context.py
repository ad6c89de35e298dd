"""What an environment is told when it is made: the user's `env_config` and which of all environments it is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cached_property
from shutil import rmtree
from typing import Any

from shoal.envs.scratch import scratch_folder
from shoal.errors import NoSuchItem

INDICES = ("worker_index", "vector_index", "env_index", "num_workers")
ATTRIBUTES = (*INDICES, "scratch_dir", "port")


class EnvContext(dict[str, Any]):
    """The user's `env_config`, and nothing else, as items; the four indices, `scratch_dir` and `port` as attributes.

    `env_index` counts over all workers, so it names one environment of the whole run (a case folder, a port);
    `vector_index` counts inside one worker. `scratch_dir` is made when it is asked for, in the folder `scratch`.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        env_index: int = 0,
        num_workers: int = 0,
        scratch: str | None = None,
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.env_index = env_index
        self.num_workers = num_workers
        self._scratch = scratch

    @cached_property
    def scratch_dir(self) -> str:
        """An empty folder of this environment's own on the disk of its host, which is removed at the end."""
        return scratch_folder(self.env_index, self._scratch)

    def remove_scratch(self) -> None:
        """Remove the folder, if it was ever asked for."""
        if "scratch_dir" in vars(self):
            rmtree(self.scratch_dir, ignore_errors=True)

    @cached_property
    def port(self) -> int:
        """A TCP port of this host that was free when it was first asked for."""
        with socket.socket() as found:
            found.bind(("", 0))
            return int(found.getsockname()[1])

    def __missing__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            raise NoSuchItem(f"{name} is an attribute of the config; type config.{name}")
        raise KeyError(name)

    def with_config(self, env_config: Mapping[str, Any]) -> EnvContext:
        """The same place in the run with another `env_config`."""
        return EnvContext(env_config, scratch=self._scratch, **{name: getattr(self, name) for name in INDICES})
