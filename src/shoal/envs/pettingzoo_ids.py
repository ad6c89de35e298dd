"""PettingZoo's environments by name: `pettingzoo:classic/tictactoe_v3`, also with `-v3`, as its registry has them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from shoal.envs.context import EnvContext
from shoal.envs.env_arguments import guarded
from shoal.errors import ConfigError, EnvStartError

PREFIX = "pettingzoo:"


@dataclass(frozen=True)
class PettingZooMaker:
    """Makes environments of one id, here or in another process."""

    env_id: str

    def __call__(self, ctx: EnvContext) -> Any:
        """Make one, by its parallel API where it has that."""
        package = _package(self.name)
        api = "parallel" if self.env_id in package.parallel_registry else "aec"
        try:
            return guarded(lambda: package.make(api, self.env_id, **ctx), self.name, ctx)
        except EnvStartError as error:
            if isinstance(error.__cause__, ImportError):
                extra = self.env_id.partition("/")[0]
                raise ConfigError(
                    f"env {self.name!r}: it needs more of PettingZoo; type pip install 'pettingzoo[{extra}]'"
                ) from error
            raise

    @property
    def name(self) -> str:
        """What the user types."""
        return f"{PREFIX}{self.env_id}"


def pettingzoo_maker(text: str) -> PettingZooMaker:
    """What `pettingzoo:ID` means."""
    env_id = re.sub(r"_(v\d+)$", r"-\1", text.removeprefix(PREFIX))
    known = pettingzoo_ids()
    if env_id not in known:
        by_last = {name.rpartition("/")[2]: name for name in known}
        near = difflib.get_close_matches(env_id.rpartition("/")[2], by_last, n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(f'{PREFIX}{by_last[name]}' for name in near)}?"
        if not near:
            hint = f"`shoal envs {PREFIX}` lists all {len(known)}; those of MPE are mpe2.NAME:parallel_env"
        raise ConfigError(f"env {text!r}: PettingZoo has no environment {env_id!r}; {hint}")
    return PettingZooMaker(env_id)


def pettingzoo_ids() -> list[str]:
    """Every id that PettingZoo's registry has."""
    package = _package(PREFIX)
    return sorted({*package.aec_registry, *package.parallel_registry})


def _package(name: str) -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        if error.name not in (None, "pettingzoo"):
            raise ConfigError(f"env {name!r}: PettingZoo cannot be imported: {error}") from error
        raise ConfigError(f"env {name!r}: it needs PettingZoo; type pip install 'shoal-rl[pettingzoo]'") from None
    return pettingzoo
