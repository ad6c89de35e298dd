"""The words and the variables by which each MPI launcher starts ranks on given slots, and how it is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.machine.mpi_launchers import (
    AS_ROOT,
    LAUNCHERS,
    FoundLauncher,
    find_launcher,
    folder_variables,
    mpi_variables,
    mpi_words,
    refuse_root,
)
from shoal.machine.slots import RankSlot

HERE = os.uname().nodename
BOUND = [RankSlot(HERE, 3), RankSlot(HERE, 7)]
SHARED = [RankSlot(HERE, 3), RankSlot(HERE, 64, is_core=False)]
SOLVER = ["./solver", "--case", "a b"]
VERSIONS = {
    "Open MPI": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "MPICH or Intel MPI": "HYDRA build details:\n    Version:  4.0.2",
    "PALS": "mpiexec version 1.3.4 revision a1b2c3",
}


def found(name: str) -> FoundLauncher:
    (launcher,) = [launcher for launcher in LAUNCHERS if launcher.name == name]
    return FoundLauncher(launcher, ("run",))


def program(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return path


def binding(rank: str, cores: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec taskset -c "$(echo "$0" | cut -d, -f$(({rank} + 1)))" "$@"', cores]


def test_open_mpi() -> None:
    start = ["run", "-np", "2", "--host", f"{HERE}:2", "--bind-to", "none"]
    assert mpi_words(found("Open MPI"), BOUND, SOLVER) == [*start, *binding("OMPI_COMM_WORLD_RANK", "3,7"), *SOLVER]
    assert mpi_words(found("Open MPI"), SHARED, SOLVER) == [*start, *SOLVER]


def test_mpich() -> None:
    start = ["run", "-rmk", "user", "-launcher", "fork", "-hosts", f"{HERE}:2", "-n", "2"]
    assert mpi_words(found("MPICH or Intel MPI"), BOUND, SOLVER) == [*start, *binding("PMI_RANK", "3,7"), *SOLVER]


def test_srun() -> None:
    step = ["--overlap", "--overcommit", "--mem=0", "--cpu-bind=none"]
    step += ["--kill-on-bad-exit=1", "--export=ALL"]
    start = ["run", "--nodes=1", "--ntasks=2", "--nodelist=n1", *step]
    slots = [RankSlot("n1.site.org", 3), RankSlot("n1.site.org", 7)]
    assert mpi_words(found("srun"), slots, SOLVER) == [*start, *binding("SLURM_PROCID", "3,7"), *SOLVER]


def test_pals_which_is_simulated() -> None:
    start = ["run", "-n", "2", "--ppn", "2", "--hosts", HERE, "--cpu-bind", "none"]
    assert mpi_words(found("PALS"), BOUND, SOLVER) == [*start, *binding("PALS_RANKID", "3,7"), *SOLVER]


def test_what_an_outer_launch_has_set_is_not_passed_on() -> None:
    outer = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_ess_base_jobid": "77",
        "OMPI_MCA_orte_hnp_uri": "x",
        "OMPI_UNIVERSE_SIZE": "4",
        "PMIX_NAMESPACE": "x",
        "PMI_RANK": "3",
        "PMI_FD": "9",
        "HYDI_CONTROL_FD": "8",
        "MPI_LOCALRANKID": "0",
        "PALS_RANKID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "2",
        "SLURM_CPU_BIND": "none",
        "SLURM_NTASKS": "6",
    }
    users = {
        "PATH": "/bin",
        "OMPI_MCA_btl": "self,tcp",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "-p 22",
        "SLURM_JOB_ID": "5",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_MPI_TYPE": "pmix",
        "OMPI_MCA_mpi_yield_when_idle": "0",
    }
    given = mpi_variables(found("Open MPI"), {**outer, **users})
    assert not given.keys() & outer.keys()
    assert users.items() <= given.items(), "what the user says has the last word"
    assert "slurm" in given["OMPI_MCA_ras"]


def test_files_are_where_the_environments_are() -> None:
    given = folder_variables(found("Open MPI"), "/memory")
    assert given["OMPI_MCA_orte_tmpdir_base"] == "/memory"
    assert given["OMPI_MCA_btl_vader_backing_directory"] == "/memory"
    assert folder_variables(found("srun"), "/memory") == {}


@pytest.mark.parametrize("name", list(VERSIONS))
def test_a_launcher_is_known_by_what_it_says(tmp_path: Path, name: str) -> None:
    path = program(tmp_path, "mpiexec", VERSIONS[name])
    launcher, words = find_launcher({"PATH": f"{tmp_path}:/bin"})
    assert (launcher.name, words) == (name, (str(path),)), "also where a later folder has an mpirun"


def test_mpirun_comes_before_srun_which_counts_only_in_a_job(tmp_path: Path) -> None:
    srun = program(tmp_path / "slurm", "srun", "")
    environ = {"PATH": str(tmp_path / "slurm"), "SLURM_JOB_ID": "3"}
    assert find_launcher(environ) == FoundLauncher(found("srun").launcher, (str(srun),))
    with pytest.raises(ConfigError, match=r"config.env_ranks: there is no mpirun and no mpiexec on PATH"):
        find_launcher({"PATH": environ["PATH"]})
    program(tmp_path / "mpi", "mpirun", VERSIONS["Open MPI"])
    environ["PATH"] = f"{tmp_path / 'slurm'}:{tmp_path / 'mpi'}:/bin"
    assert find_launcher(environ).launcher.name == "Open MPI"
    said = find_launcher({**environ, "SHOAL_MPIRUN": "srun --mpi=pmix"})
    assert said == FoundLauncher(found("srun").launcher, (str(srun), "--mpi=pmix"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("nothing-of-this-name", "there is no such program"),
        ("'", "No closing quotation"),
        ("cat", "is no launcher that shoal knows"),
    ],
)
def test_what_is_no_launcher_is_refused(said: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_launcher({"PATH": "/usr/bin:/bin", "SHOAL_MPIRUN": said})


def test_open_mpi_that_root_may_not_start_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    open_mpi = found("Open MPI")
    allowed = dict.fromkeys(AS_ROOT, "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match=r"starts nothing for root; .* set OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW"):
        refuse_root(open_mpi, {})
    with pytest.raises(ConfigError, match="set OMPI_ALLOW_RUN_AS_ROOT_CONFIRM to 1"):
        refuse_root(open_mpi, {AS_ROOT[0]: "1"})
    refuse_root(open_mpi, allowed)
    refuse_root(open_mpi._replace(words=("mpirun", "--allow-run-as-root")), {})
    refuse_root(found("MPICH or Intel MPI"), {})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refuse_root(open_mpi, {})
