"""Which convolutions an image gets: pure geometry, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import ConfigError

LARGEST_MAP_SIDE = 12


@dataclass(frozen=True)
class Convolution:
    """One convolution: its size, and the zeros around its input (left, right, top, bottom)."""

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)

    def side(self, axis: int, size: int) -> int:
        """How long an axis is after it; below 1 if the kernel does not fit."""
        before, after = self.padding[2 - 2 * axis : 4 - 2 * axis]
        return (size + before + after - self.kernel[axis]) // self.stride[axis] + 1

    def map_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the map that it makes of one."""
        return self.side(0, height), self.side(1, width)


def default_convolutions(height: int, width: int) -> list[Convolution]:
    """Layers that suit an image of any size, and are those of the Nature paper for about 84 x 84.

    A first layer by the image's size, then halvings until the map is small, then one 3 x 3. Each axis goes its own
    way, so long narrow images work, and no kernel is larger than its map.
    """
    layers = [_by_axis(32, _first_step(height), _first_step(width))]
    height, width = layers[0].map_of(height, width)
    while max(height, width) > LARGEST_MAP_SIDE:
        layers.append(_by_axis(64, _halving(height), _halving(width)))
        height, width = layers[-1].map_of(height, width)
    return [*layers, Convolution(64, (min(3, height), min(3, width)), (1, 1))]


def _first_step(side: int) -> tuple[int, int]:
    """Kernel and stride of the first layer along an axis."""
    if side >= 64:
        return 8, 4
    if side >= 16:
        return 4, 2
    return min(3, side), 1


def _halving(side: int) -> tuple[int, int]:
    """Kernel and stride that halve an axis, unless it is short enough."""
    if side > LARGEST_MAP_SIDE:
        return 4, 2
    return 1, 1


def _by_axis(channels: int, vertical: tuple[int, int], horizontal: tuple[int, int]) -> Convolution:
    """A convolution by the kernel and stride of each axis."""
    return Convolution(channels, (vertical[0], horizontal[0]), (vertical[1], horizontal[1]))


def classic_convolutions(filters: Sequence[Sequence[Any]], height: int, width: int) -> list[Convolution]:
    """`conv_filters` as classic RLlib means them: only strides shrink the map (by padding), but for the last layer.

    A fourth entry of a layer says it outright: `same`, or `valid`, which is no padding.
    """
    layers: list[Convolution] = []
    sides = (height, width)
    for channels, kernel, stride, *given in filters:
        kernels, strides = _pair(kernel), _pair(stride)
        padding: list[int] = []
        if (given or ["same" if len(layers) < len(filters) - 1 else "valid"]) == ["same"]:
            for axis in (1, 0):
                wanted = -(-sides[axis] // strides[axis])
                missing = max((wanted - 1) * strides[axis] + kernels[axis] - sides[axis], 0)
                padding += [missing // 2, missing - missing // 2]
        layers.append(Convolution(channels, kernels, strides, tuple(padding) or (0, 0, 0, 0)))  # type: ignore[arg-type]
        sides = layers[-1].map_of(*sides)
        if min(sides) < 1:
            raise ConfigError(f"model.conv_filters: {_misfit(layers, height, width)}")
    return layers


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return size[0], size[1]


def _misfit(layers: Sequence[Convolution], height: int, width: int) -> str:
    maps = [f"{height} x {width}"]
    for layer in layers[:-1]:
        height, width = layer.map_of(height, width)
        maps.append(f"{height} x {width}")
    kernel = " x ".join(map(str, layers[-1].kernel))
    return (
        f"layer {len(layers)} has a kernel of {kernel}, larger than its map ({' -> '.join(maps)}); "
        "use a smaller kernel or fewer strides, or leave conv_filters out"
    )
