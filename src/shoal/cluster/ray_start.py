"""`ray start`, deaf to what a scheduler tells every process of a job, and able to leave its cluster when it is told to.

`python -m shoal.cluster.ray_start start --block ...` takes the words of Ray's own `ray`. The keeper above it blocks
the signals, and sends LEAVE.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from shoal.machine.broadcasts import LEAVE, with_hearing_workers


def _leave(_number: int, frame: FrameType | None) -> None:
    """Do what Ray does at a SIGTERM: let work move away, then end."""
    drain: Any = signal.getsignal(signal.SIGTERM)
    if not callable(drain):  # Ray has not started anything yet
        sys.exit(1)
    drain(signal.SIGTERM, frame)


def main() -> None:
    """Run as a program."""
    signal.signal(LEAVE, _leave)
    from ray._private import services
    from ray.scripts.scripts import main as ray

    services.start_raylet = with_hearing_workers(services.start_raylet)
    ray()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
