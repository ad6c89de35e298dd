"""An environment that has everything at once, and hooks; other processes find them by this file."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

import shoal


class Course(shoal.TaskSettableEnv):
    """Some of four actions are open and others refused; the task is how far it goes, wind and mass are drawn."""

    observation_space: spaces.Space = spaces.Dict(
        observations=spaces.Box(-100, 100, (3,), np.float32), action_mask=spaces.MultiBinary(4)
    )
    action_space = spaces.Discrete(4)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, config) -> None:
        self.mass, self.far = config.get("mass", 1.0), 6
        self.render_mode = config.get("render_mode")

    def get_task(self):
        return self.far

    def set_task(self, task) -> None:
        self.far = int(task)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.wind, self.steps = self.far, (options or {}).get("wind", 0.0), 0
        self.place = self.np_random.normal()
        return self.seen(), {}

    def step(self, action):
        if not self.open[action]:
            raise RuntimeError(f"action {action} is closed")
        self.steps += 1
        self.place += (action - 1) / self.mass + self.wind
        info = {"goal": self.goal, "wind": self.wind, "mass": self.mass}
        return self.seen(), float(action), bool(abs(self.place) > self.goal), self.steps >= 9, info

    def seen(self):
        self.open = self.np_random.random(4) < 0.4
        self.open[self.np_random.integers(4)] = True
        numbers = np.array([self.place, self.wind, self.mass], np.float32)
        return {"observations": numbers, "action_mask": self.open.astype(np.int8)}

    def render(self):
        return np.full((16, 16, 3), 20 * self.steps, np.uint8)


class Crowded(Course):
    """The same among others, of whom there are more or fewer."""

    observation_space = spaces.Dict(
        Course.observation_space.spaces | {"others": shoal.Repeated(spaces.Box(-9, 9, (2,), np.float32), 3)}
    )

    def seen(self):
        others = self.np_random.uniform(-9, 9, (self.np_random.integers(4), 2)).astype(np.float32)
        return {**super().seen(), "others": tuple(others)}


class Offering(Course):
    """The same, and each action has an embedding of its own."""

    observation_space = spaces.Dict(
        Course.observation_space.spaces | {"avail_actions": spaces.Box(-np.inf, np.inf, (4, 2), np.float32)}
    )

    def seen(self):
        return {**super().seen(), "avail_actions": self.np_random.standard_normal((4, 2)).astype(np.float32)}


def one_farther(train_results, task_settable_env, env_ctx):
    return task_settable_env.get_task() + 1


class Highest(shoal.DefaultCallbacks):
    """Notes the highest action of every episode."""

    def on_episode_start(self, *, worker, env, episode, **kwargs) -> None:
        episode.user_data["highest"] = 0

    def on_episode_step(self, *, worker, env, episode, **kwargs) -> None:
        episode.user_data["highest"] = max(episode.user_data["highest"], int(episode.last_action))

    def on_episode_end(self, *, worker, env, episode, **kwargs) -> None:
        assert worker.policy is not None
        episode.custom_metrics["highest"] = episode.user_data["highest"]


class Throwing(Course):
    """Continuous, and without a mask."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Box(-2, 2, (2,), np.float32)

    def seen(self):
        return np.array([self.place, self.wind, self.mass], np.float32)

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        self.place += float(action.sum()) / self.mass + self.wind
        return self.seen(), -abs(self.place), bool(abs(self.place) > self.goal), self.steps >= 9, {}
