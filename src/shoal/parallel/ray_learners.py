"""Several learners as Ray actors that share every batch and make the same step."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.layout import gpus_per_learner
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, Step, concatenate
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.envs.spaces import Space
from shoal.errors import ShoalError, WorkerError
from shoal.machine.broadcasts import leave_ending_to_starter
from shoal.machine.processes import exit_as_orphan
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.learner import Learner, MakeLearner
from shoal.parallel.ray_session import reserved_resources
from shoal.parallel.ray_workers import RayWorkers, RemoteFragment
from shoal.parallel.shared_messages import Bytes, message_in
from shoal.parallel.tcp_sums import Address, SocketGroup, listen
from shoal.parallel.workers import check_usable

MOST_REPEATS = 3  # of one iteration, after a learner has died in it

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Rendezvous:
    """Where learners find each other."""

    addresses: list[Address]  # by rank
    secret: bytes = field(repr=False)
    on_gpus: str  # in the words of torch.distributed


class MemberLearner:
    """One of several learners that have met: it learns from its share of every batch, and all make the same step."""

    def __init__(self, rank: int, policy: Policy, learner: Any) -> None:
        self._rank, self._policy = rank, policy
        self._learner = learner  # learns from batches

    def update(
        self,
        timesteps_total: int,
        columns: list[range],
        places: list[tuple[int, int]],
        states: tuple[State, State] | None,
        *hosts: list[Bytes],
    ) -> tuple[dict[str, float], State, State] | None:
        """Learn from the fragments; the first learner tells what came of it.

        `hosts` has the fragments of some hosts, and `places` which of them are learned from here: the host's place and
        the fragment's place there. `columns` are the places of each fragment's environments in the whole batch. A
        learner whose workers are all lost for now has no fragment of its own: its share is somebody's fragment without
        its environments.
        """
        fragments: list[Batch] = [message_in(hosts[host][place]) for host, place in places]
        if states is not None:
            self._policy.set_state(states[0])
            self._learner.set_state(states[1])
        batch = concatenate(fragments) if columns else _empty(fragments[0])
        rows = np.array([row for each in columns for row in each], np.int64)
        stats = self._learner.update(replace(batch, columns=rows), timesteps_total)
        return (stats, self._policy.get_state(), self._learner.get_state()) if self._rank == 0 else None


class RemoteLearner:
    """What runs inside an actor: the place where the others call, and a member as soon as all have met."""

    def __init__(
        self, config: AlgorithmConfig, spaces: tuple[Space, Space], user_code: UserCode, make: MakeLearner
    ) -> None:
        import ray
        from threadpoolctl import ThreadpoolController

        leave_ending_to_starter()
        exit_as_orphan()
        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_learner)))
        self._config, self._spaces, self._user_code, self._make = config, spaces, user_code, make
        host: Callable[[], str] = ray.util.get_node_ip_address
        self._listener = listen(host())
        self._member: MemberLearner | None = None

    def location(self) -> tuple[str, Address]:
        """The node this is on, and where the others can call."""
        import ray

        address, port = self._listener.getsockname()[:2]
        return ray.get_runtime_context().get_node_id(), (address, port)

    def join(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the others and build the learner."""
        policy = build_policy(*self._spaces, self._config, self._user_code)
        self._member = MemberLearner(rank, policy, self._make(self._config, policy, self._group(rendezvous, rank)))

    def update(self, *given: Any) -> tuple[dict[str, float], State, State] | None:
        """See `MemberLearner`."""
        assert self._member is not None, "learners meet before they learn"
        return self._member.update(*given)

    def _group(self, rendezvous: Rendezvous, rank: int) -> Group:
        if not self._config.num_gpus:
            return SocketGroup(self._listener, rendezvous.addresses, rank, rendezvous.secret)
        from shoal.parallel.nccl import TorchGroup, use_interface_of

        self._listener.close()
        use_interface_of(rendezvous.addresses[rank][0])
        return TorchGroup(rendezvous.on_gpus, rank, len(rendezvous.addresses))


class RayLearners:
    """`num_learners` actors that learn as one; the driver keeps what they have learned.

    Each takes the fragments of the workers on its own node. Where one dies, all are started anew from the driver's
    last weights and optimiser, and the iteration is repeated.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        workers: RayWorkers,
        user_code: UserCode,
        make: MakeLearner,
        first: Learner,
    ) -> None:
        self._config, self._workers = config, workers
        self._user_code, self._make = user_code, make
        self._ray = workers.session.ray
        self._state = first.get_state()
        self._known: NDArray[np.float32] | None = None  # the weights that the learners have; None: they have none
        self._meetings = 0
        self._actors: list[Any] = []
        self._nodes: list[str] = []
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def training_step(self, workers: RayWorkers, timesteps_total: int) -> Step:
        """Sample, then learn; the experience goes from workers to learners without passing here."""
        fragments, summary = workers.sample_apart(self._config.steps_per_iteration)
        check_usable(summary)
        start = perf_counter()
        stats = self._update(fragments, timesteps_total)
        return Step.from_samples([summary], stats, perf_counter() - start)

    def get_state(self) -> State:
        """The first learner's state; all are the same."""
        return self._state

    def set_state(self, state: State) -> None:
        """Take over a saved state with the next update, and the policy's with it."""
        self._state = state
        self._known = None

    def stop(self) -> None:
        """End every learner; may be called twice."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    def _update(self, fragments: list[RemoteFragment], timesteps_total: int) -> dict[str, float]:
        lost: Exception | None = None
        for attempt in range(MOST_REPEATS + 1):
            try:
                if not self._actors:
                    self._start()
                return self._try_update(fragments, timesteps_total)
            except self._ray.exceptions.RayTaskError as error:
                self.stop()
                if isinstance(error.cause, ShoalError):
                    raise error.cause from None
                if not is_lost_neighbour(error.cause):
                    raise ShoalError(f"a learner failed: {error.cause!r}\n{error}") from error
                lost = error
            except self._ray.exceptions.RayError as error:
                self.stop()
                lost = error
            if attempt < MOST_REPEATS:
                log.warning(
                    "a learner was lost (%s); all are restarted and the iteration is repeated", _first_line(lost)
                )
                # What lay on a node that is gone is gone with it.
                alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
                fragments = [f for f in fragments if f.node in alive]
                if not fragments:
                    break
        raise WorkerError(f"the learners were lost again and again in one iteration: {lost}") from lost

    def _try_update(self, fragments: list[RemoteFragment], timesteps_total: int) -> dict[str, float]:
        shares = shared_out({f.index: f.node for f in fragments}, self._nodes)
        width = self._config.rows_per_worker
        first_column = {f.index: width * k for k, f in enumerate(fragments)}
        by_index = {f.index: f for f in fragments}
        policy = self._workers.policy
        # Weights that somebody has set in the driver are heard too.
        heard = self._known is not None and np.array_equal(self._known, policy.network.params)
        states = None if heard else self._ray.put((policy.get_state(), self._state))
        answers = []
        for actor, share in zip(self._actors, shares, strict=True):
            columns = [range(first_column[index], first_column[index] + width) for index in share]
            places, hosts = places_of([by_index[index] for index in share] or fragments[:1])
            answers.append(actor.update.remote(timesteps_total, columns, places, states, *hosts))
        pending = list(answers)
        while pending:  # the first error ends it, whoever's it is
            self._ray.wait(pending, num_returns=1)
            ready, pending = self._ray.wait(pending, num_returns=len(pending), timeout=0)
            self._ray.get(ready)
        stats, policy_state, self._state = self._ray.get(answers[0])
        policy.set_state(policy_state)
        self._known = policy_state.arrays["params"]
        return dict(stats)

    def _start(self) -> None:
        """Learners where the workers are, that have met."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # In a trial of a sweep the places are reserved, and who names a node leaves them.
        is_free = reserved_resources(self._ray) is None
        config = self._config
        spaces = self._workers.observation_space, self._workers.action_space
        remote = self._ray.remote(
            num_cpus=config.num_cpus_per_learner, num_gpus=gpus_per_learner(config), max_restarts=0
        )(RemoteLearner)
        wanted = nodes_for(list(self._workers.places().values()), config.num_learners)
        self._actors = [
            remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True) if is_free else None
            ).remote(config, spaces, self._user_code, self._make)
            for node in wanted
        ]
        found = self._ray.get([actor.location.remote() for actor in self._actors])
        self._nodes = [node for node, _ in found]
        self._meetings += 1
        addresses = [address for _, address in found]
        private = self._workers.session.folder
        # A port could be anybody's; a file in our own folder is not.
        free = "tcp://{}:{}".format(*addresses[0])
        on_gpus = free if private is None else f"file://{private}/learners{self._meetings}"
        rendezvous = Rendezvous(addresses, os.urandom(32), on_gpus)
        self._ray.get([actor.join.remote(rendezvous, rank) for rank, actor in enumerate(self._actors)])
        self._known = None


def nodes_for(workers: Sequence[str], num_learners: int) -> list[str]:
    """A node for each learner: in turn those of the workers, the fullest first."""
    counts = Counter(workers)  # in the order of workers, which sorting keeps
    order = sorted(counts, key=lambda node: -counts[node])
    return sorted((order[k % len(order)] for k in range(num_learners)), key=order.index)


def shared_out(workers: Mapping[int, str], learners: Sequence[str]) -> list[list[int]]:
    """Which workers' fragments each learner takes: those of its own node, and evenly what nobody is near to."""
    shares: list[list[int]] = [[] for _ in learners]
    homeless: list[int] = []
    at_node: dict[str, list[int]] = {}
    for index, node in workers.items():
        at_node.setdefault(node, []).append(index)
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(learners):
        ranks.setdefault(node, []).append(rank)
    for node, here in at_node.items():
        local = ranks.get(node, [])
        if not local:
            homeless += here
            continue
        for rank, part in zip(local, np.array_split(np.array(here, np.int64), len(local)), strict=True):
            shares[rank] += part.tolist()
    for index in homeless:
        min(shares, key=len).append(index)
    return [sorted(share) for share in shares]


def places_of(fragments: Sequence[RemoteFragment]) -> tuple[list[tuple[int, int]], list[Any]]:
    """Where each fragment is among those of its host, and the references of the hosts, each once."""
    hosts = list(dict.fromkeys(fragment.batches for fragment in fragments))
    order = {reference: place for place, reference in enumerate(hosts)}
    return [(order[fragment.batches], fragment.place) for fragment in fragments], hosts


def is_lost_neighbour(cause: BaseException) -> bool:
    """Whether a learner failed only because its neighbour died in the middle of their sum."""
    words = ("nccl", "connection closed", "connection reset", "broken pipe", "timed out")
    broken = isinstance(cause, RuntimeError) and any(word in str(cause).lower() for word in words)
    return broken or isinstance(cause, ConnectionError | TimeoutError)


def _empty(batch: Batch) -> Batch:
    """A fragment without its environments."""
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
    carried = batch.carried and replace(
        batch.carried,
        previous=batch.carried.previous[:, :0],
        states=tuple(part[:0] for part in batch.carried.states),
        states_at=batch.carried.states_at[:0],
        final=tuple(part[:0] for part in batch.carried.final),
    )
    return replace(
        batch,
        obs=tuple(part[:, :0] for part in batch.obs),
        final_obs=tuple(part[:0] for part in batch.final_obs),
        final_at=batch.final_at[:0],
        carried=carried,
        cut=None,
        **{name: getattr(batch, name)[:, :0] for name in names},
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
