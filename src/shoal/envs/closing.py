"""The end of an environment that is of no more use."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from shoal.envs.copies import comes_back_once
from shoal.envs.env_errors import pass_on_interrupts
from shoal.envs.programs import ProgramEnv, end_programs

logger = logging.getLogger("shoal.envs")

CLOSE_TIMEOUT_S = 10.0
LATE_CLOSE_S = 0.5  # for each environment whose turn comes when others have taken all the time


def close_all_quietly(envs: Sequence[Any]) -> None:
    """Close environments within the time of one; programs end together, for each may take its time to end."""
    deadline, least_s = monotonic() + CLOSE_TIMEOUT_S, min(LATE_CLOSE_S, CLOSE_TIMEOUT_S)
    inner = (getattr(env, "unwrapped", env) for env in envs)
    end_programs([env for env in inner if isinstance(env, ProgramEnv)])
    for env in envs:
        close_quietly(env, max(deadline - monotonic(), least_s))


def close_quietly(env: Any, timeout_s: float | None = None) -> None:
    """Close an environment; a simulator that failed may fail to close too, which tells nothing new."""
    inner = getattr(env, "unwrapped", env)
    # Where a signal has cut a step short, its answers are lost: whoever waits for them meets processes that are gone.
    is_cut = isinstance(inner, AsyncVectorEnv) and inner._state is not AsyncState.DEFAULT
    if is_cut:
        inner._state = AsyncState.DEFAULT
    try:
        limit_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        with warnings.catch_warnings(), _in_time(limit_s), comes_back_once("close()"):
            warnings.simplefilter("ignore")
            env.close(**({"terminate": True} if is_cut else {}))
    except BaseException as error:
        pass_on_interrupts(error)


@contextmanager
def _in_time(timeout_s: float) -> Iterator[None]:
    """Cut short what does not end; where that cannot be, in another thread or beside somebody's own alarm, wait.

    A simulator that hangs in a compiled loop hears no alarm; a command ends without it (`machine.last_exit`).
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGALRM)
    if not is_main or before is None or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def give_up(*_: Any) -> None:
        logger.warning("close() of the environment has not ended within %.3g s, and is left alone", timeout_s)
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
