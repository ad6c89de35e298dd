"""Run with `pytest` after `pip install .`: what the package promises, as a user meets it."""

from __future__ import annotations

import shoal


def test_the_algorithm_trains_on_the_format(tmp_path) -> None:
    tree = {
        "run": "CalmPPO",
        "env": "moon:mars",
        "stop": {"training_iteration": 2},
        "loggers": ["csv"],
        "results_dir": str(tmp_path),
        "config": {"train_batch_size": 256, "calm": 0.2},
    }
    results = list(shoal.run(tree))
    assert results[-1]["training_iteration"] == 2
    (written,) = tmp_path.glob("*/*/rewards.csv")
    assert len(written.read_text().splitlines()) == 3
