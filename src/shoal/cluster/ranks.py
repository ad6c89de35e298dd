"""Which of many equal processes this one is, told by the launcher that started it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoal.errors import ClusterError


@dataclass(frozen=True)
class Rank:
    """A process's place among those that one launcher started together."""

    launcher: str  # openmpi, pals, jsrun, hydra, srun, aprun
    rank: int
    size: int | None  # None where the launcher does not tell
    key: str  # the same for all ranks of this launch, and for no other's


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """The place of this process, told by the innermost launcher; None where nobody started it as one of many.

    A launcher hands the variables of those around it on to its processes, with values that mean nothing to them: in a
    Slurm job, SLURM_PROCID under mpirun counts mpirun's daemons. So the first row of the table that fits decides alone.
    """
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and launcher.applies(environ):
            size = next((variable for variable in launcher.size if environ.get(variable)), None)
            return Rank(
                launcher=launcher.name,
                rank=_number(environ, launcher.rank),
                size=_number(environ, size) if size else None,
                key=_key(launcher, environ),
            )
    return None


def hydra_control_port(pid: int, proc: Path = Path("/proc")) -> str | None:
    """HOST:PORT of the mpiexec that started a process, as its proxy's command line tells; the same on all hosts."""
    while pid > 1:
        try:
            words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
            # pid (name) state parent ...; the name may have spaces and brackets of its own
            pid = int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if "--control-port" in words[:-1] and any(Path(word).name == "hydra_pmi_proxy" for word in words):
            return words[words.index("--control-port") + 1]
    return None


def _in_step(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_STEP_ID"))


def _not_in_step(environ: Mapping[str, str]) -> bool:
    # srun's MPI plugins set PALS_* (cray_shasta), PMI_* (pmi2) and ALPS_APP_PE (Cray XC) too; then srun is the one.
    return not _in_step(environ)


def _is_hydra(environ: Mapping[str, str]) -> bool:
    # Hydra sets MPI_LOCALRANKID beside PMI_RANK, also where it starts its proxies by srun; srun --mpi=pmi2 does not.
    return "MPI_LOCALRANKID" in environ or not _in_step(environ)


def _is_task(environ: Mapping[str, str]) -> bool:
    # The shell of sbatch has SLURM_PROCID=0 too, but is in no step. The shells of `srun --pty bash` and of salloc
    # (where it starts an interactive step) are tasks of a step, but to their users they are shells in an allocation.
    # SLURM_PTY_PORT tells them; an srun that is typed there inherits it, but gives its tasks no terminal. Of the three
    # tasks of `srun -N3 --pty bash` the first is the shell, and we are not that task itself but typed into it.
    if not _in_step(environ):
        return False
    if not environ.get("SLURM_PTY_PORT"):
        return True
    is_the_task = environ.get("SLURM_TASK_PID") == str(os.getpid())
    return environ.get("SLURM_STEP_NUM_TASKS") != "1" and (is_the_task or not _has_terminal())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _variable(*names: str) -> Callable[[Mapping[str, str]], str | None]:
    return lambda environ: next((environ[name] for name in names if environ.get(name)), None)


def _job(environ: Mapping[str, str]) -> str | None:
    """The scheduler's id of this job; a requeued Slurm job and the elements of an array keep the number."""
    job = _variable("SLURM_JOB_ID", "PBS_JOBID", "COBALT_JOBID", "LSB_JOBID", "JOB_ID")(environ)
    part = _variable("SLURM_RESTART_COUNT", "LSB_JOBINDEX", "SGE_TASK_ID")(environ)
    return job if job is None or part in (None, "0", "undefined") else f"{job}.{part}"


class _Launcher(NamedTuple):
    """How one launcher is recognised, and where it writes what."""

    name: str
    rank: str
    size: tuple[str, ...]
    launch: Callable[[Mapping[str, str]], str | None]  # what tells this launch from the others of the same job
    applies: Callable[[Mapping[str, str]], bool] = lambda environ: True
    job: Callable[[Mapping[str, str]], str | None] = _job


_LAUNCHERS = (
    _Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        _variable("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
        # Over ssh, mpirun hands the scheduler's variables only to ranks on its own host; the others could not agree.
        job=lambda environ: None,
    ),
    _Launcher("pals", "PALS_RANKID", ("PALS_SIZE", "PMI_SIZE"), _variable("PALS_APID"), _not_in_step),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), _variable("PMIX_NAMESPACE")),
    _Launcher("hydra", "PMI_RANK", ("PMI_SIZE",), lambda environ: hydra_control_port(os.getppid()), _is_hydra),
    _Launcher("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), _variable("SLURM_STEP_ID"), _is_task),
    _Launcher("aprun", "ALPS_APP_PE", (), _variable("ALPS_APP_ID"), _not_in_step),
)


def _key(launcher: _Launcher, environ: Mapping[str, str]) -> str:
    # Without an id of the launch the job's must do; two launches at once in one job would then be taken for one.
    parts = [part for part in (launcher.job(environ), launcher.launch(environ)) if part]
    if not parts:
        raise ClusterError(
            f"{launcher.name} started this process as one of many ({launcher.rank}={environ[launcher.rank]}), but "
            "nothing tells which of them belong together; run `shoal launch --hosts HOST,HOST -- ...` once, without it."
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
        raise ClusterError(f"{variable}={environ[variable]!r} is no number; unset it, or start anew with the launcher.")
    return int(environ[variable])
