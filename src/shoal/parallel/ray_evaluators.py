"""Evaluation by Ray actors of their own, also while training goes on."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from shoal.config.layout import cpus_per_worker
from shoal.config.settings import AlgorithmConfig
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.envs.spaces import Space
from shoal.errors import ShoalError, WorkerError
from shoal.machine.broadcasts import leave_ending_to_starter
from shoal.machine.processes import exit_as_orphan
from shoal.models.build import PolicySpaces, build_policy
from shoal.models.policy import Policy
from shoal.parallel.evaluators import PendingResults
from shoal.parallel.ray_session import Session
from shoal.parallel.ray_workers import without_gpu
from shoal.sampling.evaluation_episodes import EpisodeResults, EvaluationPart, run_part

MOST_DEATHS = 3  # of evaluation workers, in one evaluation


class RemoteEvaluator:
    """What runs inside an actor: a policy of its own, in the state it was last sent."""

    def __init__(
        self, config: AlgorithmConfig, spaces: tuple[Space, Space], user_code: UserCode, others: PolicySpaces
    ) -> None:
        from threadpoolctl import ThreadpoolController

        leave_ending_to_starter()
        exit_as_orphan()
        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker)))
        self._config, self._spaces, self._user_code, self._others = config, spaces, user_code, others
        self._policy: Policy | None = None

    def run(self, part: EvaluationPart, state: State) -> EpisodeResults:
        """One part, with the given weights and filter."""
        if self._policy is None:
            self._policy = build_policy(*self._spaces, self._config, self._user_code, others=self._others)
        self._policy.set_state(state)
        return run_part(part, self._policy)


class RayEvaluators:
    """`evaluation_num_workers` actors; a part whose actor dies is run again by a new one."""

    def __init__(self, config: AlgorithmConfig, policy: Policy, user_code: UserCode, session: Session) -> None:
        self._ray = session.ray
        self._remote = self._ray.remote(num_cpus=cpus_per_worker(config), max_restarts=0)(RemoteEvaluator)
        spaces = policy.obs_spec.space, policy.action_spec.space
        others = {name: (p.obs_spec.space, p.action_spec.space) for name, p in policy.others.items()}
        self._arguments = without_gpu(config), spaces, user_code, others
        self._actors = [self._remote.remote(*self._arguments) for _ in range(config.evaluation_num_workers)]

    def start(self, parts: Sequence[EvaluationPart], policy: Policy) -> PendingResults:
        """See `Evaluators`."""
        return RayResults(self, parts, policy)

    def stop(self) -> None:
        """End every actor; may be called twice."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    @property
    def count(self) -> int:
        """How many actors there are."""
        return len(self._actors)

    def ask(self, actor: int, part: EvaluationPart, state: Any) -> Any:
        """Have an actor run a part; a reference to what comes of it."""
        return self._actors[actor].run.remote(part, state)

    def put(self, state: State) -> Any:
        """A reference to a state, which all actors can read."""
        return self._ray.put(state)

    def first_of(self, references: list[Any]) -> Any:
        """The reference that is answered first."""
        (ready,), _ = self._ray.wait(references, num_returns=1)
        return ready

    def results_of(self, reference: Any) -> EpisodeResults:
        """What came of a part, or the actor's error in its own words; WorkerError if the actor is gone."""
        exceptions = self._ray.exceptions
        try:
            results: EpisodeResults = self._ray.get(reference)
            return results
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise ShoalError(f"an evaluation worker failed: {error.cause!r}\n{error}") from error
        except exceptions.RayError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise WorkerError(f"an evaluation worker was lost: {reason}") from error

    def replace(self, actor: int) -> None:
        """Put a new actor in the place of one that was lost."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actors[actor])
        self._actors[actor] = self._remote.remote(*self._arguments)


class RayResults:
    """Parts that the actors run, each taking the next one as soon as it is done with the one before."""

    def __init__(self, evaluators: RayEvaluators, parts: Sequence[EvaluationPart], policy: Policy) -> None:
        self._evaluators, self._parts = evaluators, parts
        self._state = evaluators.put(policy.get_state())
        self._waiting = deque(range(len(parts)))
        self._running: dict[Any, tuple[int, int]] = {}  # reference: place of the part, place of the actor
        for actor in range(evaluators.count):
            self._give_next_part(actor)

    def wait(self) -> list[EpisodeResults]:
        """See `PendingResults`."""
        results: dict[int, EpisodeResults] = {}
        deaths = 0
        while self._running:
            reference = self._evaluators.first_of(list(self._running))
            place, actor = self._running.pop(reference)
            try:
                results[place] = self._evaluators.results_of(reference)
            except WorkerError as lost:
                deaths += 1
                if deaths > MOST_DEATHS:
                    raise WorkerError(f"{lost}\nThat was {deaths} times in one evaluation.") from lost
                self._evaluators.replace(actor)
                self._waiting.appendleft(place)
            self._give_next_part(actor)
        return [results[place] for place in range(len(self._parts))]

    def _give_next_part(self, actor: int) -> None:
        if self._waiting:
            place = self._waiting.popleft()
            reference = self._evaluators.ask(actor, self._parts[place], self._state)
            self._running[reference] = place, actor
