"""The environments of several runs, stepped as those of one: what NumPy does after a step is done for all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.vector import Counters, PythonVector, Steps, Vector


def why_not_stepped_together(vector: Vector) -> str | None:
    """What keeps a vector from being stepped together with others of its form, if anything does."""
    if type(vector) is not PythonVector:
        return "their environments step themselves"
    if vector.observer is not None:
        return "their hooks are told of each episode"
    return None


class StackedVector:
    """Steps several vectors of the same environments; each begins its own episodes and rebuilds what fails.

    The rows `[S * N]` of all lie side by side. As long as nothing is odd, they are written and counted at once; else
    every vector does that by itself, as it does alone.
    """

    def __init__(self, vectors: Sequence[PythonVector]) -> None:
        self._vectors = list(vectors)
        self.num_envs = vectors[0].num_envs
        counters = [vector.counters() for vector in vectors]
        self._counters = Counters(
            np.concatenate([each.lengths for each in counters]),
            np.concatenate([each.since_seed for each in counters]),
            np.concatenate([each.rewards for each in counters]),
            np.concatenate([each.limits for each in counters]),
        )
        for vector, rows in zip(self._vectors, self.parts(), strict=True):
            vector.count_in(self._counters.part(rows))

    def parts(self) -> list[slice]:
        """The rows of each vector."""
        return [slice(k * self.num_envs, (k + 1) * self.num_envs) for k in range(len(self._vectors))]

    def step(self, decoded: Sequence[Any], steps: Steps, errors: list[Exception | None]) -> list[Steps | None]:
        """Take one step everywhere but in vectors that have an error; write what came of it into `steps` `[S * N]`.

        What is special about it is told by the steps of each vector; None: nothing is. What a vector raises becomes its
        error.
        """
        parts, failed = self.parts(), False
        told: list[Steps | None] = [None] * len(parts)
        for k, (vector, rows) in enumerate(zip(self._vectors, parts, strict=True)):
            if errors[k] is not None:
                continue
            rows_failed: list[int] = []
            try:
                vector.take(decoded[rows], rows_failed)
            except Exception as error:
                errors[k] = error
            if rows_failed:
                failed = True
                told[k] = _part(steps, rows, rows_failed)
        if failed or any(error is not None for error in errors) or not self._written(steps):
            for k, (vector, rows) in enumerate(zip(self._vectors, parts, strict=True)):
                own = told[k] = told[k] or _part(steps, rows, [])
                if errors[k] is None:
                    try:
                        vector.settle(own, None, decoded[rows])
                    except Exception as error:
                        errors[k] = error
            return told
        ended = self._count(steps)
        for row in ended.nonzero()[0].tolist():
            k = row // self.num_envs
            if told[k] is None and errors[k] is None:
                own = told[k] = _part(steps, parts[k], [])
                try:
                    self._vectors[k].go_on(own, ended[parts[k]])
                except Exception as error:
                    errors[k] = error
        return told

    def _written(self, steps: Steps) -> bool:
        """Write what all vectors gave at once; False if any of it is unfit."""
        columns: list[list[Any]] = [[], [], [], []]
        for vector in self._vectors:
            for column, own in zip(columns, vector.columns, strict=False):
                column += own
        return self._vectors[0].written(columns, steps)

    def _count(self, steps: Steps) -> NDArray[np.bool_]:
        """Count a step that all have taken; the rows whose episode has ended. See `PythonVector.settle`."""
        lengths, since_seed, rewards, limits = self._counters
        lengths += 1
        since_seed += 1
        rewards += steps.rewards
        steps.truncated |= lengths >= limits
        steps.truncated &= ~steps.terminated
        return np.asarray(steps.terminated | steps.truncated)


def _part(steps: Steps, rows: slice, failed: list[int]) -> Steps:
    """The rows of one vector."""
    obs = tuple([part[rows] for part in steps.obs])
    return Steps(
        obs, steps.rewards[rows], steps.terminated[rows], steps.truncated[rows], steps.valid[rows], failed=failed
    )
