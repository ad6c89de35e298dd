"""Evaluation by Ray actors of their own, also while training goes on."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from shoal.config.settings import AlgorithmConfig
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.envs.spaces import Space
from shoal.errors import ShoalError, WorkerError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.evaluators import Answer
from shoal.parallel.ray_session import Session
from shoal.parallel.ray_workers import without_gpu
from shoal.sampling.evaluation_episodes import Found, Share, run_share

MOST_DEATHS = 3  # of evaluation workers, in one evaluation


class RemoteEvaluator:
    """What runs inside an actor: a policy of its own, in the state it was last sent."""

    def __init__(self, config: AlgorithmConfig, spaces: tuple[Space, Space], user_code: UserCode) -> None:
        from threadpoolctl import ThreadpoolController

        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker)))
        self._config, self._spaces, self._user_code = config, spaces, user_code
        self._policy: Policy | None = None

    def run(self, share: Share, state: State) -> Found:
        """One share, with the given weights and filter."""
        if self._policy is None:
            self._policy = build_policy(*self._spaces, self._config, self._user_code)
        self._policy.set_state(state)
        return run_share(share, self._policy)


class RayEvaluators:
    """`evaluation_num_workers` actors; a share whose actor dies is run again by a new one."""

    def __init__(self, config: AlgorithmConfig, policy: Policy, user_code: UserCode, session: Session) -> None:
        self._ray = session.ray
        self._remote = self._ray.remote(num_cpus=config.num_cpus_per_worker, max_restarts=0)(RemoteEvaluator)
        spaces = policy.obs_spec.space, policy.action_spec.space
        self._arguments = without_gpu(config), spaces, user_code
        self._actors = [self._remote.remote(*self._arguments) for _ in range(config.evaluation_num_workers)]

    def begin(self, shares: Sequence[Share], policy: Policy) -> Answer:
        """See `Evaluators`."""
        state = self._ray.put(policy.get_state())
        waiting = deque(enumerate(shares))
        running: dict[Any, tuple[int, int]] = {}  # answer: place of the share, place of the actor

        def send(actor: int) -> None:
            if waiting:
                place, share = waiting.popleft()
                running[self._actors[actor].run.remote(share, state)] = place, actor

        def collect() -> list[Found]:
            found: dict[int, Found] = {}
            deaths = 0
            while running:
                (answer,), _ = self._ray.wait(list(running), num_returns=1)
                place, actor = running.pop(answer)
                try:
                    found[place] = self._one(answer)
                except WorkerError as lost:
                    deaths += 1
                    if deaths > MOST_DEATHS:
                        raise WorkerError(f"{lost}\nThat was {deaths} times in one evaluation.") from lost
                    self._replace(actor)
                    waiting.appendleft((place, shares[place]))
                send(actor)
            return [found[place] for place in range(len(shares))]

        for actor in range(len(self._actors)):
            send(actor)
        return collect

    def stop(self) -> None:
        """End every actor; may be called twice."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    def _replace(self, place: int) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actors[place])
        self._actors[place] = self._remote.remote(*self._arguments)

    def _one(self, answer: Any) -> Found:
        """One share's result, or the actor's error in its own words; WorkerError if the actor is gone."""
        exceptions = self._ray.exceptions
        try:
            found: Found = self._ray.get(answer)
            return found
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise ShoalError(f"an evaluation worker failed: {error.cause!r}\n{error}") from error
        except exceptions.RayError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise WorkerError(f"an evaluation worker was lost: {reason}") from error
