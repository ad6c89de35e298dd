"""What a run says about itself, once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.config.algorithms import ALGORITHMS, name_of
from shoal.config.dqn import DQNConfig
from shoal.config.experiment import experiment_from
from shoal.config.ppo import PPOConfig
from shoal.config.settings import AlgorithmConfig
from shoal.config.trpo import TRPOConfig
from shoal.runs.hints import Hints
from shoal.runs.run import Run


def result(iteration: int, low: float | None, high: float | None = None, episodes: int = 10) -> dict[str, Any]:
    """An iteration of 10,000 steps."""
    return {
        "training_iteration": iteration,
        "timesteps_total": 10_000 * iteration,
        "timesteps_this_iter": 10_000,
        "episodes_total": episodes * iteration,
        "episodes_this_iter": episodes,
        "episode_reward_min": low,
        "episode_reward_max": low if high is None else high,
    }


def test_one_return_for_50_000_steps_is_said_once() -> None:
    hints = Hints("PPO", 8, PPOConfig())
    told = [hints.add(result(k, -200.0)) for k in range(1, 10)]
    assert [len(each) for each in told] == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    (hint,) = told[4]
    assert hint.startswith("all 50 episodes so far have had the same return, -200: ")
    for words in ("config.entropy_coeff=0.01", "config.env_task_fn", "--run TRPO, --run DQN"):
        assert words in hint


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_says_how_it_explores_more(name: str) -> None:
    kind = ALGORITHMS[name]
    hints = Hints(name, 8, kind())
    (hint,) = (hint for k in range(1, 10) for hint in hints.add(result(k, -200.0)))
    assert f"explore more ({kind.more_exploration}), " in hint
    assert f"--run {name}" not in hint


@pytest.mark.parametrize(
    "results",
    [
        [result(1, -200.0, -180.0), *(result(k, -200.0) for k in range(2, 20))],  # it has seen better
        [result(1, 9.0), *(result(k, 500.0) for k in range(2, 20))],  # solved
        [
            result(k, 0.0) | {"policy_reward_min": {"both": -1.0}, "policy_reward_max": {"both": 1.0}}
            for k in range(1, 20)
        ],  # what one player wins the other loses
        [result(k, 500.0) for k in range(50, 70)],  # a resumed run, whose past is not known
        [result(k, -200.0, episodes=1) for k in range(1, 20)],  # too few
    ],
)
def test_other_returns_are_nobodys_business(results: list[dict[str, Any]]) -> None:
    hints = Hints("PPO", 8, PPOConfig())
    assert not [hint for each in results for hint in hints.add(each)]


def test_episodes_that_never_end_are_said_once() -> None:
    hints = Hints("DQN", 4, DQNConfig())
    told = [hints.add(result(k, None, episodes=0)) for k in range(1, 4)]
    assert [len(each) for each in told] == [1, 0, 0]
    assert "no episode has ended in 10,000 steps (2,500 of each environment)" in told[0][0]
    assert told[0][0].endswith("--set config.horizon=1000")
    assert not Hints("DQN", 8, DQNConfig()).add(result(1, None, episodes=0))


class Endless(gym.Env[Any, Any]):
    """Nothing ever happens."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_run_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"train_batch_size": 1000, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 500}
    tree = {"env": Endless, "results_dir": str(tmp_path), "stop": {"training_iteration": 3}, "config": config}
    for _ in Run.open(experiment_from(tree)).results():
        pass
    (told,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "config.horizon" in told.getMessage()


class Blinding(Endless):
    """Rewards at the end of what is allowed."""

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1e14 * float(action), self.np_random.random() < 0.1, False, {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_refuses_all_its_minibatches_says_so_once_and_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"train_batch_size": 256, "num_envs_per_worker": 1, "normalize_rewards": False, "vf_loss_coeff": 1e6}
    tree = {"env": Blinding, "results_dir": str(tmp_path), "stop": {"training_iteration": 3}, "config": config}
    run = Run.open(experiment_from(tree))
    (_, *_, last) = run.results()
    assert last["learner"]["refused_minibatches"] == 40
    (told,) = (record.getMessage() for record in caplog.records if "not finite" in record.getMessage())
    assert told.startswith("40 gradients of iteration 1 were not finite and were left out")
    assert "shoal diagnose" in told
    assert told in (run.folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("config", "learner", "is_told"),
    [
        (PPOConfig(), {"refused_minibatches": 320.0}, True),
        (PPOConfig(), {"refused_minibatches": 300.0}, True),
        (PPOConfig(), {"refused_minibatches": 100.0}, False),
        (PPOConfig(), {"left": {"refused_minibatches": 160.0}, "right": {"refused_minibatches": 160.0}}, True),
        (DQNConfig(), {"refused_minibatches": 250.0, "num_updates": 250.0}, True),
        (DQNConfig(), {"refused_minibatches": 20.0, "num_updates": 250.0}, False),
        (DQNConfig(), {"refused_minibatches": 0.0, "num_updates": 0.0}, False),
    ],
)
def test_only_nearly_all_minibatches_are_worth_a_word(
    config: AlgorithmConfig, learner: dict[str, Any], is_told: bool
) -> None:
    assert len(told_by(config, 5, **learner)) == is_told


def told_by(config: AlgorithmConfig, count: int, mean: float = 10.0, **learner: Any) -> list[str]:
    """What is said over so many iterations that are all alike, each with episodes that differ."""
    hints = Hints(name_of(type(config)), 8, config)
    results = [
        {**result(k, mean - 1, mean + 1), "episode_reward_mean": mean, "learner": learner} for k in range(1, count + 1)
    ]
    return [hint for each in results for hint in hints.add(each)]


def test_large_returns_that_are_learned_as_they_are_are_said_once() -> None:
    (told,) = told_by(PPOConfig(normalize_rewards=False), 9, mean=-54321.0)
    assert "(their mean is -54321)" in told
    assert told.endswith("--set config.normalize_rewards=true")
    assert not told_by(PPOConfig(normalize_rewards=False), 9, mean=500.0)
    assert not told_by(PPOConfig(normalize_rewards=False, clip_rewards=1), 9, mean=-54321.0)
    assert not told_by(PPOConfig(), 9, mean=-54321.0)


def test_gradients_that_are_nearly_all_cut_off_are_said_once() -> None:
    (told,) = told_by(PPOConfig(), 90, grad_gnorm=40.0)
    assert "more than 20 times config.grad_clip (0.5) for 20 iterations, those of the policy and of the values" in told
    assert told.endswith("set config.grad_clip=null, or larger")
    (told,) = told_by(PPOConfig(normalize_rewards=False), 90, grad_gnorm=40.0)
    assert told.endswith("--set config.normalize_rewards=true")
    assert not told_by(PPOConfig(), 90, grad_gnorm=4.0)
    assert not told_by(PPOConfig(), 19, grad_gnorm=40.0)
    assert not told_by(PPOConfig(grad_clip=None), 90, grad_gnorm=40.0)
    assert not told_by(TRPOConfig(), 90, grad_gnorm=40.0)


def test_values_that_explain_nothing_are_said_once() -> None:
    (told,) = told_by(PPOConfig(), 90, vf_explained_var=0.001)
    assert "explained nothing of the returns for 20 iterations (vf_explained_var is 0.001)" in told
    assert "--set config.observation_filter=MeanStdFilter" in told
    assert not told_by(PPOConfig(), 90, vf_explained_var=0.5)
    (told,) = told_by(PPOConfig(), 90, vf_explained_var=0.0)
    assert "(vf_explained_var is 0)" in told
    assert not told_by(PPOConfig(use_critic=False, use_gae=False), 90, vf_explained_var=0.0)


def test_a_loop_of_ones_own_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    config = {"train_batch_size": 1000, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 500}
    with shoal.PPO(env=Endless, config=config) as trainer:
        for _ in range(3):
            trainer.train()
    (told,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "config.horizon" in told.getMessage()
