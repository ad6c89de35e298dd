"""Any environment's spaces as the plain ones that other libraries take, and the way back for actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Array, Parts
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionLeaf, ActionSpec, Space, channels_first
from shoal.errors import ConfigError
from shoal.models.encoder import Encoder


class PlainForm:
    """How a library that knows only plain spaces sees an environment.

    Observations are one vector of numbers (discrete ones as indicators) or one image `[H, W, C]` of floats; actions are
    one choice, several choices, numbers, or choices beside numbers, each a column of our rows of actions.
    """

    def __init__(self, obs_space: Space, action_space: Space, config: AlgorithmConfig) -> None:
        self.action_spec = ActionSpec(action_space, config.normalize_actions, config.clip_actions)
        self.obs_spec = ObsSpec(obs_space, actions=self.action_spec, max_len=config.model.sequence_max_len)
        if self.obs_spec.mask is not None:
            raise ConfigError(
                "env: its observations have an action_mask, which other libraries' networks do not read; use run: PPO"
            )
        self.encoder = Encoder(self.obs_spec)
        self.is_image = self.obs_spec.kinds == ("image",)
        if self.is_image:
            self.observation_space = spaces.Box(-np.inf, np.inf, self.seen(self.obs_spec.allocate(1)).shape[1:])
        else:
            size = sum(math.prod(shape) for shape in self.encoder.shapes)
            self.observation_space = spaces.Box(-np.inf, np.inf, (size,))
        self._discrete = [column for leaf in self.action_spec.leaves for column in _columns(leaf, "choice")]
        self._numbers = [column for leaf in self.action_spec.leaves for column in _columns(leaf, "number")]
        self.action_space = self._action_space(config.normalize_actions)

    def _action_space(self, is_normalized: bool) -> Space:
        """The action space that the library gets: one choice, several, numbers, or choices beside numbers."""
        choices: list[int] = []
        low: list[float] = []
        high: list[float] = []
        for leaf in self.action_spec.leaves:
            if leaf.kind == "gaussian":
                assert isinstance(leaf.space, spaces.Box)
                is_bounded = (leaf.space.bounded_below & leaf.space.bounded_above).reshape(-1)
                low += np.where(is_bounded & is_normalized, -1.0, leaf.space.low.reshape(-1)).tolist()
                high += np.where(is_bounded & is_normalized, 1.0, leaf.space.high.reshape(-1)).tolist()
            else:
                choices += leaf.choices if leaf.kind == "categorical" else [2] * leaf.size
        numbers = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        if not choices:
            return numbers
        chosen = spaces.Discrete(choices[0]) if len(choices) == 1 else spaces.MultiDiscrete(choices)
        return spaces.Tuple((chosen, numbers)) if low else chosen

    def seen(self, parts: Parts) -> Array:
        """Observations `[B, ...]` as the library's networks read them."""
        inputs = self.encoder(parts)
        if not self.is_image:
            flat = [np.asarray(part, np.float32).reshape(len(part), math.prod(part.shape[1:])) for part in inputs]
            return np.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]
        image = inputs[0]
        if image.ndim == 3:
            image = image[..., None]
        elif channels_first(image.shape[1:]):
            image = np.moveaxis(image, 1, -1)
        scale = np.float32(1 / 255) if image.dtype == np.uint8 else np.float32(1)
        return np.asarray(image, np.float32) * scale

    def actions(self, rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The library's actions of our rows `[B, A]`: choices `[B]` or `[B, C]`, then numbers, where there are any."""
        parts: list[NDArray[Any]] = []
        if self._discrete:
            chosen = rows[:, self._discrete].astype(np.int64)
            parts.append(chosen[:, 0] if len(self._discrete) == 1 else chosen)
        if self._numbers:
            parts.append(np.asarray(rows[:, self._numbers], np.float32))
        return tuple(parts)

    def rows(self, actions: Any) -> NDArray[Any]:
        """Our rows `[B, A]` of a batch of the library's actions."""
        parts = actions if isinstance(actions, tuple) else (actions,)
        count = len(parts[0])
        rows = np.zeros((count, self.action_spec.size), self.action_spec.dtype)
        columns = [self._discrete, self._numbers] if len(parts) == 2 else [self._discrete or self._numbers]
        for part, own in zip(parts, columns, strict=True):
            rows[:, own] = np.asarray(part).reshape(count, -1)
        return rows


def _columns(leaf: ActionLeaf, what: str) -> range:
    """The columns of a leaf that is a "choice" or a "number"; none of another."""
    is_number = leaf.kind == "gaussian"
    wanted = is_number == (what == "number")
    return range(leaf.columns.start, leaf.columns.stop if wanted else leaf.columns.start)
