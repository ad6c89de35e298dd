"""Every code that a `shoal` command ends with, and what it says: for the manual page and the reference."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType

from shoal.cluster.exit_codes import HEAD_FAILED, NODE_LOST
from shoal.errors import ConfigError, NodeFailed, ShoalError, TimedOut
from shoal.machine.signals import RESUME_ME, exit_code

MEANINGS: Mapping[int, str] = MappingProxyType(
    {
        0: "done",
        ShoalError.exit_code: "the run failed, and the message says why; `shoal check`, `doctor`, `diagnose`, "
        "`verify`, `checkpoints` and `plugins --check`: there is a problem; `watch`: the run has failed or was killed; "
        "`replay`: it did not fail again at the same step; `reproduce`: it differs, or its chain ends too early; "
        "`bisect`: nothing broke; "
        "`migrate --strict`: a setting has no counterpart",
        ConfigError.exit_code: "something in the configuration or the command is wrong; nothing was started",
        HEAD_FAILED: "`shoal launch`: the head's Ray could not start, or was lost",
        NodeFailed.exit_code: "`shoal launch`: a host could not start",
        TimedOut.exit_code: "`shoal launch`: a host did not appear, or was not ready in time",
        NODE_LOST: "`shoal launch`: a host was lost during the run, with `--on-node-loss stop`",
        RESUME_ME: "every finished iteration is saved; start the same command again (the walltime ends soon: the run "
        "knows, or SIGUSR1 told it)",
        exit_code(signal.SIGHUP): "saved after SIGHUP: the terminal was closed",
        exit_code(signal.SIGINT): "saved after Ctrl-C; `shoal serve`: every request that was accepted is answered",
        exit_code(signal.SIGTERM): "saved after SIGTERM; `shoal serve` as above",
    }
)
