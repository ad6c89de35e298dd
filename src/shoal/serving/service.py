"""What a server does with requests, whoever carries them: each policy with its batches and sessions, and reloads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from shoal.errors import ShoalError
from shoal.serving.batching import Batcher
from shoal.serving.metrics import Metrics
from shoal.serving.served_policy import PolicySource, Question, ServedPolicy
from shoal.serving.sessions import ServedEpisode, Sessions

logger = logging.getLogger("shoal.serve")

FOLLOW_S = 2.0
"""How often a run is looked at for a newer checkpoint."""
MOST_WAITING_PASSES = 16
"""So many full passes of the network may wait; who comes then is told to come again."""


@dataclass(frozen=True)
class ServingLimits:
    """What a client may ask for, and how long a request may wait for others."""

    batch_wait_s: float = 0.0
    max_batch: int = 512  # observations of one request, and of one pass of the network
    max_body_bytes: int = 8 << 20
    session_timeout_s: float = 600.0
    max_sessions: int = 10_000


class Door:
    """One policy, and who waits for it."""

    def __init__(self, source: PolicySource, limits: ServingLimits, metrics: Metrics) -> None:
        self.served = ServedPolicy(source)
        self.limits, self.metrics = limits, metrics
        self.sessions = Sessions(limits.session_timeout_s, limits.max_sessions)
        waiting = MOST_WAITING_PASSES * limits.max_batch
        self.batcher = Batcher(self.served.answer, limits.batch_wait_s, limits.max_batch, waiting, self._tell_pass)
        self._reloading = asyncio.Lock()
        metrics.iteration.set(self.served.loaded.iteration, policy=source.name)

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.served.name

    async def actions(self, body: Any) -> dict[str, Any]:
        """The answer to the body of a request; an HTTPException refuses it."""
        try:
            question, is_single = self._question(body)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        if self.batcher.is_full:
            raise HTTPException(503, "too many requests wait; send it again", {"Retry-After": "1"})
        begun = [session for session in question.sessions if not session.is_open]
        for session in begun:
            self._keep(session)
        for session in question.sessions:
            session.is_busy = True
        try:
            answer = await self.batcher.answer(question)
        finally:
            for session in question.sessions:
                session.is_busy = False
        if answer.refusal is not None:
            for session in begun:
                self.sessions.end(session.id)
            raise HTTPException(422, answer.refusal)
        self.metrics.actions.add(len(answer.actions), policy=self.name)
        told: dict[str, Any] = {"action": answer.actions[0]} if is_single else {"actions": answer.actions}
        for session in begun:
            told["session"] = session.id
        return {**told, "training_iteration": answer.iteration}

    async def reload(self) -> bool:
        """Let a newer checkpoint act, if there is one; requests go on meanwhile. A ShoalError says why it cannot."""
        async with self._reloading:
            try:
                found = await asyncio.to_thread(self.served.newer)
            except ShoalError:
                self.metrics.reloads.add(policy=self.name, result="refused")
                raise
            if found is None:
                return False
            self.served.loaded = found
            self.metrics.reloads.add(policy=self.name, result="taken")
            self.metrics.iteration.set(found.iteration, policy=self.name)
            logger.info("%s acts by %s now", self.name, found.checkpoint)
            return True

    async def follow(self) -> None:
        """Reload whenever there is a newer checkpoint, until cancelled; what is refused is told once."""
        told = ""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.reload()
            except (ShoalError, OSError) as error:
                if str(error) != told:
                    logger.warning("%s keeps its checkpoint: %s", self.name, error)
                told = str(error)

    def new_session(self) -> ServedEpisode:
        """A session, if there may be one more."""
        session = self.sessions.new()
        self._keep(session)
        return session

    def _keep(self, session: ServedEpisode) -> None:
        if not self.sessions.keep(session):
            sentence = f"there are {self.limits.max_sessions} sessions; end one, or come again"
            raise HTTPException(503, sentence, {"Retry-After": "1"})

    def facts(self) -> dict[str, Any]:
        """What a client may want to know of the policy."""
        loaded = self.served.loaded
        return {
            "name": self.name,
            "algorithm": loaded.algorithm,
            "env": loaded.env,
            "checkpoint": loaded.checkpoint.name,
            "training_iteration": loaded.iteration,
            "has_memory": self.served.has_memory,
            "needs_prev_reward": self.served.uses_prev_reward,
            "is_masked": self.served.policy.obs_spec.mask is not None,
            "max_batch": self.limits.max_batch,
            "example": self.example(),
        }

    def example(self) -> dict[str, Any]:
        """The body of a request that is answered as it stands."""
        found: dict[str, Any] = {"observation": self.served.form.example()}
        if self.served.has_memory:
            found["session"] = None
        if self.served.uses_prev_reward:
            found["prev_reward"] = None
        return found

    def _question(self, body: Any) -> tuple[Question, bool]:
        """What a request asks, and whether for a single action."""
        if not isinstance(body, dict):
            raise ValueError("the body must be an object with observation or observations")
        known = [*_NAMES, *(_MEMORY_NAMES if self.served.has_memory else ())]
        for name in body:
            if name in _MEMORY_NAMES and not self.served.has_memory:
                raise ValueError(f"{name}: {self.name} has no memory; leave it out")
            if name not in known:
                close = f"; did you mean {known[0]}?" if name[:3] == "obs" else ""
                raise ValueError(f"{name[:60]!r} is none of {', '.join(known)}{close}")
        if ("observation" in body) == ("observations" in body):
            raise ValueError("give either observation, for one action, or observations, a list, for several")
        explore = body.get("explore", False)
        if not isinstance(explore, bool):
            raise ValueError("explore must be true, to sample actions, or false, to take the most likely")
        is_single = "observation" in body
        name = "observation" if is_single else "observations"
        given = [body["observation"]] if is_single else self._list("observations", body["observations"])
        parts = self.served.rows_of(given, name)
        if not self.served.has_memory:
            return Question(parts, explore), is_single
        sessions = self._sessions_of(body, len(given), is_single)
        return Question(parts, explore, sessions, self._rewards(body, sessions, is_single)), is_single

    def _list(self, name: str, value: Any) -> list[Any]:
        most = self.limits.max_batch
        if not isinstance(value, list) or not 0 < len(value) <= most:
            raise ValueError(f"{name} must be a list of 1 to {most}")
        return value

    def _sessions_of(self, body: dict[str, Any], count: int, is_single: bool) -> tuple[ServedEpisode, ...]:
        """The session of each row."""
        name = "session" if is_single else "sessions"
        if name not in body:
            begin = "give null where an episode begins" if is_single else "POST to sessions where an episode begins"
            raise ValueError(f"{name} is missing: {self.name} has memory; {begin}")
        if ("sessions" if is_single else "session") in body:
            raise ValueError("session belongs to observation, and sessions, a list, to observations")
        if is_single and body[name] is None:
            return (self.sessions.new(),)
        given = [body[name]] if is_single else self._list(name, body[name])
        if not all(isinstance(each, str) for each in given):
            raise ValueError(f"{name} must be text, as POST to sessions has answered")
        if len({*given}) != len(given):
            raise ValueError("sessions must all be different: each is an episode, which takes one step at a time")
        found = tuple(self._session(each) for each in given)  # first: no schema can tell that lists are of one length
        if len(found) != count:
            raise ValueError(f"sessions must be as many as observations: {count} (got {len(found)})")
        return found

    def _session(self, session_id: str) -> ServedEpisode:
        session = self.sessions.find(session_id)
        if session is None:
            raise HTTPException(404, f"there is no session {session_id[:60]!r}, or no more; POST to sessions for one")
        if session.is_busy:
            raise HTTPException(409, "the session still answers another request; send the next step after it")
        return session

    def _rewards(
        self, body: dict[str, Any], sessions: Sequence[ServedEpisode], is_single: bool
    ) -> tuple[float | None, ...]:
        """The reward before each row, where the policy uses it; without one it would act as after another."""
        rewards = self._given_rewards(body, len(sessions), is_single)
        if self.served.uses_prev_reward:
            for session, reward in zip(sessions, rewards, strict=True):
                if reward is None and session.state is not None:
                    name = "prev_reward" if is_single else "prev_rewards"
                    raise ValueError(
                        f"{name} is missing: {self.name} sees the reward of the step before, and only where an "
                        "episode begins there is none"
                    )
        return rewards

    def _given_rewards(self, body: dict[str, Any], count: int, is_single: bool) -> tuple[float | None, ...]:
        name, other = ("prev_reward", "prev_rewards") if is_single else ("prev_rewards", "prev_reward")
        if other in body:
            raise ValueError("prev_reward belongs to observation, and prev_rewards, a list, to observations")
        if name not in body:
            return (None,) * count
        if not self.served.uses_prev_reward:
            raise ValueError(f"{name}: {self.name} does not use it; leave it out")
        given = [body[name]] if is_single else self._list(name, body[name])
        if len(given) != count:
            raise ValueError(f"prev_rewards must be as many as observations: {count} (got {len(given)})")
        if not all(_is_reward(each) for each in given):
            raise ValueError(f"{name} must be finite numbers, or null where an episode begins")
        return tuple(given)

    def _tell_pass(self, rows: int, seconds: float) -> None:
        self.metrics.passes.add(rows, policy=self.name)
        self.metrics.pass_seconds.add(seconds, policy=self.name)


_NAMES = ("observation", "observations", "explore")
_MEMORY_NAMES = ("session", "sessions", "prev_reward", "prev_rewards")
LARGEST_REWARD = 1e18


def _is_reward(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= LARGEST_REWARD)


class Service:
    """All policies that are served together."""

    def __init__(
        self, sources: Sequence[PolicySource], limits: ServingLimits, follows: bool = False, replicas: int = 1
    ) -> None:
        self.limits, self.follows, self.replicas = limits, follows, replicas
        self.metrics = Metrics()
        self.doors = {source.name: Door(source, limits, self.metrics) for source in sources}
        self._following: list[asyncio.Task[None]] = []

    def metrics_text(self) -> str:
        """What `/metrics` answers."""
        for door in self.doors.values():
            if door.served.has_memory:
                door.sessions.forget_old()
                self.metrics.sessions.set(len(door.sessions), policy=door.name)
        return self.metrics.text()

    def start(self) -> None:
        """Begin to follow the runs, if that was asked for."""
        if self.follows:
            self._following = [asyncio.create_task(door.follow()) for door in self.doors.values()]

    async def stop(self) -> None:
        """End what was begun."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for door in self.doors.values():
            door.batcher.close()
