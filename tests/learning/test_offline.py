"""BC and MARWIL with known answers: an expert that is cloned, and actions that were worth more than others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gymnasium import Env, spaces

import shoal

EXPERT_RETURN = 480
EXPERT_STEPS = 20_480


class TwoDoors(Env):
    """One step, which earns what is behind the door; the recorded visitor knew nothing of it."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self.side], np.float32), {}

    def step(self, action):
        return np.array([self.side], np.float32), float(action == (self.side > 0)), True, False, {}


def visits(folder: Path) -> Path:
    """Files that another program has written: a visitor that went left three times out of four, whatever was seen."""
    rng = np.random.default_rng(3)
    side = rng.choice([-1.0, 1.0], 2000)
    action = (rng.random(2000) > 0.75).astype(int)
    frame = pd.DataFrame({"obs": [[each] for each in side.astype(np.float32)], "action": action})
    frame["reward"] = (action == (side > 0)).astype(float)
    frame["terminated"] = True
    frame.to_parquet(folder / "visits.parquet")
    return folder


def test_marwil_prefers_what_was_worth_more_and_bc_what_was_done(tmp_path: Path) -> None:
    config = {"input": str(visits(tmp_path)), "train_batch_size": 4000, "lr": 5e-3, "model": {"fcnet_hiddens": [16]}}
    going_left = {}
    for algorithm, own in (("BC", {}), ("MARWIL", {"beta": 3.0})):
        with getattr(shoal, algorithm)(TwoDoors, {**config, **own}) as trainer:
            for _ in range(5):
                trainer.train()
            policy = trainer.get_policy()
            outputs = policy.network.act((np.array([[-1.0], [1.0]], np.float32),))
            odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            going_left[algorithm] = (odds / odds.sum(axis=1, keepdims=True))[:, 0]
            if algorithm == "MARWIL":
                assert trainer.evaluate(episodes=50)["episode_reward_mean"] == 1
    np.testing.assert_allclose(going_left["BC"], 0.75, atol=0.06)
    assert going_left["MARWIL"][0] > 0.9
    assert going_left["MARWIL"][1] < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["BC", "MARWIL"])
def test_an_experts_steps_make_an_expert(algorithm: str, expert_steps: Path) -> None:
    config = {"input": str(expert_steps), "seed": 2, "preprocessors": ["StandardScaler"]}
    with getattr(shoal, algorithm)("CartPole-v1", config) as trainer:
        for _ in range(40):
            result = trainer.train()
        assert result["learner"]["dataset_steps"] == EXPERT_STEPS
        assert trainer.evaluate(episodes=20)["episode_reward_mean"] >= 450


@pytest.fixture(scope="module")
def expert_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20,000 steps of a PPO that can balance the pole."""
    folder = tmp_path_factory.mktemp("expert")
    with shoal.PPO("CartPole-v1", {"seed": 1}) as expert:
        for _ in range(80):
            if (expert.train()["episode_reward_mean"] or 0) >= EXPERT_RETURN:
                break
        saved = expert.save(folder / "saved")
    steps = folder / "steps"
    # It learns next to nothing more; only what it does is wanted.
    tree = {"env": "CartPole-v1", "restore": str(saved), "results_dir": str(folder / "runs"), "name": "recording"}
    config = {"lr": 1e-12, "output": str(steps), "seed": 7}
    for result in shoal.run({**tree, "config": config, "stop": {"timesteps_total": EXPERT_STEPS}}):
        assert result["timesteps_total"] <= EXPERT_STEPS
    return steps
