"""The ports of a Ray node: free ones anywhere, or all of them within a range that a firewall lets pass."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import ClusterError, ConfigError

# What a node listens on beside its workers, by the option of `ray start`.
SINGLE = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
FEWEST_FOR_WORKERS = 20


@dataclass(frozen=True)
class PortRange:
    """The ports from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


def port_range(text: str) -> PortRange:
    """The range in `30000-30999`; ConfigError for anything else."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text.strip())
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= low < high <= 65535:
        raise ConfigError(f"--ports: must be a range within 1024-65535, such as 30000-30999 (got {text!r})")
    needed = len(SINGLE) + 3 + FEWEST_FOR_WORKERS
    if high - low + 1 < needed:
        raise ConfigError(f"--ports: a node needs {needed} ports, {text} has {high - low + 1}")
    return PortRange(low, high)


def listening_socket(address: str, ports: PortRange | None) -> socket.socket:
    """A socket that can be called at this address, or at any of the host's if it is empty, on a free port."""
    for port in [0] if ports is None else _shuffled(ports):
        listener = socket.socket()
        try:
            listener.bind((address, port))
            return listener
        except OSError:
            listener.close()
    raise ClusterError(f"no port in {ports} is free on {socket.gethostname()}")


def port_options(ports: PortRange | None, is_head: bool) -> list[str]:
    """The options of `ray start` for a node's ports."""
    names = [*SINGLE, *(["port", "dashboard-port"] if is_head else [])]
    if ports is None:
        return [f"--{name}=0" for name in names] + ["--min-worker-port=0", "--max-worker-port=0"]
    # Workers get a list of their own, so that Ray's other parts never hit on one of theirs.
    free = [port for port in _shuffled(ports) if _is_free(port)]
    if len(free) < len(names) + FEWEST_FOR_WORKERS:
        raise ClusterError(
            f"only {len(free)} of the ports {ports} are free on {socket.gethostname()}; a node needs "
            f"{len(names) + FEWEST_FOR_WORKERS}: set a wider range with --ports"
        )
    chosen = [f"--{name}={port}" for name, port in zip(names, free, strict=False)]
    return [*chosen, f"--worker-port-list={_comma(free[len(names) :])}"]


def _comma(ports: Sequence[int]) -> str:
    return ",".join(str(port) for port in sorted(ports))


def _shuffled(ports: PortRange) -> list[int]:
    """In an order of this process's own, so that two jobs on one host rarely reach for the same port."""
    every = list(range(ports.low, ports.high + 1))
    random.Random().shuffle(every)
    return every


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
