"""Behaviour cloning (Pomerleau 1989): the policy under which the recorded actions are likeliest.

    minimise   L(theta) = mean of  -log pi_theta(a | s)     over all recorded steps (s, a)

Every recorded step counts alike, whatever came of it.
"""

from __future__ import annotations

import numpy as np

from shoal.algorithms.offline import Minibatch, OfflineLearner
from shoal.models.network import Array


class BCLearner(OfflineLearner):
    """Makes recorded actions likelier, each as much as any other; values are not learned."""

    def gradient(self, minibatch: Minibatch) -> tuple[Array, Array, list[float]]:
        """The gradient of the mean of -log pi(a | s), of which a step's part is -1 / B."""
        d_log_prob = np.full(len(minibatch.rows), -minibatch.size, np.float32)
        d_outputs = self.policy.distribution.gradient(minibatch.now, d_log_prob, 0.0, 0.0)
        return d_outputs, np.zeros_like(minibatch.values), []
