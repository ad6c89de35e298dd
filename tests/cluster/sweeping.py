"""The command that the tests of sweeps launch: a sweep whose trials tell on which node they are.

python sweeping.py RESULTS ITERATIONS    six runs, each on one CPU
"""

from __future__ import annotations

import json
import socket
import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import shoal


class Place(gym.Env):
    """Tells the host's number as its reward."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config) -> None:
        self.place = float(socket.gethostname().removeprefix("n"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.place, True, False, {}


if __name__ == "__main__":
    config = {
        "env": f"{__file__}:Place",
        "train_batch_size": 64,
        "sgd_minibatch_size": 64,
        "model": {"fcnet_hiddens": [4]},
    }
    analysis = shoal.tune.run(
        "PPO",
        name="spread",
        results_dir=sys.argv[1],
        config={**config, "lr": shoal.tune.grid_search([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])},
        stop={"training_iteration": int(sys.argv[2])},
        checkpoint_freq=1000,
        show=lambda event: print(event, flush=True),
    )
    print(json.dumps(sorted(trial.last_result["episode_reward_mean"] for trial in analysis.trials)))
