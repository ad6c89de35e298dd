"""EnvPool's environments by name: `envpool:Pong-v5` is a batch of Pong that steps itself in C++."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.envs.batches import PoolVector, refuse_players, sound_spaces
from shoal.envs.context import EnvContext
from shoal.envs.env_arguments import guarded
from shoal.envs.spaces import Space
from shoal.errors import ConfigError
from shoal.machine.cores import cores

PREFIX = "envpool:"

_OF_DRAWING = ("render_mode", "render_env_id", "render_width", "render_height", "render_camera_id", "from_pixels")
_OURS = {
    "num_envs": "set config.num_envs_per_worker",
    "batch_size": "shoal steps all environments of a pool together; set config.num_envs_per_worker",
    "seed": "set config.seed, from which every environment gets its own",
    "env_seed": "set config.seed, from which every environment gets its own",
    "gym_reset_return_info": "leave it out",
    "base_path": "set the variable ENVPOOL_ASSETS_PATH",
    "max_num_players": "leave it out: shoal trains one agent",
}


@dataclass(frozen=True)
class EnvPoolMaker:
    """Makes pools of one environment, here or in another process."""

    env_id: str

    def __call__(self, ctx: EnvContext) -> PoolVector:
        """Make a pool with as many environments as the worker is to have."""
        self._check(ctx)
        # Alone, a pool may have every core; beside other workers it has its own.
        settings = {"num_threads": min(ctx.num_envs, cores()) if ctx.num_workers == 0 else 1, **ctx}
        make = _package(self.name).make_gymnasium
        return PoolVector(
            guarded(lambda: make(self.env_id, num_envs=ctx.num_envs, **settings), self.name, ctx), self.name
        )

    def spaces(self) -> tuple[Space, Space]:
        """The spaces, for which no environment need be made."""
        spec = _package(self.name).make_spec(self.env_id)
        refuse_players(spec.config.max_num_players, self.name)
        return sound_spaces(lambda: (spec.gymnasium_observation_space, spec.gymnasium_action_space))

    @property
    def name(self) -> str:
        """What the user types."""
        return f"{PREFIX}{self.env_id}"

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Refuse what the environment does not take, and what shoal sets itself."""
        make_spec = _package(self.name).make_spec
        spec = guarded(lambda: make_spec(self.env_id), self.name, EnvContext())
        takes = [*(key for key in spec._config_keys if key not in _OURS), *_OF_DRAWING]
        problems = []
        for key in settings:
            if key in _OURS:
                problems.append(f"env_config.{key}: {_OURS[key]}")
            elif key not in takes:
                near = difflib.get_close_matches(key, takes, n=3, cutoff=0.5)
                hint = f"did you mean {', '.join(near)}?" if near else f"it takes {', '.join(takes)}"
                problems.append(f"env_config.{key}: env {self.name} takes no such argument; {hint}")
        if problems:
            raise ConfigError(problems)


def envpool_maker(text: str) -> EnvPoolMaker:
    """What `envpool:ID` means."""
    env_id = text.removeprefix(PREFIX)
    known = envpool_ids()
    if env_id not in known:
        raise ConfigError(f"env {text!r}: EnvPool has no environment {env_id!r}; {_near(env_id, known)}")
    return EnvPoolMaker(env_id)


def envpool_ids() -> list[str]:
    """Every id that EnvPool has."""
    return list(_package(PREFIX).list_all_envs())


def _near(env_id: str, known: list[str]) -> str:
    by_lower = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(env_id.lower(), by_lower, n=3, cutoff=0.6)
    if not near:
        return f"`shoal envs {PREFIX}` lists all {len(known)}"
    return f"did you mean {', '.join(f'{PREFIX}{by_lower[name]}' for name in near)}?"


def _package(name: str) -> Any:
    try:
        import envpool
    except ImportError as error:
        if error.name not in (None, "envpool"):
            raise ConfigError(f"env {name!r}: EnvPool cannot be imported: {error}") from error
        if sys.version_info < (3, 11):
            raise ConfigError(f"env {name!r}: EnvPool needs Python 3.11 or newer") from None
        raise ConfigError(f"env {name!r}: it needs EnvPool; type pip install 'shoal-rl[envpool]'") from None
    return envpool
