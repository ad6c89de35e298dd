"""RLlib's own algorithms through our runs: RLlib is the real one."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.config.algorithms import RLLIB, rllib_algorithms
from shoal.errors import ConfigError, EnvError, NotTrusted, WorkerError
from shoal.runs.trainer import TRAINERS

HERE = Path(__file__).parent
TARGET = f"{HERE / 'target_env.py'}:Target"
DIVERGING = f"{HERE / 'diverging_env.py'}:Diverging"
SMALL = {"train_batch_size": 200, "model": {"fcnet_hiddens": [16]}}
QUICK_PPO: dict[str, Any] = {**SMALL, "rllib_config": {"minibatch_size": 100, "num_epochs": 2}}
QUICK_IMPALA: dict[str, Any] = {
    **SMALL,
    "num_workers": 1,
    "rollout_fragment_length": 20,
    "rllib_config": {"min_time_s_per_iteration": 0.5},
}

pytestmark = pytest.mark.usefixtures("ray_session")


def start(run: str, env: Any = "CartPole-v1", **config: Any) -> shoal.Trainer:
    return TRAINERS[run](env=env, config=config)


def test_the_installed_ray_has_them_all() -> None:
    assert rllib_algorithms() == list(RLLIB)


def test_a_run_has_our_results_folder_evaluation_and_resume(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree: dict[str, Any] = {
        "name": "impala",
        "run": "rllib:IMPALA",
        "env": "CartPole-v1",
        "results_dir": str(home / "runs"),
        "checkpoint_freq": 1,
        "stop": {"training_iteration": 2},
        "config": {**QUICK_IMPALA, "evaluation_interval": 2, "evaluation_duration": 2},
    }
    first, second = list(shoal.run(tree))
    assert [first["training_iteration"], second["training_iteration"]] == [1, 2]
    assert second["timesteps_total"] == first["timesteps_this_iter"] + second["timesteps_this_iter"] > 0
    assert second["episode_reward_mean"] > 0
    assert second["num_healthy_workers"] == 1
    assert len(second["evaluation"]["episode_rewards"]) == 2
    (folder,) = (home / "runs" / "impala").iterdir()
    assert folder.name.startswith("rllib-IMPALA_CartPole-v1_")
    lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [line["timesteps_total"] for line in lines] == [first["timesteps_total"], second["timesteps_total"]]
    assert (folder / "checkpoint_000002" / "rllib" / "rllib_checkpoint.json").exists()

    (third,) = list(shoal.run({**tree, "stop": {"training_iteration": 3}}))
    assert third["training_iteration"] == 3
    assert third["timesteps_total"] > second["timesteps_total"], "it goes on counting"

    words = ["evaluate", str(folder), "--episodes", "2"]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 0, done.output
    policy = shoal.Policy.load(folder)
    assert policy.compute_single_action([0.0, 0.0, 0.0, 0.0], explore=False) in (0, 1)
    assert "parameters" in CliRunner().invoke(main, ["model", str(folder)]).output or policy.model.summary()

    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))
    refused = CliRunner().invoke(main, words, prog_name="shoal")
    assert refused.exit_code == 2
    assert "you did not write it" in refused.output
    with pytest.raises(NotTrusted, match="--trust"):
        shoal.Policy.load(folder)
    assert shoal.Policy.load(folder, trust=True).compute_single_action([0.0] * 4, explore=False) in (0, 1)


def test_spaces_that_rllib_refuses_are_flattened_and_learned() -> None:
    config = {**QUICK_PPO, "train_batch_size": 500, "lr": 0.01, "gamma": 0.1}
    config["rllib_config"] = {"minibatch_size": 100, "num_epochs": 10}
    with start("rllib:PPO", DIVERGING, **config) as trainer:
        for _ in range(8):
            result = trainer.train()
        assert result["episode_reward_mean"] > 13, "two bits of ten steps: chance is 10, the most 20"
        assert result["custom_metrics"]["right_mean"] > 0
        assert trainer.evaluate(episodes=3)["episode_reward_mean"] > 14


def test_a_checkpoint_is_evaluated_and_restored(home: Path) -> None:
    with start("rllib:PPO", **QUICK_PPO) as trainer:
        trainer.train()
        path = trainer.save(home)
        before = trainer.evaluate(episodes=4)["episode_rewards"]
        kept = [trainer.compute_single_action([0.0, 0.1, 0.0, 0.1 * k], explore=False) for k in range(-4, 5)]
        for _ in range(3):
            trainer.train()
        assert trainer.evaluate(path, episodes=4)["episode_rewards"] == before, "its argument counts"
        trainer.restore(path)
        assert trainer.iteration == 1
        again = [trainer.compute_single_action([0.0, 0.1, 0.0, 0.1 * k], explore=False) for k in range(-4, 5)]
        assert again == kept
        assert trainer.train()["timesteps_total"] == 400


def test_a_policy_is_exported_by_way_of_an_import_that_the_refusal_names(home: Path) -> None:
    with start("rllib:PPO", **QUICK_PPO) as trainer:
        trainer.train()
        checkpoint = trainer.save(home / "run")
    refused = CliRunner().invoke(main, ["export", checkpoint, "--format", "numpy"])
    assert refused.exit_code == 2, refused.output
    named = re.search(r"type: (shoal import .*)", " ".join(refused.output.split()))
    assert named is not None, refused.output
    words = shlex.split(named[1])[1:]
    imported = CliRunner().invoke(main, [*words, "--results-dir", str(home / "runs")])
    assert imported.exit_code == 0, imported.output
    [run] = (home / "runs").glob("*/*")
    done = CliRunner().invoke(main, ["export", str(run), "--format", "numpy", "-o", str(home / "policy.py")])
    assert done.exit_code == 0, done.output
    assert "proved: 1000 observations" in done.output


def test_an_environment_that_fails_ends_the_run_with_its_own_error(home: Path) -> None:
    config = {**QUICK_IMPALA, "env_config": {"fails_after": 30}, "max_env_failures": 5}
    tree = {"name": "f", "run": "rllib:IMPALA", "env": DIVERGING, "results_dir": str(home), "config": config}
    with pytest.raises(EnvError, match="RuntimeError: the solver has diverged") as caught:
        for _ in shoal.run({**tree, "stop": {"training_iteration": 100}}):
            pass
    assert "max_env_failures is 5" in str(caught.value)
    (incidents,) = home.glob("f/*/incidents.jsonl")
    assert "diverged" in incidents.read_text()


def test_what_fails_in_a_worker_of_rllibs_is_told() -> None:
    def failing(**_: Any) -> None:
        raise ZeroDivisionError("the callback divides by zero")

    settings = {**QUICK_PPO["rllib_config"], "callbacks_on_sample_end": failing}
    told = "ZeroDivisionError: the callback divides by zero"
    config = {**QUICK_PPO, "num_workers": 1, "rllib_config": settings}
    with start("rllib:PPO", **config) as trainer, pytest.raises(WorkerError, match=told):
        trainer.train()


@pytest.mark.parametrize(
    ("run", "env", "config", "told"),
    [
        ("rllib:DQN", "Pendulum-v1", {}, "takes Discrete actions, and these are Box"),
        ("rllib:TQC", "CartPole-v1", {}, "takes Box actions, and these are Discrete"),
        ("rllib:PPO", "CartPole-v1", {"rllib_config": {"entropy_coef": 1}}, "did you mean entropy_coeff"),
        ("rllib:PPO", "CartPole-v1", {"rllib_config": {"num_epochs": 2, "minibatch_size": 10**6}}, "minibatch_size"),
        ("rllib:PPO", "CartPole-v1", {"num_workers": 40}, "40 workers of 1 CPUs need 40"),
        (
            "rllib:IMPALA",
            "CartPole-v1",
            {"num_workers": 3, "rllib_config": {"num_aggregator_actors_per_learner": 9}},
            "9 of them and the other processes need 12 CPUs",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(run: str, env: str, config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        start(run, env, **config)


def test_imitation_learns_from_what_another_run_has_recorded(home: Path) -> None:
    recording = {
        **SMALL,
        "batch_mode": "complete_episodes",
        "rllib_config": {"output": str(home / "data"), "minibatch_size": 100, "num_epochs": 2},
    }
    with start("rllib:PPO", **recording) as trainer:
        trainer.train()
    folders = [str(folder) for folder in (home / "data").glob("*/*")]
    files = {"input_": folders, "input_read_episodes": True, "dataset_num_iters_per_learner": 1}
    with start("rllib:BC", **{**SMALL, "train_batch_size": 32, "rllib_config": files}) as trainer:
        result = trainer.train()
        assert result["timesteps_total"] > 0
        assert trainer.evaluate(episodes=2)["episode_reward_mean"] > 0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """Steps of a policy that knows nothing, as `output` of a run of shoal's own writes them, and its mean return."""
    folder = str(tmp_path_factory.mktemp("steps"))
    with shoal.PPO(env=TARGET, config={"output": folder, "lr": 1e-12, "train_batch_size": 4000}) as trainer:
        return folder, trainer.train()["episode_reward_mean"]


LEARNING: dict[str, dict[str, Any]] = {
    "rllib:BC": {},
    "rllib:MARWIL": {},
    "rllib:CQL": {"bc_iters": 0},
    "rllib:IQL": {},
}


LONG = ("rllib:MARWIL", "rllib:IQL")  # minutes on two cores; BC and CQL take the same way


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.long] if run in LONG else []) for run in LEARNING]
)
def test_what_output_wrote_is_learned_from(recorded: tuple[str, float], home: Path, run: str) -> None:
    folder, mean = recorded
    own = {**LEARNING[run], "dataset_num_iters_per_learner": 20}
    config = {"input": folder, "lr": 3e-3, "train_batch_size": 256, "model": {"fcnet_hiddens": [32]}}
    with start(run, TARGET, **config, rllib_config=own) as trainer:
        for _ in range(5):
            result = trainer.train()
        assert result["timesteps_total"] >= 5 * 20 * 256
        learned = trainer.evaluate(episodes=40)["episode_reward_mean"]
        assert learned > 0.5 * mean, "without the noise of what was recorded, and for some by its rewards"
        path = trainer.save(home)
        trainer.restore(path)
        assert trainer.train()["timesteps_total"] > result["timesteps_total"]


REPLAYING = {"num_steps_sampled_before_learning_starts": 100, "min_sample_timesteps_per_iteration": 200}
DREAM = {"batch_size_B": 2, "batch_length_T": 8, "horizon_H": 4, "model_size": "nano", "training_ratio": 16}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "rllib:PPO": ("CartPole-v1", QUICK_PPO),
    "rllib:APPO": ("CartPole-v1", QUICK_IMPALA),
    "rllib:IMPALA": ("CartPole-v1", QUICK_IMPALA),
    "rllib:DQN": ("CartPole-v1", {**SMALL, "train_batch_size": 32, "rllib_config": REPLAYING}),
    "rllib:SAC": ("Pendulum-v1", {**SMALL, "train_batch_size": 32, "rllib_config": REPLAYING}),
    "rllib:TQC": ("Pendulum-v1", {**SMALL, "train_batch_size": 32, "rllib_config": REPLAYING}),
    "rllib:DreamerV3": ("CartPole-v1", {"rllib_config": {**DREAM, "min_sample_timesteps_per_iteration": 100}}),
}


def test_each_is_trained_by_a_test() -> None:
    assert {*TRAINED, *LEARNING} == {*RLLIB}


@pytest.mark.parametrize("run", TRAINED)
def test_each_that_samples_is_trained_saved_and_restored(home: Path, run: str) -> None:
    env, config = TRAINED[run]
    with start(run, env, **config) as trainer:
        result = first_that_learned(trainer)
        path = trainer.save(home)
        if run != "rllib:DreamerV3":  # which has a memory
            assert trainer.evaluate(episodes=2)["episode_len_mean"] > 0
        trainer.restore(path)
        assert trainer.train()["timesteps_total"] > result["timesteps_total"]


def first_that_learned(trainer: shoal.Trainer) -> dict[str, Any]:
    """The first result that tells of something learned and of an episode; how many that takes is up to the machine."""
    for _ in range(200):
        result = trainer.train()
        if result["learner"] and result["episodes_total"]:
            return dict(result)
    raise AssertionError(f"nothing was learned: {result}")


def test_it_is_launched_like_any_other_run(home: Path) -> None:
    settings = ["--num-workers", "1", "--set", "rllib_config.min_time_s_per_iteration=0.5"]
    train = ["shoal", "train", "CartPole-v1", "--run", "rllib:IMPALA", *settings, "--stop", "training_iteration=2"]
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    variables |= {"PYTHONPATH": str(Path(shoal.__file__).parents[1]), "HOME": str(home)}
    variables |= {"XDG_STATE_HOME": str(home / "state")}
    command = [sys.executable, "-m", "shoal", "launch", "--num-cpus", "3", "--", sys.executable, "-m", *train]
    words = [*command, "--results-dir", str(home / "runs")]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ray is up at" in done.stderr
    (results,) = (home / "runs").glob("*/*/result.json")
    last = json.loads(results.read_text().splitlines()[-1])
    assert last["training_iteration"] == 2
    assert last["num_healthy_workers"] == 1


def test_recorded_steps_of_other_spaces_are_refused_before_the_start(recorded: tuple[str, float]) -> None:
    with pytest.raises(ConfigError, match="has other observations"):
        start("rllib:MARWIL", "CartPole-v1", input=recorded[0])


def test_trials_of_a_sweep(home: Path) -> None:
    analysis = shoal.tune.run(
        "rllib:PPO",
        name="sweep",
        stop={"training_iteration": 1},
        config={**QUICK_PPO, "env": "CartPole-v1", "lr": shoal.tune.grid_search([1e-3, 1e-4])},
        results_dir=str(home),
    )
    assert [trial.status for trial in analysis.trials] == ["finished", "finished"]


def test_a_signal_saves_the_run(home: Path) -> None:
    settings = ["--set", "rllib_config.min_time_s_per_iteration=0.5", "--num-workers", "1"]
    words = ["train", "CartPole-v1", "--run", "rllib:impala", *settings, "--results-dir", str(home / "runs")]
    variables = {**os.environ, "RAY_ADDRESS": "", "XDG_STATE_HOME": str(home / "state")}
    command = [sys.executable, "-m", "shoal", *words, "--stop", "training_iteration=1000"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if line.startswith("iter    1"):
            process.send_signal(signal.SIGTERM)
            break
    told += process.stdout.readlines()
    assert process.wait(60) == 143, "".join(told)
    (checkpoint,) = list((home / "runs").glob("*/*/checkpoint_*"))[:1]
    assert (checkpoint / "rllib").is_dir()
