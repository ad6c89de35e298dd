"""Real sweeps on Ray Tune: functions, algorithms, early stopping, populations, and what is refused."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import ConfigError, ShoalError
from shoal.reports.records import Event, TrialRecord, read_results, read_trials
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.run import Run
from shoal.tune.trial_resources import check_room

ENVS = Path(__file__).parents[1] / "shared" / "tune_env.py"
SMALL = {
    "env": "CartPole-v1",
    "train_batch_size": 128,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 2,
    "num_envs_per_worker": 2,
    "model": {"fcnet_hiddens": [8]},
}


@pytest.fixture(scope="module", autouse=True)
def ray_session():
    """One Ray for the module, which sweeps find running."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


@pytest.fixture
def sweep(tmp_path):
    """Runs a sweep in a folder of the test's own; its events are in `sweep.events`."""

    class Sweep:
        events: list[Event] = []

        def __call__(self, what: Any, **words: Any) -> Any:
            self.events = []
            return shoal.tune.run(what, results_dir=str(tmp_path), show=self.events.append, **words)

        def folder(self) -> Path:
            return max(tmp_path.glob("*/sweep_*"), key=os.path.getmtime)

        def records(self) -> list[TrialRecord]:
            return read_trials(self.folder())

    return Sweep()


def training_function(config):
    """The seed's example, without its sleep."""
    x, y = config["x"], config["y"]
    shoal.tune.report(score=math.sqrt((x**2 + y**2) / 2))


@pytest.mark.slow
def test_the_seeds_function_tries_all_25_combinations(sweep, capfd) -> None:
    values = [-1, -0.5, 0, 0.5, 1]
    result = sweep(training_function, config={"x": {"grid_search": values}, "y": {"grid_search": values}})
    assert result.get_best_config(metric="score", mode="min") == {"x": 0, "y": 0}
    records = sweep.records()
    assert {(r.settings["config.x"], r.settings["config.y"]) for r in records} == {
        (x, y) for x in values for y in values
    }
    assert {r.status for r in records} == {"finished"}
    assert [r.folder for r in records] == [f"trials/{k:05d}" for k in range(25)]
    for record in records:
        (told,) = read_results(sweep.folder(), record)
        assert told["score"] == record.last_result["score"]
        assert told["training_iteration"] == 1
    assert {event.kind for event in sweep.events} == {"started", "result", "finished"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["DQN", shoal.DQN])
def test_nothing_to_search_is_one_trial(sweep, what) -> None:
    """The heart of the trainer scripts: `tune.run` as the way to start one run."""
    config = {"env": "CartPole-v1", "num_workers": 0, "num_gpus": 0, "ignore_worker_failures": True}
    result = sweep(what, name="CartPole-v1", stop={"training_iteration": 1}, config=config)
    assert [record.status for record in sweep.records()] == ["finished"]
    assert result.get_best_logdir() == str(sweep.folder() / "trials/00000")
    assert result.best_config == config
    assert result.stats()["trials"] == {"finished": 1}
    assert (
        result.get_last_checkpoint() == result.get_best_checkpoint() == Path(result.best_logdir) / "checkpoint_000001"
    )
    assert (sweep.folder() / "index.html").exists()
    assert json.loads((sweep.folder() / "outcome.json").read_text())["sentence"] == "1 trial has ended"


@pytest.mark.slow
def test_samples_of_nothing_are_seeds_of_one_configuration(sweep) -> None:
    config = {**shoal.PPO.get_default_config(), **SMALL, "seed": 5}
    result = sweep(shoal.PPO, stop={"training_iteration": 1}, num_samples=2, config=config)
    assert [trial.config["seed"] for trial in result.trials] == [5, 6]
    assert [len(group.trials) for group in result.groups()] == [2]
    assert {record.status for record in sweep.records()} == {"finished"}


@pytest.mark.slow
def test_a_local_function_reports_often_prints_and_returns_its_last_result(sweep) -> None:
    base = 10

    def climbing(config):
        print("hello from", config["fixed"]["name"])
        for k in range(3):
            shoal.tune.report({"score": base * config["x"] + k})
        return {"score": -1.0}

    result = sweep(climbing, config={"x": {"choice": [2]}, "fixed": {"name": "here"}}, metric="score", mode="max")
    assert result.get_best_config() == {"x": 2, "fixed": {"name": "here"}}
    (record,) = sweep.records()
    assert [told["score"] for told in read_results(sweep.folder(), record)] == [20, 21, 22, -1]
    assert (sweep.folder() / record.folder / "log.txt").read_text() == "hello from here\n"


@pytest.mark.slow
def test_a_function_stops_at_its_criterion(sweep) -> None:
    def endless(config):
        while True:
            shoal.tune.report(score=config["x"])

    sweep(endless, config={"x": {"grid_search": [1, 2]}}, stop={"training_iteration": 4}, metric="score", mode="max")
    assert [(r.status, r.reason) for r in sweep.records()] == [("finished", "training_iteration 4 >= 4")] * 2


@pytest.mark.slow
def test_a_trial_that_fails_does_not_end_the_sweep(sweep) -> None:
    def fragile(config):
        if config["x"] == 1:
            raise ValueError("out of range")
        shoal.tune.report(score=config["x"] if config["x"] < 3 else math.nan)

    result = sweep(fragile, config={"x": {"grid_search": [3, 0, 1, 2]}}, metric="score", mode="max")
    assert result.get_best_config() == {"x": 2}
    lost, good, bad, other = sweep.records()
    assert (good.status, bad.status, other.status) == ("finished", "failed", "finished")
    assert (lost.status, lost.reason) == ("failed", "score is nan")
    assert bad.reason.startswith("ValueError: out of range (")
    assert "ValueError" in (sweep.folder() / bad.folder / "error.txt").read_text()


@pytest.mark.slow
def test_a_function_gets_the_seed(sweep) -> None:
    result = sweep(
        lambda config: {"score": config["x"] + config["seed"]},
        name="seeded",
        config={"x": {"grid_search": [10]}},
        seeds=2,
        metric="score",
        mode="max",
    )
    assert [record.last_result["score"] for record in sweep.records()] == [10, 11]
    assert result.best_config == {"x": 10, "seed": 1}


@pytest.mark.slow
def test_a_sweep_whose_trials_all_fail_is_an_error(sweep) -> None:
    def broken(config):
        raise ValueError(f"no {config['x']}")

    with pytest.raises(ShoalError, match=r"all 2 trials failed; the first: ValueError: no 0"):
        sweep(broken, config={"x": {"grid_search": [0, 1]}})


@pytest.mark.slow
def test_a_function_without_a_report_has_failed(sweep) -> None:
    with pytest.raises(ShoalError, match=r"ended without a report; call shoal.tune.report"):
        sweep(lambda config: None, name="silent", config={"x": {"grid_search": [0]}})


@pytest.mark.slow
def test_a_metric_that_no_result_has_ends_the_sweep_at_the_first(sweep, tmp_path) -> None:
    def training(config):
        for _ in range(1000):
            shoal.tune.report(score=1.0)

    with pytest.raises(ConfigError, match=r"metric: the results have no scores; did you mean score\?") as error:
        sweep(training, config={"x": {"grid_search": [0, 1]}}, metric="scores", mode="max")
    assert error.value.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_metric_of_the_users_own_is_looked_for_once_an_episode_has_ended(sweep, tmp_path) -> None:
    with pytest.raises(ConfigError, match="metric: the results have no custom_metrics/height"):
        sweep(
            "PPO",
            config={**SMALL, "lr": {"grid_search": [1e-3]}},
            stop={"training_iteration": 1000},
            metric="custom_metrics/height",
            mode="max",
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_trials_of_ppo_are_ordinary_runs(sweep, capfd, monkeypatch) -> None:
    result = sweep(
        "PPO",
        config={**SMALL, "lr": {"grid_search": [1e-3, 1e-5]}, "num_workers": {"grid_search": [0, 1]}},
        stop={"training_iteration": 2},
    )
    assert capfd.readouterr() == ("", "")
    records = sweep.records()
    assert [(r.status, r.reason) for r in records] == [("finished", "training_iteration 2 >= 2")] * 4
    assert result.get_best_config()["lr"] in (1e-3, 1e-5)
    for record in records:
        folder = sweep.folder() / record.folder
        assert [told["training_iteration"] for told in read_results(sweep.folder(), record)] == [1, 2]
        assert read_checkpoint(folder).summary["training_iteration"] == 2
        assert record.last_result["episode_reward_mean"] > 0
    trees = [read_checkpoint(sweep.folder() / r.folder).experiment_tree["config"] for r in records]
    assert [(tree["lr"], tree["num_workers"]) for tree in trees] == [tuple(r.settings.values()) for r in records]
    folder = str(sweep.folder() / records[0].folder)
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", folder, "--episodes", "2"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main(["resume", folder, "--stop", "training_iteration=3", "--quiet"])
    assert ended.value.code == 0
    assert checkpoints_of(Path(folder))[0].name == "checkpoint_000003"


@pytest.mark.slow
def test_seeds_make_groups(sweep) -> None:
    sweep("PPO", config={**SMALL, "lr": {"grid_search": [1e-3, 1e-5]}}, stop={"training_iteration": 1}, seeds=2)
    records = sweep.records()
    assert len(records) == 4
    groups: dict[int, set[Any]] = {}
    for record in records:
        groups.setdefault(record.group, set()).add((record.settings["config.lr"], record.seed))
    assert [len(group) for group in groups.values()] == [2, 2]
    assert all(len({lr for lr, _ in group}) == 1 and len({seed for _, seed in group}) == 2 for group in groups.values())


def last_link(run_folder: Path) -> str:
    return str(json.loads((run_folder / "chain.jsonl").read_text().splitlines()[-1])["link"])


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "optuna"])
def test_the_seeds_of_a_configuration_train_together_and_are_trials_of_their_own(
    sweep, monkeypatch, tmp_path, search
) -> None:
    monkeypatch.setattr("shoal.tune.seeds_trial.ROUNDS", 0)
    settings = {"lr": {"grid_search": [1e-3, 1e-5]}} if search == "random" else {"lr": shoal.tune.loguniform(1e-5, 0.1)}
    words: dict[str, Any] = {"stop": {"training_iteration": 3}, "seeds": 3}
    if search == "optuna":
        pytest.importorskip("optuna")
        words |= {"search_alg": "optuna", "num_samples": 2}
    sweep("PPO", config={**SMALL, **settings}, **words)
    records, folder = sweep.records(), sweep.folder()
    assert "train together in one process" in (folder / "log.txt").read_text()
    assert [(record.group, record.seed, record.status) for record in records] == [
        (group, seed, "finished") for group in (0, 1) for seed in (0, 1, 2)
    ]
    assert {record.reason for record in records} == {"training_iteration 3 >= 3"}
    assert len({record.last_result["episode_reward_mean"] for record in records}) >= 3
    assert len(list((folder / "ray").glob("ray/0*"))) <= 2
    for record in records:
        assert [told["training_iteration"] for told in read_results(folder, record)] == [1, 2, 3]
    lr = records[4].settings["config.lr"]
    tree = {"env": SMALL["env"], "name": "alone", "results_dir": str(tmp_path), "stop": {"training_iteration": 3}}
    own = {key: value for key, value in SMALL.items() if key != "env"}
    for _ in shoal.run({**tree, "report": False, "config": {**own, "lr": lr, "seed": 1}}):
        pass
    (alone,) = (tmp_path / "alone").iterdir()
    assert last_link(alone) == last_link(folder / records[4].folder)


@pytest.mark.slow
def test_a_seed_that_fails_leaves_the_others_of_its_configuration_going(sweep, monkeypatch) -> None:
    monkeypatch.setattr("shoal.tune.seeds_trial.ROUNDS", 0)
    env = f"{ENVS.with_name('seeded_env.py')}:SeededEnv"
    config = {**SMALL, "env": env, "env_config": {"mode": "raise", "after": 20}, "max_env_failures": 0}
    sweep("PPO", config={**config, "lr": {"grid_search": [1e-3]}}, stop={"training_iteration": 3}, seeds=3)
    records = sweep.records()
    assert [record.status for record in records] == ["finished", "failed", "finished"]
    assert records[1].reason
    assert (sweep.folder() / records[1].folder / "error.txt").exists()


@pytest.mark.slow
def test_a_metric_that_no_seed_has_ends_the_sweep(sweep, monkeypatch) -> None:
    monkeypatch.setattr("shoal.tune.seeds_trial.ROUNDS", 0)
    config = {**SMALL, "lr": {"grid_search": [1e-3]}}
    with pytest.raises(ConfigError, match="the results have no custom_metrics/score_mean"):
        sweep(
            "PPO",
            config=config,
            stop={"training_iteration": 2},
            seeds=2,
            metric="custom_metrics/score_mean",
            mode="max",
        )


@pytest.mark.slow
def test_a_trial_whose_process_dies_starts_again_from_its_checkpoint(sweep, tmp_path) -> None:
    note = tmp_path / "died"
    config = {**SMALL, "env": f"{ENVS}:Fragile", "env_config": {"fault": "", "note": str(note)}}
    config |= {"lr": {"grid_search": [1e-3]}, "num_envs_per_worker": 1, "train_batch_size": 64}
    sweep("PPO", name="dying", config=config, stop={"training_iteration": 4}, checkpoint_freq=1)
    assert note.exists()
    (record,) = sweep.records()
    assert record.status == "finished"
    assert [told["training_iteration"] for told in read_results(sweep.folder(), record)] == [1, 2, 3, 4]
    assert any("lost its process" in event.sentence for event in sweep.events)


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_the_trials_failure(sweep) -> None:
    config = {**SMALL, "env": f"{ENVS}:Fragile", "env_config": {"fault": {"grid_search": ["", "raises"]}}}
    sweep("PPO", config=config, stop={"training_iteration": 1})
    good, bad = sweep.records()
    assert (good.status, bad.status) == ("finished", "failed")
    assert "no licence for the simulator" in bad.reason


def hill(config):
    """Rises for nine steps towards a height that is the greater the nearer x is to 0.6."""
    for step in range(1, 10):
        shoal.tune.report(score=(1 - abs(config["x"] - 0.6)) * step / 9)


@pytest.mark.slow
def test_asha_stops_bad_trials_early_and_finds_the_same_best(sweep, tmp_path) -> None:
    places = [round(0.05 * k, 2) for k in range(21)]
    config = {"x": {"grid_search": random.Random(7).sample(places, len(places))}}
    words = {"config": config, "metric": "score", "mode": "max"}
    full = shoal.tune.run(hill, name="full", results_dir=str(tmp_path / "full"), **words)
    asha = {"type": "asha", "time_attr": "training_iteration", "max_t": 9, "grace_period": 1, "reduction_factor": 3}
    early = sweep(hill, scheduler=asha, **words)
    assert early.get_best_config() == full.get_best_config() == {"x": 0.6}
    steps = [r.last_result["training_iteration"] for r in sweep.records()]
    assert sum(steps) < 21 * 9 / 2
    stopped = [r for r in sweep.records() if r.status == "stopped early"]
    assert stopped
    assert all(r.reason.startswith("asha: score 0") for r in stopped)
    assert {r.status for r in sweep.records()} == {"stopped early", "finished"}


def test_a_function_cannot_be_paused(sweep) -> None:
    words = {"scheduler": "hyperband", "stop": {"training_iteration": 9}}
    with pytest.raises(ConfigError, match="scheduler: hyperband pauses and resumes trials, which a function"):
        sweep(hill, config={"x": {"uniform": [0, 1]}}, metric="score", mode="max", num_samples=3, **words)


@pytest.mark.slow
def test_hyperband_pauses_trials_that_go_on_where_they_were(sweep) -> None:
    sweep(
        "PPO",
        config={**SMALL, "lr": {"grid_search": [1e-2, 1e-3, 1e-4, 1e-5]}},
        stop={"training_iteration": 2},
        scheduler={"type": "hyperband", "time_attr": "training_iteration", "max_t": 2, "reduction_factor": 2},
    )
    records = sweep.records()
    assert {r.status for r in records} <= {"finished", "stopped early"}
    assert any(event.kind == "paused" for event in sweep.events)
    for record in records:
        told = [result["training_iteration"] for result in read_results(sweep.folder(), record)]
        assert told == list(range(1, len(told) + 1))
        assert len(told) == record.last_result["training_iteration"]


@pytest.mark.long
@pytest.mark.slow
def test_a_population_follows_a_best_learning_rate_that_changes(sweep) -> None:
    iterations = 16
    config = {
        "env": f"{ENVS}:Ladder",
        "env_task_fn": f"{ENVS}:climb",
        "train_batch_size": 128,
        "sgd_minibatch_size": 128,
        "num_sgd_iter": 1,
        "model": {"fcnet_hiddens": [4]},
        "observation_filter": "MeanStdFilter",
        "lr": {"choice": [1e-2, 1e-3, 1e-4]},
    }
    # In step, for iterations as quick as these end before the others' processes have started.
    pbt = {"type": "pbt", "time_attr": "training_iteration", "perturbation_interval": 4, "quantile_fraction": 0.5}
    pbt["synch"] = True
    for attempt in ("first", "second", "third"):  # chance decides, and four trials have no luck once in 14 times
        sweep("PPO", name=attempt, config=config, stop={"training_iteration": iterations}, num_samples=4, scheduler=pbt)
        records = sweep.records()
        assert {r.status for r in records} == {"finished"}
        best = max(r.last_result["episode_reward_mean"] for r in records)
        if best > 8.5:
            break
    assert best > 8.5  # a rate that stays gains 8 rungs
    exploits = [exploit for record in records for exploit in record.exploits]
    assert exploits
    assert any(event.kind == "exploited" for event in sweep.events)
    for record in records:
        told = [result["training_iteration"] for result in read_results(sweep.folder(), record)]
        assert told == list(range(1, iterations + 1))
        for exploit in record.exploits:
            assert exploit.source != record.index
            assert exploit.timesteps_total == 128 * exploit.training_iteration
        if record.exploits:
            assert record.settings == record.exploits[-1].settings
            experiment = json.loads((sweep.folder() / record.folder / "experiment.json").read_text())
            assert experiment["config"]["lr"] == record.settings["config.lr"]


def test_taking_over_copies_weights_optimiser_filter_and_task_and_keeps_the_rest(tmp_path) -> None:
    def run(seed: int, lr: float) -> Run:
        config = {
            "env": f"{ENVS}:Ladder",
            "env_task_fn": f"{ENVS}:climb",
            "train_batch_size": 64,
            "model": {"fcnet_hiddens": [4]},
            "observation_filter": "MeanStdFilter",
            "lr": lr,
            "seed": seed,
        }
        tree = {"name": f"run{seed}", "results_dir": str(tmp_path), "config": config, "checkpoint_freq": 1}
        return Run.open(shoal_experiment({**tree, "stop": {"training_iteration": 3 + 2 * seed}}))

    source, other = run(1, 1e-2), run(2, 1e-4)
    for each in (source, other):
        for _ in each.results():
            pass
    given, before = read_checkpoint(source.folder), read_checkpoint(other.folder)
    assert given.summary["training_iteration"] == 5
    again = Run.resume(other.folder, {"stop": {"training_iteration": 8}})
    again.take_over(checkpoints_of(source.folder)[0])
    results = again.results()
    first = next(results)
    taken = read_checkpoint(other.folder / "checkpoint_000007")
    for name, array in given.state.arrays.items():
        if not name.startswith("worker"):
            np.testing.assert_array_equal(taken.state.arrays[name], array, err_msg=name)
    for part in ("policy", "learner", "curriculum"):
        assert taken.state.values[part] == given.state.values[part]
    for part in ("training_iteration", "timesteps_total", "worker0"):
        assert taken.state.values[part] == before.state.values[part]
    # How good the policy is comes with it, how many episodes there were does not.
    assert taken.state.values["episodes"]["recent"] == given.state.values["episodes"]["recent"]
    assert taken.state.values["episodes"]["total"] == before.state.values["episodes"]["total"]
    changed = [
        name for name, array in before.state.arrays.items() if not np.array_equal(array, taken.state.arrays[name])
    ]
    assert any(name.startswith("policy/") for name in changed)
    assert any(name.startswith("learner/") for name in changed)
    assert first["training_iteration"] == 8
    assert first["task"] > given.state.values["curriculum"]["task"]
    results.close()


def shoal_experiment(tree: dict[str, Any]) -> Any:
    from shoal.config.experiment import experiment_from

    return experiment_from(tree)


@pytest.mark.parametrize(
    ("trial", "nodes", "words"),
    [
        ([{"CPU": 1}] * 6, [{"CPU": 4}], "needs 6 CPUs (1 for itself and 5 for what it starts), and there are 4"),
        ([{"CPU": 1}, {"CPU": 8}], [{"CPU": 6}] * 2, "needs 8 CPUs of one node, and the largest has 6"),
        ([{"CPU": 1, "GPU": 1}], [{"CPU": 6}], "a trial needs 1 GPU (1 for itself and 0 for what it starts)"),
        ([{"CPU": 1}, {"CPU": 3}, {"CPU": 3}], [{"CPU": 3.5}] * 2, "need 1, 3, 3 CPUs, which cannot be put onto"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_arithmetic(trial, nodes, words) -> None:
    with pytest.raises(ConfigError) as error:
        check_room(trial, nodes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("space", "needed"),
    [
        ({"num_workers": {"grid_search": [1, 5]}}, 6),
        ({"num_workers": {"randint": [0, 6]}}, 6),
        ({"num_workers": {"grid_search": [1, 2]}, "num_cpus_per_worker": {"choice": [1, 2]}}, 5),
    ],
)
def test_a_trial_that_is_too_large_is_refused_before_any_starts(sweep, tmp_path, space, needed) -> None:
    told = rf"needs {needed} CPUs \(1 for itself and {needed - 1} for what it starts\), and there are 4"
    with pytest.raises(ConfigError, match=told):
        sweep("PPO", config={**SMALL, **space}, stop={"training_iteration": 1})
    assert not sweep.events
    assert not list(tmp_path.iterdir())
