"""What a sceptical administrator tries on a cluster with real Slurm: cancels, kills, stopped and silent nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from bed import Bed, Node, wait_until
from daemons import wait_until_idle
from launches import PROBE, READY_S, job_folder, launch, seen, wait_until_clean, wait_until_seen

SHOAL = Path(sys.executable).with_name("shoal")
TRAIN = (
    *("shoal", "train", "CartPole-v1", "--seed", "5", "--set", "report=false", "--set", "train_batch_size=256"),
    *("--stop", "training_iteration=100000"),
)


@pytest.fixture
def without_shoal(slurm: Bed) -> Iterator[Bed]:
    """A bed whose n2 has no `shoal`, and no Python for it."""
    n2 = slurm.nodes["n2"]
    hidden = [str(SHOAL), os.path.realpath(sys.executable)]
    for path in hidden:
        n2.run(["mount", "--bind", "/dev/null", path])
    yield slurm
    for path in hidden:
        n2.run(["umount", path])


@pytest.mark.slow
@pytest.mark.parametrize("by", ["srun", pytest.param("salloc", marks=pytest.mark.long)])
def test_a_host_on_which_srun_cannot_start_anything_is_named(without_shoal: Bed, by: str) -> None:
    words = ["srun", "-N3", "-n3"] if by == "srun" else ["salloc", "-N3"]
    running = without_shoal.login.popen([*words, *launch(command=["true"])])
    try:
        assert running.wait(READY_S) != 0, "long before the timeout of 300 s"
    finally:
        without_shoal.login.run(["scancel", "--user=root"])
    assert re.search(r"^Error: n2: .*execve.*Permission denied", running.err, re.MULTILINE), running.told()
    assert "no-kill" not in running.err, "there is no script that could have it"
    wait_until_clean(without_shoal)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["mpirun.openmpi", pytest.param("mpiexec.hydra", marks=pytest.mark.long), "srun"])
def test_a_launcher_that_is_killed_leaves_nothing(slurm: Bed, need: Callable[..., None], here: Path, by: str) -> None:
    need(by)
    n1, saved = slurm.nodes["n1"], here / "saved"
    saving = f"trap 'touch {saved}; exit 0' TERM; touch {here / 'on'}; while :; do sleep 0.1; done"
    words = [by, "-N2", "-n2"] if by == "srun" else [by, "-n", "2"]
    running = (slurm.login if by == "srun" else n1).popen([*words, *launch(command=["sh", "-c", saving])])
    wait_until((here / "on").exists, READY_S, "the command runs")
    # srun's helper first: where srun alone is gone, it has Slurm kill the whole step.
    for process in [*running.process.children(), running.process]:
        if _name(process) in ("srun", "mpirun", "mpirun.openmpi", "mpiexec.hydra", "orterun"):
            process.kill()
    try:
        wait_until(lambda: not _left_by_us(slurm), READY_S, "nothing of ours is left")
    finally:
        slurm.login.run(["scancel", "--user=root"])  # Slurm may keep the nodes of an srun that was killed
    assert saved.exists() or by == "mpiexec.hydra", "it could save; hydra kills its ranks itself"


@pytest.mark.slow
def test_what_slurm_kills_with_srun_is_removed_by_the_next_launch(slurm: Bed, here: Path) -> None:
    words = ["srun", "-N2", "-n2"]
    running = slurm.login.popen([*words, *launch(command=["sh", "-c", f"touch {here / 'on'}; sleep 1000"])])
    wait_until((here / "on").exists, READY_S, "the command runs")
    running.send_signal(signal.SIGKILL)
    nodes = slurm.nodes.values()
    wait_until(lambda: not any(node.processes() for node in nodes), READY_S, "Slurm has killed all of the step")
    slurm.login.run(["scancel", "--user=root"])
    wait_until_idle(slurm, list(slurm.nodes))
    assert slurm.login.popen([*words, *launch(command=["true"])]).wait(READY_S) == 0
    wait_until_clean(slurm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "helper"),
    [
        ("mpirun.openmpi", "orted"),
        pytest.param("mpiexec.hydra", "hydra_pmi_proxy", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("where", ["n2", pytest.param("n1", marks=pytest.mark.long)])
def test_a_helper_of_mpi_that_is_killed_leaves_nothing(
    bed: Bed, need: Callable[..., None], here: Path, by: str, helper: str, where: str
) -> None:
    need(by)
    hosts = ["-hosts", "n1,n2"] if by == "mpiexec.hydra" else ["--host", "n1,n2"]
    work = f"touch {here / 'on'}; while [ ! -e {here / 'go'} ]; do sleep 0.1; done"
    running = bed.login.popen([by, *hosts, "-n", "2", *launch(command=["sh", "-c", work])])
    wait_until((here / "on").exists, 4 * READY_S, "the command runs")
    helpers = [process for process in bed.nodes[where].processes() if _name(process) == helper]
    assert helpers, [_words(process) for process in bed.nodes[where].processes()]
    for process in helpers:
        process.kill()
    if where == "n2":  # Hydra does not mind, and the command may go on; Open MPI ends the job
        (here / "go").touch()
    helping = ("orted", "hydra_pmi_proxy", "sshd", "ssh")
    ours = lambda: [words for each in bed.nodes.values() for words in _of_others(each, helping)]  # noqa: E731
    wait_until(lambda: not ours(), READY_S, "nothing of ours is left")
    assert not any(thing for things in bed.left().values() for thing in things if "/shl-" in thing)
    if not running.ended:  # Hydra may wait for a proxy that is gone
        running.send_signal(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", pytest.param("cut off", marks=pytest.mark.long)])
def test_a_node_that_is_stopped_or_cut_off_is_reported_once_and_ends(bed: Bed, here: Path, how: str) -> None:
    n1, _, n3 = bed.nodes.values()
    running = n1.popen(launch("--hosts", "n1,n2,n3", command=[*PROBE, str(here / "go")]))
    folder = job_folder(running, bed)
    wait_until_seen(running, ["n1", "n2", "n3"])
    if how == "stopped":
        (raylet,) = [process for process in n3.processes() if _name(process) == "raylet"]
        raylet.send_signal(signal.SIGSTOP)
    else:
        bed.cut(n3)
    try:
        wait_until(lambda: "n3 was lost" in running.err, READY_S, "the user is told")
        wait_until_seen(running, ["n1", "n2"])
        wait_until(lambda: not _rays(n3), READY_S, "what ran there has ended")
    finally:
        bed.mend(n3)
    (here / "go").touch()
    assert running.wait() == 0, running.told()
    assert running.err.count("n3") == 1, running.told()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["host"] for event in events if event["event"] == "node lost"] == ["n3"]
    wait_until_clean(bed)


@pytest.mark.long
@pytest.mark.slow
def test_a_heterogeneous_job_is_one_cluster(slurm: Bed, here: Path) -> None:
    (here / "job.sh").write_text("#!/bin/sh\n" + " ".join(launch(command=[*PROBE, "-"])) + "\n")
    groups = ["-N1", "-n1", "-c2", ":", "-N2", "-n2"]
    slurm.login.run(["sbatch", "--wait", "--output=out", *groups, "job.sh"], cwd=here, within_s=2 * READY_S)
    told = (here / "out").read_text()
    assert seen(told) == [{"here": "n1", "nodes": ["n1", "n2", "n3"], "cpus": 4}], told
    wait_until_clean(slurm)


@pytest.mark.slow
def test_cancelled_jobs_have_saved_and_leave_nothing(slurm: Bed, here: Path) -> None:
    check_cancels(slurm, here, 3)


def check_cancels(slurm: Bed, here: Path, count: int) -> None:
    """Start as many one-node jobs at once, cancel them while they train, and see how they end."""
    jobs = {}
    wait_until_idle(slurm, list(slurm.nodes))  # of jobs that other tests have left to Slurm
    for number in range(count):
        results = here / f"results{number}"
        command = launch(command=[*TRAIN, "--num-workers", "1", "--results-dir", str(results)])
        script = here / f"job{number}.sh"
        script.write_text(f"#!/bin/sh\ntrap : TERM\n{' '.join(command)} &\nwait $!\nwait $!\necho code $?\n")
        words = ["sbatch", "--parsable", "-N1", "-n1", "-c4", f"--output=out{number}", str(script)]
        jobs[slurm.login.run(words, cwd=here).out.strip()] = number
    for number in jobs.values():
        log = here / f"out{number}"
        wait_until(lambda log=log: log.exists() and "\niter " in log.read_text(), 4 * READY_S, "it trains")
    slurm.login.run(["scancel", *jobs])
    wait_until_clean(slurm)
    for number in jobs.values():
        told = (here / f"out{number}").read_text()
        assert "\ncode 143\n" in told, told
        assert "saved     checkpoint_" in told, told
        assert not re.search("Traceback|SystemError|was lost|Killed", told), told


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_and_the_next_start_says_what_was_lost(bed: Bed, here: Path) -> None:
    n1 = bed.nodes["n1"]
    train = [*TRAIN, "--num-workers", "1", "--checkpoint-freq", "20", "--results-dir", "results"]
    running = n1.popen(launch("--hosts", "n1,n2", command=train), cwd=here)
    wait_until(lambda: re.search(r"^iter +2[1-9] ", running.out, re.MULTILINE), 4 * READY_S, "it trains")
    (driver,) = [process for process in n1.processes() if _words(process)[1:3] == [str(SHOAL), "train"]]
    driver.kill()
    assert running.wait() == 128 + signal.SIGKILL, running.told()
    wait_until_clean(bed)
    (run,) = (here / "results" / "CartPole-v1").iterdir()
    again = n1.run(["shoal", "resume", str(run), "--stop", "training_iteration=61"], cwd=here, within_s=4 * READY_S)
    assert re.search(r"checkpoint_0000[24]0; \d+ finished iterations? after it must be trained again", again.out), (
        again.out
    )


# A CartPole that stands still after a while until the test goes on, however fast it trains.
WAITING = """
import time
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

GO_ON = Path(__file__).with_name("go_on")

class Waiting(CartPoleEnv):
    def __init__(self):
        super().__init__()
        self.left = 200

    def step(self, action):
        self.left -= 1
        while self.left < 0 and not GO_ON.exists():
            time.sleep(0.05)
        return super().step(action)
"""


@pytest.mark.long
@pytest.mark.slow
def test_hosts_that_join_and_leave_do_not_change_the_result(bed: Bed, here: Path) -> None:
    n1, n2, n3 = bed.nodes.values()
    (here / "waiting.py").write_text(WAITING)
    train = ["shoal", "train", "waiting.py:Waiting", "--seed", "5", "--num-workers", "2", "--set", "report=false"]
    train += ["--set", "train_batch_size=128", "--stop", "training_iteration=600"]
    waiting = "while [ ! -e go ]; do sleep 0.1; done; exec " + " ".join([*train, "--results-dir", "elastic"])
    words = launch("--hosts", "n1", "--num-cpus", "1", command=["sh", "-c", waiting])
    running = bed.login.popen(words, cwd=here)  # whose host gives no CPUs, so that each worker has one of its own
    folder = job_folder(running, bed)
    joining = ["shoal", "launch", "--join", str(folder), "--num-cpus", "1"]
    leaves = n2.popen(joining)
    wait_until(lambda: "n2 has joined" in running.err, READY_S, "n2 is there")
    (here / "go").touch()
    wait_until(lambda: "\niter " in running.out, 4 * READY_S, "it trains on n1 and n2")
    stays = n3.popen(joining)
    wait_until(lambda: "n3 has joined" in running.err, READY_S, "n3 is there")
    leaves.send_signal(signal.SIGTERM)
    (here / "go_on").touch()
    assert leaves.wait() == 0, leaves.told()
    assert running.wait(10 * READY_S) == 0, running.told()
    assert stays.wait() == 0, stays.told()
    assert "was lost" not in running.out + running.err, running.told()
    (run,) = (here / "elastic" / "waiting.Waiting").iterdir()
    assert (
        "worker 2 leaves n2" in (run / "log.txt").read_text() or "worker 1 leaves n2" in (run / "log.txt").read_text()
    )
    n1.run([*train, "--results-dir", "fixed"], cwd=here, within_s=10 * READY_S)
    (fixed,) = (here / "fixed" / "waiting.Waiting").iterdir()
    assert (run / "chain.jsonl").read_text() == (fixed / "chain.jsonl").read_text()
    wait_until_clean(bed)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_of_submit_outlives_a_node_that_slurm_gives_up(slurm: Bed, here: Path) -> None:
    conf, n3 = slurm.folder / "slurm" / "slurm.conf", slurm.nodes["n3"]
    patient = conf.read_text()
    words = ["shoal", "submit", "--nodes", "3", "--walltime", "20m", "--output", "log", "--", *PROBE, str(here / "go")]
    job = re.findall(r"Submitted: job (\d+)", slurm.login.run(words, cwd=here).out)[0]
    log = here / "log"
    wait_until(lambda: log.exists() and seen(log.read_text()), 4 * READY_S, "the command runs")
    assert "no-kill" not in log.read_text(), "it has that option"
    conf.write_text(patient.replace("SlurmdTimeout=300", "SlurmdTimeout=10"))
    slurm.login.run(["scontrol", "reconfigure"])
    slurm.cut(n3)
    try:
        state = ["sinfo", "--noheader", "--Node", "--format=%T", "--nodes=n3"]
        wait_until(lambda: "down" in slurm.login.run(state).out, 4 * READY_S, "Slurm has given the node up")
        wait_until(lambda: seen(log.read_text())[-1]["nodes"] == ["n1", "n2"], READY_S, "the command goes on")
        shown = slurm.login.run(["scontrol", "show", "job", job]).out
        assert "JobState=RUNNING" in shown, shown
        assert "Restarts=0" in shown, shown
    finally:
        slurm.mend(n3)
        conf.write_text(patient)
        slurm.login.run(["scontrol", "reconfigure"])
    (here / "go").touch()
    wait_until(lambda: "COMPLETED" in slurm.login.run(["scontrol", "show", "job", job]).out, READY_S, "it is done")
    wait_until_clean(slurm)
    wait_until_idle(slurm, ["n3"])


def _left_by_us(bed: Bed) -> list[str]:
    """What is left on the nodes, but for the files of Open MPI's own that its mpirun would have removed."""
    return [thing for things in bed.left().values() for thing in things if not thing.startswith("/tmp/ompi.")]


def _rays(node: Node) -> list[psutil.Process]:
    return [process for process in node.processes() if _name(process) in ("raylet", "python", "shoal")]


def _of_others(node: Node, names: Sequence[str]) -> list[list[str]]:
    """The commands on a node, but for those of these names."""
    return [words for each in node.processes() if _name(each) not in names and (words := _words(each))]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
