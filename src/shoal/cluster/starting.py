"""How to start one process on each host by the scheduler's own means."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence

from shoal.cluster.allocation import Host, node_file
from shoal.errors import ClusterError

Command = list[str]

# What sbatch, salloc and an outer srun leave for the next srun, and what would keep CPUs or GPUs from our step or tasks
# from their hosts: CPUs for each task imply --exact, and some cannot be together with --ntasks-per-node.
_DISTURBING = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES",
    "SLURM_STEP_GRES",
    "SLURM_TRES_BIND",
    "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK",
)


def agents_command(
    scheduler: str, hosts: Sequence[Host], words: Sequence[str], environ: Mapping[str, str]
) -> list[Command]:
    """The commands that run `words` once on each host; the first of the words is an absolute path."""
    if scheduler not in _WAYS:
        raise ClusterError(f"There is no scheduler {scheduler!r}; say --scheduler with one of {', '.join(_WAYS)}.")
    programs = []
    for program, commands in _WAYS[scheduler]:
        programs.append(_ssh_words(environ)[0] if program == "ssh" else program)
        if shutil.which(programs[-1], path=environ.get("PATH")):
            return commands([host.name for host in hosts], list(words), environ)
    raise ClusterError(
        f"{' and '.join(programs)} cannot be found on PATH, so nothing can be started on {hosts[0].name}; "
        "load the scheduler's module, or start `shoal launch` on every host with mpirun."
    )


def _srun(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    return [
        [
            *_without(_DISTURBING, environ),
            "srun",
            f"--nodes={len(hosts)}",
            f"--ntasks={len(hosts)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(hosts)}",
            # The step has all that the job has, and shares it with the steps of an interactive shell and of the user.
            "--overlap",
            "--mem=0",
            "--cpu-bind=none",
            # An agent's end is told by the agents; it must not end the others.
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--export=ALL",
            "--mpi=none",
            *words,
        ]
    ]


def _without(variables: Sequence[str], environ: Mapping[str, str]) -> Command:
    found = [variable for variable in variables if variable in environ]
    return ["env", *(word for variable in found for word in ("-u", variable))] if found else []


def _pbs_tmrsh(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    return [["pbs_tmrsh", host, *_in_this_folder(words, environ)] for host in hosts]


def _pbsdsh(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    # It knows its hosts by their lines in the node file, where each may have several.
    lines = node_file(environ, "PBS_NODEFILE").split()
    return [["pbsdsh", "-n", str(lines.index(host)), "--", *_in_this_folder(words, environ)] for host in hosts]


def _jsrun(hosts: Sequence[str], words: Command, _environ: Mapping[str, str]) -> list[Command]:
    one_for_each_host = ["-n", str(len(hosts)), "-r", "1", "-a", "1"]
    all_of_it = ["-c", "ALL_CPUS", "-g", "ALL_GPUS", "-b", "none"]
    return [["jsrun", *one_for_each_host, *all_of_it, "-X", "0", "--smpiargs", "off", *words]]


def _blaunch(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    return [["blaunch", "-z", " ".join(hosts), "-no-shell", *_in_this_folder(words, environ)]]


def _aprun(hosts: Sequence[str], words: Command, _environ: Mapping[str, str]) -> list[Command]:
    # -b: the program stays where it is; a copied interpreter would not find its packages.
    numbers = [match[1] for host in hosts if (match := re.fullmatch(r"nid0*(\d+)", host))]
    where = ["-L", ",".join(numbers)] if len(numbers) == len(hosts) else []
    return [["aprun", "-n", str(len(hosts)), "-N", "1", *where, "-cc", "none", "-b", *words]]


def _hydra(hosts: Sequence[str], words: Command, _environ: Mapping[str, str]) -> list[Command]:
    one_for_each_host = ["-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts)]
    return [["mpiexec.hydra", *one_for_each_host, "-disable-auto-cleanup", *words]]


def _qrsh(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    return [
        ["qrsh", "-inherit", "-nostdin", "-noshell", "-V", host, *_in_this_folder(words, environ)] for host in hosts
    ]


def _ssh(hosts: Sequence[str], words: Command, environ: Mapping[str, str]) -> list[Command]:
    ssh = [*_ssh_words(environ), "-T"]
    # A host that loses its power does not hang up: it is asked whether it is there, and given up after 15 s.
    for option in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"):
        ssh += ["-o", option]
    line = shlex.join(_in_this_folder(words, environ))  # the remote shell takes it apart again
    return [[*ssh, host, line] for host in hosts]


def _ssh_words(environ: Mapping[str, str]) -> Command:
    """The user's own ssh, with its options."""
    text = environ.get("SHOAL_SSH", "ssh")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ClusterError(f"SHOAL_SSH={text!r} cannot be read ({error}); write it like 'ssh -p 2222'.") from error
    if not words:
        raise ClusterError("SHOAL_SSH is empty; unset it, or write it like 'ssh -p 2222'.")
    return words


def _in_this_folder(words: Command, environ: Mapping[str, str]) -> Command:
    """The words, started in this folder where the host has it, for launchers that start in the home folder."""
    # These hand over no environment either, and an interpreter from a module does not even start without its libraries.
    paths = [f"{name}={environ[name]}" for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if environ.get(name)]
    setting = ["/usr/bin/env", *paths] if paths else []
    return ["/bin/sh", "-c", 'cd "$1" 2>/dev/null; shift; exec "$@"', "sh", os.getcwd(), *setting, *words]


# The first program that is on PATH is taken. mpiexec alone would not say whose it is.
_WAYS: dict[str, tuple[tuple[str, Callable[[Sequence[str], Command, Mapping[str, str]], list[Command]]], ...]] = {
    "slurm": (("srun", _srun),),
    "pbs": (("pbs_tmrsh", _pbs_tmrsh), ("pbsdsh", _pbsdsh), ("ssh", _ssh)),
    "lsf": (("jsrun", _jsrun), ("blaunch", _blaunch)),
    "cobalt": (("aprun", _aprun), ("mpiexec.hydra", _hydra), ("ssh", _ssh)),
    "sge": (("qrsh", _qrsh),),
    "ssh": (("ssh", _ssh),),
    "none": (("ssh", _ssh),),
}
