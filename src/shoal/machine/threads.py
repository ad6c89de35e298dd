"""How many threads the libraries for numbers take."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_variables(count: int) -> dict[str, str]:
    """The variables that limit OpenMP and BLAS, which read them when NumPy and PyTorch are imported."""
    return dict.fromkeys(THREAD_VARIABLES, str(count))


def are_limited(environ: Mapping[str, str]) -> bool:
    """Whether somebody has said how many threads there are to be."""
    return any(environ.get(name) for name in THREAD_VARIABLES)


def limit_threads(count: int) -> None:
    """Limit the threads of this process, and of every one that is started from here."""
    os.environ.update(thread_variables(count))
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)
