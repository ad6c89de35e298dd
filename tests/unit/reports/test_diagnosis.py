"""Every symptom that is read from a run's folder: found where it was put, and in no healthy run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.algorithms import ALGORITHMS
from shoal.config.experiment import experiment_from
from shoal.data.findings import Finding
from shoal.envs.importing import UserCode
from shoal.errors import ConfigError
from shoal.reports.diagnosis import diagnosis, progress_text
from shoal.reports.run_facts import RunFacts, facts_of
from shoal.runs.resuming import tree_of

ITERATIONS = 40
UNSCALED = {"normalize_rewards": False}
FLAT = {"episode_reward_mean": [20.0, 21.0, 19.0, 20.5] * (ITERATIONS // 4)}
"""A return that does not rise."""

ON_POLICY = {
    "policy_loss": -0.02,
    "vf_loss": 3.0,
    "vf_explained_var": 0.6,
    "kl": 0.008,
    "entropy": np.linspace(0.69, 0.4, ITERATIONS),
    "grad_gnorm": 2.0,
    "refused_minibatches": 0,
    "cur_lr": 1e-3,
}
LEARNERS: dict[str, dict[str, Any]] = {
    "PPO": {**ON_POLICY, "total_loss": 1.0, "clip_fraction": 0.1, "entropy_coeff": 0.0, "clip_param": 0.2},
    "TRPO": {**ON_POLICY, "step_fraction": 1.0, "refused_steps": 0},
    "DQN": {
        "total_loss": 0.3,
        "grad_gnorm": 1.0,
        "refused_minibatches": 0,
        "cur_lr": 1e-3,
        "mean_q": 30.0,
        "num_updates": 250,
        "cur_epsilon": np.linspace(1, 0.02, ITERATIONS),
        "replay_size": 50_000,
    },
}


def history(algorithm: str, **changes: Any) -> list[dict[str, Any]]:
    """Results of a healthy run, but for what is given: a number, or one for each iteration."""
    count = np.arange(1, ITERATIONS + 1)
    rising = np.linspace(20, 180, ITERATIONS)
    series: dict[str, Any] = {
        "training_iteration": count,
        "timesteps_total": 2048 * count,
        "timesteps_this_iter": 2048,
        "episodes_total": 30 * count,
        "episodes_this_iter": 30,
        "episode_reward_mean": rising,
        "episode_reward_min": rising - 15,
        "episode_reward_max": rising + 50,
        "episode_len_mean": 60.0,
        "env_failures_total": 0,
        **{f"learner/{name}": value for name, value in LEARNERS[algorithm].items()},
        **changes,
    }
    results = []
    for at in range(ITERATIONS):
        row: dict[str, Any] = {}
        for name, values in series.items():
            value = values if values is None or np.isscalar(values) else values[at]
            inner = row
            *folders, last = name.split("/")
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[last] = value if value is None else float(value)
        results.append(row)
    return results


def write_run(folder: Path, algorithm: str, config: dict[str, Any], results: list[dict[str, Any]]) -> Path:
    """The folder of a run with these results."""
    known = {key: value for key, value in config.items() if key in ALGORITHMS[algorithm].model_fields}
    experiment = experiment_from({"env": "CartPole-v1", "run": algorithm, "config": known})
    folder.mkdir(exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps(tree_of(experiment, UserCode(()))))
    (folder / "result.json").write_text("".join(json.dumps(result) + "\n" for result in results))
    return folder


def found_in(folder: Path, algorithm: str, config: dict[str, Any], changes: dict[str, Any]) -> list[Finding]:
    weights = changes.get("weights")
    results = history(algorithm, **{name: value for name, value in changes.items() if name != "weights"})
    return diagnosis(facts_of(write_run(folder, algorithm, config, results), weights))


def returns(values: Any) -> dict[str, Any]:
    """Episodes that all have the same return in an iteration."""
    return dict.fromkeys(("episode_reward_mean", "episode_reward_min", "episode_reward_max"), values)


SICK: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    # what is found, algorithm, configuration, results, words of the remedy
    (
        "endless episodes",
        "PPO",
        {},
        {f"episode_{name}": None for name in ("reward_mean", "reward_min", "reward_max", "len_mean")}
        | {"episodes_total": 0, "episodes_this_iter": 0},
        "config.horizon=1000",
    ),
    ("no reward", "PPO", {}, returns(0), "entropy_coeff"),
    (
        "same return",
        "DQN",
        {},
        returns(-200),
        "epsilon_timesteps=163840",
    ),
    (
        "sparse reward",
        "TRPO",
        {},
        {"episode_reward_min": 0, "episode_reward_max": 1, "episode_reward_mean": [0.01, 0.0] * (ITERATIONS // 2)},
        "train_batch_size=4096",
    ),
    (
        "reward scale",
        "PPO",
        UNSCALED,
        returns(np.linspace(1e5, 2e5, ITERATIONS)),
        "rewards",
    ),
    (
        "reward scale",
        "PPO",
        UNSCALED,
        returns(np.linspace(1e-6, 2e-6, ITERATIONS)),
        "rewards",
    ),
    ("discount", "PPO", {}, {**FLAT, "episode_len_mean": 5000}, "config.gamma=0.9998"),
    (
        "lost again",
        "PPO",
        {},
        {"episode_reward_mean": np.concatenate([np.linspace(20, 200, 20), np.linspace(200, 30, 20)])},
        "--best",
    ),
    (
        "few episodes",
        "PPO",
        {},
        {"episodes_this_iter": [0, 1] * 20, "episode_len_mean": 3000},
        "train_batch_size=12288",
    ),
    ("failures", "PPO", {}, {"env_failures_total": 400}, "shoal check"),
    (
        "evaluation",
        "PPO",
        {},
        {"evaluation/episode_reward_mean": 10, "evaluation/episode_reward_ci_high": 12},
        "evaluation_config.explore=true",
    ),
    ("not finite", "PPO", {}, {"learner/total_loss": [1.0] * 39 + [None]}, "config.lr="),
    ("not finite", "PPO", {}, {"weights": {"policy.0": np.array([1.0, np.nan])}}, "config.lr="),
    ("refused updates", "PPO", {}, {"learner/refused_minibatches": 20}, "config.lr="),
    ("large weights", "PPO", {}, {"weights": {"policy.0": np.array([1.0, -5000.0])}}, "config.lr="),
    ("values diverge", "DQN", UNSCALED, {"learner/mean_q": 1e6}, "target_network_update_freq"),
    ("not begun", "DQN", {}, {"learner/num_updates": 0}, "learning_starts"),
    ("no exploration", "PPO", {"explore": False}, {}, "config.explore=true"),
    ("KL high", "PPO", {}, {"learner/kl": 0.4}, "config.num_sgd_iter=5"),
    ("KL high", "PPO", {"kl_coeff": 0.2, "kl_target": 0.01}, {"learner/kl": 0.07}, "config.num_sgd_iter=5"),
    ("clip binds", "PPO", {}, {"learner/clip_fraction": 0.7}, "config.num_sgd_iter=5"),
    ("stands still", "PPO", {}, {**FLAT, "learner/kl": 1e-8}, "config.lr=0.0"),
    ("lr gone", "PPO", {}, {"learner/cur_lr": [1e-3] * 20 + [0.0] * 20}, "lr_schedule"),
    ("entropy gone", "PPO", {}, {**FLAT, "learner/entropy": [0.69, 0.3] + [0.001] * 38}, "entropy_coeff=0.01"),
    (
        "entropy full",
        "PPO",
        {"entropy_coeff": 1.0},
        {**FLAT, "learner/entropy": 0.69, "learner/entropy_coeff": 1.0},
        "entropy_coeff=0.1",
    ),
    ("action spread", "PPO", {}, {"weights": {"log_std": np.array([2.0])}}, "squash_actions"),
    ("action spread", "PPO", {}, {**FLAT, "weights": {"log_std": np.array([-6.0])}}, "entropy_coeff=0.01"),
    ("epsilon gone", "DQN", {}, {**FLAT, "learner/cur_epsilon": 0.02}, "epsilon_timesteps"),
    (
        "small replay",
        "DQN",
        {"replay_buffer_config": {"capacity": 1000}},
        {"episode_len_mean": 900},
        "replay_buffer_config.capacity=144000",
    ),
    ("no step", "TRPO", {}, {"learner/step_fraction": 0.0}, "train_batch_size=4096"),
    ("gradients cut", "PPO", UNSCALED, {**FLAT, "learner/grad_gnorm": 1e4}, "rewards"),
    ("values clipped", "PPO", {"vf_clip_param": 10.0}, {"learner/vf_loss": 900}, "vf_clip_param=null"),
    ("values", "PPO", {}, {**FLAT, "learner/vf_explained_var": -0.01}, "MeanStdFilter"),
    ("small batch", "PPO", {"train_batch_size": 64}, FLAT, "train_batch_size=2048"),
    ("small batch", "PPO", {"sgd_minibatch_size": 4}, FLAT, "sgd_minibatch_size=64"),
]


@pytest.mark.parametrize(("name", "algorithm", "config", "changes", "remedy"), SICK)
def test_an_illness_is_found_with_its_remedy(
    tmp_path: Path, name: str, algorithm: str, config: dict[str, Any], changes: dict[str, Any], remedy: str
) -> None:
    found = found_in(tmp_path / "run", algorithm, config, changes)
    assert name in [finding.check for finding in found]
    (one,) = [finding for finding in found if finding.check == name]
    assert one.verdict in ("warning", "problem")
    assert any(character.isdigit() for character in one.text) or name == "no exploration", "it has numbers of the run"
    assert remedy in one.remedy


@pytest.mark.parametrize(("lr", "better"), [(1e3, "0.0007"), (1.0, "0.0007"), (1e-3, "0.0001"), (7e-4, "7e-05")])
def test_a_smaller_learning_rate_is_small_enough(tmp_path: Path, lr: float, better: str) -> None:
    (one,) = found_in(tmp_path / "run", "PPO", {"lr": lr}, {"learner/refused_minibatches": 20})
    assert one.remedy.startswith(f"smaller steps: --set config.lr={better};")


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (
            {"entropy_coeff": 1e6},
            "config.entropy_coeff is 1000000, far above its default: --set config.entropy_coeff=0;",
        ),
        (
            {"vf_loss_coeff": 1e5},
            "config.vf_loss_coeff is 100000, far above its default: --set config.vf_loss_coeff=0.5;",
        ),
        (
            {"entropy_coeff_schedule": [[0, 1e4], [9, 0]]},
            "config.entropy_coeff_schedule is 10000, far above its default",
        ),
    ],
)
def test_an_absurd_coefficient_is_named_before_the_learning_rate(
    tmp_path: Path, config: dict[str, Any], remedy: str
) -> None:
    found = found_in(tmp_path / "run", "PPO", config, {"learner/refused_minibatches": 320})
    (one,) = [finding for finding in found if finding.check == "refused updates"]
    assert one.remedy.startswith(remedy)
    assert "config.lr" not in one.remedy


def test_there_are_more_than_twenty_of_them() -> None:
    assert len({name for name, *_ in SICK}) >= 25


@pytest.mark.parametrize("algorithm", ["PPO", "TRPO", "DQN"])
@pytest.mark.parametrize("changes", [{}, {"env_failures_total": 3}, {"episode_len_mean": 999, "episodes_this_iter": 2}])
def test_a_healthy_run_has_nothing_suspicious(tmp_path: Path, algorithm: str, changes: dict[str, Any]) -> None:
    assert found_in(tmp_path / "run", algorithm, {}, changes) == []


def test_the_worst_comes_first(tmp_path: Path) -> None:
    changes = {**FLAT, "learner/clip_fraction": 0.9, "learner/refused_minibatches": 40, "learner/vf_explained_var": -1}
    verdicts = [finding.verdict for finding in found_in(tmp_path / "run", "PPO", {}, changes)]
    assert verdicts == ["problem", "warning", "warning"]


def test_the_most_frequent_cause_of_failures_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "PPO", {}, history("PPO", env_failures_total=900))
    lines = [{"number": 1, "cause": "rare"}, {"number": 2, "cause": "diverged"}, {"number": 3, "cause": "diverged"}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"cut sho'
    (folder / "incidents.jsonl").write_text(text)
    (finding,) = diagnosis(facts_of(folder))
    assert finding.verdict == "problem"
    assert "2 times: diverged" in finding.text


def test_a_policy_that_leapt_away_is_not_told_to_take_larger_steps(tmp_path: Path) -> None:
    still = {"learner/kl": [30.0] + [0.0] * (ITERATIONS - 1), "learner/entropy": 1e-22}
    found = found_in(tmp_path / "run", "PPO", {}, {**FLAT, **still})
    assert [finding.check for finding in found] == ["KL high", "entropy gone"]
    assert "30 in iteration 1" in found[0].text


def test_how_far_the_run_is(tmp_path: Path) -> None:
    facts = facts_of(write_run(tmp_path / "run", "PPO", {}, history("PPO")))
    assert progress_text(facts) == "40 iterations, 81,920 steps, 1,200 episodes; mean return 20 -> 180, rising"
    flat = facts_of(write_run(tmp_path / "flat", "PPO", {}, history("PPO", **FLAT)))
    assert progress_text(flat).endswith("mean return 20 -> 20.5, not rising")
    one = {**facts.results[0], "timesteps_total": 1, "episodes_total": 1}
    assert progress_text(RunFacts("PPO", "CartPole-v1", facts.config, [one])).startswith(
        "1 iteration, 1 step, 1 episode;"
    )
    young = RunFacts("PPO", "CartPole-v1", facts.config, facts.results[:2])
    assert progress_text(young).endswith("too few iterations to see a trend")


def test_a_run_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results yet"):
        facts_of(write_run(tmp_path / "run", "PPO", {}, []))
    with pytest.raises(ConfigError, match="cannot be read"):
        facts_of(tmp_path)
