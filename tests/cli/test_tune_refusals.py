"""What a person may get wrong about a sweep: one message, exit code 2, no traceback, nothing left behind, no Ray."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

LR = "config.lr={loguniform: [1e-4, 1e-2]}"
TREE = """s:
  env: CartPole-v1
  stop: {timesteps_total: 1000}
"""


def searching(*sets: str, flags: str = "") -> list[str]:
    """The arguments of `shoal tune`, with keys set."""
    return [word for text in sets for word in ("--set", text)] + flags.split()


REFUSED: dict[str, tuple[list[str], str]] = {
    "an unknown metric": (
        searching(LR, flags="--metric episode_reward_men --mode max"),
        "metric: no result has this name (got 'episode_reward_men'); did you mean episode_reward_mean?",
    ),
    "a metric of evaluations that are not made": (
        searching(LR, flags="--metric evaluation/episode_reward_mean --mode max"),
        "metric: there is no evaluation; set config.evaluation_interval too",
    ),
    "no mode": (searching(LR, flags="--metric episode_len_mean"), "mode: is missing"),
    "an empty grid": (searching("config.lr={grid_search: []}"), "config.lr: has no values to try"),
    "bounds reversed": (searching("config.lr={uniform: [1e-2, 1e-4]}"), "its first number must be lower"),
    "the logarithm of zero": (searching("config.lr={loguniform: [0, 1e-2]}"), "must be more than 0"),
    "a value that is no experiment's": (
        searching("config.lr={grid_search: [1e-3, -1]}"),
        "config.lr: must be more than 0 (got -1)",
    ),
    "a bound that is no experiment's": (searching("config.gamma={uniform: [0.9, 1.1]}"), "config.gamma: "),
    "a range that would reach below zero": (searching("config.lr={normal: [1e-3, 1e-3]}"), "must be more than 0"),
    "sample_from": (searching("config.lr={sample_from: 'lambda spec: 1'}"), "sample_from would run code from a file"),
    "a key that does not exist": (searching("config.learning_rate={uniform: [0, 1]}"), "did you mean config.lr?"),
    "nothing to search": ([], "config: has nothing to search"),
    "the same trial many times": (
        searching("config.lr={grid_search: [1e-3, 1e-4]}", flags="--num-samples 3"),
        "num_samples: nothing is drawn",
    ),
    "a scheduler that does not exist": (searching(LR, flags="--scheduler ahsa"), "did you mean asha?"),
    "a scheduler of Ray's that we leave out": (searching(LR, flags="--scheduler resource_changing"), "leave it out"),
    "an option misspelt": (
        searching(LR, "scheduler={type: asha, grace_perod: 10}"),
        "scheduler.grace_perod: unknown option of asha; did you mean grace_period?",
    ),
    "an option of another": (searching(LR, "scheduler={type: asha, synch: true}"), "unknown option of asha"),
    "an option that is out of bounds": (
        searching(LR, "scheduler={type: asha, reduction_factor: 1}"),
        "scheduler.reduction_factor: must be more than 1 (got 1)",
    ),
    "a grace period beyond the end": (searching(LR, "scheduler={type: asha, grace_period: 2000}"), "grace_period"),
    "max_t against stop": (searching(LR, "scheduler={type: asha, max_t: 500}"), "so they contradict"),
    "max_t against a stop on time": (
        searching(LR, "scheduler={type: asha, max_t: 5, time_attr: training_iteration}", flags="--stop time_total_s=9"),
        "scheduler.max_t: counts training_iteration, but stop has time_total_s alone, so they contradict",
    ),
    "asha without an end": (
        searching(LR, flags="--scheduler asha --stop episode_reward_mean=100"),
        "asha needs a limit on the length of a trial; set stop: {timesteps_total: 100000}",
    ),
    "hyperband without an end": (searching(LR, flags="--scheduler hyperband"), "set stop: {training_iteration: 81}"),
    "trials that may never end": (searching(LR, flags="--stop episode_reward_mean=100"), "stop: has no limit"),
    "a stop at what is bad": (
        searching(
            LR, flags="--metric episode_len_mean --mode min --stop episode_len_mean=9 --stop training_iteration=2"
        ),
        "stop.episode_len_mean: ends a trial as soon as it is at least 9, and with mode: min small is good",
    ),
    "a stop that no result has": (searching(LR, flags="--stop timestep_total=9"), "did you mean timesteps_total?"),
    "a population without changes": (
        searching(flags="--scheduler pbt --num-samples 4"),
        "scheduler.hyperparam_mutations: pbt has nothing to change during training",
    ),
    "a population of one": (searching(LR, flags="--scheduler pbt"), "num_samples: pbt is a population"),
    "a change of what cannot change": (
        searching("config.model.fcnet_hiddens={choice: [[32], [64]]}", flags="--scheduler pbt --num-samples 4"),
        "config.model.fcnet_hiddens: cannot change while a run trains",
    ),
    "a population and seeds": (searching(LR, flags="--scheduler pbt --num-samples 4 --seeds 2"), "seeds: pbt"),
    "a population and a search": (
        searching(LR, flags="--scheduler pbt --num-samples 4 --search optuna"),
        "search_alg: optuna chooses settings once",
    ),
    "seeds that are stopped early": (searching(LR, flags="--scheduler asha --seeds 3"), "seeds: asha stops"),
    "bohb's scheduler alone": (
        searching(LR, flags="--scheduler bohb --stop training_iteration=9"),
        "scheduler: bohb works only with search_alg: bohb",
    ),
    "bohb's search alone": (searching(LR, flags="--search bohb"), "search_alg: bohb works only with scheduler: bohb"),
    "a grid for a searcher": (
        searching("config.lr={grid_search: [1e-3, 1e-4]}", flags="--search optuna"),
        "config.lr: optuna cannot search grid_search; use choice",
    ),
    "choices for bayesopt": (
        searching("config.lr={choice: [1e-3, 1e-4]}", flags="--search bayesopt"),
        "config.lr: bayesopt cannot search choice",
    ),
    "a searcher that Ray cannot use": (searching(LR, flags="--search hebo"), "HEBO needs a NumPy older"),
    "a searcher that is no more": (searching(LR, flags="--search sigopt"), "SigOpt no longer exists"),
    "grids of seeds": (searching("config.seed={grid_search: [1, 2]}"), "set seeds: 3 beside stop"),
    "a search of the stop": (searching("stop={timesteps_total: {choice: [1, 2]}}"), "is the same for all trials"),
    "too many trials": (searching(LR, flags="--num-samples 200000"), "at most 100000 are allowed"),
    "no samples": (searching(LR, flags="--num-samples 0"), "--num-samples"),
    "more cores than there are": (searching(LR, flags="--num-cpus 100000"), ", or leave it out"),
    "cores of a cluster": (searching(LR, flags="--num-cpus 1 --ray-address 1.2.3.4:5"), "leave it out"),
    "resume and a file": (["--resume", "s"], "leave -f out"),
}


@pytest.mark.repeats(8, slow=6)
@pytest.mark.parametrize("case", REFUSED)
def test_one_message_and_nothing_left(desk: Any, case: str) -> None:
    arguments, message = REFUSED[case]
    (desk.work / "sweep.yml").write_text(TREE)
    done = desk.shoal("tune", "-f", "sweep.yml", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    *usage, error = done.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert all(line == "" or line.startswith(("Usage: ", "Try ")) for line in usage), done.stderr
    assert not list(desk.home.glob("*/*"))


@pytest.mark.repeats(2)
@pytest.mark.parametrize(
    ("flag", "name", "module", "extra"),
    [
        ("--search", "hyperopt", "hyperopt", "hyperopt"),
        ("--search", "bayesopt", "bayes_opt", "bayesopt"),
        ("--search", "nevergrad", "nevergrad", "nevergrad"),
        ("--search", "ax", "ax", "ax"),
        ("--scheduler", "pb2", "sklearn", "pb2"),
    ],
)
def test_a_missing_package_is_told_with_its_extra(desk: Any, flag: str, name: str, module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    (desk.work / "sweep.yml").write_text(TREE)
    done = desk.shoal("tune", "-f", "sweep.yml", *searching(LR, flags=f"--num-samples 4 {flag} {name}"))
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert error.endswith(f"{name} needs {module}, which is not installed; type pip install 'shoal-rl[{extra}]'")


def test_train_says_to_use_tune(desk: Any) -> None:
    (desk.work / "sweep.yml").write_text(TREE + "  num_samples: 2\n  config: {lr: {grid_search: [1e-3, 1e-4]}}\n")
    done = desk.shoal("train", "-f", "sweep.yml")
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    told = "Error: sweep.yml:5: s.config.lr: asks for many runs, like num_samples; type `shoal tune -f FILE`"
    assert error.startswith(told)


def test_a_dry_run_tells_what_would_be_tried(desk: Any) -> None:
    (desk.work / "sweep.yml").write_text(TREE)
    grid = "config.model.fcnet_hiddens={grid_search: [[32], [64, 64]]}"
    done = desk.shoal("tune", "-f", "sweep.yml", *searching(LR, grid, flags="--num-samples 3 --seeds 2 --dry-run"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "s: 12 trials"
    assert "  config.lr                   loguniform 0.0001 to 0.01" in lines
    assert "  config.model.fcnet_hiddens  grid_search [32], [64, 64]" in lines
    assert sum(line.startswith("  config.lr 0.0") for line in lines) == 3
    assert "      fcnet_hiddens: [32]" in done.stdout
    assert not list(desk.home.glob("*/*"))
    checked = desk.shoal("config", "check", "sweep.yml")
    assert checked.stdout == "sweep.yml: 1 experiment, no problems\n"
