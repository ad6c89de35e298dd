"""The variables of an FMU: every number of an observation, the reward if it is seen, every number of an action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from shoal.export.plan import ActionField, ObsField, Plan

LARGEST = 2**31 - 1  # of an FMI integer


@dataclass(frozen=True)
class Variable:
    """One number of an observation or an action."""

    name: str
    is_whole: bool
    is_output: bool
    start: float
    low: float
    high: float


def variables_of(plan: Plan) -> list[Variable]:
    """Every variable in the order of value references."""
    found = []
    for field in plan.fields:
        found += _of_obs(field)
    if plan.sees_reward:
        found.append(Variable("reward", False, False, 0.0, -np.inf, np.inf))
    for action in plan.actions:
        found += _of_action(action)
    return found


def _of_obs(field: ObsField) -> list[Variable]:
    space, found = field.space, []
    low, high = np.full(field.size, -np.inf), np.full(field.size, np.inf)
    if field.kind == "mask":
        low, high = np.zeros(field.size), np.ones(field.size)
    elif isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    elif isinstance(space, spaces.Discrete):
        low, high = np.array([float(space.start)]), np.array([float(space.start + space.n - 1)])
    elif isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(space.start, np.float64).reshape(-1)
        high = low + space.nvec.reshape(-1) - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(field.size), np.ones(field.size)
    integer = field.kind == "mask" or np.issubdtype(space.dtype or np.float32, np.integer)
    name = "obs" if not field.path else f"obs.{field.name}"
    for k, label in enumerate(_labels(name, field.shape, field.size)):
        whole = bool(integer and low[k] >= -LARGEST and high[k] <= LARGEST)
        start = 1.0 if field.kind == "mask" else float(np.clip(0.0, low[k], high[k]))
        found.append(Variable(label, whole, False, start, float(low[k]), float(high[k])))
    return found


def _of_action(action: ActionField) -> list[Variable]:
    name, found = "action" if not action.path else f"action.{action.name}", []
    low, high = action.low, action.high
    if action.kind == "categorical":
        low = action.first.astype(np.float64)
        high = low + np.array(action.choices) - 1
    elif action.kind == "bernoulli":
        low, high = np.zeros(action.size), np.ones(action.size)
    for k, label in enumerate(_labels(name, action.shape, action.size)):
        whole = bool(action.is_integer and low[k] >= -LARGEST and high[k] <= LARGEST)
        start = float(np.clip(0.0, low[k], high[k]))
        found.append(Variable(label, whole, True, start, float(low[k]), float(high[k])))
    return found


def _labels(name: str, shape: tuple[int, ...], size: int) -> list[str]:
    if not shape:
        return [name]
    places = [np.unravel_index(k, shape) for k in range(size)]
    return [f"{name}[{','.join(str(int(at)) for at in place)}]" for place in places]
