"""What a classic custom model sees of the inputs: `obs` in the structure of its space, `obs_flat` in one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from shoal.envs.spaces import nest
from shoal.models.encoder import Encoder, LeafPlace

Tensors = tuple[Tensor, ...]


class RepeatedValues(NamedTuple):
    """What a custom model sees of a sequence: its items in front, zeros behind them."""

    values: Tensor  # [B, max_len, D]
    lengths: Tensor  # [B], whole numbers
    max_len: int

    @classmethod
    def from_encoded(cls, part: Tensor) -> RepeatedValues:
        """From an encoded part `[B, L, 1 + D]`."""
        return cls(part[..., 1:] * part[..., :1], part[..., 0].sum(dim=1).long(), part.shape[1])


class InputDict(dict[str, Any]):
    """What a classic model gets; `obs_flat` is made only when asked for, unless it is there already."""

    def __init__(self, obs: Any, flat_parts: Tensors) -> None:
        super().__init__(obs=obs)
        self._flat_parts = flat_parts
        if len(flat_parts) == 1 and flat_parts[0].dim() == 2:
            self["obs_flat"] = flat_parts[0]

    def __contains__(self, key: object) -> bool:
        return key == "obs_flat" or super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        if key != "obs_flat":
            raise KeyError(key)
        obs = self["obs"]
        self[key] = flat(obs) if isinstance(obs, Tensor) else flat(self._flat_parts)
        return self[key]


class ObsView:
    """Turns a network's inputs into the input dict of a classic model."""

    def __init__(self, encoder: Encoder) -> None:
        self._space = encoder.spec.space
        self._nested = isinstance(self._space, spaces.Dict | spaces.Tuple)
        self._places = encoder.places
        self._flat = [place for place, kind in enumerate(encoder.spec.kinds) if kind in ("vector", "image")]

    def __call__(self, inputs: Tensors) -> InputDict:
        """The input dict for one batch."""
        flat_parts = tuple(inputs[place] for place in self._flat)
        if self._nested:
            obs = nest(self._space, {place.path: _leaf(inputs, place) for place in self._places})
        elif self._places[0].kind == "items":
            obs = RepeatedValues.from_encoded(inputs[0])
        else:
            obs = inputs[0]
        return InputDict(obs, flat_parts)


def flat(obs: Any) -> Tensor:
    """Everything that an observation holds, in one row of floats per observation."""
    if isinstance(obs, Tensor):
        return obs.flatten(1).float()
    if isinstance(obs, Mapping):
        obs = obs.values()
    return torch.cat([flat(part) for part in obs], dim=1)


def _leaf(inputs: Tensors, place: LeafPlace) -> Any:
    part = inputs[place.part]
    if place.kind == "items":
        return RepeatedValues.from_encoded(part)
    if place.columns is None:
        return part
    return part[:, place.columns].float().reshape(part.shape[0], *place.shape)  # not len, which no export could follow
