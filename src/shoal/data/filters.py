"""The observation filter: one running mean and standard deviation, owned by the learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.state import State

Numbers = NDArray[np.float64]
CLIP = 10.0
"""At how many standard deviations numbers are clipped, unless a policy of another library did so elsewhere."""


class MeanStdFilter:
    """Shifts and scales numbers by the mean and standard deviation of all that was seen, and clips at `clip` sigmas.

    Workers only apply it; the learner alone updates it, from the raw observations they return, so there is one filter
    however many workers there are. Columns that are not `measured` pass unchanged.
    """

    def __init__(self, measured: NDArray[np.bool_], clip: float = CLIP) -> None:
        self.measured = measured
        self.clip = np.float32(clip)
        self.count = 0.0
        self.mean = np.zeros(len(measured))
        self.m2 = np.zeros(len(measured))  # sum of squared deviations
        self._refresh()

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Filtered copy of `[B, R]`."""
        y = (x - self.shift) * self.scale
        np.clip(y, self._lowest, self.highest, out=y)
        return y

    def update(self, x: NDArray[Any], total: Callable[[Numbers], Numbers] = lambda numbers: numbers) -> None:
        """Learn from `[B, R]` new rows (Chan's parallel formula, in double precision).

        Where several learners have rows, `total` gives the sum of an array over them.
        """
        x = x.astype(np.float64)
        sums = total(np.concatenate([[len(x)], x.sum(axis=0)]))
        count = float(sums[0])
        if not count:
            return
        mean = sums[1:] / count
        m2 = total(np.square(x - mean).sum(axis=0))
        whole = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / whole)
        self.m2 = self.m2 + m2 + np.square(delta) * (self.count * count / whole)
        self.count = whole
        self._refresh()

    def fit(self, x: NDArray[Any], scaler: str, quantile_range: tuple[float, float] = (0.25, 0.75)) -> None:
        """Learn from `[B, R]` rows once and for all, as the one of Ray Data's scalers does whose name is given."""
        x = x.astype(np.float64)
        lowest, highest = x.min(axis=0), x.max(axis=0)
        if scaler == "StandardScaler":
            self.set_scale(len(x), x.mean(axis=0), x.std(axis=0))
        elif scaler == "MinMaxScaler":
            self.set_scale(len(x), lowest, highest - lowest)
        elif scaler == "RobustScaler":
            low, median, high = np.quantile(x, (quantile_range[0], 0.5, quantile_range[1]), axis=0)
            self.set_scale(len(x), median, high - low)
        else:
            assert scaler == "MaxAbsScaler"
            self.set_scale(len(x), np.zeros_like(highest), np.maximum(np.abs(highest), np.abs(lowest)))

    def set_scale(self, count: int, shift: Numbers, scale: Numbers) -> None:
        """Subtract and divide by these numbers `[R]` from now on, as after `count` rows of this mean and deviation."""
        self.count, self.mean = float(count), shift
        self.m2 = np.square(scale) * max(count - 1, 1)
        self._refresh()

    def get_state(self) -> State:
        """Count, mean and squared deviations, and where numbers are clipped if that is not the usual place."""
        clip = {} if self.clip == CLIP else {"clip": float(self.clip)}
        return State.of(count=self.count, mean=self.mean.copy(), m2=self.m2.copy(), **clip)

    def set_state(self, state: State) -> None:
        """Take over what another filter has seen."""
        self.count = float(state.values["count"])
        self.clip = np.float32(state.values.get("clip", CLIP))
        self.mean = state.arrays["mean"].astype(np.float64)
        self.m2 = state.arrays["m2"].astype(np.float64)
        self._refresh()

    def _refresh(self) -> None:
        std = np.sqrt(self.m2 / max(self.count - 1, 1)) if self.count > 1 else np.ones_like(self.m2)
        self.shift = np.where(self.measured, self.mean, 0).astype(np.float32)
        # A number that never moved carries nothing, and must not explode when it first does.
        self.scale = np.where(self.measured & (std > 1e-8), 1 / np.maximum(std, 1e-8), 1).astype(np.float32)
        self.highest = np.where(self.measured, self.clip, np.inf).astype(np.float32)
        self._lowest = -self.highest
