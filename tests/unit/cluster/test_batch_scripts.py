"""Every scheduler's script: as in its golden file, readable by bash, and refused where the scheduler cannot be told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.cluster.batch_scripts import batch_script
from shoal.cluster.containers import container_runtime
from shoal.cluster.job import Job
from shoal.cluster.job_files import Source, job_from
from shoal.cluster.schedulers import BUILT_IN
from shoal.errors import ConfigError

GOLDEN = Path(__file__).with_name("golden")
FULL: dict[str, Any] = {
    "name": "ppo",
    "nodes": 3,
    "walltime": "20m",
    "account": "rlwater",
    "partition": "standard",
    "cpus_per_node": 36,
    "gpus_per_node": 1,
    "memory_per_node": "64GB",
    "preamble": ["module load python/3.11", "source ~/venvs/rl/bin/activate"],
    "variables": {"OMP_NUM_THREADS": 1, "CASE": "it's wet"},
    "command": ["shoal", "train", "-f", "my case.yml", "--num-workers", "100"],
    "min_nodes": 2,
    "ports": "30000-30999",
    "on_node_loss": "continue",
}
OWN: dict[str, dict[str, Any]] = {
    "slurm": {"extra_directives": ["--constraint=haswell"]},
    "pbs": {"extra_directives": ["-l filesystems=home:eagle"]},
    "lsf": {"extra_directives": ["-alloc_flags smt4"]},
    "cobalt": {"cpus_per_node": None, "gpus_per_node": None, "memory_per_node": None},
    "sge": {
        "gpus_per_node": None,
        "memory_per_node": None,
        "parallel_environment": "mpi",
        "extra_directives": ["-l gpu=1"],
    },
}


def job(**keys: Any) -> Job:
    return job_from([Source({"walltime": "20m", "command": ["true"], **keys})])


def script(scheduler: str, described: Job) -> str:
    folder = Path("/home/ada/.shoal/jobs/ppo-20261115-213005")
    return batch_script(described, BUILT_IN[scheduler], Path("/opt/rl/bin"), folder)


@pytest.mark.parametrize("scheduler", [name for name in BUILT_IN if (GOLDEN / f"{name}-container.sh").exists()])
def test_the_script_with_a_container_is_the_golden_one(scheduler: str) -> None:
    more = {"container": "/images/shoal.sif", "container_binds": ["/scratch", "$DATA:/data"], "preamble": []}
    text = script(scheduler, job(**{**FULL, **OWN.get(scheduler, {}), **more}))
    assert text == (GOLDEN / f"{scheduler}-container.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"container": "a.sif"}, '"$runtime" exec --pwd "$PWD" --bind "$PWD" --bind /home/ada/.shoal/jobs '),
        (
            {"container": "oras://lab.org/shoal.sif"},
            '"$runtime" exec --pwd "$PWD" --bind "$PWD" --bind /home/ada/.shoal/jobs oras://lab.org/shoal.sif)',
        ),
        ({"container": "docker://lab/shoal:1", "gpus_per_node": 2}, '"$runtime" exec --nv --pwd "$PWD"'),
        (
            {
                "container": "lab/shoal:1",
                "container_runtime": "podman-hpc",
                "gpus_per_node": 1,
                "container_binds": ["/s"],
            },
            'podman-hpc run --rm --env-host --network=host --ipc=host --pid=host --gpu --workdir "$PWD" '
            '--volume "$HOME":"$HOME" --volume "$PWD":"$PWD" --volume /home/ada/.shoal/jobs:/home/ada/.shoal/jobs '
            "--volume /s:/s lab/shoal:1)",
        ),
        (
            {
                "container": "lab/shoal:1",
                "container_runtime": "shifter",
                "gpus_per_node": 1,
                "container_binds": ["/s:/t"],
            },
            'shifter --image=lab/shoal:1 --module=gpu --workdir="$PWD" --volume=/s:/t)',
        ),
    ],
    ids=str,
)
def test_each_runtime_has_its_own_words(keys: dict[str, Any], words: str) -> None:
    text = script("slurm", job(**keys))
    assert f"container=({words}" in text
    assert '\n"${container[@]}" \\\n  shoal launch ' in text, "one node needs no srun"
    assert "PATH=" not in text, "the host's shoal is not used"


def test_the_runtime_of_a_name_is_what_the_machine_has(tmp_path: Path) -> None:
    described = job(container="lab/shoal:1")
    with pytest.raises(ConfigError, match="set container_runtime to apptainer, podman-hpc or shifter"):
        container_runtime(described, {"PATH": str(tmp_path)})
    (tmp_path / "shifter").write_text("#!/bin/sh\n")
    (tmp_path / "shifter").chmod(0o700)
    assert container_runtime(described, {"PATH": str(tmp_path)}) == "shifter"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"container_binds": ["/s"]}, "container_binds: there is no container"),
        ({"container_runtime": "shifter"}, "container_runtime: there is no container"),
        ({"container": "a image"}, "container: must be a .sif file"),
        ({"container": "-v"}, "container: must be a .sif file"),
        ({"container": "docker://a b"}, "container: must be a .sif file"),
        ({"container": "docker://"}, "container: must be a .sif file"),
        ({"container": "a.sif", "container_binds": ["here"]}, "container_binds: must be absolute folders"),
    ],
)
def test_what_is_wrong_about_a_container_is_said(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        script("slurm", job(**keys))


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_the_script_is_the_golden_one(scheduler: str) -> None:
    text = script(scheduler, job(**{**FULL, **OWN.get(scheduler, {})}))
    golden = GOLDEN / f"{scheduler}.sh"
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden} was missing and is written now: read it")
    assert text == golden.read_text()


@pytest.mark.parametrize("scheduler", BUILT_IN)
@pytest.mark.parametrize("requeue", [True, False])
def test_bash_understands_the_smallest_script(scheduler: str, requeue: bool, tmp_path: Path) -> None:
    keys = {"parallel_environment": "mpi"} if scheduler == "sge" else {}
    path = tmp_path / "job.sh"
    path.write_text(script(scheduler, job(requeue=requeue, **keys)))
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False).stderr == ""
    assert ("85: saved, resume me" in path.read_text()) == requeue


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_directives_stand_together_on_top(scheduler: str) -> None:
    """Schedulers stop looking at the first line that is a command."""
    word = BUILT_IN[scheduler].script.word
    lines = script(scheduler, job(**{**FULL, **OWN.get(scheduler, {})})).splitlines()
    count = sum(line.startswith(word) for line in lines)
    assert lines[0] == "#!/bin/bash --login"
    assert all(line.startswith(f"{word} -") for line in lines[1 : count + 1])


@pytest.mark.parametrize(
    ("scheduler", "keys", "problem"),
    [
        ("sge", {}, "parallel_environment: is missing; Grid Engine needs one"),
        ("sge", {"parallel_environment": "mpi", "gpus_per_node": 1}, 'gpus_per_node: .*"-l gpu=1"'),
        ("sge", {"parallel_environment": "mpi", "memory_per_node": "4GB"}, "memory_per_node: .*extra_directives"),
        ("slurm", {"parallel_environment": "mpi"}, "parallel_environment: only Grid Engine has them"),
        ("cobalt", {"cpus_per_node": 64}, "cpus_per_node: Cobalt allocates whole nodes; leave it out"),
        ("pbs", {"extra_directives": ["-v CASE=wet"]}, "extra_directives: '-v CASE=wet' would be lost .* variables"),
        ("cobalt", {"extra_directives": ["--env=CASE=wet"]}, "would be lost"),
    ],
)
def test_what_a_scheduler_cannot_be_told(scheduler: str, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        script(scheduler, job(**keys))


def test_all_that_a_scheduler_cannot_be_told_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        script("cobalt", job(cpus_per_node=64, gpus_per_node=4, memory_per_node="64GB"))
    assert len(refused.value.problems) == 3


def test_lsf_counts_nodes_where_no_cores_are_named() -> None:
    assert "#BSUB -nnodes 3\n" in script("lsf", job(nodes=3))
    assert '#BSUB -n 12\n#BSUB -R "span[ptile=4]"\n' in script("lsf", job(nodes=3, cpus_per_node=4))


@pytest.mark.parametrize(
    ("walltime", "slurm", "lsf"),
    [("90s", "00:01:30", "2"), ("1-12:00:00", "36:00:00", "2160"), ("150h", "150:00:00", "9000")],
)
def test_walltime(walltime: str, slurm: str, lsf: str) -> None:
    described = job(walltime=walltime, signal_before="10s")
    assert f"#SBATCH --time={slurm}\n" in script("slurm", described)
    assert f"#BSUB -W {lsf}\n" in script("lsf", described)
    assert f"#COBALT -t {lsf}\n" in script("cobalt", described)


def test_memory_keeps_its_size() -> None:
    assert "#SBATCH --mem=1536M\n" in script("slurm", job(memory_per_node="1536MB"))
    assert "mem=1024gb\n" in script("pbs", job(memory_per_node="1TB"))


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_without_a_login_shell_nothing_of_it_is_left(scheduler: str) -> None:
    keys = {**FULL, **OWN.get(scheduler, {}), "login_shell": False}
    text = script(scheduler, job(**keys))
    assert text.startswith("#!/bin/bash\n")
    assert "login" not in text


def test_without_a_preamble_the_own_environment_comes_first() -> None:
    assert 'PATH=/opt/rl/bin:"$PATH"\n' in script("slurm", job())
    assert 'PATH="$PATH":/opt/rl/bin\n' in script("slurm", job(preamble="module load rl"))
