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


def default_convolutions(height: int, width: int) -> list[Convolution]:
    """Layers that suit an image of any size, and are those of the Nature paper for about 84 x 84.

    A first layer by the image's size, then halvings until the map is small, then one 3 x 3. Each axis goes its own
    way, so long narrow images work, and no kernel is larger than its map.
    """
    first = [(8, 4) if side >= 64 else (4, 2) if side >= 16 else (min(3, side), 1) for side in (height, width)]
    layers = [Convolution(32, (first[0][0], first[1][0]), (first[0][1], first[1][1]))]
    sides = [layers[0].side(0, height), layers[0].side(1, width)]
    while max(sides) > LARGEST_MAP_SIDE:
        halved = [(4, 2) if side > LARGEST_MAP_SIDE else (1, 1) for side in sides]
        layers.append(Convolution(64, (halved[0][0], halved[1][0]), (halved[0][1], halved[1][1])))
        sides = [layers[-1].side(axis, side) for axis, side in enumerate(sides)]
    return [*layers, Convolution(64, (min(3, sides[0]), min(3, sides[1])), (1, 1))]


def classic_convolutions(filters: Sequence[Sequence[Any]], height: int, width: int) -> list[Convolution]:
    """`conv_filters` as classic RLlib means them: only strides shrink the map (by padding), but for the last layer."""
    layers: list[Convolution] = []
    sides = [height, width]
    for channels, kernel, stride in filters:
        kernels, strides = _pair(kernel), _pair(stride)
        padding: list[int] = []
        if len(layers) < len(filters) - 1:
            for axis in (1, 0):
                wanted = -(-sides[axis] // strides[axis])
                missing = max((wanted - 1) * strides[axis] + kernels[axis] - sides[axis], 0)
                padding += [missing // 2, missing - missing // 2]
        layers.append(Convolution(channels, kernels, strides, tuple(padding) or (0, 0, 0, 0)))  # type: ignore[arg-type]
        sides = [layers[-1].side(axis, side) for axis, side in enumerate(sides)]
        if min(sides) < 1:
            raise ConfigError(f"model.conv_filters: {_misfit(layers, height, width)}")
    return layers


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _misfit(layers: Sequence[Convolution], height: int, width: int) -> str:
    sides, maps = [height, width], [f"{height} x {width}"]
    for layer in layers[:-1]:
        sides = [layer.side(axis, side) for axis, side in enumerate(sides)]
        maps.append(f"{sides[0]} x {sides[1]}")
    kernel = " x ".join(map(str, layers[-1].kernel))
    return (
        f"layer {len(layers)} has a kernel of {kernel}, larger than its map ({' -> '.join(maps)}); "
        "use a smaller kernel or fewer strides, or leave conv_filters out"
    )
