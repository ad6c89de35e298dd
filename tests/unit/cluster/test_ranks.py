"""Who this process is among many, from the variables of the launcher that started it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cluster.ranks import Rank, rank_of
from shoal.errors import ClusterError
from shoal.machine.launchers import hydra_control_port

WHO = (
    "import json, os; from shoal.cluster.ranks import rank_of; "
    "rank = rank_of(os.environ); print(json.dumps(rank and vars(rank)))"
)

# Names and relations recorded on a test bed (Slurm with Open MPI and MPICH inside); the numbers are examples.
SBATCH_SHELL = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_PROCID": "0", "SLURM_NTASKS": "6"}
SRUN = {**SBATCH_SHELL, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}
PMI2 = {"PMI_RANK": "4", "PMI_SIZE": "6", "PMI_FD": "5", "PMI_JOBID": "12.0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "PMIX_NAMESPACE": "prterun-n1-77@1"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}

# After the documentation.
IN_A_STEP = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
INTERACTIVE = {**SRUN, **IN_A_STEP, "SLURM_PTY_PORT": "45107"}
PALS = {"PALS_RANKID": "7", "PALS_APID": "0a1b-2c", "PALS_LOCAL_RANKID": "3", "PMI_RANK": "7", "PMI_SIZE": "8"}
JSRUN = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "PMIX_NAMESPACE": "1", "LSB_JOBID": "5"}
APRUN = {"ALPS_APP_PE": "31", "ALPS_APP_ID": "881", "COBALT_JOBID": "9"}


def answer(words: list[str], environ: dict[str, str]) -> list[Rank | None]:
    """What processes that were started by these words, without a terminal, say of themselves."""
    run = subprocess.run(
        words,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(who) for who in re.findall(r"{[^{}]*}|null", run.stdout)]  # launchers may mix up lines
    return [Rank(**who) if who else None for who in found]


def test_a_process_of_its_own_is_no_rank() -> None:
    assert rank_of({}) is None


def test_srun_recorded() -> None:
    assert rank_of(SRUN) == Rank("srun", 4, 6, "srun-12-0")
    assert rank_of({**SRUN, **PMI2}) == Rank("srun", 4, 6, "srun-12-0")


def test_the_shell_of_sbatch_recorded_is_no_rank() -> None:
    assert rank_of(SBATCH_SHELL) is None


def test_a_requeued_job_has_other_keys() -> None:
    again = rank_of({**SRUN, "SLURM_RESTART_COUNT": "1"})
    assert again is not None
    assert again.key == "srun-12.1-0"


def test_open_mpi_recorded_does_not_trust_the_leaking_slurm_procid() -> None:
    # mpirun starts its daemons by srun: of ranks 0 to 5 the first four saw SLURM_PROCID=0 and the others 1.
    for rank, procid in enumerate([0, 0, 0, 0, 1, 1]):
        leaking = {**SRUN, "SLURM_PROCID": str(procid), "SLURM_STEP_ID": str(procid), "SLURM_STEP_NUM_TASKS": "2"}
        found = rank_of({**leaking, **OPEN_MPI, "OMPI_COMM_WORLD_RANK": str(rank)})
        assert found is not None
        assert (found.launcher, found.rank, found.size) == ("openmpi", rank, 6)
        # Over ssh the other hosts' ranks see nothing of Slurm, and must find the same key.
        assert found.key == getattr(rank_of(OPEN_MPI), "key", None)


def test_older_open_mpi_has_other_names_for_the_launch() -> None:
    old = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_ess_base_jobid": "3221225473"}
    assert rank_of(old) == Rank("openmpi", 0, 2, "openmpi-3221225473")


def test_hydra_recorded_takes_the_job_where_its_proxy_is_not_seen() -> None:
    assert rank_of({**HYDRA, "PBS_JOBID": "7"}) == Rank("hydra", 2, 3, "hydra-7")
    assert rank_of({**SRUN, **HYDRA}) == Rank("hydra", 2, 3, "hydra-12")  # its proxies were started by srun
    with pytest.raises(ClusterError, match=r"hydra started this process as one of many \(PMI_RANK=2\).*--hosts"):
        rank_of(HYDRA)


def test_pals_jsrun_and_aprun_after_the_documentation() -> None:
    assert rank_of(PALS) == Rank("pals", 7, 8, "pals-0a1b-2c")
    assert rank_of({**PALS, "ALPS_APP_PE": "7"}) == rank_of(PALS)  # its aprun sets the old names too
    assert rank_of(JSRUN) == Rank("jsrun", 1, 2, "jsrun-5-1")
    assert rank_of(APRUN) == Rank("aprun", 31, None, "aprun-9-881")


def test_what_plugins_of_srun_set_makes_no_other_launcher() -> None:
    shasta = {**SRUN, "PALS_RANKID": "4", "PALS_APID": "12.0", "ALPS_APP_PE": "4"}
    assert rank_of(shasta) == rank_of(SRUN)
    assert rank_of({**INTERACTIVE, "PALS_RANKID": "0", "ALPS_APP_PE": "0", "PMI_RANK": "0"}) is None


def test_the_innermost_launcher_comes_first() -> None:
    everything: dict[str, str] = {}
    for inner, name in [(APRUN, "aprun"), (JSRUN, "jsrun"), (PALS, "pals"), (OPEN_MPI, "openmpi")]:
        everything |= inner
        assert getattr(rank_of(everything), "launcher", None) == name


def test_an_interactive_shell_of_slurm_is_no_rank() -> None:
    assert rank_of(INTERACTIVE) is None
    [inner] = answer([sys.executable, "-c", WHO], {**INTERACTIVE, "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "3"})
    assert inner == Rank("srun", 0, 3, "srun-12-1")  # an srun typed in that shell hands SLURM_PTY_PORT on


def test_what_is_typed_into_the_first_of_three_tasks_is_no_rank_but_the_task_itself_is() -> None:
    three = {**INTERACTIVE, "SLURM_STEP_NUM_TASKS": "3", "SLURM_TASK_PID": "1"}
    in_a_terminal = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
    assert answer([*in_a_terminal, sys.executable, "-c", WHO], three) == [None]
    itself = ["/bin/sh", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "sh", sys.executable, "-c", WHO]
    assert answer([*in_a_terminal, *itself], three) == [Rank("srun", 0, 3, "srun-12-4294967290")]


def test_keys_are_short_safe_file_names() -> None:
    nasty = rank_of({**OPEN_MPI, "PMIX_NAMESPACE": "../../etc/passwd\n" * 9})
    long = rank_of({**PALS, "PBS_JOBID": "123[4].pbs-server-0001.hsn.cm.site.example.org"})
    for found in (nasty, long, rank_of(OPEN_MPI)):
        assert found is not None
        assert len(found.key) < 80
        assert not set(found.key) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    assert long is not None
    assert long.key.startswith("pals-123.")


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(ClusterError, match="OMPI_COMM_WORLD_RANK='x' is not a number"):
        rank_of({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"})


def test_hydra_is_known_by_the_port_of_its_simulated_proxy(tmp_path: Path) -> None:
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.write_text('#!/bin/sh\nshift 2\n"$@"\nexit $?\n')
    proxy.chmod(0o755)

    def key(port: str) -> str:
        words = [str(proxy), "--control-port", port, sys.executable, "-c", WHO]
        [found] = answer(["/bin/sh", "-c", '"$@"; exit $?', "sh", *words], HYDRA)
        assert found is not None
        return found.key

    assert key("n1:4242") == key("n1:4242") != key("n1:4243")
    assert key("n1:4242").startswith("hydra-")
    assert hydra_control_port(os.getpid(), tmp_path) is None


@pytest.mark.parametrize(
    ("program", "options", "launcher"),
    [
        ("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe"], "openmpi"),
        ("mpiexec.hydra", [], "hydra"),
    ],
)
def test_three_real_ranks_find_themselves_and_one_key(program: str, options: list[str], launcher: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")
    runs = [answer([program, *options, "-n", "3", sys.executable, "-c", WHO], {}) for _ in range(2)]
    for ranks in runs:
        places = sorted((who.launcher, who.rank, who.size) for who in ranks if who)
        assert places == [(launcher, rank, 3) for rank in range(3)]
        assert len({who.key for who in ranks if who}) == 1
    assert {who.key for who in runs[0] if who} != {who.key for who in runs[1] if who}
