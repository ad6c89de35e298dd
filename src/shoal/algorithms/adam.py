"""Adam on one flat vector, in place."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from shoal.data.state import State

Array = NDArray[np.float32]


class Adam:
    """Kingma & Ba 2015; a step allocates nothing."""

    def __init__(self, size: int, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-5) -> None:
        self.betas, self.eps = betas, eps
        self.steps = 0
        self.m = np.zeros(size, np.float32)
        self.v = np.zeros(size, np.float32)
        self._room = np.empty(size, np.float32)

    def step(self, params: Array, gradient: Array, lr: float) -> None:
        """Move `params` against the gradient."""
        self.steps += 1
        beta1, beta2 = self.betas
        room = self._room
        self.m *= beta1
        self.m += np.multiply(gradient, 1 - beta1, out=room)
        np.multiply(gradient, gradient, out=room)
        room *= 1 - beta2
        self.v *= beta2
        self.v += room
        np.sqrt(self.v, out=room)
        room *= 1 / sqrt(1 - beta2**self.steps)
        room += self.eps
        np.divide(self.m, room, out=room)
        room *= lr / (1 - beta1**self.steps)
        params -= room

    def get_state(self) -> State:
        """Moments and step count."""
        return State({"steps": self.steps}, {"m": self.m.copy(), "v": self.v.copy()})

    def set_state(self, state: State) -> None:
        """Take over moments and step count."""
        self.steps = int(state.values["steps"])
        self.m[:] = state.arrays["m"]
        self.v[:] = state.arrays["v"]
