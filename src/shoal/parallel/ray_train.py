"""Several processes that learn from recorded steps as one: read by Ray Data, placed and brought together by Ray Train.

Ray Data reads the steps and cuts them into one piece of whole episodes for each process; Ray Train's `TorchTrainer`
starts the processes, gives each its piece and makes them a torch.distributed group. It runs for as long as the trainer
does. An iteration is an order to all of them, by way of a small actor; the first process answers with what came of it,
so the driver always has the policy and the learner's state, and saves, evaluates and resumes as with any algorithm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from shoal.config.layout import cpus_per_worker
from shoal.config.offline import OfflineConfig
from shoal.data.batch import Step
from shoal.data.experience import Experience, Integers
from shoal.data.state import State
from shoal.envs.experience_columns import ExperienceColumns
from shoal.envs.importing import UserCode
from shoal.envs.spaces import Space
from shoal.errors import ConfigError, ShoalError, WorkerError
from shoal.models.build import build_policy
from shoal.models.network import Array
from shoal.parallel.group import Group
from shoal.parallel.learner import Learner, MakeLearner
from shoal.parallel.offline_workers import OfflineWorkers
from shoal.parallel.ray_data import fit_filter, read_dataset
from shoal.parallel.ray_session import Session, connect, reserved_resources

LOOK_EVERY_S = 0.5  # whether Ray Train still runs, while an answer is waited for
ENDING_TIMEOUT_S = 10.0
LEAST_CPUS = 0.01  # Ray Train starts nothing that takes nothing

progress = logging.getLogger("shoal.progress")

Answer = tuple[Step, State, State]


@dataclass(frozen=True)
class Order:
    """What all processes do next."""

    timesteps_total: int
    states: tuple[State, State] | None  # of policy and learner, where they are not those of the last answer


@dataclass(frozen=True)
class TrainJob:
    """What each process needs beside its piece of the steps."""

    config: OfflineConfig
    spaces: tuple[Space, Space]
    user_code: UserCode
    make: MakeLearner
    name: str  # of the steps, in messages
    starts: Sequence[Integers]  # the first rows of every piece's episodes, in the piece
    first_rows: Sequence[int]  # how many steps come before each piece


class OrderDesk:
    """Where orders and answers lie, by their numbers; an actor."""

    def __init__(self) -> None:
        self._orders: dict[int, Order | None] = {}
        self._answers: dict[int, Answer | ShoalError] = {}
        self._news = asyncio.Condition()

    async def give(self, number: int, order: Order | None) -> None:
        """Put down an order; None: that was all."""
        async with self._news:
            self._orders = {number: order}
            self._news.notify_all()

    async def order(self, number: int) -> Order | None:
        """The order of a number, as soon as it is there."""
        async with self._news:
            await self._news.wait_for(lambda: number in self._orders or None in self._orders.values())
            return self._orders.get(number)

    async def answer(self, number: int, answer: Answer | ShoalError) -> None:
        """Put down what came of an order."""
        async with self._news:
            self._answers[number] = answer
            self._news.notify_all()

    async def result(self, number: int) -> Answer | ShoalError:
        """What came of an order, as soon as it is there."""
        async with self._news:
            await self._news.wait_for(lambda: number in self._answers)
            return self._answers.pop(number)


class RayTrainLearner:
    """The learner in the driver's place: it gives orders to the processes, and keeps what they have learned."""

    def __init__(
        self, config: OfflineConfig, workers: OfflineWorkers, job: TrainJob, pieces: Sequence[Any], session: Session
    ) -> None:
        self._config, self._workers, self._ray = config, workers, session.ray
        self._state: State | None = None
        self._known: Array | None = None  # the weights that the processes have; None: they have none
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-train-", ignore_cleanup_errors=True)
        self._desk: Any = self._ray.remote(num_cpus=0, max_concurrency=1000)(OrderDesk).remote()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(job, pieces), name="ray-train", daemon=True)
        self._thread.start()

    def begin_with(self, state: State) -> None:
        """Take over the state of a learner of this process."""
        self._state = state

    def training_step(self, workers: Any, timesteps_total: int) -> Step:  # noqa: ARG002
        """Give the order for one iteration, and take over what came of it."""
        assert self._state is not None
        policy = self._workers.policy
        # Weights that somebody has set in the driver are heard too.
        heard = self._known is not None and np.array_equal(self._known, policy.network.params)
        states = None if heard else (policy.get_state(), self._state)
        self._ray.get(self._desk.give.remote(self._number, Order(timesteps_total, states)))
        step, policy_state, self._state = self._result()
        self._number += 1
        policy.set_state(policy_state)
        self._known = policy_state.arrays["params"]
        return step

    def get_state(self) -> State:
        """The first process's state; all are the same."""
        assert self._state is not None
        return self._state

    def set_state(self, state: State) -> None:
        """Take over a saved state with the next order, and the policy's with it."""
        self._state, self._known = state, None

    def stop(self) -> None:
        """End the processes; may be called twice."""
        desk, self._desk = self._desk, None
        if desk is not None:
            with contextlib.suppress(Exception):
                self._ray.get(desk.give.remote(self._number, None), timeout=ENDING_TIMEOUT_S)
            self._thread.join(ENDING_TIMEOUT_S)
            with contextlib.suppress(Exception):
                self._ray.kill(desk)
            self._folder.cleanup()

    def _result(self) -> Answer:
        """What came of the last order, or why nothing will."""
        reference = self._desk.result.remote(self._number)
        while True:
            ready, _ = self._ray.wait([reference], timeout=LOOK_EVERY_S)
            if ready:
                answer = self._ray.get(reference)
                if isinstance(answer, ShoalError):
                    raise answer
                return answer  # type: ignore[no-any-return]
            if not self._thread.is_alive():
                words = [line for line in str(self._failure).splitlines() if line.strip()]
                why = words[-1].strip() if words else "it gives no reason"
                raise WorkerError(f"Ray Train ended before the iteration did: {why}") from self._failure

    def _run(self, job: TrainJob, pieces: Sequence[Any]) -> None:
        """Run Ray Train until the last order; in a thread of its own."""
        from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        count = len(pieces)
        logging.getLogger("ray.train").setLevel(logging.ERROR)
        try:
            trainer = TorchTrainer(
                learn_in_process,
                train_loop_config={"job": job, "desk": self._desk},
                scaling_config=ScalingConfig(
                    num_workers=count, resources_per_worker={"CPU": max(cpus_per_worker(self._config), LEAST_CPUS)}
                ),
                run_config=RunConfig(
                    name="shoal", storage_path=self._folder.name, failure_config=FailureConfig(max_failures=0)
                ),
                datasets={f"piece{rank}": piece for rank, piece in enumerate(pieces)},
                dataset_config=DataConfig(datasets_to_split=[]),  # they are split already, between episodes
            )
            trainer.fit()
        except BaseException as error:  # the driver's thread tells it
            self._failure = error


def start_ray_train(
    config: OfflineConfig,
    workers: Any,
    user_code: UserCode,
    make: MakeLearner,
    first: Learner,
    closing: ExitStack,
) -> Learner:
    """`num_workers` processes of Ray Train that learn as one, and end when `closing` does."""
    assert isinstance(workers, OfflineWorkers)
    if find_spec("torch") is None:
        raise ConfigError(
            "config.num_workers: Ray Train needs PyTorch, which is not installed; type: pip install "
            "'shoal-rl[offline]', or set num_workers: 0"
        )
    starts, total = workers.steps.starts, workers.steps.num_rows
    count = config.worker_count
    if len(starts) < count:
        raise ConfigError(
            f"config.num_workers: each needs an episode of its own, and {workers.steps.name} has {len(starts)}; "
            f"set num_workers: {len(starts)}, or 0"
        )
    session = connect(config)
    closing.callback(session.stop)
    if reserved_resources(session.ray) is not None:
        raise ConfigError("config.num_workers: a trial of a sweep learns in its own process; set num_workers: 0")
    workers.session = session
    progress.info("reading %s with Ray Data", workers.steps.name)
    firsts = starts[np.searchsorted(starts, np.arange(count) * total // count)]
    firsts[0] = 0
    dataset = read_dataset(workers)
    if workers.policy.filter is not None and not workers.policy.filter.count:
        fit_filter(dataset, workers, config.scaler)
    pieces = dataset.split_at_indices(firsts[1:].tolist()) if count > 1 else [dataset.materialize()]
    ends = [*firsts[1:], total]
    own = [starts[(starts >= begin) & (starts < end)] - begin for begin, end in zip(firsts, ends, strict=True)]
    job = TrainJob(config, workers.spaces, user_code, make, workers.steps.name, own, firsts.tolist())
    progress.info("starting %d processes with Ray Train", count)
    learner = RayTrainLearner(config, workers, job, pieces, session)
    closing.callback(learner.stop)
    learner.begin_with(first.get_state())
    return learner


def learn_in_process(given: dict[str, Any]) -> None:
    """What every process of Ray Train does: learn from its piece as it is told, until there is nothing more to do."""
    import ray.train
    from threadpoolctl import ThreadpoolController

    from shoal.parallel.nccl import JoinedGroup

    job: TrainJob = given["job"]
    desk = given["desk"]
    config: OfflineConfig = job.config
    group = JoinedGroup()
    with ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker))):
        policy = build_policy(job.spaces[0], job.spaces[1], config, job.user_code)
        learner = job.make(config, policy, group)
        piece = Piece(job, group, ExperienceColumns(policy.obs_spec, policy.action_spec))
        number = 0
        while (order := ray.get(desk.order.remote(number))) is not None:
            if order.states is not None:
                policy.set_state(order.states[0])
                learner.set_state(order.states[1])
            try:
                step = learner.training_step(piece, order.timesteps_total)
            except ShoalError as error:
                ray.get(desk.answer.remote(number, error))
                return
            if group.rank == 0:
                ray.get(desk.answer.remote(number, (step, policy.get_state(), learner.get_state())))
            number += 1


class Piece:
    """The recorded steps of one process, as Ray Train hands them out."""

    def __init__(self, job: TrainJob, group: Group, columns: ExperienceColumns) -> None:
        self._job, self._group, self._columns = job, group, columns

    def share(self) -> tuple[Experience, int]:
        """See `Recordings`; if one process cannot read its piece, none goes on, for they learn together."""
        import pyarrow as pa
        import ray.train

        rank = self._group.rank
        shard = ray.train.get_dataset_shard(f"piece{rank}")
        problem: ShoalError | None = None
        experience: Experience | None = None
        try:
            table = pa.concat_tables(shard.iter_batches(batch_size=None, batch_format="pyarrow"))
            experience = self._columns.experience(table, self._job.starts[rank], f"config.input: {self._job.name}")
        except ShoalError as error:
            problem = error
        failed = self._group.sum(np.array([problem is not None], np.int64))
        if problem is not None or experience is None:
            raise problem or ShoalError("recorded steps could not be read")
        if failed.any():
            raise ShoalError("another process could not read its recorded steps")
        return experience, self._job.first_rows[rank]
