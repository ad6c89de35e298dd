"""The same replay saved by Stable-Baselines3: `model.save` and `save_replay_buffer`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import task
from save_times import measured
from stable_baselines3 import SAC


class Still(gym.Env):
    """Has the right spaces, and is never stepped."""

    def __init__(self, obs: int, actions: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (obs,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (actions,), np.float32)


def save(transitions: int, obs: int, actions: int, new: int, params: int, saves: int) -> task.Answer:
    """A full buffer, saved again and again; what is new makes no difference to it."""
    del new, params
    model = SAC("MlpPolicy", Still(obs, actions), buffer_size=transitions, device="cpu")
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    for rows in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        rows[:] = rng.random(rows.shape, np.float32)
    buffer.full = True
    found = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("SHOAL_BENCH_DISK")) as folder:
        for number in range(saves + 1):

            def begin(number: int = number) -> None:
                model.save(Path(folder) / f"model-{number}.zip")
                model.save_replay_buffer(Path(folder) / f"replay-{number}.pkl")

            found.append(measured(Path(folder), begin, lambda: None))
            for file in Path(folder).iterdir():
                file.unlink()
    return {"first": found[0], "next": found[1:]}


if __name__ == "__main__":
    task.main({"save": save})
