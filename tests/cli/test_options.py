"""Options of other tools, which people type first: each is answered with what to type here, value and all."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.config.yaml_files import load_text

INSTEAD = {
    # classic RLlib on Slurm, and modular_rl's TRPO
    "--redis-password abc": "Ray has a token now",
    "--n_iter 500": "write --stop training_iteration=500",
    "--timesteps_per_batch=2000": "write --set config.train_batch_size=2000",
    "--hid_sizes=244,81": "write --set config.model.fcnet_hiddens='[244,81]'",
    "--hid_sizes 64": "write --set config.model.fcnet_hiddens='[64]'",
    "--n_rollouts 40": "write --num-workers 40",
    "--filter 1": "write --set config.observation_filter=MeanStdFilter",
    "--filter 0": "leave it out, because 0 is the default",
    "--agent modular_rl.agentzoo.TrpoAgent": "write --run TRPO",
    "--video 0": "leave it out",
    "--video 1": "write --set config.record_env=true --set config.evaluation_interval=10",
    "--remote 1": "write --num-workers auto",
    # Stable-Baselines3, CleanRL and others
    "--lr 1e-3": "There is no option --lr; write --set config.lr=1e-3",
    "--learning-rate -1": "write --set config.lr=-1",
    "--lr": "write --set config.lr=VALUE",
    "--timesteps 1000": "write --stop timesteps_total=1000",
    "--total-timesteps 1e6": "write --stop timesteps_total=1e6",
    "--algo ppo": "write --run PPO",
    "--device cuda": "write --num-gpus 1",
    "--device cpu": "leave it out, because cpu is the default",
    "--verbose": "write --set config.log_level=DEBUG",
    "--gpus 1": "write --num-gpus 1",
    "--cuda": "write --num-gpus 1",
    "--render": "write --set config.render_env=true",
    "--config my.yml": "write --file my.yml",
    "--n-envs 8": "write --set config.num_envs_per_worker=8",
    "--save-path /data": "write --results-dir /data",
    "--resume my_run": "write shoal resume my_run to continue that run, or --restore my_run",
    "--checkpoint my_run": "write --restore my_run",
    # keys of our own, typed as options
    "--gamma 0.9": "write --set config.gamma=0.9",
    "--train-batch-size 4000": "write --set config.train_batch_size=4000",
    "--fcnet-hiddens [32,32]": "write --set config.model.fcnet_hiddens='[32,32]'",
    "--keep-checkpoints-num 3": "write --set keep_checkpoints_num=3",
    "--num-samples 3": "type shoal tune FILE.yml",
    "--type adam": "shoal train --help lists the options",
    "--stpo x=1": "did you mean --stop?",
    "--zzz": "shoal train --help lists the options",
}


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="shoal")


def resolved(*arguments: str) -> dict[str, object]:
    result = shoal("train", *arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    tree = load_text(result.output, "output").tree
    (experiment,) = tree.values()
    return {**experiment, **experiment["config"], "name": next(iter(tree))}


@pytest.mark.parametrize("typed", INSTEAD)
def test_an_option_of_another_tool(typed: str) -> None:
    result = shoal("train", "CartPole-v1", *typed.split())
    assert result.exit_code == 2
    *_, error = result.output.splitlines()
    assert error.startswith("Error: There is no option ")
    assert INSTEAD[typed] in error


def test_what_is_offered_is_taken() -> None:
    for told in INSTEAD.values():
        if "write --" not in told or any(word in told for word in ("VALUE", "=-1", "--restore", "--file")):
            continue
        resolved("CartPole-v1", *shlex.split(told.partition("write ")[2]))


def test_a_whole_line_of_another_tool_is_answered_at_once() -> None:
    line = "--env Pong-ram-v0 --agent modular_rl.agentzoo.TrpoAgent --video 0 --n_iter 500 --filter 1 --n_rollouts 8"
    errors = [line for line in shoal("train", *line.split()).output.splitlines() if line.startswith("Error: ")]
    assert [error.split()[5].rstrip(";") for error in errors] == [
        "--agent",
        "--video",
        "--n_iter",
        "--filter",
        "--n_rollouts",
    ]


def test_other_commands_know_them_too() -> None:
    assert "write shoal evaluate my_run" in shoal("evaluate", "--path", "my_run").output
    assert "did you mean --episodes?" in shoal("evaluate", "x", "--n-episodes", "3").output
    assert "write --set config.lr=3" in shoal("tune", "s.yml", "--learning-rate", "3").output


def test_what_means_the_same_is_taken() -> None:
    tree = resolved("--name-env", "CartPole-v1", "--run", "ppo", "--num_workers", "2", "--checkpoint_freq=3")
    assert (tree["env"], tree["run"], tree["num_workers"], tree["checkpoint_freq"]) == ("CartPole-v1", "PPO", 2, 3)
    assert resolved("CartPole-v1", "--set", "run=Dqn")["run"] == "DQN"


def test_a_key_of_config_needs_no_more_than_its_name() -> None:
    sets = ("lr=1e-4", "fcnet_hiddens=[8]", "model.fcnet_activation=relu", "env_config.size=3", "checkpoint_freq=2")
    tree = resolved("CartPole-v1", *(word for text in sets for word in ("--set", text)))
    assert (tree["lr"], tree["env_config"], tree["checkpoint_freq"]) == (1e-4, {"size": 3}, 2)
    model = tree["model"]
    assert isinstance(model, dict)
    assert (model["fcnet_hiddens"], model["fcnet_activation"]) == ([8], "relu")


def test_a_yaml_file_may_be_the_argument(tmp_path: Path) -> None:
    file = tmp_path / "custom.yml"
    file.write_text("mine: {env: CartPole-v1, stop: {training_iteration: 2}, config: {lr: 0.5}}\n")
    assert resolved(str(file))["name"] == "mine"
    # What is wrong in an override is not laid to the file.
    assert shoal("train", str(file), "--set", "lr=-1").output == "Error: config.lr: must be more than 0 (got -1)\n"
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "s: {env: CartPole-v1, stop: {training_iteration: 2}, config: {lr: {grid_search: [1e-3, 1e-4]}}}\n"
    )
    result = shoal("tune", str(sweep), "--dry-run")
    assert result.exit_code == 0
    assert "s: 2 trials" in result.output


def test_a_python_file_with_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(
        "from gymnasium import Env, Wrapper\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Thermostat(CartPoleEnv): ...\nclass Scaled(Wrapper): ...\nclass _Hidden(Env): ...\n"
    )
    tree = resolved("my_env.py")
    assert (tree["env"], tree["name"]) == ("my_env.py:Thermostat", "my_env.Thermostat")


@pytest.mark.parametrize(("cores", "workers"), [("0", 0), ("1", 0), ("2", 1), ("35", 34)])
def test_num_cpus_alone_is_this_process_and_workers(cores: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # where this machine's cores are not the limit
    assert resolved("CartPole-v1", "--num-cpus", cores)["num_workers"] == workers


def test_num_cpus_is_a_bound_where_the_workers_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert resolved("CartPole-v1", "--num-cpus", "8", "--num-workers", "2")["num_workers"] == 2
    assert resolved("CartPole-v1", "--num-cpus", "8", "--local-mode")["num_workers"] == 0
    assert resolved("CartPole-v1", "--num-cpus", "8", "--set", "num_cpus_per_worker=2")["num_workers"] == 3
    file = tmp_path / "x.yml"
    file.write_text("x: {env: CartPole-v1, config: {num_workers: 3}}\n")
    assert resolved(str(file), "--num-cpus", "8")["num_workers"] == 3
    assert "need 4 (got 2)" in shoal("train", str(file), "--num-cpus", "2").output


def test_num_cpus_counts_learners_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    many = ["--set", "num_learners=2", "--set", "evaluation_num_workers=1", "--set", "evaluation_interval=1"]
    assert resolved("CartPole-v1", "--num-cpus", "8", "--num-workers", "auto", *many)["num_workers"] == 4
    more = shoal("train", "CartPole-v1", "--num-cpus", "8", "--num-workers", "5", *many, "--dry-run")
    assert "cores, 1 for evaluation and 2 learners need 9 (got 8); allow more, or --num-workers 4" in more.output
    few = shoal("train", "CartPole-v1", "--num-cpus", "2", "--num-workers", "2", "--set", "num_learners=2")
    assert few.output.endswith("and 2 learners need 5 (got 2); allow more, or use fewer learners\n")


def test_workers_that_follow_from_the_cores_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    for given in (["--num-workers", "auto"], []):
        result = shoal("train", "CartPole-v1", "--num-cpus", "2", *given, "--set", "num_learners=2", "--dry-run")
        assert result.exit_code == 2
        assert "config.num_learners: each of 2 learners needs a worker" in result.output


def test_help_and_version() -> None:
    assert shoal("help").output == shoal("--help").output
    assert shoal("help", "train").output == shoal("train", "--help").output
    shown = shoal("help", "config", "show").output
    assert shown.startswith("Usage: shoal config show [OPTIONS] [KEY]")
    assert "  -h, --help " in shown
    assert "shoal train has no commands of its own" in shoal("help", "train", "x").output
    assert shoal("version").output == shoal("-V").output == shoal("--version").output


@pytest.mark.parametrize(
    "typed", ["compare a b --at nan", "play a --fps inf", "watch a --interval nan", "check CartPole-v1 --timeout nan"]
)
def test_a_number_is_finite(typed: str) -> None:
    result = shoal(*typed.split())
    assert result.exit_code == 2
    assert "must be a number that is finite" in result.output
