"""The launchers that start many equal processes, and the variables by which these know their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Launcher(NamedTuple):
    """How one launcher is recognised, and where it writes what."""

    name: str
    rank: str
    size: tuple[str, ...]
    launch: Callable[[Mapping[str, str]], str | None]  # what tells this launch from the others of the same job
    applies: Callable[[Mapping[str, str]], bool] = lambda environ: True
    passes_job_on: bool = True  # whether all its processes have the scheduler's variables


def innermost_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Who started this process as one of many, or None.

    A launcher hands the variables of those around it on to its processes, with values that mean nothing to them: in a
    Slurm job, SLURM_PROCID under mpirun counts mpirun's daemons. So the first row of the table that fits decides alone.
    """
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and launcher.applies(environ):
            return launcher
    return None


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, or the one that started this one, as one of many."""
    return innermost_launcher(environ) is not None


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


_LAUNCHERS = (
    Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        _variable("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
        # Over ssh, mpirun hands the scheduler's variables only to ranks on its own host; the others could not agree.
        passes_job_on=False,
    ),
    Launcher("pals", "PALS_RANKID", ("PALS_SIZE", "PMI_SIZE"), _variable("PALS_APID"), _not_in_step),
    Launcher("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), _variable("PMIX_NAMESPACE")),
    Launcher("hydra", "PMI_RANK", ("PMI_SIZE",), lambda environ: hydra_control_port(os.getppid()), _is_hydra),
    Launcher("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), _variable("SLURM_STEP_ID"), _is_task),
    Launcher("aprun", "ALPS_APP_PE", (), _variable("ALPS_APP_ID"), _not_in_step),
)
