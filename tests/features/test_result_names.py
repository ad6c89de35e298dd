"""Every number in a result has a name that is written down, for every algorithm, and every such name is reported."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.algorithms import ALGORITHMS, BUILT_IN
from shoal.config.results import RESULT_NAMES, is_result_name
from shoal.data.results import numbers

SMALL: dict[str, Any] = {"num_envs_per_worker": 2, "model": {"fcnet_hiddens": [8]}, "seed": 1}
ON_POLICY = {"train_batch_size": 128, "sgd_minibatch_size": 64, "num_sgd_iter": 2}
SMALL_OF = {
    "PPO": {**ON_POLICY, "kl_coeff": 0.2},
    "TRPO": ON_POLICY,
    "DQN": {"learning_starts": 64, "train_batch_size": 32, "timesteps_per_iteration": 128},
}
WHERE_ASKED = {
    *("num_healthy_workers", "num_remote_worker_restarts", "parallel_efficiency", "staleness"),  # with workers
    *(f"timers/{part}_{unit}" for part in ("communicate", "idle") for unit in ("s", "share")),
    *("task", "stages_passed", "learner/cur_stddev"),  # with tasks, and with noise on actions
}


@pytest.mark.parametrize("algorithm", BUILT_IN)
def test_results_have_the_names_that_are_written_down(start_trainer, algorithm) -> None:
    trainer = start_trainer(algorithm, "CartPole-v1", {**SMALL, **SMALL_OF[algorithm]})
    names: set[str] = set()
    for _ in range(3):
        names |= set(numbers(trainer.train()))
    assert {name for name in names if not is_result_name(name)} == set()
    own = {f"learner/{name}" for name in ALGORITHMS[algorithm].results}
    assert (own | set(RESULT_NAMES)) - names <= WHERE_ASKED, "described, and never reported"
    assert {name for name in names if name.startswith("learner/")} - own == set(), "reported, but of no algorithm's"
