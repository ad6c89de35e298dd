"""What `shoal launch` ends with when it is not the command's own code."""

from __future__ import annotations

from shoal.errors import ClusterError

HEAD_FAILED = 81  # Ray could not be started on the head, or ended there; or the head is lost to this rank
NODE_FAILED = 82  # a host could not start
TIMED_OUT = 83  # a host has not shown up, or was not ready, in time
NODE_LOST = 84  # a host was lost while the command ran, and --on-node-loss is stop


class LaunchError(ClusterError):
    """A cluster that could not be brought up or kept, with the exit code that says why."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
