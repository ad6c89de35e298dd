"""The jobs that were submitted from here: a folder each, with its script and what is known of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from shoal.cluster.batch_scripts import MARK
from shoal.cluster.job_commands import number
from shoal.cluster.job_folder import jobs_folder
from shoal.cluster.scheduler import REQUEUES
from shoal.errors import ClusterError, ConfigError

RECORD = "job.json"
SCRIPT = "job.sh"


@dataclass(frozen=True)
class JobRecord:
    """One job as it was submitted."""

    id: str
    scheduler: str
    name: str
    nodes: int
    script: str
    folder: str  # where it was submitted from
    log: str
    submitted: str  # local time, as 2026-11-15 21:30:05
    command: list[str]

    def cluster_folder(self, own: Path) -> Path:
        """Where `shoal launch` keeps the logs of the nodes, from the job's own folder."""
        return own.with_name(f"{own.name}-{number(self.id)}")

    def ids(self) -> list[str]:
        """Its id, and those it got where requeuing means submitting anew; the last is the present one."""
        try:
            lines = Path(f"{self.log}{REQUEUES}{number(self.id)}").read_text(errors="replace").split()
        except OSError:
            lines = []
        return [self.id, *(line for line in lines if line[0].isdigit())]


def folder_for(name: str) -> Path:
    """A folder that no job has yet."""
    first = folder = jobs_folder().absolute() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    copy = 1
    while folder.exists():
        copy += 1
        folder = first.with_name(f"{first.name}-{copy}")
    return folder


def write_script(text: str, path: Path) -> None:
    """Write a script that its owner can run; Cobalt takes no other."""
    try:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise ClusterError(f"{path} exists already, and shoal did not write it; set another file with --script")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o700)
    except OSError as error:
        raise ClusterError(f"{path} cannot be written: {error.strerror}; set another file with --script") from error


def make_folder(folder: Path) -> None:
    """Make a job's folder, for its owner alone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ClusterError(
            f"the job's folder {folder} cannot be made: {error.strerror}; set another folder with SHOAL_JOBS_DIR"
        ) from error


def record(folder: Path, job: JobRecord) -> None:
    """Write down what is known of a job, whole or not at all."""
    fresh = folder / f".{RECORD}"
    fresh.write_text(json.dumps(asdict(job), indent=2) + "\n")
    fresh.replace(folder / RECORD)


def recorded() -> list[tuple[Path, JobRecord]]:
    """Every job with its folder, newest first."""
    found = [(path.parent, _read(path)) for path in jobs_folder().glob(f"*/{RECORD}")]
    return sorted(found, key=lambda entry: (entry[1].submitted, entry[0].name), reverse=True)


def find(job_id: str) -> tuple[Path, JobRecord]:
    """The newest job that has or had this id, with or without the name of PBS's server."""
    for folder, job in recorded():
        if number(job_id) in (number(known) for known in job.ids()):
            return folder, job
    raise ConfigError(f"no job {job_id} was submitted from here; `shoal jobs --all` lists those that were")


def log_pieces(log: Path, is_over: Callable[[], bool], read_s: float = 0.5, ask_s: float = 10) -> Iterator[bytes]:
    """What is in a log and what comes into it, until the job is over; the file may appear late."""
    position, ask_at = 0, 0.0
    while True:
        # Asked before the last reading, so that nothing is missed which was written until the end.
        over = False
        if time.monotonic() >= ask_at:
            over = is_over()
            ask_at = time.monotonic() + ask_s
        try:
            # Opened anew each time: only that makes a network file system look for what another host has written.
            with log.open("rb") as file:
                if position > os.fstat(file.fileno()).st_size:
                    position = 0
                file.seek(position)
                piece = file.read()
                position = file.tell()
        except FileNotFoundError:
            piece = b""
        if piece:
            yield piece
        if over:
            return
        time.sleep(read_s)


def _read(path: Path) -> JobRecord:
    try:
        content = json.loads(path.read_text())
        return JobRecord(**{field.name: content[field.name] for field in fields(JobRecord)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{path} is not the record of a job; remove it") from error
