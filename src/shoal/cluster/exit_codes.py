"""What `shoal launch` ends with when it is not the command's own code."""

from __future__ import annotations

from shoal.errors import HeadFailed

HEAD_FAILED = HeadFailed.exit_code  # also where Ray ends on the head later, or the head is lost to this rank
NODE_LOST = 84  # a host was lost while the command ran, and --on-node-loss is stop
