"""The optimisers of several networks that step together: what `Optimizer` does, for parameters `[S, P]`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np

from shoal.algorithms.optimizer import Optimizer
from shoal.models.network import Array


class StackedOptimizer:
    """Steps each row of `[S, P]` by its own gradient, with its own moments; see `Optimizer` for what is clipped.

    Each number is computed as `Optimizer` computes it, so it is the same to the last bit.
    """

    def __init__(self, optimizers: Sequence[Optimizer], params: Array) -> None:
        self._optimizers = list(optimizers)
        self._params = params
        self._m, self._v, self._room = np.empty_like(params), np.empty_like(params), np.empty_like(params)
        self.load()

    def load(self) -> None:
        """Take the optimisers' moments."""
        for optimizer, m, v in zip(self._optimizers, self._m, self._v, strict=True):
            m[:], v[:] = optimizer.adam.m, optimizer.adam.v

    def store(self) -> None:
        """Give the optimisers the moments that they have here."""
        for optimizer, m, v in zip(self._optimizers, self._m, self._v, strict=True):
            optimizer.adam.m[:], optimizer.adam.v[:] = m, v

    def step(self, gradients: Array, lr: float) -> list[float | None]:
        """Step along the gradients `[S, P]`, which are worked on; the norm of each before clipping, None if refused."""
        norms: list[float | None] = []
        for optimizer, gradient in zip(self._optimizers, gradients, strict=True):
            optimizer.lr = lr
            length = sqrt(np.dot(gradient, gradient))
            norms.append(length if isfinite(length) else None)
        stepping = [row for row, norm in enumerate(norms) if norm is not None]
        if len(stepping) < len(norms):
            for row, norm in enumerate(norms):
                if norm is None:
                    self._optimizers[row].refused += 1
            for row in stepping:
                self._step_row(row, gradients[row], norms[row] or 0.0, lr)
            return norms
        self._clip(gradients, [norm or 0.0 for norm in norms])
        self._adam(slice(None), gradients, lr)
        return norms

    def _step_row(self, row: int, gradient: Array, norm: float, lr: float) -> None:
        """Step one network alone."""
        optimizer = self._optimizers[row]
        if optimizer.grad_clip is not None and norm > optimizer.grad_clip:
            optimizer.clip(gradient, norm, optimizer.grad_clip)
        self._adam(slice(row, row + 1), gradient[None], lr)

    def _clip(self, gradients: Array, norms: Sequence[float]) -> None:
        """Shorten in place what is longer than `grad_clip`."""
        first = self._optimizers[0]
        if first.grad_clip is None:
            return
        too_long = [norm > first.grad_clip for norm in norms]
        if first.of_values is None or not all(too_long):
            for row, norm in enumerate(norms):
                if too_long[row]:
                    first.clip(gradients[row], norm, first.grad_clip)
            return
        of_values = np.multiply(gradients, first.of_values, out=self._room)
        gradients -= of_values
        for parts in (gradients, of_values):
            for part in parts:
                length = sqrt(np.dot(part, part))
                if length > first.grad_clip:
                    part *= first.grad_clip / (length + 1e-6)
        gradients += of_values

    def _adam(self, rows: slice, gradients: Array, lr: float) -> None:
        """Adam's step for some of the rows; see `Adam.step`."""
        adams = [optimizer.adam for optimizer in self._optimizers[rows]]
        beta1, beta2 = adams[0].betas
        rates, scales = [], []
        for adam in adams:
            adam.steps += 1
            scales.append([1 / sqrt(1 - beta2**adam.steps)])
            rates.append([lr / (1 - beta1**adam.steps)])
        m, v, room = self._m[rows], self._v[rows], self._room[rows]
        m *= beta1
        m += np.multiply(gradients, 1 - beta1, out=room)
        np.multiply(gradients, gradients, out=room)
        room *= 1 - beta2
        v *= beta2
        v += room
        np.sqrt(v, out=room)
        room *= np.array(scales, np.float32)
        room += adams[0].eps
        np.divide(m, room, out=room)
        room *= np.array(rates, np.float32)
        self._params[rows] -= room
