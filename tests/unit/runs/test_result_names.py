"""What every algorithm reports has a name in the table, and what the table says of an algorithm is reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.config.algorithms import ALGORITHMS, BUILT_IN
from shoal.config.result_names import (
    COUNTERS,
    CUSTOM_METRICS,
    EVALUATION_NAMES,
    OVER_EPISODES,
    RESULT_NAMES,
    is_result_name,
    result_names,
)
from shoal.data.results import flat
from shoal.runs.row_segments import snapshot

ON_POLICY = {"train_batch_size": 64, "sgd_minibatch_size": 32}
OFF_POLICY = {"learning_starts": 32, "timesteps_per_iteration": 64}
SMALL = {
    "PPO": ON_POLICY,
    "APPO": ON_POLICY,
    "TRPO": ON_POLICY,
    "DQN": OFF_POLICY,
    "SAC": OFF_POLICY,
    **{key: {"num_rollouts": 10} for key in ("ES", "ARS", "CEM", "CMAES")},
    **{key: {"train_batch_size": 64} for key in ("BC", "MARWIL")},
}
OF_EVALUATION = {"evaluation/seed", "evaluation/explore"}
"""Settings that an evaluation repeats in its result."""
OF_WORKERS = {
    "timers/idle_s",
    "timers/idle_share",
    "timers/wait_s",
    "timers/wait_share",
    "num_healthy_workers",
    "num_remote_worker_restarts",
    "parallel_efficiency",
    "staleness",
}
OF_RUNS = {"timers/save_s", "timers/save_beside_s"}
OF_TASKS = {"task", "stages_passed"}


@pytest.fixture(scope="module", params=list(BUILT_IN))
def reported(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, dict[str, Any]]:
    """A small run of each algorithm, and the flat result of its second iteration."""
    config = {"evaluation_interval": 1, "evaluation_duration": 2, **SMALL[request.param]}
    if ALGORITHMS[request.param].learns_offline:
        config["input"] = str(tmp_path_factory.mktemp("steps"))
        with shoal.PPO("CartPole-v1", {**ON_POLICY, "output": config["input"]}) as trainer:
            trainer.train()
    with getattr(shoal, request.param)("CartPole-v1", config) as trainer:
        trainer.train()
        taken = snapshot(trainer.get_state())
        arrays, values = {name: array.copy() for name, array in taken.arrays.items()}, json.dumps(taken.values)
        result = flat(trainer.train())
        trainer.train()
        # What is written beside training stays what it was.
        assert json.dumps(taken.values) == values
        for name, array in arrays.items():
            np.testing.assert_array_equal(taken.arrays[name], array, err_msg=name)
        return request.param, result


@pytest.mark.repeats(3, slow=3)
def test_every_result_has_a_name(reported: tuple[str, dict[str, Any]]) -> None:
    _, result = reported
    unnamed = {name for name in result if not name.startswith(CUSTOM_METRICS)} - set(result_names())
    assert unnamed == OF_EVALUATION


def test_every_name_is_a_result(reported: tuple[str, dict[str, Any]]) -> None:
    algorithm, result = reported
    own = {f"learner/{name}" for name in ALGORITHMS[algorithm].results}
    named = {*RESULT_NAMES, *EVALUATION_NAMES, *own}
    # CartPole's actions are discrete: no noise of theirs has a standard deviation, and there is one temperature.
    of_numbers = {"learner/cur_stddev", "learner/cur_alpha_choices"}
    of_auto = {"learner/overfit_ratio"}  # training_intensity: auto needs workers
    of_episodes = {name for name in RESULT_NAMES if name.startswith(OVER_EPISODES)}
    unplayed = of_episodes if ALGORITHMS[algorithm].learns_offline else set()
    assert named - set(result) == (OF_WORKERS | OF_RUNS | OF_TASKS | of_numbers | of_auto | unplayed) & named
    assert {name for name in result if name.startswith("learner/")} <= own


def test_statistics_and_counters_are_results(reported: tuple[str, dict[str, Any]]) -> None:
    _, result = reported
    assert set(COUNTERS) <= set(result)
    assert {name for name in RESULT_NAMES if name.startswith(OVER_EPISODES)} == {
        *("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"),
        "episode_reward_per_call",
    }


def test_names_of_the_users_own() -> None:
    assert is_result_name("custom_metrics/miss_mean")
    assert is_result_name("evaluation/custom_metrics/miss_mean")
    assert not is_result_name("custom_metrics/")
    assert not is_result_name("learner/nothing")
