"""A design in one step: which camber line carries its lift evenly from nose to tail?

An action is an angle of attack and three heights of a thin airfoil's camber line. A vortex lattice computes how the
load is spread over the chord, and the reward is minus its deviation from an even one. The answer is known since the
1940s: it is the NACA mean line a = 1.0, at no angle of attack (Abbott & von Doenhoff, Theory of Wing Sections, 1959).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

STATIONS = (0.25, 0.5, 0.75)  # where the heights are chosen, in chords
ANGLE, HEIGHT = 8.0, 0.1  # the largest: degrees, chords
PANELS = 40
_POWERS = np.arange(1, 5)  # a camber line of fourth degree that begins at height 0 ...
_FITTED = np.linalg.inv(np.power.outer([*STATIONS, 1.0], _POWERS))  # ... and ends there


def camber(heights: Numbers, x: Numbers) -> Numbers:
    """The height of the camber line at positions `x`."""
    return np.power.outer(x, _POWERS) @ (_FITTED @ [*heights, 0.0])


def load(design: Numbers) -> tuple[Numbers, float]:
    """The load of every panel in terms of dynamic pressure, and the lift coefficient, of an angle and three heights.

    Each panel has a vortex a quarter of its length from its front, and no flow through it three quarters from there: so
    the lift of a flat plate is exactly that of theory.
    """
    angle, heights = np.radians(design[0]), design[1:]
    x = np.linspace(0, 1, PANELS + 1)
    nodes = np.stack([x, camber(heights, x)], axis=1)
    along = np.diff(nodes, axis=0)
    length = np.hypot(*along.T)
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1) / length[:, None]
    vortices, controls = nodes[:-1] + 0.25 * along, nodes[:-1] + 0.75 * along
    apart = controls[:, None] - vortices
    square = (apart**2).sum(axis=2)
    induced = np.stack([apart[:, :, 1], -apart[:, :, 0]], axis=2) / (2 * np.pi * square)[:, :, None]
    wind = np.array([np.cos(angle), np.sin(angle)])
    circulation = np.linalg.solve(np.einsum("ijk,ik->ij", induced, normal), -normal @ wind)
    return 2 * circulation / length, 2 * circulation.sum()


def by_theory(lift: float) -> Numbers:
    """The design of the mean line a = 1.0 for a lift coefficient."""
    x = np.array(STATIONS)
    return np.array([0.0, *(-lift / (4 * np.pi) * ((1 - x) * np.log(1 - x) + x * np.log(x)))])


class Airfoil(gym.Env):
    """Asks for a lift coefficient, takes a design, and returns minus the deviation of its load, in shares of that."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.lift = (config or {}).get("lift", 0.6)
        self.observation_space = spaces.Box(0, 2, (1,), np.float32)
        self.action_space = spaces.Box(
            np.float32([-ANGLE, -HEIGHT, -HEIGHT, -HEIGHT]), np.float32([ANGLE, HEIGHT, HEIGHT, HEIGHT])
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.float32([self.lift]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        found, lift = load(np.asarray(action, np.float64))
        deviation = np.sqrt(np.mean((found / self.lift - 1) ** 2))
        return np.float32([self.lift]), -float(deviation), True, False, {"lift": lift}
