"""What a raylet of ours runs in place of Ray's `setup_worker.py`: workers hear SIGTERM, though the raylet does not.

A worker's simulators inherit from it which signals are blocked, and programs are used to ending theirs by SIGTERM.
"""

from __future__ import annotations

import runpy
import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file, whose modules are not meant to be found by their short names
    runpy.run_module("ray._private.workers.setup_worker", run_name="__main__", alter_sys=True)
