"""Canary secrets in the environment: a run fails, loudly, and nothing that shoal writes or prints has one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from desks import Desk

CANARIES = {
    "WANDB_API_KEY": "canary-of-wandb-1234567890",
    "AWS_SECRET_ACCESS_KEY": "canary/of+aws=1234567890",
    "DB_PASSWORD": "canary of the database",
    "GITHUB_TOKEN": "canary_ghp_1234567890",
}

LEAKING = """
import os, sys
from gymnasium.envs.classic_control import CartPoleEnv

class Leaking(CartPoleEnv):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 100:
            print(dict(os.environ), file=sys.stderr, flush=True)
            raise ConnectionError("postgres://ada:" + os.environ["DB_PASSWORD"] + "@host; " + str(dict(os.environ)))
        return super().step(action)
"""


def leaks(where: str, text: str) -> list[str]:
    return [f"{name} in {where}" for name, value in CANARIES.items() if value in text]


def of_files(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert files
    return [leak for path in files for leak in leaks(str(path), path.read_bytes().decode(errors="replace"))]


@pytest.mark.parametrize("isolation", ["process", pytest.param("none", marks=pytest.mark.slow)])
def test_no_secret_of_the_environment_is_written_or_printed(tmp_path: Path, isolation: str) -> None:
    desk = Desk.new(tmp_path)
    (desk.work / "leaking.py").write_text(LEAKING)
    words = ["train", "leaking.py:Leaking", "--name", "leak", "--checkpoint-freq", "1"]
    words += ["--stop", "training_iteration=20"]
    for setting in ["config.train_batch_size=128", "config.num_envs_per_worker=2", "config.max_env_failures=1"]:
        words += ["--set", setting]
    if isolation == "process":
        words += ["--set", "config.env_isolation=process"]
    trained = desk.shoal(*words, **CANARIES)
    assert trained.returncode == 1
    (run,) = desk.runs("leak")
    said = [trained]
    for command in (["incidents", str(run)], ["report", str(run)], ["diagnose", str(run), "--no-play"], ["runs"]):
        said.append(desk.shoal(*command, **CANARIES))
    job = ["submit", "--nodes", "2", "--walltime", "20m", "--scheduler", "slurm", "--dry-run", "--", "shoal", "runs"]
    said.append(desk.shoal(*job, **CANARIES))
    assert "#SBATCH" in said[-1].stdout
    # What a simulator prints itself goes straight to its user's terminal: there is no line of ours in between.
    lines = [line for done in said for line in (done.stdout + done.stderr).splitlines() if not line.startswith("{'")]
    assert leaks("what was printed", "\n".join(lines)) == []
    assert of_files(desk.home) + of_files(run) == []
    assert "[DB_PASSWORD]" in (run / "incidents.jsonl").read_text()
    assert "[DB_PASSWORD]" in (run / "log.txt").read_text()
