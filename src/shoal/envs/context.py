"""What an environment is told when it is made: the user's `env_config` and which of all environments it is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cached_property
from shutil import rmtree
from typing import Any

from shoal.envs.scratch import SHARED_MEMORY, keep_failed, scratch_folder
from shoal.errors import NoSuchItem
from shoal.machine.slots import RankSlot, TakenSlots, take_slots

INDICES = ("worker_index", "vector_index", "env_index", "num_workers")
ATTRIBUTES = (*INDICES, "num_envs", "scratch_dir", "port", "slots")


class EnvContext(dict[str, Any]):
    """The user's `env_config`, and nothing else, as items; the indices and what it alone has as attributes.

    `env_index` counts over all workers, so it names one environment of the whole run (a case folder, a port);
    `vector_index` counts inside one worker, which has `num_envs` of them. `scratch_dir` is made when it is asked for,
    in the folder `scratch`. Of `env_ranks` slots that nobody has given it, an environment takes its own when it asks
    for them.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        env_index: int = 0,
        num_workers: int = 0,
        num_envs: int = 1,
        scratch: str | None = None,
        memory: str | None = None,
        env_ranks: int = 0,
        slots: tuple[RankSlot, ...] = (),
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.env_index = env_index
        self.num_workers = num_workers
        self.num_envs = num_envs
        self._scratch, self._memory, self._env_ranks, self._slots = scratch, memory, env_ranks, slots
        self._taken: TakenSlots | None = None

    @cached_property
    def scratch_dir(self) -> str:
        """An empty folder of this environment's own on the disk of its host, which is removed at the end."""
        return scratch_folder(self.env_index, self._scratch)

    @cached_property
    def memory_dir(self) -> str:
        """As `scratch_dir`, in the host's shared memory: for what ranks on one host share."""
        return scratch_folder(self.env_index, self._memory, SHARED_MEMORY)

    @property
    def slots(self) -> tuple[RankSlot, ...]:
        """The places of this environment's ranks (`env_ranks`), in their order; no other environment has them."""
        if not self._slots and self._env_ranks:
            self._taken = take_slots(self._env_ranks)
            self._slots = self._taken.slots
        return self._slots

    def release(self) -> None:
        """Remove the folder and give the slots back, if they were ever asked for."""
        if self._taken is not None:
            self._taken.release()
        for name in ("scratch_dir", "memory_dir"):
            if name in vars(self):
                rmtree(getattr(self, name), ignore_errors=True)

    def keep_scratch(self) -> str:
        """Keep the folder of an environment that failed: where it is now; empty if there is nothing in it."""
        return keep_failed(vars(self).pop("scratch_dir")) if "scratch_dir" in vars(self) else ""

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
        kept = {name: getattr(self, name) for name in (*INDICES, "num_envs")}
        same = EnvContext(env_config, scratch=self._scratch, memory=self._memory, slots=self.slots, **kept)
        same._taken = self._taken  # it has them for as long as either of both is needed
        return same
