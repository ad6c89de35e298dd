"""The trainer script of examples/eagle under its batch script, on real Slurm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bed import PATH, ROOT, Bed
from launches import wait_until_clean

from shoal.reports.records import read_trials

EAGLE = ROOT / "examples" / "eagle"


@pytest.mark.slow
def test_the_batch_script_trains_over_three_nodes(slurm: Bed, here: Path) -> None:
    shutil.copy(EAGLE / "multi_node_trainer.sh", here)
    (here / "simple_trainer.py").write_text((EAGLE / "simple_trainer.py").read_text().replace("10000", "2"))
    profile = slurm.home / ".bash_profile"
    profile.write_text(f"export PATH={PATH}\n")  # in the place of `conda activate`
    words = ["sbatch", "--wait", "--cpus-per-task=1", "--output=log", "multi_node_trainer.sh", "--run", "PPO"]
    try:
        done = slurm.login.run(words, cwd=here, check=False, within_s=300)
    finally:
        profile.unlink()
    told = (here / "log").read_text()
    assert done.wait() == 0, told
    (folder,) = slurm.home.glob("shoal_results/CartPole-v0/sweep_*")
    (trial,) = read_trials(folder)
    assert trial.status == "finished", told
    last = json.loads((folder / trial.folder / "result.json").read_text().splitlines()[-1])
    assert last["training_iteration"] == 2
    assert last["num_healthy_workers"] == 2, "three cores in all: the trial and two workers"
    wait_until_clean(slurm)
