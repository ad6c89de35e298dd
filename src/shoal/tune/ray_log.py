"""What Ray and Tune have to say goes to a file, and nothing of it to the user."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.runs.logs import LogFile


@contextmanager
def ray_log_to(path: Path) -> Iterator[None]:
    """Send the messages of Ray's own loggers to `path` meanwhile, and its warnings nowhere."""
    log = logging.getLogger("ray")
    handler = LogFile(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = log.handlers[:], log.propagate, log.level
    log.handlers[:], log.propagate = [handler], False
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"ray\.")
            yield
    finally:
        log.handlers[:], log.propagate = before[:2]
        log.setLevel(before[2])
        handler.close()


@contextmanager
def variables(**wanted: str) -> Iterator[None]:
    """Set variables of the environment meanwhile."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
