"""Workers as Ray actors: each owns its environments and a copy of the policy, and answers with whole fragments."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, concatenate
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.errors import ShoalError, WorkerError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.ray_session import clean, connect
from shoal.parallel.workers import check_count
from shoal.sampling.worker import Worker

CLOSING_TIMEOUT_S = 5.0
MOST_REPLACEMENTS = 3  # of one worker in one iteration

T = TypeVar("T")
log = logging.getLogger("shoal")


class RemoteWorker:
    """What runs inside an actor: a worker, and the policy state it was last sent."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, worker_index: int) -> None:
        from threadpoolctl import ThreadpoolController

        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker)))
        self._config, self._maker, self._worker_index = config, maker, worker_index
        self.worker: Worker

    def start(self) -> tuple[Any, Any]:
        """Make the environments; the spaces of them.

        Not in the constructor: of what is raised there Ray keeps the text alone.
        """
        self.worker = Worker(self._config, self._maker, self._worker_index)
        return self.worker.observation_space, self.worker.action_space

    def sample(self, steps: int, policy_state: State) -> tuple[Sample, State]:
        """One fragment with the given weights and filter, and the worker's state after it."""
        self.worker.policy.set_state(policy_state)
        return self.worker.sample(steps), self.worker.get_state()

    def apply(self, fn: Callable[[Worker], Any], policy_state: State) -> tuple[Any, State | None]:
        """The result of `fn(worker)`, and the policy's state if it has set the weights."""
        policy = self.worker.policy
        policy.set_state(policy_state)
        result = fn(self.worker)
        changed = not np.array_equal(policy.network.params, policy_state.arrays["params"])
        return result, policy.get_state() if changed else None

    def get_state(self) -> State:
        """The worker's state."""
        return self.worker.get_state()

    def set_state(self, state: State) -> int:
        """Take over a saved state."""
        return self.worker.set_state(state)

    def stop(self) -> None:
        """Close the environments."""
        self.worker.stop()


class RayWorkers:
    """`num_workers` actors that act as one: the same environments, in the same order, as one worker would have.

    A worker whose process dies is replaced (`recreate_failed_workers`): the new one is brought to where the old one
    stood at the start of the iteration, and samples again. With `ignore_worker_failures` alone, the others go on.
    """

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker) -> None:
        self._config, self._maker = config, maker
        self._ray, self._owned_folder = connect(config)
        self._actors: dict[int, Any] = {}
        self._states: dict[int, State] = {}  # of each worker after its last sample
        try:
            self._actors = {index: self._actor(index) for index in range(1, config.num_workers + 1)}
            obs_space, action_space = self._all("start")[0]
            self.policy: Policy = build_policy(obs_space, action_space, config, maker.search_path)
        except BaseException:
            self.stop()
            raise

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        weights = self._ray.put(self.policy.get_state())
        pending = {index: actor.sample.remote(steps, weights) for index, actor in self._actors.items()}
        samples: dict[int, Sample] = {}
        replaced = dict.fromkeys(pending, 0)
        while pending:
            index, reference = next(iter(pending.items()))
            del pending[index]
            try:
                samples[index], self._states[index] = self._one(reference)
            except WorkerError as lost:
                replaced[index] += 1
                if self._config.recreate_failed_workers and replaced[index] <= MOST_REPLACEMENTS:
                    log.warning("worker %d: %s; it is replaced", index, lost)
                    pending[index] = self._replace(index).sample.remote(steps, weights)
                elif self._config.ignore_worker_failures and len(self._actors) > 1:
                    log.warning("worker %d: %s; the others go on", index, lost)
                    del self._actors[index]
                    self._states.pop(index, None)
                else:
                    raise
        return _joined([samples[index] for index in sorted(samples)])

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """See `Workers`."""
        answers = self._all("apply", fn, self.policy.get_state())
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
        if self._states.keys() != self._actors.keys():
            self._states = dict(zip(self._actors, self._all("get_state"), strict=True))
        return [self._states[index] for index in self._actors]

    def set_state(self, states: list[State]) -> int:
        """See `Workers`."""
        check_count(states, len(self._actors))
        self._states = dict(zip(self._actors, states, strict=True))
        pairs = zip(self._actors.values(), states, strict=True)
        return sum(self._one(reference) for reference in [actor.set_state.remote(state) for actor, state in pairs])

    def stop(self) -> None:
        """See `Workers`."""
        # Simulators may own processes and files: they get the time to close, but a hanging one cannot hold us up.
        if self._actors:  # Ray's `get` starts a new Ray where there is none
            with contextlib.suppress(Exception):
                self._ray.get([actor.stop.remote() for actor in self._actors.values()], timeout=CLOSING_TIMEOUT_S)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._owned_folder is not None:
            self._ray.shutdown()
            clean(self._owned_folder)
            self._owned_folder = None

    def _actor(self, index: int) -> Any:
        config = self._config
        remote = self._ray.remote(num_cpus=config.num_cpus_per_worker, max_restarts=0)(RemoteWorker)
        if config.num_gpus:  # the GPU is the learner's
            config = config.model_copy(update={"num_gpus": 0, "framework": "torch"})
        return remote.remote(config, self._maker, index)

    def _replace(self, index: int) -> Any:
        """A new actor in the place of a lost one, where that stood after its last sample."""
        self._ray.kill(self._actors[index])
        actor = self._actors[index] = self._actor(index)
        self._one(actor.start.remote())
        if index in self._states:
            self._one(actor.set_state.remote(self._states[index]))
        return actor

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """What every worker answers, in order."""
        references = [getattr(actor, method).remote(*arguments) for actor in self._actors.values()]
        return [self._one(reference) for reference in references]

    def _one(self, reference: Any) -> Any:
        """One answer, or the worker's error in its own words; WorkerError if the worker is gone."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise ShoalError(f"a worker failed: {error.cause!r}\n{error}") from error
        except self._ray.exceptions.RayActorError as error:
            raise WorkerError(f"a worker was lost: {str(error).splitlines()[0]}") from error


def _joined(samples: list[Sample]) -> Sample:
    longest = max(len(s.batch.rewards) for s in samples)
    return Sample(
        batch=concatenate([padded(s.batch, longest) for s in samples]),
        episodes=[e for s in samples for e in s.episodes],
        incidents=[i for s in samples for i in s.incidents],
        env_time_s=float(np.mean([s.env_time_s for s in samples])),
        policy_time_s=float(np.mean([s.policy_time_s for s in samples])),
    )


def padded(batch: Any, steps: int) -> Any:
    """A fragment made as long as the longest with rows that are no transitions (complete episodes end unevenly)."""
    missing = steps - len(batch.rewards)
    if not missing:
        return batch
    from dataclasses import replace

    def longer(array: NDArray[Any], value: Any = 0) -> NDArray[Any]:
        room = np.full((missing, *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, room])

    return replace(
        batch,
        obs=tuple(longer(part) for part in batch.obs),
        terminated=longer(batch.terminated, True),
        **{
            n: longer(getattr(batch, n))
            for n in ("actions", "rewards", "truncated", "valid", "log_probs", "dist_inputs")
        },
    )
