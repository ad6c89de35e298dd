"""Environments of your own: a craft on a line, and a craft in orbit that is to meet a station."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal import TaskSettableEnv

MEAN_MOTION = 0.0011  # rad/s, of a station 500 km above the Earth
STEP_S = 10.0
PULSE = 0.05  # m/s that one firing of a thruster adds
MAX_SPEED = 0.5  # m/s along each axis
DOCKING_DISTANCE, DOCKING_SPEED = 2.0, 0.12  # m, m/s
LOST = 300.0  # m
STARTS = ("x0", "y0", "z0", "vx0", "vy0", "vz0")


class CustomEnv(gym.Env):
    """A craft on a line: thrust back, none or ahead; closer to the station and slower is better, docking is the end."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = config or {}
        self.thrust = config.get("thrust", 0.05)
        self.max_steps = config.get("max_steps", 100)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.velocity = float(self.np_random.uniform(-1, 1)), 0.0
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.velocity += self.thrust * (action - 1)
        self.position += 0.2 * self.velocity
        self.steps += 1
        docked = abs(self.position) < 0.05 and abs(self.velocity) < 0.1
        reward = 10.0 if docked else -abs(self.position) - 0.1 * abs(self.velocity)
        return self._seen(), reward, docked, self.steps >= self.max_steps, {"docked": docked}

    def _seen(self) -> Any:
        return np.array([self.position, self.velocity], np.float32)


class Rendezvous3DOF(gym.Env):
    """A craft near a station in a circular orbit: three positions, three velocities, and thrusters along each axis.

    x points away from the Earth, y along the orbit, z across it, in metres from the station; between two firings the
    craft moves by the equations of Clohessy and Wiltshire. Action 0 fires nothing, 1 to 6 fire +x, -x, +y, -y, +z, -z.
    A firing that would break the speed limit is masked, and so are all of them when the fuel is gone. An episode starts
    `distance` metres away, in any direction, or where `options` says.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = config or {}
        self.distance = config.get("distance", 50.0)
        self.fuel = config.get("fuel", 6.0)  # m/s
        self.max_steps = config.get("max_steps", 200)
        self.progress_weight = config.get("progress_weight", 0.1)  # reward for a metre nearer
        self.fuel_weight = config.get("fuel_weight", 0.02)  # cost of a firing
        self.docking_weight = config.get("docking_weight", 10.0)
        self.motion = transition(MEAN_MOTION, STEP_S)
        self.action_space = spaces.Discrete(7)
        self.observation_space = spaces.Dict(
            observations=spaces.Box(-np.inf, np.inf, (7,), np.float32),
            action_mask=spaces.Box(0, 1, (7,), np.int8),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        direction = self.np_random.normal(size=3)
        position = self.distance * direction / np.linalg.norm(direction)
        self.state = np.concatenate([position, self.np_random.normal(0, 0.02, 3)])
        for index, name in enumerate(STARTS):
            self.state[index] = (options or {}).get(name, self.state[index])
        self.steps, self.delta_v = 0, 0.0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = np.linalg.norm(self.state[:3])
        if action > 0:
            self.state[3:] += pulse(action)
            self.delta_v += PULSE
        self.state = self.motion @ self.state
        self.steps += 1
        away = float(np.linalg.norm(self.state[:3]))
        docked = bool(away < DOCKING_DISTANCE and np.linalg.norm(self.state[3:]) < DOCKING_SPEED)
        reward = self.progress_weight * float(before - away) - self.fuel_weight * (action > 0)
        reward += self.docking_weight * docked
        info = {
            "docked": docked,
            "miss": away,
            "delta_v": self.delta_v,
            "score": docked * (1 - self.delta_v / self.fuel),
        }
        return self._seen(), reward, docked or away > LOST, self.steps >= self.max_steps, info

    def _seen(self) -> dict[str, Any]:
        left = 1 - self.delta_v / self.fuel
        seen = np.concatenate([self.state[:3] / 50, self.state[3:] / MAX_SPEED, [left]])
        allowed = [self.delta_v + PULSE <= self.fuel and self._stays_slow(action) for action in range(1, 7)]
        return {"observations": seen.astype(np.float32), "action_mask": np.array([True, *allowed], np.int8)}

    def _stays_slow(self, action: int) -> bool:
        axis = (action - 1) // 2
        return bool(abs(self.state[3 + axis] + pulse(action)[axis]) <= MAX_SPEED)


class CurriculumEnv(Rendezvous3DOF, TaskSettableEnv):
    """The same craft, which starts the farther from the station the higher the difficulty is: 10 m to 100 m."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.set_task(0)

    def get_task(self) -> int:
        return self.difficulty

    def set_task(self, task: int) -> None:
        if task < 0:
            raise ValueError(f"difficulty {task}")
        self.difficulty = task
        self.distance = min(10.0 * (1 + task), 100.0)

    def sample_tasks(self, n_tasks: int) -> list[int]:
        return self.np_random.integers(0, 10, n_tasks).tolist()


def pulse(action: int) -> np.ndarray:
    """The change of velocity of an action from 1 to 6. [3]"""
    change = np.zeros(3)
    change[(action - 1) // 2] = PULSE if action % 2 else -PULSE
    return change


def transition(n: float, t: float) -> np.ndarray:
    """Positions and velocities after t seconds from those before, by Clohessy and Wiltshire (1960). [6, 6]"""
    s, c = np.sin(n * t), np.cos(n * t)
    return np.array(
        [
            [4 - 3 * c, 0, 0, s / n, 2 * (1 - c) / n, 0],
            [6 * (s - n * t), 1, 0, 2 * (c - 1) / n, (4 * s - 3 * n * t) / n, 0],
            [0, 0, c, 0, 0, s / n],
            [3 * n * s, 0, 0, c, 2 * s, 0],
            [6 * n * (c - 1), 0, 0, -2 * s, 4 * c - 3, 0],
            [0, 0, -n * s, 0, 0, c],
        ]
    )
