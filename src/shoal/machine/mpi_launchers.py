"""How each MPI launcher starts ranks on given slots and nowhere else: its words, its variables, what it must not see.

Launchers differ in what their binding options count (cores, hardware threads, logical or physical numbers), and what
the same option means has changed between their versions. So each is told the host and how many ranks it has, and to
bind nothing; the first thing that a rank does is to bind itself to its own core, by the kernel's number.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from shoal.errors import ConfigError
from shoal.machine.slots import RankSlot

VARIABLE = "SHOAL_MPIRUN"
ASKING_TIMEOUT_S = 30.0
OPEN_MPI = "Open MPI"
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class MpiLauncher(NamedTuple):
    """One kind of launcher."""

    name: str
    answer: str  # a pattern in what it says when it is asked for its version
    rank: str  # the variable by which a rank knows its number
    options: Callable[[str, int], list[str]]  # for so many ranks on a host
    variables: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()  # variables that say where it leaves files, which it does not remove if it is killed


class FoundLauncher(NamedTuple):
    """A launcher that is there, and the words by which it is called."""

    launcher: MpiLauncher
    words: tuple[str, ...]


def mpi_words(found: FoundLauncher, slots: Sequence[RankSlot], command: Sequence[str]) -> list[str]:
    """The words that start a program, one rank on each slot; all slots are on one host."""
    (host,) = {slot.host for slot in slots}
    start = [*found.words, *found.launcher.options(host, len(slots))]
    if not all(slot.is_core for slot in slots):
        return [*start, *command]
    own = f'$(echo "$0" | cut -d, -f$(({found.launcher.rank} + 1)))'
    numbers = ",".join(str(slot.number) for slot in slots)
    return [*start, "/bin/sh", "-c", f'exec taskset -c "{own}" "$@"', numbers, *command]


def folder_variables(found: FoundLauncher, folder: str) -> dict[str, str]:
    """The variables that make a launcher and its ranks keep their files in a folder of this host."""
    return dict.fromkeys(found.launcher.folders, folder)


def mpi_variables(found: FoundLauncher, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for the launcher: the given ones, without those of a launch that we are ourselves part of."""
    own = {name: value for name, value in environ.items() if not _OF_OUTER_LAUNCH.match(name)}
    return {**found.launcher.variables, **own}


def refuse_root(found: FoundLauncher, environ: Mapping[str, str]) -> None:
    """Say in one sentence what Open MPI says to root in a page, of which the reason would be cut off."""
    unset = [name for name in AS_ROOT if environ.get(name) != "1"]
    is_open_mpi = found.launcher.name == OPEN_MPI and "--allow-run-as-root" not in found.words
    if is_open_mpi and os.geteuid() == 0 and unset:
        raise ConfigError(
            "config.env_ranks: Open MPI starts nothing for root; run as another user, or, as is usual in a container, "
            f"set {' and '.join(unset)} to 1"
        )


def find_launcher(environ: Mapping[str, str]) -> FoundLauncher:
    """What SHOAL_MPIRUN names; else the first mpirun or mpiexec on PATH; else srun, in a Slurm job."""
    path = environ.get("PATH")
    if said := environ.get(VARIABLE):
        try:
            words = shlex.split(said)
        except ValueError as error:
            raise ConfigError(
                f"{VARIABLE}={said!r} cannot be read ({error}); write it like 'srun --mpi=pmix'"
            ) from None
        program = shutil.which(words[0], path=path) if words else None
        if program is None:
            raise ConfigError(f"{VARIABLE}={said!r}: there is no such program; name a launcher, or unset it")
        return FoundLauncher(_kind(program, f"{VARIABLE}={said!r}"), (program, *words[1:]))
    # A module that was loaded stands before the system's own MPI, whichever of both names its launcher has.
    folders = (path or os.defpath).split(os.pathsep)
    tries = [(name, folder) for folder in folders for name in ("mpirun", "mpiexec")]
    if environ.get("SLURM_JOB_ID"):
        tries += [("srun", folder) for folder in folders]
    for name, folder in tries:
        if program := shutil.which(name, path=folder):
            return FoundLauncher(_kind(program, program), (program,))
    names = dict.fromkeys(name for name, _ in tries)
    raise ConfigError(
        f"config.env_ranks: there is no {' and no '.join(names)} on PATH; load the module of your MPI, or name its "
        f"launcher in {VARIABLE}"
    )


def _kind(program: str, told: str) -> MpiLauncher:
    if os.path.basename(program) == "srun":  # which says nothing without its configuration
        return SRUN
    text = _version(program)
    for launcher in LAUNCHERS:
        if re.search(launcher.answer, text):
            return launcher
    known = ", ".join(launcher.name for launcher in LAUNCHERS)
    first = (text.strip().splitlines() or ["nothing"])[0]
    raise ConfigError(
        f"{told} is no launcher that shoal knows ({known}): asked for its version, it says {first!r:.100}"
    )


@cache
def _version(program: str) -> str:
    """What a launcher says of itself."""
    try:
        asked = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASKING_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _openmpi(host: str, count: int) -> list[str]:
    return ["-np", str(count), "--host", f"{host}:{count}", "--bind-to", "none"]


def _hydra(host: str, count: int) -> list[str]:
    return ["-rmk", "user", "-launcher", "fork", "-hosts", f"{host}:{count}", "-n", str(count)]


def _srun(host: str, count: int) -> list[str]:
    return [
        "--nodes=1",
        f"--ntasks={count}",
        f"--nodelist={host.partition('.')[0]}",
        # The slots are ours already: the step shares the allocation with that of shoal itself, and with its siblings.
        "--overlap",
        "--overcommit",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--export=ALL",
    ]


def _pals(host: str, count: int) -> list[str]:
    return ["-n", str(count), "--ppn", str(count), "--hosts", host, "--cpu-bind", "none"]


SRUN = MpiLauncher("srun", r"^slurm ", "SLURM_PROCID", _srun)
LAUNCHERS = (
    MpiLauncher(
        OPEN_MPI,
        r"Open MPI|OpenRTE|PRRTE",
        "OMPI_COMM_WORLD_RANK",
        _openmpi,
        {
            # A scheduler's own list of hosts would be taken for the only slots that there are.
            "OMPI_MCA_ras": "^alps,gridengine,lsf,slurm,tm",
            "PRTE_MCA_ras": "^gridengine,lsf,pbs,slurm",
            # A rank that waits leaves its core to the worker, which gives it the next action.
            "OMPI_MCA_mpi_yield_when_idle": "1",
        },
        (
            "OMPI_MCA_orte_tmpdir_base",
            "PRTE_MCA_prte_tmpdir_base",
            "OMPI_MCA_btl_vader_backing_directory",
            "OMPI_MCA_btl_sm_backing_directory",
        ),
    ),
    MpiLauncher("MPICH or Intel MPI", r"HYDRA|Intel\(R\) MPI", "PMI_RANK", _hydra, {"I_MPI_PIN": "0"}),
    SRUN,
    MpiLauncher("PALS", r"(?i)\bPALS\b|^mpiexec version", "PALS_RANKID", _pals),
)

# Of Open MPI's own, those that a user sets (OMPI_MCA_btl, OMPI_ALLOW_RUN_AS_ROOT) stay.
_OF_OUTER_LAUNCH = re.compile(
    r"PMIX?_|PRTE_(?!MCA_)|PALS_|HYDI?_|HYDRA_(?!LAUNCHER)|MPI_LOCAL|MPIR_CVAR_CH3_INTERFACE_HOSTNAME|JSM_|"
    r"OMPI_(?!MCA_|ALLOW_|CC$|CXX$|FC$|CFLAGS|LDFLAGS)|OMPI_MCA_(ess|orte|pmix|shmem_RUNTIME|initial_wdir|mpi_oversub)|"
    r"SLURM_(STEP|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|LAUNCH|SRUN|CPU_BIND|DISTRIBUTION|EXACT|EXCLUSIVE|GPU_BIND|"
    r"CPUS_PER_|NTASKS|NPROCS|TASKS_PER_NODE|TRES|MEM_PER|UMASK)|SRUN_"
)
