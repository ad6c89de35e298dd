"""The end of an environment that is of no more use."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def close_quietly(env: Any) -> None:
    """Close an environment; a simulator that failed may fail to close too, which tells nothing new."""
    inner = getattr(env, "unwrapped", env)
    # Where a signal has cut a step short, its answers are lost: whoever waits for them meets processes that are gone.
    is_cut = isinstance(inner, AsyncVectorEnv) and inner._state is not AsyncState.DEFAULT
    if is_cut:
        inner._state = AsyncState.DEFAULT
    with suppress(Exception, SystemExit), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env.close(**({"terminate": True} if is_cut else {}))
