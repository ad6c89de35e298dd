"""Whether a checkpoint that holds pickles is one's own, because reading a pickle runs whatever code it names.

A seal over the pickles is in the checkpoint, made with a key that only this account has. Whoever has changed them, or
made them elsewhere, cannot seal them; such a checkpoint is read only where the user says `--trust`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.machine.proofs import is_proof, proof

KEY_BYTES = 32

log = logging.getLogger("shoal.checkpoints")

_trusted: set[str] = set()  # what the user has said of this process


def trust_all() -> None:
    """Read every checkpoint from now on, whoever has made it (`--trust`)."""
    _trusted.add("all")


def seal_of(files: Mapping[str, bytes]) -> str:
    """What proves that this account wrote the files; empty where it can keep no key, and then nothing is proven."""
    try:
        return proof(_key(), _digest(files)).hex()
    except OSError as error:
        log.warning("no key can be kept in %s (%s): to read this checkpoint, type --trust", _place(), error.strerror)
        return ""


def check_own(state: State, place: str | Path) -> None:
    """Refuse the state of a checkpoint with pickles that another account or machine has written, or changed."""
    files, told = state.files, state.values.get("rllib", {}).get("seal", "")
    if not files or "all" in _trusted:
        return
    try:
        given = bytes.fromhex(told)
        is_own = is_proof(given, _key(), _digest(files))
    except (OSError, ValueError, TypeError):
        is_own = False
    if not is_own:
        raise CheckpointError(
            f"{place} is refused: it holds pickled data of RLlib, which can run any code when it is read, and "
            "this account did not write it; if you know who did, add --trust (in Python shoal.runs.trust.trust_all())"
        )


def _digest(files: Mapping[str, bytes]) -> bytes:
    total = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name]).digest()
        total.update(f"{len(name.encode())}:{name}".encode() + content)
    return total.digest()


def _place() -> Path:
    """Where this account keeps its key."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "shoal" / "seal.key"


def _key() -> bytes:
    """The key of this account, made when it is first needed; only its owner can read it."""
    place = _place()
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not place.exists():
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(os.urandom(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, place)  # who comes second takes the first one's
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return place.read_bytes()
