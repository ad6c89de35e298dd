"""What `shoal launch` does when a host, an agent or the launcher itself fails: it says who, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from bed import Bed, Node, Running, wait_until
from launches import PROBE, READY_S, job_folder, launch, wait_until_clean, wait_until_seen

HOSTS = ("--hosts", "n1,n2,n3")
RAY_SCRIPT = Path(str(find_spec("ray").origin)).with_name("scripts") / "scripts.py"


@pytest.fixture
def brittle(bed: Bed) -> Iterator[Bed]:
    """A bed whose nodes may die: they are up again after the test."""
    yield bed
    for node in bed.nodes.values():
        if not node.is_up:
            bed.boot(node)


@pytest.mark.slow
def test_a_host_whose_ray_cannot_start_is_named_with_its_error(bed: Bed, here: Path) -> None:
    (here / "scripts.py").write_text("raise SystemExit('libfabric.so.1 is missing')\n")
    n2 = bed.nodes["n2"]
    n2.run(["mount", "--bind", str(here / "scripts.py"), str(RAY_SCRIPT)])
    try:
        done = bed.nodes["n1"].run(launch(*HOSTS, command=["touch", str(here / "ran")]), within_s=120, check=False)
    finally:
        n2.run(["umount", str(RAY_SCRIPT)])
    assert done.wait() == 82, done.told()
    assert "n2 could not start Ray" in done.err
    assert "libfabric.so.1 is missing" in done.err
    assert not (here / "ran").exists()
    wait_until_clean(bed)


@pytest.mark.slow
def test_hosts_that_cannot_be_reached_or_do_not_show_up_are_named(bed: Bed, need: Callable[..., None]) -> None:
    need("mpirun.openmpi")
    n1 = bed.nodes["n1"]
    nobody = n1.run(launch("--hosts", "n1,n9", command=["true"]), check=False)
    assert nobody.wait() == 82, nobody.told()
    assert "n9" in nobody.err
    enough = n1.run(launch("--hosts", "n1,n9", "--min-nodes", "1", command=["echo", "ran"]))
    assert enough.out == "ran\n"
    silent = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec sleep 1000; fi; exec "$@"'
    late = n1.run(
        ["mpirun.openmpi", "-np", "2", "sh", "-c", silent, "sh", *launch("--timeout", "5s", command=["true"])],
        check=False,
    )
    assert late.wait() == 83, late.told()
    assert "rank 1 of 2 has not appeared" in late.err
    wait_until_clean(bed)


@pytest.mark.slow
def test_a_node_that_dies_in_bring_up_is_named(brittle: Bed) -> None:
    n1, _, n3 = brittle.nodes.values()
    running = n1.popen(launch(*HOSTS, command=["true"]))
    wait_until(lambda: _agents(n3), READY_S, "an agent is on n3")
    brittle.kill(n3)
    assert running.wait(120) == 82, running.told()
    assert "n3" in running.err
    assert "n2" not in running.err
    wait_until_clean(brittle)


@pytest.mark.slow
def test_a_node_that_dies_in_the_run_is_told_and_the_rest_goes_on(brittle: Bed, here: Path) -> None:
    n1, _, n3 = brittle.nodes.values()
    running = n1.popen(launch(*HOSTS, command=[*PROBE, str(here / "go")]))
    folder = job_folder(running, brittle)
    wait_until_seen(running, ["n1", "n2", "n3"])
    brittle.kill(n3)
    wait_until(lambda: "n3 was lost" in running.err, READY_S, "the user is told")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["host"] for event in events if event["event"] == "node lost"] == ["n3"], "the command can read it"
    wait_until_seen(running, ["n1", "n2"])
    (here / "go").touch()
    assert running.wait() == 0, running.told()
    wait_until_clean(brittle)


@pytest.mark.slow
def test_a_killed_agent_leaves_nothing_and_may_end_the_run(bed: Bed) -> None:
    n1, n2, _ = bed.nodes.values()
    saving = "trap 'echo saving; exit 0' TERM; echo on; while :; do sleep 0.1; done"
    running = n1.popen(launch(*HOSTS, "--on-node-loss", "stop", command=["sh", "-c", saving]))
    wait_until(lambda: "on" in running.out, READY_S, "the command runs")
    for agent in _agents(n2):
        agent.kill()
    assert running.wait() == 84, running.told()
    assert "n2 was lost" in running.err
    assert "saving" in running.out
    wait_until_clean(bed)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["ssh", "srun"])
def test_a_killed_launcher_leaves_nothing(slurm: Bed, by: str) -> None:
    running = _started(slurm, by)
    job_folder(running, slurm)
    (launcher,) = _launchers(slurm, running, by)
    launcher.kill()
    assert running.wait() != 0
    wait_until_clean(slurm, 15)


@pytest.mark.slow
def test_sigterm_in_bring_up(bed: Bed) -> None:
    running = bed.nodes["n1"].popen(launch(*HOSTS, command=["true"]))
    wait_until(lambda: _agents(bed.nodes["n3"]), READY_S, "an agent is on n3")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM, running.told()
    wait_until_clean(bed)


@pytest.mark.slow
def test_hosts_join_and_leave_again(bed: Bed, here: Path) -> None:
    n1, _, n3 = bed.nodes.values()
    running = n1.popen(launch("--hosts", "n1,n2", command=[*PROBE, str(here / "go")]))
    folder = job_folder(running, bed)
    joining = n3.popen(["shoal", "launch", "--join", folder.name])
    wait_until_seen(running, ["n1", "n2", "n3"])
    joining.send_signal(signal.SIGTERM)
    assert joining.wait() == 0, joining.told()
    wait_until_seen(running, ["n1", "n2"])
    assert not n3.processes()
    assert n3.files() == []
    again = n3.popen(["shoal", "launch", "--join", folder.name])
    wait_until_seen(running, ["n1", "n2", "n3"])
    (here / "go").touch()
    assert running.wait() == 0, running.told()
    assert again.wait() == 0, again.told()
    wait_until_clean(bed)
    assert "not the folder of a running job" in n3.run(["shoal", "launch", "--join", folder.name], check=False).err


@pytest.mark.repeats(0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("by", ["ssh", "srun"])
@pytest.mark.parametrize("stage", [("n3", "shoal"), ("n1", "gcs_server"), ("n3", "raylet")], ids=lambda stage: stage[1])
def test_a_launcher_that_is_killed_in_bring_up_leaves_nothing(slurm: Bed, by: str, stage: tuple[str, str]) -> None:
    node, program = slurm.nodes[stage[0]], stage[1]
    running = _started(slurm, by)
    wait_until(lambda: [p for p in node.processes() if any(program in w for w in _words(p))], READY_S, f"{stage} runs")
    (launcher,) = wait_until(lambda: _launchers(slurm, running, by), READY_S, "there is a launcher")
    launcher.kill()
    assert running.wait() != 0
    wait_until_clean(slurm, 15)


@pytest.mark.slow
def test_the_head_s_node_dies(brittle: Bed) -> None:
    n1 = brittle.nodes["n1"]
    running = n1.popen(launch(*HOSTS, command=["sleep", "1000"]))
    job_folder(running, brittle)
    brittle.kill(n1)
    wait_until_clean(brittle, 60)


def _agents(node: Node) -> list[psutil.Process]:
    """The agents that were started there for one launch."""
    return [process for process in node.processes() if _words(process)[1:5] == ["-m", "shoal", "launch", "--agent"]]


def _started(slurm: Bed, by: str) -> Running:
    """A launch on three hosts whose command does not end."""
    command = ["sleep", "1000"]
    if by == "ssh":
        return slurm.nodes["n1"].popen(launch(*HOSTS, command=command))
    return slurm.login.popen(["srun", "-N3", "-n6", *launch(command=command)])


def _launchers(slurm: Bed, running: Running, by: str) -> list[psutil.Process]:
    """What the user typed, or the rank that leads: it has an agent of its own beside it."""
    if by == "ssh":
        return [running.process]
    n1 = slurm.nodes["n1"]
    return [process for process in n1.processes() if any(agent in _agents(n1) for agent in _children(process))]


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children()
    return []
