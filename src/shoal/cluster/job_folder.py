"""The folder of a job on the shared file system: where the head can be called, the secret, events and logs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time

from shoal.errors import ClusterError
from shoal.machine.proofs import proof

NOTICE = "head.json"
EVENTS = "events.jsonl"


@dataclass(frozen=True)
class Notice:
    """What an agent has to know: where the head listens, and the secret that proves both to each other."""

    addresses: tuple[str, ...]
    port: int
    secret: str

    def to_json(self) -> str:
        """As `notice_of` reads it."""
        return json.dumps(asdict(self))

    @property
    def ray_token(self) -> str:
        """Ray's token, which Ray sends unencrypted; so it is not the secret itself."""
        return proof(self.secret.encode(), b"ray").hex()


def notice_of(text: str) -> Notice:
    """What `Notice.to_json` has written; ValueError for anything else."""
    read = json.loads(text)
    match read:
        case {"addresses": list(addresses), "port": int(port), "secret": str(secret)}:
            return Notice(tuple(str(address) for address in addresses), port, secret)
    raise ValueError("not a notice")


def jobs_folder() -> Path:
    """Where jobs have their folders unless told otherwise; a home is shared between the hosts of most sites."""
    return Path(os.environ.get("SHOAL_JOBS_DIR") or Path.home() / ".shoal" / "jobs").expanduser()


def make_job_folder(folder: Path) -> None:
    """Make the folder for this user alone, or refuse one that others can write to."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise ClusterError(f"{folder} can be written by others; chmod go-w it, or choose another (--job-dir)")
        folder.chmod(0o700)
    except OSError as error:
        raise ClusterError(
            f"the job's folder {folder} cannot be made ({error.strerror}); set one with --job-dir or SHOAL_JOBS_DIR"
        ) from error


def publish(folder: Path, notice: Notice) -> None:
    """Put the notice there, whole or not at all, readable for this user alone."""
    fresh = folder / f".{NOTICE}.{socket.gethostname()}.{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(notice.to_json())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / NOTICE)


def withdraw(folder: Path) -> None:
    """The job is over: its secret goes."""
    (folder / NOTICE).unlink(missing_ok=True)


def published(folder: Path) -> Notice | None:
    """The notice in this folder, if it is there yet and ours to trust."""
    try:
        os.listdir(folder)  # network file systems remember for long that a file was not there, unless asked for all
        path = folder / NOTICE
        state = path.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise ClusterError(f"{path} belongs to or can be read by somebody else; remove it")
        return notice_of(path.read_text())
    except (OSError, ValueError):
        return None


def note_event(folder: Path, event: str, **values: object) -> None:
    """Add a line to what the running command may read at `SHOAL_CLUSTER_EVENTS`."""
    with (folder / EVENTS).open("a") as file:
        file.write(json.dumps({"time": round(time(), 3), "event": event, **values}) + "\n")


def own_addresses() -> list[str]:
    """The IPv4 addresses by which other hosts may reach this one, likely ones first."""
    import psutil

    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        if name != "lo"
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith(("127.", "169.254."))
    ]
    named: Sequence[str] = ()
    with contextlib.suppress(OSError):
        named = socket.gethostbyname_ex(socket.gethostname())[2]
    return sorted(dict.fromkeys(found), key=lambda address: address not in named)
