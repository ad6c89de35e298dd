"""Who runs the episodes of an evaluation: a contract, and this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.models.policy import Policy
from shoal.sampling.evaluation_episodes import Found, Share, run_share

Answer = Callable[[], list[Found]]


class Evaluators(Protocol):
    """Runs the shares of an evaluation."""

    def begin(self, shares: Sequence[Share], policy: Policy) -> Answer:
        """Set out with the policy as it is now; the answer, when it is called for, is in the order of the shares."""


class LocalEvaluators:
    """Runs them in this process, which does nothing else meanwhile."""

    def begin(self, shares: Sequence[Share], policy: Policy) -> Answer:
        """See `Evaluators`."""
        return lambda: [run_share(share, policy) for share in shares]
