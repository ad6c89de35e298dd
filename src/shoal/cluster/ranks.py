"""Which of many equal processes this one is, told by the launcher that started it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.cluster.allocation import job_of
from shoal.errors import ClusterError
from shoal.machine.launchers import Launcher, innermost_launcher


@dataclass(frozen=True)
class Rank:
    """A process's place among those that one launcher started together."""

    launcher: str  # openmpi, pals, jsrun, hydra, srun, aprun
    rank: int
    size: int | None  # None where the launcher does not tell
    key: str  # the same for all ranks of this launch, and for no other's


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """The place of this process, told by the innermost launcher; None where nobody started it as one of many."""
    launcher = innermost_launcher(environ)
    if launcher is None:
        return None
    size = next((variable for variable in launcher.size if environ.get(variable)), None)
    return Rank(
        launcher=launcher.name,
        rank=_number(environ, launcher.rank),
        size=_number(environ, size) if size else None,
        key=_key(launcher, environ),
    )


def _key(launcher: Launcher, environ: Mapping[str, str]) -> str:
    # Without an id of the launch the job's must do; two launches at once in one job would then be taken for one.
    job = job_of(environ) if launcher.passes_job_on else None
    parts = [part for part in (job, launcher.launch(environ)) if part]
    if not parts:
        raise ClusterError(
            f"{launcher.name} started this process as one of many ({launcher.rank}={environ[launcher.rank]}), but "
            "it is unknown which of them belong together; run `shoal launch --hosts HOST,HOST -- ...` once, without it."
        )
    return "-".join([launcher.name, *map(_file_name, parts)])


def _file_name(text: str) -> str:
    """A short name for a file that is this text where it can be, and its start and a hash where it cannot."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,40}", text):
        return text
    start = re.match(r"[A-Za-z0-9_]{0,12}", text)
    assert start is not None
    return f"{start[0]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _number(environ: Mapping[str, str], variable: str) -> int:
    if not re.fullmatch(r"\d{1,9}", environ[variable]):
        raise ClusterError(
            f"{variable}={environ[variable]!r} is not a number; unset it, or start again with the launcher."
        )
    return int(environ[variable])
