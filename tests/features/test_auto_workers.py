"""`num_workers: auto` with real workers: a number is chosen and told, and a resumed run keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.runs.run import Run

pytestmark = pytest.mark.slow


def test_a_number_is_chosen_and_kept(tmp_path: Path) -> None:
    from shoal.config.experiment import experiment_from

    tree = {
        "name": "auto",
        "env": "CartPole-v1",
        "run": "PPO",
        "results_dir": str(tmp_path),
        "stop": {"training_iteration": 1},
        "config": {"num_workers": "auto", "train_batch_size": 64, "num_envs_per_worker": 2},
    }
    first = Run.open(experiment_from(tree))
    (result,) = first.results()
    count = result["num_healthy_workers"]
    assert count >= 1
    log = (first.folder / "log.txt").read_text()
    assert f"num_workers: auto is {count}" in log
    again = Run.resume(first.folder, {"stop": {"training_iteration": 2}})
    (result,) = again.results()
    assert result["num_healthy_workers"] == count
    assert f"num_workers: auto is {count}, as before" in (first.folder / "log.txt").read_text()
    assert "unfinished episodes are dropped" not in (first.folder / "log.txt").read_text()
