"""Seeds that train together: each with the weights, the receipts and the end that it has alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from same_training import assert_same_state, without_times

from shoal.cli.main import main
from shoal.config.experiment import Experiment, experiment_from, with_settings
from shoal.errors import EnvError
from shoal.machine.deadlines import Deadline
from shoal.runs import seed_runs
from shoal.runs.chain import CHAIN_FILE
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.run import Run
from shoal.runs.seed_runs import SeedRuns
from shoal.runs.seed_stack import SeedStack, why_not_configured_together, why_not_together

SEEDED = f"{Path(__file__).parents[1] / 'shared' / 'seeded_env.py'}:SeededEnv"
SMALL: dict[str, Any] = {
    "num_envs_per_worker": 3,
    "train_batch_size": 96,
    "sgd_minibatch_size": 20,
    "num_sgd_iter": 3,
    "model": {"fcnet_hiddens": [8, 8]},
}


@pytest.fixture(autouse=True)
def no_environment_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first iteration took of these tiny ones depends on what else the machine does."""
    monkeypatch.setattr(seed_runs, "COSTLY", 1.0)


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"target_kl": 0.001, "entropy_coeff": 0.01, "lr_schedule": [[0, 1e-2], [300, 1e-4]]}),
        ("Pendulum-v1", {"observation_filter": "MeanStdFilter", "horizon": 20, "grad_clip": None}),
        ("Pendulum-v1", {"model": {"fcnet_hiddens": [8], "vf_share_layers": True, "free_log_std": True}}),
        ("Taxi-v4", {"vf_clip_param": 1.0, "normalize_rewards": False}),
        (SEEDED, {"env_config": {"mode": "nan", "after": 20}}),
    ],
)
def test_an_iteration_together_is_that_of_each_alone(start_trainer: Any, env: str, changes: dict[str, Any]) -> None:
    made = [[start_trainer("PPO", env, {**SMALL, **changes, "seed": seed}) for seed in range(3)] for _ in range(2)]
    alone, together = made
    assert why_not_together(together[0]) is None
    stack = SeedStack()
    for trainer in together:
        trainer.stack = stack
    for _ in range(4):
        expected = [trainer.train() for trainer in alone]
        stack.begin(together)
        found = [trainer.train() for trainer in together]
        for one, other in zip(expected, found, strict=True):
            assert without_times(one) == without_times(other)
        for mine, theirs in zip(alone, together, strict=True):
            assert_same_state(mine, theirs)
    shares = [value for name, value in found[2]["timers"].items() if name.endswith("_share")]
    assert 0 < sum(shares) <= 1
    if changes.get("env_config"):
        assert [trainer.env_failures_total > 0 for trainer in together] == [False, True, False]


def test_who_has_left_takes_no_part(start_trainer: Any) -> None:
    trainers = [start_trainer("PPO", "CartPole-v1", {**SMALL, "seed": seed}) for seed in range(3)]
    alone = start_trainer("PPO", "CartPole-v1", {**SMALL, "seed": 2})
    stack = SeedStack()
    for members in (trainers, trainers[1:], trainers[2:]):
        stack.begin(members)
        for trainer in members:
            trainer.stack = stack
            trainer.train()
        alone.train()
    assert [trainer.iteration for trainer in trainers] == [1, 2, 3]
    assert_same_state(alone, trainers[2])


def experiments(folder: Path, count: int = 3, env: str = "CartPole-v1", **more: Any) -> list[Experiment]:
    config = {"env": env, "seed": 0, **SMALL, **more.pop("config", {})}
    first = experiment_from({"results_dir": str(folder), "report": False, "name": "seeds", "config": config, **more})
    return [with_settings(first, {"seed": seed}) for seed in range(count)]


def trained(asked: Sequence[Experiment], deadline: Deadline | None = None) -> tuple[SeedRuns, dict[int, Run]]:
    """Runs that have been trained together."""
    opened: list[Run] = []
    runs = SeedRuns([partial(Run.open, each) for each in asked], deadline, on_open=opened.append)
    for _ in runs.results():
        pass
    return runs, {run.experiment.config.seed: run for run in opened}


def alone(asked: Experiment) -> Run:
    run = Run.open(asked)
    for _ in run.results():
        pass
    return run


def links(run: Run) -> list[str]:
    lines = [json.loads(line) for line in (run.folder / CHAIN_FILE).read_text().splitlines()]
    return [line["link"] for line in lines if "link" in line]


def assert_same_run(one: Run, other: Run) -> None:
    assert links(one) == links(other)
    states = [read_checkpoint(run.folder).state for run in (one, other)]
    assert states[0].arrays.keys() == states[1].arrays.keys()
    for name, array in states[0].arrays.items():
        assert array.tobytes() == states[1].arrays[name].tobytes(), name


def test_seeds_that_stop_at_different_times_are_the_runs_that_they_are_alone(tmp_path: Path) -> None:
    stop = {"episodes_total": 25, "training_iteration": 12}
    runs, found = trained(experiments(tmp_path / "together", stop=stop, checkpoint_freq=2))
    assert runs.alone is None
    assert not runs.errors
    lengths = set()
    for asked in experiments(tmp_path / "alone", stop=stop, checkpoint_freq=2):
        own, mine = alone(asked), found[asked.config.seed]
        assert_same_run(own, mine)
        assert [path.name for path in checkpoints_of(own.folder)] == [path.name for path in checkpoints_of(mine.folder)]
        lengths.add(len(links(own)))
        log = (mine.folder / "log.txt").read_text()
        assert log.count("starts in") == 1
        assert log.count("The run ends") == 1
        assert "A new run is started" not in log
    assert len(lengths) > 1


def test_a_signal_saves_all_and_the_same_command_goes_on(tmp_path: Path) -> None:
    asked = partial(experiments, stop={"training_iteration": 5}, checkpoint_freq=0)
    opened: list[Run] = []
    runs = SeedRuns([partial(Run.open, each) for each in asked(tmp_path / "together")], on_open=opened.append)
    before = signal.getsignal(signal.SIGTERM)
    for count, _ in enumerate(runs.results(), start=1):
        if count == 6:
            os.kill(os.getpid(), signal.SIGTERM)
    assert runs.signal == signal.SIGTERM
    assert {run.outcome.kind for run in opened if run.outcome is not None} == {"interrupted"}
    saved = [int(read_checkpoint(run.folder).summary["training_iteration"]) for run in opened]
    assert all(saved)
    assert signal.getsignal(signal.SIGTERM) is before
    again, found = trained(asked(tmp_path / "together"))
    assert [run.folder for run in found.values()] == [run.folder for run in opened]
    assert again.alone is None
    for each in asked(tmp_path / "alone"):
        assert_same_run(alone(each), found[each.config.seed])


def test_a_seed_that_fails_leaves_the_others_going(tmp_path: Path) -> None:
    config = {"env_config": {"mode": "raise"}, "max_env_failures": 0}
    asked = partial(experiments, env=SEEDED, stop={"training_iteration": 4}, config=config)
    runs, found = trained(asked(tmp_path / "together"))
    assert [type(error) for error in runs.errors] == [EnvError]
    assert "the solver has diverged" in str(runs.errors[0])
    assert found[1].outcome is not None
    assert found[1].outcome.kind == "failed"
    assert (found[1].folder / "incidents.jsonl").is_file()
    for seed in (0, 2):
        assert_same_run(alone(asked(tmp_path / "alone")[seed]), found[seed])


def test_the_walltime_ends_all_of_them_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiments(tmp_path, stop={"training_iteration": 100_000})
    left = iter([1000.0] * 40 + [1.0] * 100_000)
    monkeypatch.setattr(Deadline, "left", lambda _: next(left))
    runs, found = trained(asked, Deadline(0.0, "job 41"))
    assert runs.signal == signal.SIGUSR1
    assert len(found) == 3
    for run in found.values():
        assert run.outcome is not None
        assert run.outcome.kind == "interrupted"
        assert run.last_checkpoint is not None
    assert not runs.is_stuck


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"run": "DQN"}, "run: only PPO's"),
    ({"config": {"num_workers": 2}}, "num_workers"),
    ({"config": {"kernel": "auto"}}, "kernel"),
    ({"config": {"env_isolation": "process"}}, "env_isolation"),
    ({"config": {"model": {"use_lstm": True}}}, "model: their policies have memory"),
    ({"config": {"framework": "torch"}}, "framework"),
]


@pytest.mark.parametrize(("changes", "reason"), REASONS)
def test_what_does_not_apply_is_said(changes: dict[str, Any], reason: str) -> None:
    config = {"env": "CartPole-v1", **changes.get("config", {})}
    found = why_not_configured_together(experiment_from({**changes, "config": config}))
    assert found is not None
    assert found.startswith(reason)


def test_where_it_does_not_apply_they_train_one_after_another(tmp_path: Path) -> None:
    asked = partial(experiments, count=2, stop={"training_iteration": 2}, config={"kl_coeff": 0.2})
    order: list[int] = []
    runs = SeedRuns([partial(Run.open, each) for each in asked(tmp_path / "together")])
    for run, _ in runs.results():
        order.append(run.experiment.config.seed)
    assert order == [0, 0, 1, 1]
    assert runs.alone == "kl_coeff is different in each of them"


def test_they_train_one_after_another_where_environments_take_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_runs, "COSTLY", 0.0)
    runs, found = trained(experiments(tmp_path, count=2, stop={"training_iteration": 2}))
    assert runs.alone is not None
    assert runs.alone.endswith("of the time is their environments', which training together does not shorten")
    assert len(found) == 2


def test_the_command_tells_of_each_and_fails_with_the_first_error(tmp_path: Path) -> None:
    command = ["train", SEEDED, "--seeds", "3", "--results-dir", str(tmp_path), "--stop", "training_iteration=3"]
    sets = {"train_batch_size": 96, "num_envs_per_worker": 3, "max_env_failures": 0, "env_config.mode": "raise"}
    for key, value in sets.items():
        command += ["--set", f"config.{key}={value}"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code != 0
    for seed in range(3):
        assert f"seed {seed} ({seed + 1} of 3 runs)" in result.output
        assert f"seed {seed}  iter    1" in result.output
    assert result.output.count("Finished: ") == 2
    assert "Failed; the error follows below." in result.output
