"""How many threads the libraries for numbers take."""

from __future__ import annotations

import os

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from shoal.machine.threads import THREAD_VARIABLES, are_limited, limit_threads


def test_threads_are_limited_here_and_in_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    try:
        assert not are_limited(os.environ)
        limit_threads(1)
        assert are_limited(os.environ)
        assert np.ones((2, 2)).sum() == 4
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
    finally:
        for name in THREAD_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        threadpool_limits(max(before.values(), default=1))
