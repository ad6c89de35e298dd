"""What an environment is told when it is made: the user's `env_config` and which of all environments it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError

INDICES = ("worker_index", "vector_index", "env_index", "num_workers")


class EnvContext(dict[str, Any]):
    """The user's `env_config` plus the four indices, as items and as attributes.

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
        config = dict(env_config or {})
        taken = [name for name in INDICES if name in config and not isinstance(env_config, EnvContext)]
        if taken:
            raise ConfigError(f"env_config.{taken[0]}: shoal sets this name itself; choose another one")
        super().__init__(config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.env_index = env_index
        self.num_workers = num_workers
        self.update({name: getattr(self, name) for name in INDICES})

    @property
    def user_config(self) -> dict[str, Any]:
        """The items without the four indices: what the user wrote."""
        return {key: value for key, value in self.items() if key not in INDICES}

    def with_config(self, env_config: Mapping[str, Any]) -> EnvContext:
        """The same place in the run with another `env_config`."""
        return EnvContext(env_config, **{name: getattr(self, name) for name in INDICES})
