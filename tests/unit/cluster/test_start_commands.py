"""How one process is started on each host: the commands, run with programs that stand in for the schedulers'."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from shoal.cluster.allocation import Host
from shoal.cluster.schedulers import starts_of
from shoal.cluster.start_commands import agents_command
from shoal.errors import ClusterError, ConfigError

HOSTS = [Host("n1", 4), Host("n2", 4)]
WORDS = ["/bin/sh", "-c", 'printf "<%s>" "$PWD" "$LD_LIBRARY_PATH" "$@"', "sh", "a b", "it's $HOME", '"*"', ""]

# What a launcher does, seen from one host: it passes over its options and runs the rest, or the line that ssh is given.
RUNS_THE_REST = 'while [ "${1#/}" = "$1" ]; do shift; done\nexec "$@"\n'
RUNS_A_LINE = 'for line; do :; done\ncd /\nunset LD_LIBRARY_PATH\nexec /bin/sh -c "$line"\n'


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}")
    (folder / name).chmod(0o755)


def node_file(tmp_path: Path) -> str:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    return str(tmp_path / "nodes")


@pytest.mark.parametrize(
    ("scheduler", "name", "number", "options"),
    [
        ("pbs", "pbs_tmrsh", 2, "n2"),
        ("pbs", "pbsdsh", 2, "-n 2 --"),
        ("lsf", "jsrun", 1, "-n 2 -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS -b none -X 0 --smpiargs off"),
        ("lsf", "blaunch", 1, "-z 'n1 n2' -no-shell"),
        ("cobalt", "aprun", 1, "-n 2 -N 1 -cc none -b"),
        ("cobalt", "mpiexec.hydra", 1, "-n 2 -ppn 1 -hosts n1,n2 -disable-auto-cleanup"),
        ("sge", "qrsh", 2, "-inherit -nostdin -noshell -V n2"),
        ("slurm", "srun", 1, "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=n1,n2"),
        (
            "ssh",
            "ssh",
            2,
            "-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 n2",
        ),
        (
            "pbs",
            "ssh",
            2,
            "-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 n2",
        ),
    ],
)
def test_a_simulated_launcher_runs_the_words_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, name: str, number: int, options: str
) -> None:
    here = tmp_path / "a folder with 'quotes'"
    here.mkdir()
    monkeypatch.chdir(here)
    program(tmp_path / "bin", name, RUNS_A_LINE if name == "ssh" else RUNS_THE_REST)
    environ = {"PATH": f"{tmp_path / 'bin'}", "LD_LIBRARY_PATH": "/opt/lib", "PBS_NODEFILE": node_file(tmp_path)}
    commands = agents_command(starts_of(scheduler), HOSTS, WORDS, environ)
    assert len(commands) == number
    for command in commands:
        assert command[0] == name
        run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert run.stdout == f'<{here}></opt/lib><a b><it\'s $HOME><"*"><>'
    given = shlex.split(options)
    assert commands[-1][1 : len(given) + 1] == given


def test_a_folder_that_a_host_does_not_have_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    program(tmp_path / "bin", "ssh", RUNS_A_LINE)
    [command] = agents_command(starts_of("ssh"), [Host("n1")], WORDS, {"PATH": str(tmp_path / "bin")})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").rmdir()
    run = subprocess.run(command, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("</><><a b>")


def test_simulated_srun_is_not_disturbed_by_what_sbatch_exports(tmp_path: Path) -> None:
    program(tmp_path, "srun", "env\n")
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "12",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_TRES_PER_TASK": "cpu=2",
        "SLURM_NTASKS_PER_GPU": "1",
    }
    [command] = agents_command(starts_of("slurm"), HOSTS, ["/bin/true"], environ)
    assert {"--overlap", "--mem=0", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"} < set(command)
    seen = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert "SLURM_JOB_ID=12" in seen
    assert not any(name in seen for name in ("CPUS_PER_TASK", "TRES_PER_TASK", "NTASKS_PER_GPU"))


def test_aprun_is_told_the_numbers_of_the_nodes(tmp_path: Path) -> None:
    program(tmp_path, "aprun", RUNS_THE_REST)
    [command] = agents_command(
        starts_of("cobalt"), [Host("nid03834"), Host("nid00010")], ["/bin/true"], {"PATH": str(tmp_path)}
    )
    assert command[5:7] == ["-L", "3834,10"]


def test_the_user_s_own_ssh(tmp_path: Path) -> None:
    program(tmp_path, "myssh", RUNS_A_LINE)
    environ = {"PATH": str(tmp_path), "SHOAL_SSH": "myssh -p 2222 -i 'my key'"}
    [command] = agents_command(starts_of("ssh"), [Host("n1")], WORDS, environ)
    assert command[:5] == ["myssh", "-p", "2222", "-i", "my key"]
    for text, problem in [("ssh 'x", "cannot be read"), (" ", "SHOAL_SSH is empty")]:
        with pytest.raises(ClusterError, match=problem):
            agents_command(starts_of("ssh"), HOSTS, WORDS, {**environ, "SHOAL_SSH": text})


def test_what_cannot_be_found_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"^pbs_tmrsh and pbsdsh and ssh cannot be found on PATH.* on n1; "):
        agents_command(starts_of("pbs"), HOSTS, WORDS, {"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="there is no scheduler 'slrum'"):
        starts_of("slrum")
