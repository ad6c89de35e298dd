"""How a gradient becomes a step: Adam on one flat vector, and the guard that every learner steps through."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf, isfinite, sqrt

import numpy as np

from shoal.config.settings import AlgorithmConfig
from shoal.data.state import State
from shoal.models.compiled_mlp import kernel_of
from shoal.models.kernel import AdamStruct, Kernel, address, check_close, checking
from shoal.models.network import Array, Network
from shoal.parallel.group import Alone, Group

log = logging.getLogger("shoal")


class Optimizer:
    """Steps a network's parameters by the gradients of all learners: clipped, and by none that is not finite.

    The gradient of the parameters that only values depend on has a norm of its own: large errors of the values must not
    shrink the policy's part. Layers that policy and values share count with the policy's.
    What no single refusal can save, because earlier steps were too long, is taken back as a whole (see `guarded`).
    """

    def __init__(
        self, network: Network, config: AlgorithmConfig, group: Group | None = None, *, clips_apart: bool = True
    ) -> None:
        self.network, self.group = network, group or Alone()
        self.of_values: Array | None = None  # [P], 1 for the parameters that only values depend on, else 0
        if clips_apart and network.value_params.any() and not network.value_params.all():
            self.of_values = network.value_params.astype(np.float32)
        self.grad_clip = config.grad_clip
        self.adam = Adam(len(network.params), config.optimizer.betas, config.optimizer.eps)
        self._kernel = kernel_of(network)  # None: NumPy
        if self._kernel is not None:
            check_adam(self._kernel)
        self.refused = 0  # gradients that were not finite, since `guarded` was last entered
        self.lr = 0.0  # of the last step

    def guarded(
        self, is_sound: Callable[[], bool], *beside: Array, what: str = "learning"
    ) -> AbstractContextManager[None]:
        """Take back every step made inside, if any was refused and the network is no longer sound.

        Arrays that belong to the parameters and change with them, such as a target network, go `beside` them.
        """
        return guarded([self], is_sound, *beside, what=what)

    def step(self, gradient: Array, lr: float) -> float | None:
        """Sum the learners' gradients `[P]` and step; returns the norm before clipping, or None if it was refused."""
        self.lr = lr
        gradient = self.group.sum(gradient)
        if self._kernel is not None:
            return self._compiled_step(self._kernel, gradient, lr)
        norm = sqrt(np.dot(gradient, gradient))
        if not isfinite(norm):
            self.refused += 1
            return None
        if self.grad_clip is not None and norm > self.grad_clip:
            self.clip(gradient, norm, self.grad_clip)
        self.adam.step(self.network.params, gradient, lr)
        self.network.sync()
        return norm

    def _compiled_step(self, kernel: Kernel, gradient: Array, lr: float) -> float | None:
        norm = self.adam.compiled_step(kernel, self.network.params, gradient, lr, self.grad_clip, self.of_values)
        if norm is None:
            self.refused += 1
            return None
        self.network.sync()
        return norm

    def clip(self, gradient: Array, norm: float, longest: float) -> None:
        """Shorten in place what is longer: the whole, or the policy's and the values' part each by itself."""
        if self.of_values is None:
            gradient *= longest / (norm + 1e-6)
            return
        of_values = gradient * self.of_values
        gradient -= of_values
        for part in (gradient, of_values):
            length = sqrt(np.dot(part, part))
            if length > longest:
                part *= longest / (length + 1e-6)
        gradient += of_values

    def get_state(self) -> State:
        """Adam's moments and step count."""
        return self.adam.get_state()

    def set_state(self, state: State) -> None:
        """Take over moments and step count."""
        self.adam.set_state(state)


@contextmanager
def guarded(
    optimizers: Sequence[Optimizer], is_sound: Callable[[], bool], *beside: Array, what: str = "learning"
) -> Iterator[None]:
    """`Optimizer.guarded` for several that belong together: all of their steps are taken back, or none."""
    arrays = [*(optimizer.network.params for optimizer in optimizers), *beside]
    before = [array.copy() for array in arrays]
    moments = [optimizer.get_state() for optimizer in optimizers]
    for optimizer in optimizers:
        optimizer.refused = 0
    yield
    if any(optimizer.refused for optimizer in optimizers) and not is_sound():
        # Too long a step has thrown the weights out of all bounds: no later gradient could bring them back.
        for array, kept in zip(arrays, before, strict=True):
            array[:] = kept
        for optimizer, state in zip(optimizers, moments, strict=True):
            optimizer.network.sync()
            optimizer.set_state(state)
        log.warning("%s diverged (lr %g): the weights from before it are kept", what, optimizers[0].lr)


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

    def compiled_step(
        self,
        kernel: Kernel,
        params: Array,
        gradient: Array,
        lr: float,
        grad_clip: float | None,
        of_values: Array | None,
    ) -> float | None:
        """The same in the compiled kernel, with the clipping before it: see `Optimizer.step`, also for the answer."""
        beta1, beta2 = self.betas
        steps = self.steps + 1
        longest = inf if grad_clip is None else grad_clip
        v_scale, rate = 1 / sqrt(1 - beta2**steps), lr / (1 - beta1**steps)
        struct = AdamStruct(beta1, beta2, self.eps, longest, v_scale, rate)
        gradient = np.ascontiguousarray(gradient, np.float32)
        arrays = address(params), address(gradient), address(self.m), address(self.v)
        values_at = None if of_values is None else address(of_values)
        norm: float = kernel.adam(ctypes.addressof(struct), len(params), *arrays, values_at)
        if not isfinite(norm):
            return None
        self.steps = steps
        return norm

    def get_state(self) -> State:
        """Moments and step count."""
        return State.of(steps=self.steps, m=self.m.copy(), v=self.v.copy())

    def set_state(self, state: State) -> None:
        """Take over moments and step count."""
        self.steps = int(state.values["steps"])
        self.m[:] = state.arrays["m"]
        self.v[:] = state.arrays["v"]


def check_adam(kernel: Kernel) -> None:
    """Hold the kernel's steps against NumPy's; a ConfigError refuses a kernel that differs."""
    rng = np.random.default_rng(0)
    plain, compiled = Adam(77), Adam(77)
    expected = rng.normal(0, 1, 77).astype(np.float32)
    found = expected.copy()
    for _ in range(3):
        gradient = rng.normal(0, 1, 77).astype(np.float32)
        plain.step(expected, gradient, 0.1)
        compiled.compiled_step(kernel, found, gradient, 0.1, None, None)
    with checking():
        check_close("Adam's step", found, expected)
