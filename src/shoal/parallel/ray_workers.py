"""Workers as processes below one Ray actor per host: the driver talks to hosts, once in an iteration to each."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter, sleep
from typing import Any, TypeVar

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, Sample, SampleSummary, concatenate
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.envs.process_messages import packed
from shoal.errors import EnvError, ShoalError, WorkerError
from shoal.machine.broadcasts import leave_ending_to_starter
from shoal.machine.processes import exit_as_orphan
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.host import MOST_DEATHS_IN_A_ROW, HostAnswer, HostPlan, HostRequest, Loss, SamplerHost
from shoal.parallel.placement import Bundle, Placement, shared_among
from shoal.parallel.ray_session import Session
from shoal.parallel.sampler_process import SamplerFailure, dumped
from shoal.parallel.shared_messages import message_in
from shoal.sampling.worker import Worker, check_count

CLOSING_TIMEOUT_S = 5.0
MOVING_TIMEOUT_S = 60.0  # for workers of a host that leaves to start somewhere else
SLOW_START_S = 30.0  # after which a worker that has not started is told of
LOOKING_S = 1.0  # between two looks at whether Ray lives, while nothing answers
LOOK_AGAIN_S = 0.2  # for a node with room, where there is none
MOST_SENT_BYTES = 1 << 20  # of weights that go along with the calls; more is put where all can read it
# An iteration waits for the learner: samplers beside it take the time that it leaves. One that the kernel puts on the
# learner's core has 3 % of that with this niceness, until it is moved to another; with 5 it would have a quarter.
BESIDE_LEARNER = 15  # the niceness of samplers that work while it learns
COLLECT, STOP = "collect", "stop"  # what a host does beside its other calls

T = TypeVar("T")
log = logging.getLogger("shoal")


@dataclass(eq=False)
class HostSlot:
    """One host actor, and what the driver knows of it."""

    node: str
    actor: Any
    workers: list[int]
    starting: Any  # the answer to the first `add`, until it is there
    name: str = ""
    up: list[int] = field(default_factory=list)  # workers that can be asked
    collecting: tuple[Any, Any] | None = None  # the references of a `collect` that is not answered


@dataclass(frozen=True)
class RemoteFragment:
    """One worker's part of a sample; its batch stays where it was made until somebody asks for it."""

    index: int  # of the worker
    node: str
    summary: SampleSummary
    batches: Any  # a reference to those of all workers of its host
    place: int  # among them


@dataclass
class PendingFragments:
    """Fragments that were asked for together, and have not come yet."""

    asked: dict[Any, tuple[HostSlot, Any]] = field(default_factory=dict)  # told: of which host, and the batches
    staleness: int = 0


class HostActor(SamplerHost):
    """A host as Ray's workers have it: deaf to what a scheduler tells a whole job, and gone with its raylet."""

    def __init__(self, plan: HostPlan) -> None:
        leave_ending_to_starter()
        exit_as_orphan()
        super().__init__(plan)


class RayWorkers:
    """`num_workers` processes that act as one: the same environments, in the same order, as one worker would have.

    A worker whose process dies costs the fragment it was at: the others' make up the sample, while its host starts a
    new one, which is brought to where the old one stood, and takes part again as soon as it is ready
    (`recreate_failed_workers`). With `ignore_worker_failures` alone, the others go on for good. A host that dies costs
    the fragments of its workers, which come back on whatever nodes have room.
    """

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, session: Session) -> None:
        self._config, self.session = config, session
        self._ray = session.ray
        self.task: Any = None
        self.num_remote_worker_restarts = 0
        self.steps_sampled = 0
        self._hosts: list[HostSlot] = []
        self._homeless = list(range(1, config.worker_count + 1))  # workers that wait for a node with room
        self._states: dict[int, bytes | None] = dict.fromkeys(self._homeless)  # after their last fragments
        self._deaths: dict[int, int] = dict.fromkeys(self._homeless, 0)  # with their hosts, without a fragment between
        self._epoch = 0  # how often workers were given other states
        self._absent: dict[int, float] = {}  # workers that are not up, since when
        self._told_slow: set[int] = set()  # those of them that were told of
        self._ahead: PendingFragments | None = None
        self._begun: dict[int, int] = {}  # the version that a worker samples with since `begin_fragments`
        self._sent: tuple[int, Any] | None = None  # version and state of the policy for those
        self._placement: Placement | None = None
        self._packed = packed((without_gpu(config), maker))
        try:
            self._placement = Placement(self._ray, config)
            first = self._start_all()
            location, self.observation_space, self.action_space = pickle.loads(first)
            self.agents = location.agents
            self.config = self._config = config = location.resolved(config)
            own = config if config.num_learners == 1 else without_gpu(config)
            spaces = self.observation_space, self.action_space
            self.policy: Policy = build_policy(*spaces, own, maker.user_code, others=location.others)
        except BaseException:
            self.stop()
            raise

    @property
    def num_healthy_workers(self) -> int:
        """See `Workers`."""
        return sum(len(host.up) for host in self._hosts)

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        fragments, summary = self.sample_apart(steps)
        start = perf_counter()
        try:
            batches = self._fetched(fragments)
        except self._ray.exceptions.RayError:  # a node was lost between its workers' answers and their batches
            log.warning("a part of the batch was lost with its node; it is sampled again")
            return self.sample(steps)
        spent = summary.communicate_time_s + perf_counter() - start
        width, indices = self._config.envs_per_worker, None
        if len(fragments) < self._config.worker_count:
            firsts = [(fragment.index - 1) * width for fragment in fragments]
            indices = [first + row for first in firsts for row in range(width)]
        told = {**vars(summary), "communicate_time_s": spent}
        return Sample(**told, batch=concatenate(batches), env_indices=indices)

    def sample_apart(self, steps: int) -> tuple[list[RemoteFragment], SampleSummary]:
        """As `sample`, but every worker's batch stays where it was made."""
        start = perf_counter()
        asked, self._ahead = self._ahead or self._ask_for_fragments(steps), None
        waiting = perf_counter()
        while not (fragments := self._collect(asked)):  # all have died: whoever is back first samples
            asked = self._ask_for_fragments(steps, waits=True)
        waited = perf_counter() - waiting
        if self._config.sample_async:
            self._ahead = self._ask_for_fragments(steps)
            self._ahead.staleness = 1
        fragments.sort(key=lambda fragment: fragment.index)
        # A sample that was asked for long ago may have been waited for while it was made, or not at all.
        busy = max(f.summary.env_time_s + f.summary.policy_time_s for f in fragments)
        spent = perf_counter() - start - min(waited, busy)
        return fragments, replace(self._joined(fragments, asked.staleness, spent), wait_s=waited)

    @property
    def oldest_pending_version(self) -> int | None:
        """See `Workers`."""
        return min(self._begun.values(), default=None)

    def begin_fragments(self, steps: int, version: int) -> None:
        """See `Workers`."""
        if self._sent is None:
            self.get_state()  # now, while nobody samples: later it would wait for those that do
        self._admit_started()
        for host in self._started():
            resting = tuple(index for index in host.up if index not in self._begun)
            if not resting:
                continue
            if self._sent is None or self._sent[0] != version:
                self._sent = version, self._policy_to_send()
            host.actor.begin.remote(self._asked(steps, version, resting), self._sent[1])
            self._begun |= dict.fromkeys(resting, version)
        self._ask_for_news()

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        start = perf_counter()
        waited = 0.0
        samples: list[Sample] = []
        while not samples and (self._begun or not self.num_healthy_workers):
            hosts = self._ask_for_news()
            if not hosts:
                break
            ready = self._first_of(hosts, None if wait else 0)
            waited = perf_counter() - start
            for told in ready:
                host = hosts[told]
                assert host.collecting is not None
                (_, batches), host.collecting = host.collecting, None
                for fragment in self._received(host, told, batches):
                    self._begun.pop(fragment.index, None)
                    samples += self._sample_of(fragment)
            if not wait:
                break
        if samples:
            spent = perf_counter() - start - waited
            samples[0] = replace(samples[0], wait_s=waited, communicate_time_s=spent)
        return samples

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """See `Workers`."""
        return self._applied(fn, fn)

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Workers`."""
        return [result for results in self._applied(lambda w: w.foreach_env(fn), fn) for result in results]

    def get_state(self) -> list[State]:
        """See `Workers`."""
        unknown = [index for index in self._workers() if self._states[index] is None]
        if unknown:
            self._states |= self._ask_all("get_state", dict.fromkeys(unknown, ()))
        return [pickle.loads(state) for index in self._workers() if (state := self._states[index]) is not None]

    def set_state(self, states: list[State]) -> int:
        """See `Workers`."""
        workers = self._workers()
        check_count(states, len(workers))
        self._ahead, self._begun, self._sent = None, {}, None
        self._epoch += 1
        self._states = {index: dumped(state) for index, state in zip(workers, states, strict=True)}
        found = self._ask_all("set_state", {index: (state,) for index, state in self._states.items()})
        return sum(pickle.loads(lost) for lost in found.values())

    def places(self) -> dict[int, str]:
        """The node of every worker that is up, by its index."""
        return {index: host.node for host in self._hosts for index in host.up}

    def stop(self) -> None:
        """See `Workers`."""
        # Simulators may own processes and files: they get the time to close, but a hanging one cannot hold us up.
        if self._hosts:  # Ray's `get` starts a new Ray where there is none
            closing = [host.actor.stop.options(concurrency_group=STOP).remote() for host in self._started()]
            with contextlib.suppress(Exception):
                self._ray.get(closing, timeout=CLOSING_TIMEOUT_S)
        for host in self._hosts:
            with contextlib.suppress(Exception):
                self._ray.kill(host.actor)
        self._hosts = []
        if self._placement is not None:
            self._placement.remove()
        self.session.stop()

    def _applied(self, fn: Callable[[Worker], T], owner: Any) -> list[T]:
        """The result of `fn(worker)` for every worker; `owner` is what the user has defined of it."""
        function = packed(fn, owner)
        found = self._ask_all("apply", dict.fromkeys(self._workers(), (function,)), self.policy.get_state())
        answers = [pickle.loads(found[index]) for index in sorted(found)]
        for _, changed in answers:
            if changed is not None:  # weights that are set on a worker are set for all
                self.policy.set_state(changed)
                break
        return [result for result, _ in answers]

    def _start_all(self) -> bytes:
        """Start every worker; place and spaces of the first."""
        self._place_homeless(replaces=False)
        while self._homeless:  # a node was lost before its workers were there
            sleep(LOOK_AGAIN_S)
            self._place_homeless(replaces=False)
        starting = {host.starting: host for host in self._hosts}
        first = b""
        while starting:
            for told in self._first_of(starting):
                host, answer = self._first_answer(starting.pop(told))
                for loss in answer.losses:
                    raise WorkerError(loss.words)
                self._heed(host, answer)
                first = first or answer.first
        return first

    def _first_answer(self, host: HostSlot) -> tuple[HostSlot, HostAnswer]:
        """What a new host tells; one whose first word is lost on the way is started once more."""
        try:
            return host, self._gotten(host.starting)
        except WorkerError as lost:
            if not isinstance(lost.__cause__, self._ray.exceptions.ActorUnavailableError):
                raise
            log.warning("%s: %s; started again", _named(host.workers), lost)
        self._ray.kill(host.actor)
        self._hosts.remove(host)
        self._homeless = host.workers
        self._place_homeless(replaces=False)
        return self._hosts[-1], self._gotten(self._hosts[-1].starting)

    def _place_homeless(self, replaces: bool = True) -> None:
        """Start the workers that have no host, where there is room; `replaces`: also those that die meanwhile."""
        assert self._placement is not None
        rooms = self._placement.rooms()
        placed = [host.node for host in self._hosts for _ in host.workers]
        free = {node: len(bundles) for node, bundles in rooms.items()}
        for node, workers in shared_among(free, self._homeless, placed).items():
            # Where going on from the old place kills it again, it begins anew.
            states = {index: self._states[index] if self._deaths[index] <= 1 else None for index in workers}
            known = next((host for host in self._hosts if host.node == node), None)
            if known is not None:
                known.actor.add.remote(states, self._restarts_left, waits=False)
                known.workers += workers
            else:
                actor = self._host_actor(node, rooms[node][0])
                starting = actor.add.remote(states, self._restarts_left, replaces=replaces)
                self._hosts.append(HostSlot(node, actor, workers, starting))
        housed = {index for host in self._hosts for index in host.workers}
        self._homeless = [index for index in self._homeless if index not in housed]

    def _host_actor(self, node: str, bundle: Bundle) -> Any:
        assert self._placement is not None
        config = self._config
        uses_torch = config.framework == "torch" or config.model.custom_model is not None or config.model.memory
        plan = HostPlan(
            self._packed,
            config.recreate_failed_workers,
            threads=max(1, int(config.num_cpus_per_worker)),
            niceness=BESIDE_LEARNER if config.sample_async else 0,
            modules=("torch",) if uses_torch else (),
            host_slots=slots_of(self._ray, node) if config.env_ranks else None,
        )
        remote = self._ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={COLLECT: 1, STOP: 1})(HostActor)
        return remote.options(scheduling_strategy=self._placement.strategy(bundle)).remote(plan)

    def _started(self) -> list[HostSlot]:
        return [host for host in self._hosts if host.starting is None]

    def _workers(self) -> list[int]:
        """All workers, up or not."""
        return sorted([*self._homeless, *(index for host in self._hosts for index in host.workers)])

    @property
    def _restarts_left(self) -> int:
        return max(0, self._config.max_worker_restarts - self.num_remote_worker_restarts)

    def _asked(
        self, steps: int, version: int = 0, workers: tuple[int, ...] | None = None, waits: bool = False
    ) -> HostRequest:
        return HostRequest(steps, packed(self.task), self._restarts_left, version, workers, waits, self._epoch)

    def _ask_for_fragments(self, steps: int, waits: bool = False) -> PendingFragments:
        """Ask the hosts for a fragment of all workers that are up, with the present weights; wait if none is."""
        self._move_from_leaving_nodes()
        self._admit_started()
        weights = self._policy_to_send()
        pending = PendingFragments()
        asked = self._asked(steps, waits=waits)
        for host in self._started():
            told, batches = host.actor.sample.options(num_returns=2).remote(asked, weights)
            pending.asked[told] = host, batches
        return pending

    def _move_from_leaving_nodes(self) -> None:
        """Start the workers of hosts that were asked to leave somewhere else, between two fragments.

        They go on where they stand, so that the result stays the same; where there is no room they are waited for no
        longer than this.
        """
        assert self._placement is not None
        leaving = self.session.leaving_nodes()
        moved = [host for host in self._hosts if host.node in leaving]
        if not moved or not self._placement.may_move:
            return
        for host in moved:
            for index in host.workers:
                log.info("worker %d leaves %s, which was asked to leave", index, host.name)
            self._hosts.remove(host)
            with contextlib.suppress(Exception):
                self._ray.kill(host.actor)
            self._homeless = sorted([*self._homeless, *host.workers])
        self._placement.leave(leaving, len(self._workers()))
        self._await_all_up(monotonic() + MOVING_TIMEOUT_S)

    def _await_all_up(self, until: float) -> None:
        """Wait for every worker, but not longer than until then."""
        while monotonic() < until:
            if self._homeless:
                self._place_homeless()
            starting = {host.starting: host for host in self._hosts if host.starting is not None}
            for told in self._first_of(starting, LOOK_AGAIN_S) if starting else []:
                self._admit(starting[told])
            for host in self._started():
                if len(host.up) < len(host.workers):
                    self._hear(host, host.actor.news.remote())
            if self.num_healthy_workers == len(self._workers()):
                return
            sleep(LOOK_AGAIN_S)

    def _policy_to_send(self) -> Any:
        """The policy's state as it is now, or a reference to it where that saves sending it many times."""
        state = self.policy.get_state()
        if len(self._hosts) * sum(array.nbytes for array in state.arrays.values()) > MOST_SENT_BYTES:
            return self._ray.put(state)
        return state

    def _collect(self, pending: PendingFragments) -> list[RemoteFragment]:
        """What comes back, of those that live."""
        fragments = []
        asked = dict(pending.asked)
        while asked:
            for told in self._first_of(asked):
                host, batches = asked.pop(told)
                fragments += self._received(host, told, batches)
        return fragments

    def _first_of(self, references: Mapping[Any, Any], timeout_s: float | None = None) -> list[Any]:
        """Which of these are there; waits for the first of them, for so long at most."""
        ready = self._awaited(list(references), timeout_s)
        more, _ = self._ray.wait(list(references), num_returns=len(references), timeout=0)
        return list(dict.fromkeys([*ready, *more]))

    def _awaited(self, references: list[Any], timeout_s: float | None = None) -> list[Any]:
        """The first of these, where it comes in time; WorkerError where none can come any more."""
        until = None if timeout_s is None else monotonic() + timeout_s
        while True:
            left = LOOKING_S if until is None else min(LOOKING_S, max(0.0, until - monotonic()))
            ready, _ = self._ray.wait(references, num_returns=1, timeout=left)
            if ready or (until is not None and monotonic() >= until):
                return list(ready)
            self.session.check()

    def _received(self, host: HostSlot, told: Any, batches: Any) -> list[RemoteFragment]:
        """The fragments that a host answers with; none where it is lost, and its workers start elsewhere."""
        answer = self._hear(host, told) if host in self._hosts else None
        if answer is None:
            return []
        fragments = []
        for place, each in enumerate(answer.fragments):
            if each.epoch != self._epoch:
                continue
            self._states[each.index], self._deaths[each.index] = each.state, 0
            summary = replace(pickle.loads(each.summary), weights_version=each.version)
            if summary.incidents:
                summary = replace(summary, incidents=[replace(i, host=host.name) for i in summary.incidents])
            self.steps_sampled += summary.num_steps
            fragments.append(RemoteFragment(each.index, host.node, summary, batches, place))
        return fragments

    def _heed(self, host: HostSlot, answer: HostAnswer) -> None:
        """Take in what a host has told of its workers; raises what ends the run."""
        host.up, host.name = answer.up, answer.host
        is_first, host.starting = host.starting is not None, None
        for loss in answer.losses:
            self._begun.pop(loss.index, None)
            self._heed_loss(host, loss)
        if answer.failure is not None:
            index, failure = answer.failure
            raise _error_of(pickle.loads(failure), "" if is_first else f"worker {index} on {host.name}", host.name)

    def _heed_loss(self, host: HostSlot, loss: Loss) -> None:
        """Count a worker that was replaced, or go on without it, or give up."""
        if loss.is_replaced:
            self.num_remote_worker_restarts += 1
            log.warning("%s; it is replaced", loss.words)
            return
        if loss.index in host.workers:
            host.workers.remove(loss.index)
        self._give_up(loss.words, loss.deaths_in_a_row)

    def _lose_host(self, host: HostSlot, cause: WorkerError) -> None:
        """Have the workers of a lost host start anew, or go on without them, or give up."""
        self._hosts.remove(host)
        with contextlib.suppress(Exception):
            self._ray.kill(host.actor)
        for index in host.workers:
            self._begun.pop(index, None)
            self._deaths[index] += 1
        most = max((self._deaths[index] for index in host.workers), default=0)
        words = f"{_named(host.workers)} on {host.name or 'a host'} {_were(host.workers)} lost: {cause}"
        config = self._config
        if config.recreate_failed_workers and most <= MOST_DEATHS_IN_A_ROW and self._restarts_left >= len(host.workers):
            self.num_remote_worker_restarts += len(host.workers)
            log.warning("%s; replaced as soon as there is room", words)
            self._homeless = sorted([*self._homeless, *host.workers])
            return
        self._give_up(words, most)

    def _give_up(self, words: str, deaths_in_a_row: int) -> None:
        """Go on without those that are lost for good, if that is asked for and others are left."""
        config = self._config
        if config.ignore_worker_failures and self._workers():
            log.warning("%s; the others continue", words)
            return
        if deaths_in_a_row > MOST_DEATHS_IN_A_ROW:
            raise WorkerError(f"{words}\nThat was {deaths_in_a_row} times in a row, without a fragment in between.")
        if config.recreate_failed_workers:
            raise WorkerError(f"{words}\nmax_worker_restarts is {config.max_worker_restarts}.")
        raise WorkerError(words)

    def _admit_started(self) -> None:
        """See which new hosts have started; wait for the first if no other is there."""
        while True:
            if self._homeless:
                self._place_homeless()
            self._tell_of_slow()
            starting = {host.starting: host for host in self._hosts if host.starting is not None}
            is_alone = len(starting) == len(self._hosts)
            if not self._hosts:
                self.session.check()
                sleep(LOOK_AGAIN_S)
                continue
            ready = self._first_of(starting, SLOW_START_S if is_alone else 0) if starting else []
            for told in ready:
                self._admit(starting[told])
            if self._started():
                return

    def _tell_of_slow(self) -> None:
        """Tell once of each worker that cannot start, or takes very long."""
        workers, up = self._workers(), {index for host in self._hosts for index in host.up}
        self._absent = {index: self._absent.get(index, monotonic()) for index in workers if index not in up}
        self._told_slow &= self._absent.keys()
        meanwhile = f"training continues with {len(up)} of {len(workers)}" if up else "training waits for it"
        for index, begun in self._absent.items():
            since = monotonic() - begun
            if since >= SLOW_START_S and index not in self._told_slow:
                self._told_slow.add(index)
                log.warning(
                    "worker %d has not started for %.0f s: Ray has no free cores for it, or its environments do not "
                    "open; %s",
                    index,
                    since,
                    meanwhile,
                )

    def _admit_all(self) -> None:
        """Wait for every host that is starting."""
        for host in list(self._hosts):
            if host.starting is not None:
                self._admit(host)

    def _admit(self, host: HostSlot) -> None:
        """Take in that a host has started, or is lost."""
        self._hear(host, host.starting)

    def _hear(self, host: HostSlot, told: Any) -> HostAnswer | None:
        """Take in what a host answers; None where it is lost."""
        try:
            answer = self._gotten(told)
        except WorkerError as lost:
            self._lose_host(host, lost)
            return None
        self._heed(host, answer)
        return answer

    def _ask_for_news(self) -> dict[Any, HostSlot]:
        """The hosts that are asked for finished fragments, or for workers that come up, by what they will tell."""
        asked = {}
        for host in self._started():
            is_awaited = len(host.up) < len(host.workers) or any(index in self._begun for index in host.workers)
            if host.collecting is None and is_awaited:
                call = host.actor.collect.options(num_returns=2, concurrency_group=COLLECT)
                host.collecting = tuple(call.remote())
            if host.collecting is not None:
                asked[host.collecting[0]] = host
        return asked

    def _fetched(self, fragments: list[RemoteFragment]) -> list[Batch]:
        """The batches of fragments, each host's fetched at once; their arrays are where Ray has put them."""
        references = list(dict.fromkeys(fragment.batches for fragment in fragments))
        found = dict(zip(references, self._ray.get(references), strict=True))
        return [message_in(found[fragment.batches][fragment.place]) for fragment in fragments]

    def _sample_of(self, fragment: RemoteFragment) -> list[Sample]:
        """One worker's fragment as a sample of its own; none where it was lost with its node."""
        try:
            (batch,) = self._fetched([fragment])
        except self._ray.exceptions.RayError:
            log.warning("a fragment was lost with its node")
            return []
        width = batch.valid.shape[1]
        columns = np.arange((fragment.index - 1) * width, fragment.index * width)
        summary = self._joined([fragment], 0, 0.0)
        version = fragment.summary.weights_version
        return [Sample(**{**vars(summary), "weights_version": version}, batch=replace(batch, columns=columns))]

    def _joined(self, fragments: list[RemoteFragment], staleness: int, communicate_time_s: float) -> SampleSummary:
        """What the driver tells of all fragments together."""
        summaries = [fragment.summary for fragment in fragments]
        count = max(1, len(self._workers()))
        return SampleSummary(
            num_steps=sum(s.num_steps for s in summaries),
            episodes=[episode for s in summaries for episode in s.episodes],
            incidents=[incident for s in summaries for incident in s.incidents],
            env_time_s=sum(s.env_time_s for s in summaries) / count,
            policy_time_s=sum(s.policy_time_s for s in summaries) / count,
            communicate_time_s=communicate_time_s,
            staleness=staleness,
            notes=tuple(note for s in summaries for note in s.notes),
        )

    def _ask_all(
        self, name: str, arguments: Mapping[int, tuple[Any, ...]], policy_state: State | None = None
    ) -> dict[int, bytes]:
        """What each of these workers answers; one that is lost meanwhile is replaced and asked again."""
        found: dict[int, bytes] = {}
        while missing := [index for index in self._workers() if index in arguments and index not in found]:
            self._admit_started()
            self._admit_all()
            asked = []
            for host in self._hosts:
                own = {index: arguments[index] for index in host.workers if index in missing}
                if own:
                    asked.append((host, host.actor.ask.remote(name, own, self._restarts_left, policy_state)))
            errors = []
            for host, told in asked:
                try:
                    answer = self._hear(host, told)
                except ShoalError as error:  # raised when all hosts were heard: what one tells, it tells once
                    errors.append(error)
                    continue
                if answer is not None:
                    found |= dict(answer.results)
            for first in errors:
                raise first
        return found

    def _gotten(self, reference: Any) -> HostAnswer:
        """A host's answer; WorkerError if it is gone."""
        exceptions = self._ray.exceptions
        try:
            self._awaited([reference])
            answer: HostAnswer = self._ray.get(reference)
            return answer
        except exceptions.RayTaskError as error:
            raise ShoalError(f"a host of workers failed: {error.cause!r}\n{error}") from error
        except exceptions.RayError as error:
            raise WorkerError(_reason(error)) from error


def without_gpu(config: AlgorithmConfig) -> AlgorithmConfig:
    """The configuration of a process that does not learn: the same network, on the CPU."""
    return unchecked(config, num_gpus=0, framework="torch") if config.num_gpus else config


def slots_of(ray: Any, node_id: str) -> int:
    """How many CPUs a node of the cluster offers, which are the slots of its environments' ranks."""
    (node,) = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return int(node["Resources"].get("CPU", 0))


def _error_of(failure: SamplerFailure, where: str, host: str) -> ShoalError:
    """A worker's error in its own words."""
    error = failure.error
    if error is None:
        return ShoalError(f"a worker failed: {failure.words}\n{failure.traceback}")
    if where and isinstance(error, EnvError):
        located = EnvError(f"{where}: {error}")
        located.incidents = [replace(incident, host=host) for incident in error.incidents]
        return located
    return error


def _named(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]}"
    return f"workers {', '.join(map(str, workers[:8]))}{' and others' * (len(workers) > 8)}"


def _were(workers: list[int]) -> str:
    return "was" if len(workers) == 1 else "were"


def _reason(error: Exception) -> str:
    """What Ray knows of a death, in one line."""
    text = str(error)
    if "OOM" in text and "memory monitor" in text.lower():
        return "Ray ended their host's actor because the machine ran out of memory"
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("The actor is dead because") or "died unexpectedly" in line:
            return "the process of their host's actor died"
    return (text.splitlines() or [type(error).__name__])[0]
