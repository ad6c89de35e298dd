"""Addresses that a command listens at: what is wrong with one, and who can reach it."""

from __future__ import annotations

import errno
import ipaddress
import socket

from shoal.errors import ConfigError


def refused_address(error: OSError, host: str, port: int | None, if_taken: str) -> ConfigError:
    """What to type instead of an address that cannot be listened at; `if_taken` tells it for a port in use."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"--port: {port} is in use on {host}; {if_taken}")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--host: {host} is no address of this machine; leave it out, or use 0.0.0.0")
    return ConfigError(f"--port: {port} cannot be used: {error.strerror or error}; use one above 1023")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
