"""The names of hosts, which schedulers, resolvers and users write short and in full, and in either case."""

from __future__ import annotations

import socket


def short_name(name: str) -> str:
    """A host's name without its domain; equal ones mean the same host of a cluster. An address stays as it is."""
    if name.replace(".", "").isdecimal():
        return name
    return name.partition(".")[0].lower()


def is_own_name(name: str) -> bool:
    """Whether a name is that of the host that this runs on."""
    return short_name(name) == short_name(socket.gethostname())
