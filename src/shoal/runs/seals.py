"""Whether pickles in a checkpoint are one's own, because reading a pickle runs whatever code it names.

A seal over them is in the checkpoint, made with the secret that only this user has (`machine/own_key.py`). Whoever has
changed them, or made them elsewhere, cannot seal them; such a checkpoint is opened only where the user says `--trust`.
The mark of the configuration (`runs/trust.py`) does not do: it says nothing of the files beside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from shoal.data.state import State
from shoal.errors import NotTrusted
from shoal.machine.own_key import own_key
from shoal.machine.proofs import is_proof, proof

_trusted: set[str] = set()  # what the user has said of this process


def trust_pickles() -> None:
    """Open every checkpoint from now on, whoever has made it (`--trust`)."""
    _trusted.add("all")


def seal_of(files: Mapping[str, bytes]) -> str:
    """What proves that this user wrote the files; empty where there is no secret, and then nothing is proven."""
    key = own_key(make=True)
    return "" if key is None else proof(key, _digest(files)).hex()


def check_seal(state: State, place: str | Path, trust: bool = False) -> None:
    """Refuse the state of a checkpoint with pickles that somebody else has written, or changed."""
    files, told = state.files, state.values.get("rllib", {}).get("seal", "")
    if not files or trust or "all" in _trusted:
        return
    key = own_key()
    try:
        is_own = key is not None and is_proof(bytes.fromhex(told), key, _digest(files))
    except (ValueError, TypeError):
        is_own = False
    if not is_own:
        raise NotTrusted(
            f"{place} is refused: it holds pickled data of RLlib, which can run any code when it is opened, and you "
            "did not write it; if you know who did, add --trust (in Python trust=True)"
        )


def _digest(files: Mapping[str, bytes]) -> bytes:
    total = hashlib.sha256(b"shoal pickles 1\n")
    for name in sorted(files):
        content = hashlib.sha256(files[name]).digest()
        total.update(f"{len(name.encode())}:{name}".encode() + content)
    return total.digest()
