"""Every searcher and scheduler that we name, for real: Ray Tune runs all trials, with values as they were written."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from shoal.config.sweep_options import SCHEDULERS, SEARCHERS, TuneMethod

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
NUM_CPUS = 2

NUM_SAMPLES = {"ax": 7, "bayesopt": 14, "nevergrad": 12, "hyperopt": 24, "optuna": 16}
"""Enough for each to go past its random beginning; Ax needs many seconds for every suggestion after its fifth."""
SMALL = {"train_batch_size": 128, "num_envs_per_worker": 4, "model": {"fcnet_hiddens": [8]}}


def needs(entry: TuneMethod) -> None:
    if entry.module and importlib.util.find_spec(entry.module) is None:
        pytest.skip(f"needs pip install 'shoal-rl[{entry.extra}]'")


def objective(config: dict[str, Any]) -> None:
    import shoal.tune

    if config["n"] == 3:
        raise ValueError("a trial that fails")
    shoal.tune.report(score=-((math.log10(config["lr"]) + 3) ** 2) - (config["x"] - 0.5) ** 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SEARCHERS if name != "bohb"])
def test_a_searcher_runs_a_function_to_the_end(name: str, tmp_path: Path) -> None:
    needs(SEARCHERS[name])
    from shoal import tune

    config = {
        "lr": tune.loguniform(1e-5, 1e-1),
        "x": tune.quniform(0, 1, 0.25),
        "n": tune.randint(1, 4),
        "m": tune.lograndint(4, 65),
    }
    if name != "bayesopt":
        config["hidden"] = tune.choice([[32], [64, 64], None, "tanh"])
    samples = NUM_SAMPLES.get(name, 6)
    analysis = tune.run(
        objective,
        config=config,
        num_samples=samples,
        metric="score",
        mode="max",
        search_alg=name,
        results_dir=str(tmp_path),
    )
    trials = analysis.records
    assert len(trials) == samples
    finished = [trial for trial in trials if trial.status == "finished"]
    assert {trial.settings["config.n"] for trial in finished} <= {1, 2}
    assert {trial.settings["config.n"] for trial in trials if trial.status == "failed"} <= {3}
    for trial in trials:
        assert trial.settings["config.x"] in (0, 0.25, 0.5, 0.75, 1)
        assert isinstance(trial.settings["config.m"], int)
        assert name == "bayesopt" or trial.settings["config.hidden"] in ([32], [64, 64], None, "tanh")
    assert len({trial.settings["config.lr"] for trial in trials}) > samples // 2


@pytest.mark.parametrize("name", ["optuna", "hyperopt"])
def test_a_searcher_gives_each_configuration_every_seed(name: str, tmp_path: Path) -> None:
    needs(SEARCHERS[name])
    from shoal import tune

    config = {**SMALL, "lr": tune.loguniform(1e-4, 1e-2), "seed": 5}
    analysis = tune.run(
        "PPO",
        config={**config, "env": "CartPole-v1"},
        stop={"training_iteration": 1},
        num_samples=2,
        seeds=2,
        search_alg=name,
        results_dir=str(tmp_path),
    )
    by_group: dict[int, list[Any]] = {}
    for trial in analysis.records:
        by_group.setdefault(trial.group, []).append((trial.seed, trial.settings["config.lr"]))
    assert [sorted(seed for seed, _ in group) for group in by_group.values()] == [[5, 6], [5, 6]]
    assert all(len({lr for _, lr in group}) == 1 for group in by_group.values())


@pytest.mark.repeats(0, slow=3)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_runs_to_the_end(name: str, tmp_path: Path) -> None:
    needs(SCHEDULERS[name])
    from shoal import tune

    analysis = tune.run(
        "PPO",
        config={
            **SMALL,
            "env": "CartPole-v1",
            "lr": tune.loguniform(1e-4, 1e-2),
            "gamma": tune.uniform(0.9, 0.99),
        },
        stop={"training_iteration": 4},
        num_samples=4,
        scheduler={"type": name, "perturbation_interval": 1} if name in ("pbt", "pb2") else name,
        search_alg="bohb" if name == "bohb" else "random",
        results_dir=str(tmp_path),
    )
    assert len(analysis.records) == 4
    assert {trial.status for trial in analysis.records} <= {"finished", "stopped early"}
    assert "finished" in {trial.status for trial in analysis.records}
    for trial in analysis.records:
        assert 1e-4 <= trial.settings["config.lr"] <= 1e-2
        assert 0.9 <= trial.settings["config.gamma"] <= 0.99
