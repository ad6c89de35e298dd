"""Workers as Ray actors: each owns its environments and a copy of the policy, and answers with whole fragments."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Any, TypeVar

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.layout import cpus_per_worker
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, SampleSummary, concatenate
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.errors import EnvError, ShoalError, WorkerError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.ray_session import Session
from shoal.parallel.remote_worker import RemoteWorker, WorkerLocation
from shoal.sampling.worker import Worker, check_count

CLOSING_TIMEOUT_S = 5.0
MOVING_TIMEOUT_S = 60.0  # for workers of a host that leaves to start somewhere else
MOST_SENT_BYTES = 1 << 20  # of weights that go along with the calls; more is put where all can read it
SLOW_START_S = 30.0  # after which a worker that has not started is told of
MOST_DEATHS_IN_A_ROW = 3  # of one worker, without a fragment in between

T = TypeVar("T")
log = logging.getLogger("shoal")


@dataclass
class WorkerSlot:
    """One worker of the set, whichever actor is that worker at the moment."""

    index: int
    actor: Any
    starting: Any  # the answer to `start`, until it is there
    generation: int = 0  # of the actor: answers of one that was replaced are refused
    location: WorkerLocation | None = None
    state: State | None = None  # after its last fragment
    deaths_in_a_row: int = 0
    begun: float = field(default_factory=monotonic)  # when its actor was asked for
    is_told_slow: bool = False


@dataclass(frozen=True)
class RemoteFragment:
    """One worker's part of a sample; its batch stays where it was made until somebody asks for it."""

    slot: WorkerSlot
    summary: SampleSummary
    batch: Any  # a reference


@dataclass(frozen=True)
class AskedFragment:
    """A fragment that a worker was asked for, and may not have made yet."""

    slot: WorkerSlot
    generation: int  # of the slot's actor when it was asked
    batch: Any  # a reference
    version: int = 0  # of the weights, where the learner counts them


Asked = dict[Any, AskedFragment]  # by the reference to what the worker tells of it


@dataclass
class PendingFragments:
    """Fragments that were asked for together, and have not come yet."""

    asked: Asked = field(default_factory=dict)
    staleness: int = 0


class RayWorkers:
    """`num_workers` actors that act as one: the same environments, in the same order, as one worker would have.

    A worker whose process dies costs the fragment it was at: the others' make up the sample, while a new one starts,
    is brought to where the old one stood, and takes part again as soon as it is ready (`recreate_failed_workers`).
    With `ignore_worker_failures` alone, the others go on for good.
    """

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, session: Session) -> None:
        self._config, self._maker, self.session = config, maker, session
        self._ray = session.ray
        self.task: Any = None
        self._slots: list[WorkerSlot] = []
        self.num_remote_worker_restarts = 0
        self._ahead: PendingFragments | None = None
        self._begun: Asked = {}  # each worker's own, by `begin_fragments`
        self._sent: tuple[int, Any] | None = None  # version and state of the policy for those
        self.steps_sampled = 0
        try:
            self._slots = [self._new_slot(index) for index in range(1, config.worker_count + 1)]
            answers = [self._started(position) for position in range(len(self._slots))]
            for slot, (location, _, _) in zip(self._slots, answers, strict=True):
                slot.location, slot.starting = location, None
            first, self.observation_space, self.action_space = answers[0]
            self.agents = first.agents
            self.config = self._config = config = first.resolved(config)
            own = config if config.num_learners == 1 else without_gpu(config)
            spaces = self.observation_space, self.action_space
            self.policy: Policy = build_policy(*spaces, own, maker.user_code, others=first.others)
        except BaseException:
            self.stop()
            raise

    @property
    def num_healthy_workers(self) -> int:
        """See `Workers`."""
        return sum(slot.starting is None for slot in self._slots)

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        fragments, summary = self.sample_apart(steps)
        start = perf_counter()
        try:
            batches = self._ray.get([fragment.batch for fragment in fragments])
        except self._ray.exceptions.RayError:  # a node was lost between its workers' answers and their batches
            log.warning("a part of the batch was lost with its node; it is sampled again")
            return self.sample(steps)
        spent = summary.communicate_time_s + perf_counter() - start
        width, indices = self._config.envs_per_worker, None
        if len(fragments) < self._config.worker_count:
            firsts = [(fragment.slot.index - 1) * width for fragment in fragments]
            indices = [first + row for first in firsts for row in range(width)]
        told = {**vars(summary), "communicate_time_s": spent}
        return Sample(**told, batch=concatenate(batches), env_indices=indices)

    def sample_apart(self, steps: int) -> tuple[list[RemoteFragment], SampleSummary]:
        """As `sample`, but every worker's batch stays where it was made."""
        start = perf_counter()
        asked, self._ahead = self._ahead or self._ask_for_fragments(steps), None
        waiting = perf_counter()
        while not (fragments := self._collect(asked)):  # all have died: whoever is back first samples
            asked = self._ask_for_fragments(steps)
        waited = perf_counter() - waiting
        if self._config.sample_async:
            self._ahead = self._ask_for_fragments(steps)
            self._ahead.staleness = 1
        fragments.sort(key=lambda fragment: fragment.slot.index)
        # A sample that was asked for long ago may have been waited for while it was made, or not at all.
        busy = max(f.summary.env_time_s + f.summary.policy_time_s for f in fragments)
        spent = perf_counter() - start - min(waited, busy)
        return fragments, replace(self._joined(fragments, asked.staleness, spent), wait_s=waited)

    @property
    def oldest_pending_version(self) -> int | None:
        """See `Workers`."""
        return min((asked.version for asked in self._begun.values()), default=None)

    def begin_fragments(self, steps: int, version: int) -> None:
        """See `Workers`."""
        if self._sent is None:
            self.get_state()  # now, while nobody samples: later it would wait for those that do
        self._admit_started()
        busy = {asked.slot.index for asked in self._begun.values() if asked.generation == asked.slot.generation}
        resting = [slot for slot in self._slots if slot.starting is None and slot.index not in busy]
        if not resting:
            return
        if self._sent is None or self._sent[0] != version:
            self._sent = version, self._policy_to_send()
        for slot in resting:
            told, asked = self._ask(slot, steps, self._sent[1], version)
            self._begun[told] = asked

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        start = perf_counter()
        waited = 0.0
        samples: list[Sample] = []
        while self._begun and not samples:
            ready = self._finished(self._begun, None if wait else 0)
            waited = perf_counter() - start
            for told in ready:
                fragment = self._received(told, self._begun.pop(told))
                if fragment is not None:
                    samples += self._fetched(fragment)
            if not wait:
                break
        if samples:
            spent = perf_counter() - start - waited
            samples[0] = replace(samples[0], wait_s=waited, communicate_time_s=spent)
        return samples

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """See `Workers`."""
        answers = self._ask_all("apply", fn, self.policy.get_state())
        for _, changed in answers:
            if changed is not None:  # weights that are set on a worker are set for all
                self.policy.set_state(changed)
                break
        return [result for result, _ in answers]

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Workers`."""
        return [result for results in self.foreach_worker(lambda w: w.foreach_env(fn)) for result in results]

    def get_state(self) -> list[State]:
        """See `Workers`."""
        if any(slot.state is None for slot in self._slots):
            for slot, state in zip(self._slots, self._ask_all("get_state"), strict=True):
                slot.state = slot.state or state
        return [slot.state for slot in self._slots if slot.state is not None]

    def set_state(self, states: list[State]) -> int:
        """See `Workers`."""
        check_count(states, len(self._slots))
        self._ahead, self._begun, self._sent = None, {}, None
        for slot, state in zip(self._slots, states, strict=True):
            slot.state = state
        pairs = zip(self._slots, states, strict=True)
        return sum(self._answer(answer) for answer in [slot.actor.set_state.remote(state) for slot, state in pairs])

    def places(self) -> dict[int, str]:
        """The node of every worker that is up, by its index."""
        return {slot.index: slot.location.node for slot in self._slots if slot.location is not None}

    def stop(self) -> None:
        """See `Workers`."""
        # Simulators may own processes and files: they get the time to close, but a hanging one cannot hold us up.
        if self._slots:  # Ray's `get` starts a new Ray where there is none
            closing = [slot.actor.stop.remote() for slot in self._slots if slot.starting is None]
            with contextlib.suppress(Exception):
                self._ray.get(closing, timeout=CLOSING_TIMEOUT_S)
        for slot in self._slots:
            with contextlib.suppress(Exception):
                self._ray.kill(slot.actor)
        self._slots = []
        self.session.stop()

    def _new_slot(self, index: int) -> WorkerSlot:
        actor = self._actor(index, 0)
        return WorkerSlot(index, actor, actor.start.remote(None))

    def _started(self, position: int) -> Any:
        """What a new worker tells of itself; one whose first word is lost on the way is started once more."""
        slot = self._slots[position]
        try:
            return self._answer(slot.starting)
        except WorkerError as lost:
            if not isinstance(lost.__cause__, self._ray.exceptions.ActorUnavailableError):
                raise
            log.warning("%s; it is started again", lost)
        self._ray.kill(slot.actor)
        self._slots[position] = self._new_slot(slot.index)
        return self._answer(self._slots[position].starting)

    def _actor(self, index: int, generation: int) -> Any:
        remote = self._ray.remote(num_cpus=cpus_per_worker(self._config), max_restarts=0)(RemoteWorker)
        return remote.remote(without_gpu(self._config), self._maker, index, generation)

    def _ask_for_fragments(self, steps: int) -> PendingFragments:
        """Ask all workers that are up for a fragment with the present weights; wait for one if none is."""
        self._move_from_leaving_nodes()
        self._admit_started()
        weights = self._policy_to_send()
        pending = PendingFragments()
        for slot in self._slots:
            if slot.starting is None:
                told, asked = self._ask(slot, steps, weights)
                pending.asked[told] = asked
        return pending

    def _move_from_leaving_nodes(self) -> None:
        """Start the workers of hosts that were asked to leave somewhere else, between two fragments.

        They go on where they stand, so that the result stays the same; where there is no room they are waited for no
        longer than this.
        """
        leaving = self.session.leaving_nodes()
        moved = [slot for slot in self._slots if slot.location is not None and slot.location.node in leaving]
        for slot in moved:
            log.info("worker %d leaves %s, which was asked to leave", slot.index, slot.location and slot.location.host)
            self._renew(slot, slot.state)
        if moved:
            self._ray.wait([slot.starting for slot in moved], num_returns=len(moved), timeout=MOVING_TIMEOUT_S)

    def _renew(self, slot: WorkerSlot, state: State | None) -> None:
        """Put a new actor in the place of a worker's old one; it begins in a state, or anew."""
        with contextlib.suppress(Exception):
            self._ray.kill(slot.actor)
        slot.generation += 1
        slot.actor = self._actor(slot.index, slot.generation)
        slot.starting = slot.actor.start.remote(state)
        slot.location = None
        slot.begun, slot.is_told_slow = monotonic(), False

    def _policy_to_send(self) -> Any:
        """The policy's state as it is now, or a reference to it where that saves sending it many times."""
        state = self.policy.get_state()
        if len(self._slots) * sum(array.nbytes for array in state.arrays.values()) > MOST_SENT_BYTES:
            return self._ray.put(state)
        return state

    def _ask(self, slot: WorkerSlot, steps: int, policy_state: Any, version: int = 0) -> tuple[Any, AskedFragment]:
        """Ask one worker for a fragment."""
        told, batch = slot.actor.sample.options(num_returns=2).remote(steps, policy_state, self.task)
        return told, AskedFragment(slot, slot.generation, batch, version)

    def _collect(self, pending: PendingFragments) -> list[RemoteFragment]:
        """What comes back; those that die meanwhile are replaced, and nobody waits for them."""
        fragments = []
        asked = dict(pending.asked)
        while asked:
            for told in self._finished(asked):
                fragment = self._received(told, asked.pop(told))
                if fragment is not None:
                    fragments.append(fragment)
        return fragments

    def _finished(self, asked: Asked, timeout_s: float | None = None) -> list[Any]:
        """Which of the fragments are there; waits for the first of them, for so long at most."""
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=timeout_s)
        more, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return list(dict.fromkeys([*ready, *more]))

    def _received(self, told: Any, asked: AskedFragment) -> RemoteFragment | None:
        """A finished fragment; None where its worker has died, which is replaced."""
        slot = asked.slot
        if slot.generation != asked.generation:
            return None
        try:
            answered, summary, state = self._answer(told, slot)
        except WorkerError as lost:
            self._replace_or_drop(slot, lost)
            return None
        assert answered == asked.generation
        slot.state, slot.deaths_in_a_row = state, 0
        self.steps_sampled += summary.num_steps
        return RemoteFragment(slot, replace(summary, weights_version=asked.version), asked.batch)

    def _fetched(self, fragment: RemoteFragment) -> list[Sample]:
        """One worker's fragment as a sample of its own; none where it was lost with its node."""
        try:
            batch = self._ray.get(fragment.batch)
        except self._ray.exceptions.RayError:
            log.warning("a fragment was lost with its node")
            return []
        width = batch.valid.shape[1]
        columns = np.arange((fragment.slot.index - 1) * width, fragment.slot.index * width)
        summary = self._joined([fragment], 0, 0.0)
        version = fragment.summary.weights_version
        return [Sample(**{**vars(summary), "weights_version": version}, batch=replace(batch, columns=columns))]

    def _replace_or_drop(self, slot: WorkerSlot, cause: WorkerError) -> None:
        """Put a new worker in the place of a lost one, or go on without, or give up."""
        slot.deaths_in_a_row += 1
        config = self._config
        often = slot.deaths_in_a_row > MOST_DEATHS_IN_A_ROW
        if (
            config.recreate_failed_workers
            and not often
            and self.num_remote_worker_restarts < config.max_worker_restarts
        ):
            self.num_remote_worker_restarts += 1
            log.warning("%s; it is replaced", cause)
            # Where going on from the old place kills it again, it begins anew.
            self._renew(slot, slot.state if slot.deaths_in_a_row == 1 else None)
            return
        if config.ignore_worker_failures and len(self._slots) > 1:
            log.warning("%s; the others continue", cause)
            self._slots.remove(slot)
            return
        if often:
            raise WorkerError(
                f"{cause}\nThat was {slot.deaths_in_a_row} times in a row, without a fragment in between."
            )
        if config.recreate_failed_workers:
            raise WorkerError(f"{cause}\nmax_worker_restarts is {config.max_worker_restarts}.")
        raise cause

    def _admit_started(self) -> None:
        """See which of the new workers have started; wait for the first if nobody else is up."""
        starting = {slot.starting: slot for slot in self._slots if slot.starting is not None}
        while starting:
            alone = len(starting) == len(self._slots)
            ready, _ = self._ray.wait(list(starting), num_returns=1, timeout=SLOW_START_S if alone else 0)
            if not ready:
                self._tell_of_slow(starting.values())
                if not alone:
                    return
            for answer in ready:
                slot = starting.pop(answer)
                try:
                    slot.location, _, _ = self._answer(answer, slot)
                    slot.starting = None
                except WorkerError as lost:
                    self._replace_or_drop(slot, lost)
                    if slot in self._slots:
                        starting[slot.starting] = slot

    def _tell_of_slow(self, starting: Iterable[WorkerSlot]) -> None:
        """Tell once of each worker that cannot start, or takes very long."""
        for slot in starting:
            since = monotonic() - slot.begun
            if since >= SLOW_START_S and not slot.is_told_slow:
                slot.is_told_slow = True
                up = self.num_healthy_workers
                meanwhile = f"training continues with {up} of {len(self._slots)}" if up else "training waits for it"
                log.warning(
                    "worker %d has not started for %.0f s: Ray has no free cores for it, or its environments do not "
                    "open; %s",
                    slot.index,
                    since,
                    meanwhile,
                )

    def _joined(self, fragments: list[RemoteFragment], staleness: int, communicate_time_s: float) -> SampleSummary:
        """What the driver tells of all fragments together."""
        summaries = [fragment.summary for fragment in fragments]
        return SampleSummary(
            num_steps=sum(s.num_steps for s in summaries),
            episodes=[episode for s in summaries for episode in s.episodes],
            incidents=[
                replace(incident, host=f.slot.location.host if f.slot.location else "")
                for f in fragments
                for incident in f.summary.incidents
            ],
            env_time_s=sum(s.env_time_s for s in summaries) / len(self._slots),
            policy_time_s=sum(s.policy_time_s for s in summaries) / len(self._slots),
            communicate_time_s=communicate_time_s,
            staleness=staleness,
            notes=tuple(note for s in summaries for note in s.notes),
        )

    def _ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """What every worker answers, in order; one that is lost meanwhile is replaced and asked again."""

        def ask(slot: WorkerSlot) -> Any:
            return getattr(slot.actor, method).remote(*arguments)

        answers = []
        for slot, answer in [(slot, ask(slot)) for slot in self._slots]:
            while slot in self._slots:
                try:
                    answers.append(self._answer(answer, slot))
                    break
                except WorkerError as lost:
                    self._replace_or_drop(slot, lost)
                    answer = ask(slot)
        return answers

    def _answer(self, reference: Any, slot: WorkerSlot | None = None) -> Any:
        """One answer, or the worker's error in its own words; WorkerError if the worker is gone."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, EnvError) and slot is not None and slot.location is not None:
                host = slot.location.host
                located = EnvError(f"worker {slot.index} on {host}: {error.cause}")
                located.incidents = [replace(incident, host=host) for incident in error.cause.incidents]
                raise located from None
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise ShoalError(f"a worker failed: {error.cause!r}\n{error}") from error
        except exceptions.RayError as error:
            raise WorkerError(self._loss_message(slot, error)) from error

    def _loss_message(self, slot: WorkerSlot | None, error: Exception) -> str:
        """Who was lost, where, and what it said last."""
        if slot is None or slot.location is None:
            return f"a worker was lost while it started: {_reason(error)}"
        words = self.session.last_output(slot.location.pid)
        told = f"; its last words: {words}" if words else ""
        return f"worker {slot.index} on {slot.location.host} (pid {slot.location.pid}) was lost: {_reason(error)}{told}"


def without_gpu(config: AlgorithmConfig) -> AlgorithmConfig:
    """The configuration of a process that does not learn: the same network, on the CPU."""
    return unchecked(config, num_gpus=0, framework="torch") if config.num_gpus else config


def _reason(error: Exception) -> str:
    """What Ray knows of a death, in one line."""
    text = str(error)
    if "OOM" in text and "memory monitor" in text.lower():
        return "Ray ended it because the machine ran out of memory"
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("The actor is dead because") or "died unexpectedly" in line:
            return "its process died"
    return (text.splitlines() or [type(error).__name__])[0]
