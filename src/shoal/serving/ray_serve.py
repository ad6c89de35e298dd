"""The same application as a deployment of Ray Serve: on the Ray that RAY_ADDRESS names, or on a private one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import ClusterError
from shoal.machine.cores import cores
from shoal.machine.signals import exit_code
from shoal.parallel.ray_session import open_session
from shoal.serving.served_policy import PolicySource
from shoal.serving.server import listening_to_signals
from shoal.serving.service import ServingLimits

APP = "shoal"
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}
"""Ray Serve ends its own proxy if that is not up within 5 s, which a busy machine does not manage."""


def serve_on_ray(
    sources: Sequence[PolicySource],
    limits: ServingLimits,
    follow: bool,
    token: str,
    host: str,
    port: int,
    replicas: int,
    when_up: Callable[[str], None],
) -> int:
    """Deploy, and stay until a signal; then it is taken down, and the exit code that follows is returned."""
    ended = threading.Event()
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)  # Ray's processes inherit it
    with listening_to_signals(ended.set) as heard:
        session = open_session(max(cores(), replicas + 1))
        try:
            from ray import serve as untyped

            serve: Any = untyped
            logging.getLogger("ray.serve").setLevel(logging.ERROR)  # we say ourselves what is up
            try:
                serve.start(http_options={"host": host, "port": port})
                serve.run(_deployment(sources, limits, follow, token, replicas), name=APP, route_prefix="/")
            except Exception as error:  # of Ray, which has many
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise ClusterError(f"Ray Serve does not come up: {reason[0]}") from error
            when_up(f"http://{host}:{port}")
            ended.wait()
            serve.shutdown()
        finally:
            session.stop()
    return exit_code(heard[0]) if heard else 1


def _deployment(sources: Sequence[PolicySource], limits: ServingLimits, follow: bool, token: str, replicas: int) -> Any:
    """What Ray Serve makes in each of its processes."""
    from ray import serve as untyped

    serve: Any = untyped

    def build() -> Any:
        from shoal.serving.app import application
        from shoal.serving.service import Service

        return application(Service(sources, limits, follow, replicas), token)

    class Policies:
        """Nothing but the application."""

    deployed = serve.deployment(name=APP, num_replicas=replicas, max_ongoing_requests=1024)
    return deployed(serve.ingress(build)(Policies)).bind()
