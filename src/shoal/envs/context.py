"""What an environment is told when it is made: the user's `env_config` and which of all environments it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import NoSuchItem

INDICES = ("worker_index", "vector_index", "env_index", "num_workers")


class EnvContext(dict[str, Any]):
    """The user's `env_config`, and nothing else, as items; the four indices as attributes.

    `env_index` counts over all workers, so it names one environment of the whole run (a case folder, a port);
    `vector_index` counts inside one worker.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        env_index: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.env_index = env_index
        self.num_workers = num_workers

    def __missing__(self, name: str) -> Any:
        if name in INDICES:
            raise NoSuchItem(f"{name} is an attribute of the config; type config.{name}")
        raise KeyError(name)

    def with_config(self, env_config: Mapping[str, Any]) -> EnvContext:
        """The same place in the run with another `env_config`."""
        return EnvContext(env_config, **{name: getattr(self, name) for name in INDICES})
