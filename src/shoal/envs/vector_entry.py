"""Gymnasium ids whose environments can step as one: by a vector class of their own, or by EnvPool's of that name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from shoal.envs.context import EnvContext
from shoal.envs.env_arguments import check_keywords, guarded
from shoal.envs.envpool_ids import EnvPoolMaker, envpool_ids
from shoal.errors import ConfigError


@dataclass(frozen=True)
class VectorEntry:
    """Makes batches by an id's vector entry point, here or in another process."""

    spec: EnvSpec
    name: str
    settings: dict[str, Any]

    def __call__(self, ctx: EnvContext) -> Any:
        """Make one batch with as many environments as the worker is to have."""
        keywords = {**self.settings, **ctx}
        entry = self.spec.vector_entry_point
        target = load_env_creator(entry) if isinstance(entry, str) else entry
        assert target is not None
        check_keywords(target, self.name, keywords, ())
        if "num_envs" in keywords:
            raise ConfigError("env_config.num_envs: set config.num_envs_per_worker")
        return guarded(lambda: self._make(ctx.num_envs, keywords), self.name, ctx)

    def _make(self, num_envs: int, keywords: dict[str, Any]) -> Any:
        return gymnasium.make_vec(
            self.spec, num_envs=num_envs, vectorization_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT, **keywords
        )


def vector_entry(spec: EnvSpec, name: str, settings: dict[str, Any]) -> VectorEntry:
    """What makes an id's environments as one; an id without a vector class is refused."""
    if spec.vector_entry_point is None:
        raise ConfigError(
            f"config.vectorization: native needs a vector class, and env {name} has none registered; "
            "leave it out, or set envpool where EnvPool has the environment"
        )
    return VectorEntry(spec, name, settings)


def pool_of(spec: EnvSpec) -> EnvPoolMaker:
    """EnvPool's environment of an id's name, which for Atari's is the one without ALE/."""
    if find_spec("envpool") is None:
        raise ConfigError("config.vectorization: envpool needs EnvPool; type pip install 'shoal-rl[envpool]'")
    if spec.id not in (known := envpool_ids()):
        bare = f"{spec.name}-v{spec.version}"
        if bare not in known:
            raise ConfigError(
                f"config.vectorization: EnvPool has no environment {bare}; leave vectorization out, or name one "
                f"that it has (`shoal envs envpool:{spec.name}`)"
            )
        return EnvPoolMaker(bare)
    return EnvPoolMaker(spec.id)
