"""The end of an environment that is of no more use."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from shoal.envs.env_errors import pass_on_interrupts

logger = logging.getLogger("shoal.envs")

CLOSE_TIMEOUT_S = 10.0


def close_quietly(env: Any) -> None:
    """Close an environment; a simulator that failed may fail to close too, which tells nothing new."""
    inner = getattr(env, "unwrapped", env)
    # Where a signal has cut a step short, its answers are lost: whoever waits for them meets processes that are gone.
    is_cut = isinstance(inner, AsyncVectorEnv) and inner._state is not AsyncState.DEFAULT
    if is_cut:
        inner._state = AsyncState.DEFAULT
    try:
        with warnings.catch_warnings(), _in_time():
            warnings.simplefilter("ignore")
            env.close(**({"terminate": True} if is_cut else {}))
    except BaseException as error:
        pass_on_interrupts(error)


@contextmanager
def _in_time() -> Iterator[None]:
    """Cut short what does not end; where that cannot be, in another thread or beside somebody's own alarm, wait.

    A simulator that hangs in a compiled loop hears no alarm; a command ends without it (`machine.last_exit`).
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGALRM)
    if not is_main or before is None or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, CLOSE_TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(*_: Any) -> None:
    logger.warning("close() of the environment has not ended within %g s, and is left alone", CLOSE_TIMEOUT_S)
    raise TimeoutError
