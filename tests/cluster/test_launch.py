"""`shoal launch` by every way into a cluster: the command runs once, sees the hosts there are, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from bed import Bed, Node, wait_until
from launches import INTRUDER, PROBE, READY_S, job_folder, launch, seen, wait_until_clean, wait_until_seen

NODES = ["n1", "n2", "n3"]
EXPERIMENT = """
custom:
  env: CartPole-v1
  run: PPO
  results_dir: results
  stop: {training_iteration: 1}
  config: {train_batch_size: 256}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mpirun",
    [
        pytest.param(["mpirun.openmpi", "-np", "4"], id="openmpi"),
        pytest.param(["mpiexec.hydra", "-n", "4"], id="hydra"),
    ],
)
def test_ranks_of_mpi_on_one_node(bed: Bed, need: Callable[..., None], mpirun: list[str]) -> None:
    need(mpirun[0])
    n1 = bed.nodes["n1"]
    done = n1.run([*mpirun, *launch(command=[*PROBE, "-", "7"])], within_s=120, check=False)
    assert seen(done.out) == [{"here": "n1", "nodes": ["n1"], "cpus": max(4, _cores(n1))}], done.told()
    assert ("more ranks than CPUs" in done.err) == (_cores(n1) < 4), done.told()
    assert done.wait() == 7, "the command's own exit code"
    wait_until_clean(bed)


@pytest.mark.parametrize(
    "mpirun",
    [pytest.param(["mpirun.openmpi", "-np"], id="openmpi"), pytest.param(["mpiexec.hydra", "-n"], id="hydra")],
)
@pytest.mark.slow
def test_the_line_of_the_readme_and_its_output_in_a_file(
    bed: Bed, need: Callable[..., None], here: Path, mpirun: list[str]
) -> None:
    need(mpirun[0])
    node, cpus = bed.nodes["n1"], max(4, _cores(bed.nodes["n1"]))
    (here / "custom.yml").write_text(EXPERIMENT)
    train = ["shoal", "train", "-f", "custom.yml", "--num-workers"]
    done = node.run([*mpirun, "4", *launch(command=[*train, str(cpus - 1)])], cwd=here, within_s=150, TERM="xterm")
    assert re.search(r"^iter +1 ", done.out, re.MULTILINE), done.told()
    assert "Finished: training_iteration" in done.out
    assert "\x1b" not in done.out + done.err, "a file has no use for control codes"

    words = [*mpirun, "4", *launch(command=[*train, str(cpus + 1), "--new"])]
    refused = node.run(words, cwd=here, check=False, within_s=60)
    assert refused.wait() == 2, refused.told()
    assert (
        f"{cpus + 1} workers with num_cpus_per_worker 1 need {cpus + 1} CPUs, and Ray would have {cpus}" in refused.err
    )
    assert f"shoal launch --num-cpus {cpus + 1}" in refused.err
    assert "Ray is up" not in refused.err, "it is told before Ray is started"
    wait_until_clean(bed)


@pytest.mark.slow
def test_ranks_of_mpi_over_hosts(bed: Bed, need: Callable[..., None]) -> None:
    need("mpirun.openmpi")
    words = ["mpirun.openmpi", "--host", "n1:2,n2:2,n3:2", *launch(command=[*PROBE, "-"])]
    done = bed.nodes["n1"].run(words, within_s=120)
    assert [told["nodes"] for told in seen(done.out)] == [NODES], done.told()
    wait_until_clean(bed)


@pytest.mark.slow
def test_ranks_of_srun_and_another_user(slurm: Bed, here: Path) -> None:
    go = here / "go"
    words = launch(command=["sh", "-c", f"echo at {{address}} $RAY_ADDRESS; exec {' '.join(PROBE)} work {go} 3"])
    running = slurm.login.popen(["srun", "-N3", "-n6", *words], LD_PRELOAD="/nowhere.so")
    folder = job_folder(running, slurm)
    wait_until(lambda: len(seen(running.out)) == 2, 60, "the command has seen the cluster")
    places, told = seen(running.out)
    assert places == NODES, "a task on every node"
    assert told["nodes"] == NODES
    address, variable = running.out.split()[1:3]
    assert address == variable, "{address} is replaced"
    assert "LD_PRELOAD unset" in running.err

    head = slurm.nodes[told["here"]]
    (token_file,) = [path for path in head.files() if path.endswith("/token")]
    token = head.run(["cat", token_file]).out
    _check_secrets(slurm, folder, token)
    _check_another_user(head, folder, token_file, token)

    go.touch()
    assert running.wait() == 3, running.told()
    wait_until_clean(slurm)
    assert sorted(path.name for path in (folder / "logs").iterdir()) == NODES
    assert all(list(path.glob("raylet*")) for path in (folder / "logs").iterdir()), "the logs of every host"
    assert not (folder / "head.json").exists()
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if token in path.read_text(errors="replace")]


@pytest.mark.slow
def test_a_warning_to_a_whole_step_reaches_the_command_and_not_ray(slurm: Bed, here: Path) -> None:
    go = here / "go"
    waiting = f"echo job $SLURM_JOB_ID; trap 'echo warned' USR1; while [ ! -e {go} ]; do sleep 0.1; done"
    words = launch(command=["sh", "-c", f"{waiting}; exec {' '.join(PROBE)} work - 3"])
    running = slurm.login.popen(["srun", "-N2", "-n2", *words])
    wait_until(lambda: "job" in running.out, READY_S, "the command has begun")
    job = running.out.split()[1]
    slurm.login.run(["scancel", "--signal=USR1", f"{job}.0"])
    wait_until(lambda: "warned" in running.out, 60, "the command is warned")
    go.touch()
    assert running.wait() == 3, running.told()
    places, told = seen(running.out)
    assert len(places) == len(told["nodes"]) == 2, running.told()
    wait_until_clean(slurm)


@pytest.mark.slow
def test_mpirun_inside_of_a_batch_job(slurm: Bed, here: Path, need: Callable[..., None]) -> None:
    need("mpirun.openmpi")
    job = _batch(slurm, here, ["-N3", "-n6"], ["mpirun.openmpi", *launch(command=[*PROBE, "-"])])
    assert [told["nodes"] for told in seen(job)] == [NODES], job
    wait_until_clean(slurm)


@pytest.mark.slow
def test_a_batch_shell_starts_its_agents(slurm: Bed, here: Path) -> None:
    job = _batch(slurm, here, ["-N3", "--ntasks-per-node=1"], launch(command=[*PROBE, "-"]))
    assert seen(job) == [{"here": "n1", "nodes": NODES, "cpus": 3}], "the CPUs of the allocation, not of the machine"
    wait_until_clean(slurm)


@pytest.mark.slow
def test_an_interactive_allocation_from_the_login_node(slurm: Bed) -> None:
    done = slurm.login.run(["salloc", "-N2", *launch(command=[*PROBE, "-"])], within_s=120)
    assert seen(done.out) == [{"here": "login", "nodes": ["login", "n1", "n2"], "cpus": 2}], done.told()
    facts = slurm.login.run(["salloc", "-N2", "shoal", "doctor", "--json"], check=False).out
    assert sorted(json.loads(facts)["facts"]) == ["login", "n1", "n2"], "the doctor asks every host of it, too"
    wait_until_clean(slurm)


@pytest.mark.slow
def test_hosts_by_ssh_from_one_of_them_and_from_elsewhere(bed: Bed, here: Path) -> None:
    (here / "hosts").write_text("# two of three\nn1 slots=1\nn3 slots=1\n")
    inside = bed.nodes["n1"].run(launch("--hostfile", str(here / "hosts"), command=[*PROBE, "-"]), within_s=120)
    assert seen(inside.out) == [{"here": "n1", "nodes": ["n1", "n3"], "cpus": 2}]
    outside = bed.login.run(launch("--hosts", "n[2-3]", command=[*PROBE, "-"]), within_s=120)
    (told,) = seen(outside.out)
    assert told["nodes"] == ["login", "n2", "n3"]
    assert told["cpus"] == _cores(bed.nodes["n2"]) * 2, "the head is none of the hosts, and gives no CPUs"
    wait_until_clean(bed)
    assert bed.login.files() == []


@pytest.mark.slow
def test_this_machine_alone_and_signals(bed: Bed) -> None:
    n1 = bed.nodes["n1"]
    saving = "trap 'echo saving; exit 85' TERM; trap 'echo late' USR1; echo on; while :; do sleep 0.1; done"
    running = n1.popen(launch(command=["sh", "-c", saving]))
    wait_until(lambda: "on" in running.out, 90, "the command runs")
    running.send_signal(signal.SIGUSR1)
    wait_until(lambda: "late" in running.out, 60, "the signal is passed on")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 85, running.told()
    assert "saving" in running.out
    wait_until_clean(bed, 0)

    running = n1.popen(launch(command=["sleep", "1000"]))
    job_folder(running, bed)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 128 + signal.SIGINT, running.told()
    wait_until_clean(bed, 0)


@pytest.mark.slow
def test_two_clusters_side_by_side_and_ports(bed: Bed, here: Path) -> None:
    n1, n2, _ = bed.nodes.values()
    before = {node.name: _ports(node) for node in (n1, n2)}
    first = n1.popen(
        launch("--hosts", "n1,n2", "--ports", "30000-30199", command=[*PROBE, "work", str(here / "first")])
    )
    wait_until(lambda: len(seen(first.out)) == 2, 90, "the first command has seen its cluster")
    for node in (n1, n2):
        opened = _ports(node) - before[node.name]
        assert opened, node.name
        assert opened <= set(range(30000, 30200)), node.name
    second = n1.popen(launch("--hosts", "n1,n2", command=[*PROBE, str(here / "second")]))
    assert job_folder(second, bed) != job_folder(first, bed)
    wait_until_seen(second, ["n1", "n2"])
    (here / "first").touch()
    assert first.wait() == 0, first.told()
    assert seen(first.out)[-1]["nodes"] == ["n1", "n2"]
    (here / "second").touch()
    assert second.wait() == 0, second.told()
    assert len(seen(second.out)) == 1, "it has not noticed that the other has come to its end"
    wait_until_clean(bed)


def _ports(node: Node) -> set[int]:
    """Where something listens on this node."""
    lines = node.run(["ss", "--no-header", "--tcp", "--listening", "--numeric"]).out.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}


def _cores(node: Node) -> int:
    return int(node.run(["nproc"]).out)


def _batch(slurm: Bed, here: Path, options: list[str], words: list[str]) -> str:
    """What a batch job prints."""
    script = here / "job.sh"
    script.write_text("#!/bin/sh\n" + " ".join(words) + "\n")
    done = slurm.login.run(
        ["sbatch", "--wait", "--output=out", *options, str(script)], cwd=here, within_s=150, check=False
    )
    told = (here / "out").read_text()
    assert done.wait() == 0, told
    return told


def _check_secrets(bed: Bed, folder: Path, token: str) -> None:
    """Nobody finds the secrets in arguments, variables or modes."""
    secret = json.loads((folder / "head.json").read_text())["secret"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "head.json").stat().st_mode & 0o777 == 0o600
    for node in bed.nodes.values():
        for process in node.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                told = [*process.cmdline(), *process.environ().values()]
                assert not [word for word in told if token in word or secret in word], process
                assert "--include-dashboard=true" not in told
        (private,) = [path for path in node.files() if path.endswith("/token")]
        mode = node.run(["stat", "-c", "%a", private, str(Path(private).parent)]).out.split()
        assert mode == ["600", "700"], node.name


def _check_another_user(node: Node, folder: Path, token_file: str, token: str) -> None:
    """A second uid is refused everywhere, where the owner is not."""
    their = json.loads(node.run([*INTRUDER, "1234", str(folder), token_file]).out)
    assert set(their["refusals"].values()) == {"PermissionError"}, their
    assert 401 in their["statuses"].values(), f"a job API listens: {their}"
    assert not [status for status in their["statuses"].values() if 200 <= status < 400], their
    own = json.loads(node.run([*INTRUDER, "0", str(folder), token_file, token]).out)
    assert 401 not in own["statuses"].values(), f"the token is what they lack: {own}"


@pytest.mark.slow
def test_doctor_looks_at_every_host(slurm: Bed, here: Path) -> None:
    by_ssh = slurm.nodes["n1"].run(["shoal", "doctor", "--hosts", "n1,n2,n3,n9", "--json"], within_s=120, check=False)
    told = json.loads(by_ssh.out)["facts"]
    assert sorted(told) == [*NODES, "n9"]
    assert [facts["hostname"] for host, facts in sorted(told.items()) if host != "n9"] == NODES
    assert "n9" in told["n9"]["error"]
    assert by_ssh.wait() == 1, "a host that cannot be reached would break a job"
    job = _batch(slurm, here, ["-N3", "--ntasks-per-node=1"], ["shoal", "doctor", "--json", "||", "true"])
    assert sorted(json.loads(job[job.index("{") :])["facts"]) == NODES
    wait_until_clean(slurm)
