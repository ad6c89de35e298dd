"""All seeds of a configuration as one trial of Ray Tune, as Tune's processes set it up and step it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.config.sweep import sweep_from
from shoal.errors import MissingMetric, ShoalError
from shoal.reports.records import read_done, read_failure, results_of, write_sweep
from shoal.runs.checkpoints import read_checkpoint
from shoal.tune.sweep_run import SweepRun

SEEDED = f"{Path(__file__).parents[2] / 'shared' / 'seeded_env.py'}:SeededEnv"
CONFIG: dict[str, Any] = {
    "env": "CartPole-v1",
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 1,
    "num_envs_per_worker": 2,
    "model": {"fcnet_hiddens": [8]},
    "lr": {"grid_search": [1e-3, 1e-4]},
}

pytest.importorskip("ray.tune")


@pytest.fixture
def process_of_second(tmp_path: Path) -> Callable[..., Any]:
    """Sets up what a process of the second configuration holds, which has trials 3 to 5."""

    def set_up(life: str = "life", config: Any = None, **words: Any) -> Any:
        tree = {
            "name": "test",
            "config": {**CONFIG, **(config or {})},
            "stop": {"training_iteration": 3},
            "report": False,
        }
        opened = SweepRun(sweep_from({**tree, "seeds": 3, **words}), tmp_path)
        write_sweep(tmp_path, opened.sweep, opened.user_code, None)
        trial_class: Any = opened._trainable(life, together=True)
        trial = trial_class.__new__(trial_class)
        trial._trial_info = SimpleNamespace(trial_name="00003")
        trial.setup({"config.lr": 1e-4})
        return trial

    return set_up


def stepped(trial: Any, most: int = 100) -> list[dict[str, Any]]:
    """What Tune hears until the trial is done."""
    told = [trial.step()]
    while not told[-1]["done"] and len(told) < most:
        told.append(trial.step())
    return told


def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"trials/{number:05d}" for number in (3, 4, 5)]


def iterations(folder: Path) -> list[int]:
    return [result["training_iteration"] for result in results_of(folder)]


def test_each_seed_has_its_results_and_its_end(process_of_second, tmp_path) -> None:
    trial = process_of_second()
    told = stepped(trial)
    assert sorted(result["of_trial"] for result in told[:-1]) == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert sorted(number for result in told for number in result["over"]) == [3, 4, 5]
    last = [trial.members[k].last["episode_reward_mean"] for k in range(3)]
    assert told[-1]["episode_reward_mean"] == pytest.approx(sum(last) / 3)
    for seed, folder in enumerate(folders(tmp_path)):
        assert iterations(folder) == [1, 2, 3]
        assert read_done(folder) == ("finished", "training_iteration 3 >= 3")
        assert trial.members[seed].seed == seed
    assert trial.runs.alone is None
    trial.cleanup()
    again = process_of_second()
    assert [result["done"] for result in stepped(again)] == [True]


def test_what_was_interrupted_goes_on_from_its_checkpoints(process_of_second, tmp_path) -> None:
    trial = process_of_second()
    for _ in range(5):
        trial.step()
    trial.cleanup()
    trial.cleanup()
    before = [iterations(folder) for folder in folders(tmp_path)]
    for folder, known in zip(folders(tmp_path), before, strict=True):
        assert len(known) < 3
        assert read_done(folder) is None
        if known:
            assert read_checkpoint(folder).summary["training_iteration"] == known[-1]
    stepped(process_of_second("another life"))
    assert [iterations(folder) for folder in folders(tmp_path)] == [[1, 2, 3]] * 3


def test_a_seed_that_fails_leaves_the_others_going(process_of_second, tmp_path) -> None:
    env_config = {"mode": "raise", "after": 20}
    told = stepped(process_of_second(config={"env": SEEDED, "env_config": env_config, "max_env_failures": 0}))
    assert told[-1]["done"]
    ends = [read_done(folder) is not None for folder in folders(tmp_path)]
    assert ends == [True, False, True]
    failure = read_failure(folders(tmp_path)[1], "life")
    assert failure is not None
    assert "the solver has diverged" in failure.sentence
    assert "Traceback" in (folders(tmp_path)[1] / "error.txt").read_text()
    assert not [path for path in folders(tmp_path) if (path / ".failed").exists()][1:]


def test_a_metric_that_none_has_is_the_failure_of_all(process_of_second, tmp_path) -> None:
    trial = process_of_second(metric="custom_metrics/score_mean", mode="max")
    with pytest.raises(MissingMetric, match="the results have no custom_metrics/score_mean"):
        stepped(trial)
    failures = [read_failure(folder, "life") for folder in folders(tmp_path)]
    assert all(failure is not None and failure.is_everyones for failure in failures)


def test_an_environment_that_does_not_open_is_the_failure_of_all(process_of_second, tmp_path) -> None:
    trial = process_of_second(config={"env": f"{SEEDED}Missing"})
    with pytest.raises(ShoalError, match="SeededEnvMissing"):
        stepped(trial)
    assert all(read_failure(folder, "life") is not None for folder in folders(tmp_path))


@pytest.mark.parametrize(
    ("words", "at_once", "reason"),
    [
        ({}, 1, None),
        ({}, 2, "2 trials fit at once, and there are only 2 configurations"),
        ({"num_samples": 2, "config": {"gamma": {"uniform": [0.9, 0.99]}}}, 2, None),
        ({"max_concurrent_trials": 3}, 1, "max_concurrent_trials"),
        ({"config": {"kernel": "compiled"}}, 1, "kernel: "),
        ({"config": {"num_workers": {"grid_search": [0, 1]}}}, 1, "num_workers: "),
        ({"config": {"max_concurrent_envs": 8}}, 1, "max_concurrent_envs"),
        ({"run": "TRPO", "config": {"sgd_minibatch_size": 32}}, 1, "run: "),
    ],
)
def test_where_seeds_train_together(words: dict[str, Any], at_once: int, reason: str | None) -> None:
    from shoal.tune.seeds_trial import why_seeds_apart

    config = {"env": "CartPole-v1", "lr": {"grid_search": [1e-3, 1e-4]}, **words.pop("config", {})}
    if words.get("run") == "TRPO":
        config = {"env": "CartPole-v1", "gamma": {"grid_search": [0.9, 0.99]}}
    stop = {"timesteps_total": 1000}
    found = why_seeds_apart(sweep_from({"name": "test", "config": config, "stop": stop, "seeds": 3, **words}), at_once)
    assert (found is None) if reason is None else (found is not None and found.startswith(reason))


def test_they_take_the_places_of_one(process_of_second) -> None:
    wanted = type(process_of_second()).default_resource_request({"config.lr": 1e-4})
    assert wanted.required_resources == {"CPU": 1.0}
