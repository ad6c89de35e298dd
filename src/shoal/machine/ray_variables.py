"""The variables by which Ray stays on loopback and asks for a token: it reads them when it is imported or started."""

from __future__ import annotations

from pathlib import Path

AUTH_MODE = "RAY_AUTH_MODE"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
TOKEN_MODE = {AUTH_MODE: "token"}
"""Ask for a token, and send one."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Take 127.0.0.1 as it is: Ray turns it into an address of the network wherever it believes to have clusters."""


def token_variables(path: str | Path) -> dict[str, str]:
    """What lets Ray ask for, and send, the token in a file."""
    return {**TOKEN_MODE, TOKEN_PATH: str(path)}
