"""The Ray that the user names: looked at before it is joined, so that what is wrong is said in one sentence.

Ray itself waits up to two minutes for an address where nobody is, and cannot be interrupted meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError

CONNECTING_TIMEOUT_S = 2.0
ANSWERING_TIMEOUT_S = 8.0
LOOKING_TIMEOUT_S = 60.0  # importing Ray takes long where many processes want the cores
WORDS = "--ray-address (or RAY_ADDRESS)"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # and settings: as they are
FRAME_BYTES, SETTINGS_FRAME = 9, 4

LOOK = """
import json, os, sys
import ray
from ray._private import services
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient

found = {}
try:
    address = services.canonicalize_bootstrap_address(sys.argv[1])
    try:
        client = GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        loader = AuthenticationTokenLoader.instance()
        found["has_token"] = loader.has_token(ignore_auth_mode=True)
        if "RAY_AUTH_MODE" in os.environ or not found["has_token"]:
            raise
        os.environ["RAY_AUTH_MODE"] = "token"
        Config.initialize("")
        loader.reset_cache()
        client = GcsClient(address=address)
        found["mode"] = "token"
    found.update(json.loads(client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster")))
    nodes = {node.hex() for node in client.get_all_node_info()}
    found["is_here"] = bool(nodes & set(services.find_node_ids()))
except ray.exceptions.AuthenticationError:
    found["refused"] = True
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class JoinableCluster:
    """A Ray cluster that can be joined."""

    address: str  # as Ray takes it
    needs_token: bool  # which Ray sends only if it is told to


def named_address() -> str | None:
    """What the user has named; None: a private Ray is to be started, as `local` asks for too."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else address


def starts_own_ray() -> bool:
    """Whether workers would be on a Ray of our own here: this program has none, and the user names none."""
    running = sys.modules.get("ray")
    return (running is None or not running.is_initialized()) and named_address() is None


def inspect_cluster(address: str) -> JoinableCluster:
    """Look at the cluster that is to be joined; ConfigError if it is not there, or cannot be joined from here."""
    place = _recorded() if address == "auto" else address
    host, port = _parsed(place)
    _check_listening(host, port, place)
    found = _ask(place)
    if "error" in found:
        raise ConfigError(f"{WORDS}: {place} does not answer as Ray does: {found['error']}")
    if found.get("refused"):
        raise ConfigError(f"{WORDS}: {place} {_token_advice(found)}")
    _check_versions(place, found)
    if not found.get("is_here"):
        raise ConfigError(
            f"{WORDS}: no node of the cluster at {place} runs on this host; type "
            f"`ray start --address={place}` here first, or run the command on one of its nodes"
        )
    return JoinableCluster(place, found.get("mode") == "token")


def _recorded() -> str:
    """The address that the last `ray start` on this host has written down, if it was ours or the administrator's."""
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(place, "ray", "ray_current_cluster")
    start = "start one with `ray start --head`, or give HOST:PORT"
    try:
        owner, address = file.stat().st_uid, file.read_text().strip()
    except OSError:
        raise ConfigError(f"{WORDS}: auto finds no Ray on this host (there is no {file}); {start}") from None
    if owner not in (0, os.getuid()):
        raise ConfigError(f"{WORDS}: auto finds a Ray of another user ({file} is theirs); {start}")
    return address


def _parsed(address: str) -> tuple[str, int]:
    if "://" in address:
        raise ConfigError(
            f"{WORDS}: {address} is not the address of a cluster's head; give HOST:PORT, e.g. 10.0.0.1:6379"
        )
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{WORDS}: give HOST:PORT, e.g. 10.0.0.1:6379, or auto (got {address})")
    return host, int(port)


def _check_listening(host: str, port: int, address: str) -> None:
    """Refuse an address where nobody answers; names are looked up in a thread, since that may take minutes."""
    problems: list[str] = ["does not answer"]

    def call() -> None:
        try:
            with socket.create_connection((host, port), timeout=CONNECTING_TIMEOUT_S) as connection:
                problems[:] = [] if _speaks_http2(connection) else ["is not a Ray cluster"]
        except socket.gaierror:
            problems[:] = [f"cannot be reached: no host {host} is known here"]
        except TimeoutError:
            pass
        except OSError as error:
            problems[:] = [f"cannot be reached: {os.strerror(error.errno) if error.errno else error}".lower()]

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(CONNECTING_TIMEOUT_S + ANSWERING_TIMEOUT_S)
    if problems:
        raise ConfigError(
            f"{WORDS}: {address} {problems[0]}; `ray start --head` prints the address of the cluster that it starts"
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side greets as gRPC does; where TLS is in between, Ray has to find out itself."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    connection.settimeout(ANSWERING_TIMEOUT_S)
    connection.sendall(HTTP2_GREETING)
    frame = b""
    with contextlib.suppress(ConnectionError):
        while len(frame) < FRAME_BYTES and (piece := connection.recv(FRAME_BYTES - len(frame))):
            frame += piece
    return len(frame) == FRAME_BYTES and frame[3] == SETTINGS_FRAME


def _ask(address: str) -> dict[str, Any]:
    """What the cluster says of itself, from a process of its own: what Ray reads of its settings it reads once."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, address],
            capture_output=True,
            text=True,
            timeout=LOOKING_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"it sent nothing for {LOOKING_TIMEOUT_S:.0f} s"}
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["it closed the connection"])[-1]}
    return found


def _token_advice(found: dict[str, Any]) -> str:
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return "asks for a token, but RAY_AUTH_MODE is disabled; type `unset RAY_AUTH_MODE`"
    copy = "copy the token that it was started with to a file, and type `export RAY_AUTH_TOKEN_PATH=FILE`"
    if not found.get("has_token"):
        return f"asks for a token, and none is here; {copy}"
    source = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    source = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else source
    return f"was started with another token than the one in {source}; {copy}"


def _check_versions(address: str, found: dict[str, Any]) -> None:
    """Refuse what Ray would refuse: another version of it, or of Python."""
    from importlib.metadata import version

    level = os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "patch")
    digits = 2 if level == "minor" else 3
    python, ray = ".".join(map(str, sys.version_info[:3])), version("ray")
    theirs = str(found.get("python_version")), str(found.get("ray_version"))
    if theirs[1] != ray or theirs[0].split(".")[:digits] != python.split(".")[:digits]:
        raise ConfigError(
            f"{WORDS}: the cluster at {address} has Ray {theirs[1]} on Python {theirs[0]}, and this is Ray {ray} on "
            f"Python {python}; start both from the same environment"
        )
