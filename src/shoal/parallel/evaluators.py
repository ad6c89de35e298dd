"""Who runs the episodes of an evaluation: a contract, and this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.models.policy import Policy
from shoal.sampling.evaluation_episodes import EpisodeResults, EvaluationPart, run_part


class PendingResults(Protocol):
    """The parts of an evaluation that has begun."""

    def wait(self) -> list[EpisodeResults]:
        """What came of them, in their order."""


class Evaluators(Protocol):
    """Runs the parts of an evaluation."""

    def start(self, parts: Sequence[EvaluationPart], policy: Policy) -> PendingResults:
        """Begin with the policy as it is now."""


class LocalEvaluators:
    """Runs them in this process, which does nothing else meanwhile."""

    def start(self, parts: Sequence[EvaluationPart], policy: Policy) -> PendingResults:
        """See `Evaluators`."""
        return LocalResults(parts, policy)


class LocalResults:
    """Parts that are run when somebody waits for them."""

    def __init__(self, parts: Sequence[EvaluationPart], policy: Policy) -> None:
        self._parts, self._policy = parts, policy

    def wait(self) -> list[EpisodeResults]:
        """See `PendingResults`."""
        results = []
        for part in self._parts:
            results.append(run_part(part, self._policy))
        return results
