"""The bed itself: nodes that are apart, services that answer, and nothing left when its program is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from bed import Bed, wait_until
from daemons import wait_until_idle

ABOVE = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bed import Bed
with Bed(Path(sys.argv[2]), num_nodes=1) as bed:
    sleeper = bed.nodes["n1"].popen(["sleep", "1000"])
    print(bed.login.pid, bed.nodes["n1"].pid, sleeper.process.pid, flush=True)
    signal.pause()
"""


def test_nodes_are_apart(bed: Bed, here: Path) -> None:
    n1, n2, n3 = bed.nodes.values()
    assert [node.run(["hostname"]).out for node in (n1, n2, n3)] == ["n1\n", "n2\n", "n3\n"]
    sleeper = n1.popen(["sh", "-c", "touch /tmp/mine; mkdir /dev/shm/too; echo all >shared; exec sleep 1000"], cwd=here)
    wait_until((here / "shared").exists, 60, "the folder is shared")
    assert n1.processes() == [sleeper.process]
    assert n1.files() == ["/dev/shm/too", "/tmp/mine"]
    assert set(bed.left()) == {"n1"}
    assert n2.run(["cat", str(here / "shared")]).out == "all\n"
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM
    n1.run(["rm", "-r", "/tmp/mine", "/dev/shm/too"])
    assert bed.left() == {}


def test_another_user_is_another_user(bed: Bed) -> None:
    n1 = bed.nodes["n1"]
    assert n1.run(["id", "-u"], uid=1234).out == "1234\n"
    assert n1.run(["ls", str(bed.home)], uid=1234).out == ""


def test_ssh_and_mpi_reach_every_node(bed: Bed, need: Callable[..., None]) -> None:
    need("mpirun.openmpi", "mpiexec.hydra")
    n1 = bed.nodes["n1"]
    assert n1.run(["ssh", "n2", "hostname; echo $HOME"]).out.split() == ["n2", str(bed.home)]
    everyone = ["n1", "n1", "n2", "n2", "n3", "n3"]
    assert sorted(n1.run(["mpirun.openmpi", "--host", "n1:2,n2:2,n3:2", "hostname"]).out.split()) == everyone
    assert sorted(n1.run(["mpiexec.hydra", "-hosts", "n1:2,n2:2,n3:2", "-n", "6", "hostname"]).out.split()) == everyone


def test_slurm_runs_steps_and_batch_jobs(slurm: Bed, here: Path) -> None:
    assert sorted(slurm.login.run(["srun", "-N3", "--ntasks-per-node=2", "hostname"]).out.split()) == [
        "n1",
        "n1",
        "n2",
        "n2",
        "n3",
        "n3",
    ]
    job = here / "job.sh"
    job.write_text("#!/bin/sh\nsrun hostname\n")
    slurm.login.run(["sbatch", "--wait", "-N2", "--output=out", str(job)], cwd=here)
    assert len((here / "out").read_text().split()) == 2


def test_a_node_is_cut_off_dies_and_comes_back(slurm: Bed) -> None:
    n3 = slurm.nodes["n3"]
    knock = ["timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/n3/22"]
    slurm.cut(n3)
    assert slurm.login.run(knock, check=False).wait() == 124
    slurm.mend(n3)
    slurm.login.run(knock)
    before = n3.pid
    slurm.kill(n3)
    assert not psutil.pid_exists(before)
    slurm.boot(n3)
    wait_until_idle(slurm, ["n3"])
    assert slurm.login.run(["srun", "--nodelist=n3", "hostname"]).out == "n3\n"


def test_a_killed_program_leaves_no_node(bed: Bed, tmp_path: Path) -> None:  # `bed` asks whether it can be made at all
    words = [sys.executable, "-c", ABOVE, str(Path(__file__).parent), str(tmp_path / "second")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
        program.kill()
    assert len(processes) == 3
    wait_until(lambda: not any(process.is_running() for process in processes), 60, "the second bed is gone")
