"""All groups of environments of a vector: the one of this process, or one in each of several actors of Ray."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.bridges.env_group import EnvGroup, GroupFacts, GroupReset, GroupSteps, Seeds
from shoal.bridges.served_group import GroupConnection, ServedGroup, call_command, command, connected_to, new_secret
from shoal.config.layout import cpus_per_worker
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Incident
from shoal.envs.making import EnvMaker
from shoal.errors import ShoalError, WorkerError
from shoal.parallel.capacity import check_ranks_here
from shoal.parallel.ray_session import connect
from shoal.parallel.sampler_process import SamplerFailure

CLOSING_TIMEOUT_S = 5.0
LISTENING_S = 1.0  # for an answer, between two looks at whether Ray has lost the worker
TELLING_TIMEOUT_S = 30.0  # for Ray to say how a worker was lost, where its connection is
PATIENCE_S = 20.0  # until it is told that a worker which replaces another has no host
MOST_DEATHS_IN_A_ROW = 3  # of one worker, without a step in between

log = logging.getLogger("shoal")


class EnvGroups(Protocol):
    """What a vector of environments needs of the processes that have them; answers come in the order of groups."""

    facts: GroupFacts  # of the first group

    def reset(self, seeds: Seeds) -> list[GroupReset]:
        """Begin new episodes everywhere."""

    def begin_step(self, actions: list[NDArray[Any]]) -> None:
        """Give each group its rows of actions."""

    def end_step(self) -> list[GroupSteps]:
        """What came of the step that was begun."""

    def call(self, functions: Mapping[int, Callable[[Any], Any]]) -> dict[int, Any]:
        """The results of each environment's own function, by its place among all."""

    def stop(self) -> None:
        """End everything that was started."""


def start_groups(config: AlgorithmConfig, maker: EnvMaker, with_infos: bool = False) -> EnvGroups:
    """The group of this process (`num_workers: 0`, without Ray), or actors of Ray."""
    if config.worker_count == 0:
        check_ranks_here(config)
        return LocalGroup(config, maker, with_infos)
    return RayGroups(config, maker, with_infos)


class LocalGroup:
    """The one group of this process; see `EnvGroups`."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, with_infos: bool) -> None:
        self._group = EnvGroup(config, maker, 0, with_infos)
        self.facts = self._group.start()
        self._actions: NDArray[Any] | None = None

    def reset(self, seeds: Seeds) -> list[GroupReset]:
        """See `EnvGroups`."""
        return [self._group.reset(seeds)]

    def begin_step(self, actions: list[NDArray[Any]]) -> None:
        """See `EnvGroups`."""
        (self._actions,) = actions

    def end_step(self) -> list[GroupSteps]:
        """See `EnvGroups`."""
        assert self._actions is not None
        return [self._group.step(self._actions)]

    def call(self, functions: Mapping[int, Callable[[Any], Any]]) -> dict[int, Any]:
        """See `EnvGroups`."""
        return self._group.call(functions)

    def stop(self) -> None:
        """See `EnvGroups`."""
        self._group.stop()


@dataclass
class Seat:
    """One group of several, whichever actor has it at the moment."""

    index: int  # from 1 on
    actor: Any
    secret: bytes
    facts: GroupFacts | None = None
    serving: Any = None  # what Ray has when the actor's work ends
    connection: GroupConnection | None = None
    asked: int = 0  # how many commands it was given: an answer that nobody waited for is not taken for another
    deaths_in_a_row: int = 0


class RayGroups:
    """One group in each of `num_workers` actors; see `EnvGroups`.

    A group whose process dies is replaced: its rows fail at that step, and go on with new episodes.
    """

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, with_infos: bool) -> None:
        self._config, self._maker, self._with_infos = config, maker, with_infos
        self._session = connect(config)
        self._ray = self._session.ray
        self._restarts = 0
        self._seats: list[Seat] = []
        self._begun: list[int] = []
        try:
            self._seats = [self._new_seat(index) for index in range(1, config.worker_count + 1)]
            for seat, started in [(seat, seat.actor.start.remote()) for seat in self._seats]:
                self._let_serve(seat, started)
        except BaseException:
            self.stop()
            raise
        first = self._seats[0].facts
        assert first is not None
        self.facts = first

    def reset(self, seeds: Seeds) -> list[GroupReset]:
        """See `EnvGroups`."""
        answers, count = [], self._config.envs_per_worker
        shares = [seeds[first : first + count] for first in range(0, len(seeds), count)]
        pairs = zip(self._seats, shares, strict=True)
        for seat, own, number in [(seat, own, self._tell(seat, command("reset", own))) for seat, own in pairs]:
            try:
                begun: GroupReset = self._answer(seat, number)
            except WorkerError as lost:
                begun = self._replaced(seat, lost, own)
            begun.incidents = self._placed(seat, begun.incidents)
            answers.append(begun)
        return answers

    def begin_step(self, actions: list[NDArray[Any]]) -> None:
        """See `EnvGroups`."""
        pairs = zip(self._seats, actions, strict=True)
        self._begun = [self._tell(seat, command("step", own)) for seat, own in pairs]

    def end_step(self) -> list[GroupSteps]:
        """See `EnvGroups`."""
        begun, self._begun = self._begun, []
        answers = []
        for seat, number in zip(self._seats, begun, strict=True):
            try:
                steps: GroupSteps = self._answer(seat, number)
                seat.deaths_in_a_row = 0
            except WorkerError as lost:
                steps = self._lost_steps(self._replaced(seat, lost, [None] * self._config.envs_per_worker))
            steps.incidents = self._placed(seat, steps.incidents)
            answers.append(steps)
        return answers

    def call(self, functions: Mapping[int, Callable[[Any], Any]]) -> dict[int, Any]:
        """See `EnvGroups`."""
        count, asked = self._config.envs_per_worker, []
        for seat in self._seats:
            first = (seat.index - 1) * count
            own = {place - first: fn for place, fn in functions.items() if first <= place < first + count}
            if own:
                asked.append((seat, first, call_command(own)))
        told = [(seat, first, self._tell(seat, message)) for seat, first, message in asked]
        answers = [(first, self._answer(seat, number)) for seat, first, number in told]
        return {first + row: result for first, answer in answers for row, result in answer.items()}

    def stop(self) -> None:
        """See `EnvGroups`."""
        seats, self._seats = self._seats, []
        if seats and self._ray.is_initialized():
            for seat in seats:
                self._hang_up(seat)
            with contextlib.suppress(Exception):
                closing = [seat.serving for seat in seats if seat.serving is not None]
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSING_TIMEOUT_S)
            for seat in seats:
                with contextlib.suppress(Exception):
                    self._ray.kill(seat.actor)
        self._session.stop()

    def _new_seat(self, index: int) -> Seat:
        secret = new_secret()
        return Seat(index, self._actor(index, secret), secret)

    def _actor(self, index: int, secret: bytes) -> Any:
        remote = self._ray.remote(num_cpus=cpus_per_worker(self._config), max_restarts=0)(ServedGroup)
        return remote.remote(self._config, self._maker, index, self._with_infos, secret)

    def _let_serve(self, seat: Seat, started: Any) -> None:
        """Connect to an actor whose environments are made, or were to be."""
        seat.facts, address = self._from_ray(seat, started)
        seat.serving = seat.actor.serve.remote()
        try:
            seat.connection = connected_to(address, seat.secret)
        except (OSError, EOFError) as error:
            raise WorkerError(f"{self._who(seat)} cannot be reached at {address[0]}:{address[1]}: {error}") from error

    def _tell(self, seat: Seat, message: bytes) -> int:
        """Give a command; its number, by which `_answer` knows the answer."""
        assert seat.connection is not None
        seat.asked += 1
        with contextlib.suppress(OSError):  # `_answer` will find out
            seat.connection.send(seat.asked, message)
        return seat.asked

    def _answer(self, seat: Seat, number: int) -> Any:
        """One answer, or the group's error in its own words; WorkerError if its process is gone."""
        connection = seat.connection
        assert connection is not None
        answered, message = 0, bytearray()
        try:
            while answered != number:
                while not connection.has_news(LISTENING_S):
                    if self._ray.wait([seat.serving], timeout=0)[0]:  # without a word, as where a whole node is lost
                        raise EOFError
                answered, message = connection.receive()
        except (EOFError, OSError) as error:
            raise self._loss(seat) from error
        answer = pickle.loads(message)
        if not isinstance(answer, SamplerFailure):
            return answer
        raise answer.error or ShoalError(f"worker {seat.index} failed: {answer.words}\n{answer.traceback}")

    def _loss(self, seat: Seat) -> ShoalError:
        """How a worker was lost whose connection has ended."""
        with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
            try:
                self._from_ray(seat, seat.serving, TELLING_TIMEOUT_S)
            except ShoalError as told:
                return told
        return WorkerError(f"{self._who(seat)} was lost: it has closed its connection")

    def _from_ray(self, seat: Seat, reference: Any, timeout_s: float | None = None) -> Any:
        """What Ray has of a worker, or the group's error in its own words; WorkerError if its process is gone."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except exceptions.GetTimeoutError:
            raise
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise ShoalError(f"worker {seat.index} failed: {error.cause!r}") from error
        except exceptions.RayError as error:
            words = self._session.last_output(seat.facts.pid) if seat.facts is not None else ""
            told = f"; its last words: {words}" if words else ""
            raise WorkerError(f"{self._who(seat)} was lost: its process died{told}") from error

    def _hang_up(self, seat: Seat) -> None:
        connection, seat.connection = seat.connection, None
        if connection is not None:
            connection.close()

    @staticmethod
    def _who(seat: Seat) -> str:
        place = f" on {seat.facts.host} (pid {seat.facts.pid})" if seat.facts is not None else ""
        return f"worker {seat.index}{place}"

    def _replaced(self, seat: Seat, cause: WorkerError, seeds: Seeds) -> GroupReset:
        """Put a new group in the place of a lost one; its first observations."""
        config = self._config
        seat.deaths_in_a_row += 1
        self._restarts += 1
        if seat.deaths_in_a_row > MOST_DEATHS_IN_A_ROW:
            raise WorkerError(f"{cause}\nThat was {seat.deaths_in_a_row} times in a row, without a step in between.")
        if not config.recreate_failed_workers or self._restarts > config.max_worker_restarts:
            raise cause
        log.warning("%s; it is replaced", cause)
        self._hang_up(seat)
        with contextlib.suppress(Exception):
            self._ray.kill(seat.actor)
        seat.secret, seat.facts = new_secret(), None
        seat.actor = self._actor(seat.index, seat.secret)
        try:
            started = seat.actor.start.remote()
            if not self._ray.wait([started], timeout=PATIENCE_S)[0]:
                log.warning("worker %d waits for a host with %g free CPUs", seat.index, cpus_per_worker(config))
            self._let_serve(seat, started)
            # Seeds of its own: those that the lost group began with would lead to the same end.
            fresh = [self._restarts if seed is None else seed for seed in seeds]
            begun: GroupReset = self._answer(seat, self._tell(seat, command("reset", fresh)))
        except WorkerError as lost:
            return self._replaced(seat, lost, seeds)
        begun.incidents += self._loss_incidents(seat, cause)
        return begun

    def _loss_incidents(self, seat: Seat, cause: WorkerError) -> list[Incident]:
        """What became of each environment of a lost group."""
        count = self._config.envs_per_worker
        first = (seat.index - 1) * count
        text = str(cause).splitlines()[0]
        return [
            Incident(
                env_index=first + row,
                worker_index=seat.index,
                seed=0,
                steps_since_seed=0,
                step=0,
                action="unknown",
                cause=text,
                traceback="",
                kind="worker",
            )
            for row in range(count)
        ]

    def _lost_steps(self, begun: GroupReset) -> GroupSteps:
        """A step that did not happen, for all rows of a group that was replaced."""
        count = self._config.envs_per_worker
        none = np.zeros(count, bool)
        rewards = np.zeros(count, np.float32)
        return GroupSteps(begun.obs, rewards, none, none.copy(), ~none, incidents=begun.incidents, infos=begun.infos)

    @staticmethod
    def _placed(seat: Seat, incidents: list[Incident]) -> list[Incident]:
        host = seat.facts.host if seat.facts is not None else ""
        return [incident if incident.host else replace(incident, host=host) for incident in incidents]
