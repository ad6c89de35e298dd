"""The trainer script of examples/eagle under its batch script, on real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bed import PATH, ROOT, Bed
from launches import wait_until_clean

from shoal.reports.records import read_trials

EAGLE = ROOT / "examples" / "eagle"


def trained(slurm: Bed, here: Path, script: str, options: list[str]) -> None:
    """Submit a script with a trainer of two iterations, and see that it ran on three nodes of one core each."""
    (here / "job.sh").write_text(script)
    (here / "simple_trainer.py").write_text((EAGLE / "simple_trainer.py").read_text().replace("10000", "2"))
    profile = slurm.home / ".bash_profile"
    profile.write_text(f"export PATH={PATH}\n")  # in the place of `conda activate`
    words = ["sbatch", "--wait", *options, "--output=log", "job.sh", "--run", "PPO"]
    try:
        done = slurm.login.run(words, cwd=here, check=False, within_s=300)
    finally:
        profile.unlink()
    told = (here / "log").read_text() if (here / "log").exists() else done.told()
    assert done.wait() == 0, told
    folder = max(slurm.home.glob("shoal_results/CartPole-v0/sweep_*"), key=lambda path: path.stat().st_mtime)
    (trial,) = read_trials(folder)
    assert trial.status == "finished", told
    last = json.loads((folder / trial.folder / "result.json").read_text().splitlines()[-1])
    assert last["training_iteration"] == 2
    assert last["num_healthy_workers"] == 2, "three cores in all: the trial and two workers"
    wait_until_clean(slurm)


@pytest.mark.slow
def test_the_batch_script_trains_over_three_nodes(slurm: Bed, here: Path) -> None:
    trained(slurm, here, (EAGLE / "multi_node_trainer.sh").read_text(), ["--cpus-per-task=1"])


@pytest.mark.long
@pytest.mark.slow
def test_the_heterogeneous_script_trains_over_both_groups(slurm: Bed, here: Path) -> None:
    """The nodes of the bed have no GPU, so the line that asks for one is left out."""
    script = (EAGLE / "heterogeneous_trainer.sh").read_text()
    smaller = script.replace("#SBATCH --gres=gpu:1\n", "").replace(" --num-gpus 1", "").replace("task=36", "task=1")
    assert smaller.count("#SBATCH --") == script.count("#SBATCH --") - 1
    trained(slurm, here, smaller, [])
