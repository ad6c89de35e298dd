"""Workers as Ray actors: each owns its environments and a copy of the policy, and answers with whole fragments."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, concatenate
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.errors import ConfigError, ShoalError, WorkerError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.workers import check_count
from shoal.sampling.worker import Worker

CLOSING_TIMEOUT_S = 5.0
FREEING_TIMEOUT_S = 10.0
LONGEST_TEMP_FOLDER = 25  # a socket's path may have 107 letters, and Ray wants 80 of them

T = TypeVar("T")
log = logging.getLogger("shoal")


class RemoteWorker:
    """What runs inside an actor: a worker, and the policy state it was last sent."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, worker_index: int) -> None:
        from threadpoolctl import ThreadpoolController

        self._threads = ThreadpoolController().limit(limits=max(1, int(config.num_cpus_per_worker)))
        self._config, self._maker, self._worker_index = config, maker, worker_index
        self.worker: Worker

    def start(self) -> tuple[Any, Any, float | None]:
        """Make the environments; spaces and reward threshold of them.

        Not in the constructor: of what is raised there Ray keeps the text alone.
        """
        self.worker = Worker(self._config, self._maker, self._worker_index)
        return self.worker.observation_space, self.worker.action_space, self.worker.reward_threshold

    def sample(self, steps: int, policy_state: State) -> Sample:
        """One fragment with the given weights and filter."""
        self.worker.policy.set_state(policy_state)
        return self.worker.sample(steps)

    def apply(self, fn: Callable[[Worker], Any], policy_state: State) -> Any:
        """The result of `fn(worker)`."""
        self.worker.policy.set_state(policy_state)
        return fn(self.worker)

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
    """`num_workers` actors that act as one: the same environments, in the same order, as one worker would have."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker) -> None:
        self._ray, self._owned_folder = _connect(config)
        ray = self._ray
        self._actors: list[Any] = []
        try:
            remote = ray.remote(num_cpus=config.num_cpus_per_worker, max_restarts=0)(RemoteWorker)
            self._actors = [remote.remote(config, maker, index + 1) for index in range(config.num_workers)]
            obs_space, action_space, self.reward_threshold = self._all([a.start.remote() for a in self._actors])[0]
            self.policy: Policy = build_policy(obs_space, action_space, config)
        except BaseException:
            self.stop()
            raise

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        state = self._ray.put(self.policy.get_state())
        samples: list[Sample] = self._all([a.sample.remote(steps, state) for a in self._actors])
        longest = max(len(s.batch.rewards) for s in samples)
        return Sample(
            batch=concatenate([padded(s.batch, longest) for s in samples]),
            episodes=[e for s in samples for e in s.episodes],
            incidents=[i for s in samples for i in s.incidents],
            env_time_s=float(np.mean([s.env_time_s for s in samples])),
            policy_time_s=float(np.mean([s.policy_time_s for s in samples])),
        )

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """See `Workers`."""
        state = self._ray.put(self.policy.get_state())
        results: list[T] = self._all([a.apply.remote(fn, state) for a in self._actors])
        return results

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Workers`."""
        return [result for results in self.foreach_worker(lambda w: w.foreach_env(fn)) for result in results]

    def get_state(self) -> list[State]:
        """See `Workers`."""
        states: list[State] = self._all([a.get_state.remote() for a in self._actors])
        return states

    def set_state(self, states: list[State]) -> int:
        """See `Workers`."""
        check_count(states, len(self._actors))
        pairs = zip(self._actors, states, strict=True)
        return int(sum(self._all([a.set_state.remote(s) for a, s in pairs])))

    def stop(self) -> None:
        """See `Workers`."""
        # Simulators may own processes and files: they get the time to close, but a hanging one cannot hold us up.
        if self._actors:  # Ray's `get` starts a new Ray where there is none
            with contextlib.suppress(Exception):
                self._ray.get([actor.stop.remote() for actor in self._actors], timeout=CLOSING_TIMEOUT_S)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owned_folder is not None:
            self._ray.shutdown()
            _clean(self._owned_folder)
            self._owned_folder = None

    def _all(self, references: list[Any]) -> list[Any]:
        """All answers, or the first worker's error in its own words."""
        try:
            results: list[Any] = self._ray.get(references)
            return results
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ShoalError):
                raise error.cause from None
            raise WorkerError(f"a worker failed: {error.cause!r}\n{error}") from error
        except self._ray.exceptions.RayActorError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, ShoalError):
                raise cause from None
            raise WorkerError(f"a worker was lost: {error}") from error


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


def _connect(config: AlgorithmConfig) -> tuple[Any, str | None]:
    """Ray, joined where RAY_ADDRESS says so, otherwise a private one in a folder that is ours to remove."""
    wanted = config.num_workers * config.num_cpus_per_worker
    running = sys.modules.get("ray")
    if running is not None and running.is_initialized():
        _wait_for_cpus(running, wanted)
        return running, None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    if address:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        resources: Callable[[], dict[str, float]] = ray.cluster_resources
        have = resources().get("CPU", 0)
        if wanted > have:
            ray.shutdown()
            raise ConfigError(
                f"config.num_workers: {config.num_workers} workers of {config.num_cpus_per_worker:g} CPUs need "
                f"{wanted:g}, the Ray cluster at {address} has {have:g}"
            )
        return ray, None
    place = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="shoal-", dir=place if len(place) <= LONGEST_TEMP_FOLDER else "/tmp")
    try:
        return _start_private(folder, max(int(np.ceil(wanted)), 1)), folder
    except BaseException:
        _clean(folder)
        raise


def _start_private(folder: str, num_cpus: int) -> Any:
    """A Ray on this machine alone, that answers only to who can read the token in its folder."""
    token = os.path.join(folder, "token")
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())
    # Ray reads these when it is imported.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = token
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
    )
    return ray


@cache
def _token() -> str:
    """The secret of this program's private Rays, one after another: Ray reads it once in a process's life."""
    return os.urandom(32).hex()


def _clean(folder: str) -> None:
    """Remove a private Ray's folder, and the token's name from our environment."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.environ.get("RAY_AUTH_TOKEN_PATH", "").startswith(folder):
        del os.environ["RAY_AUTH_TOKEN_PATH"], os.environ["RAY_AUTH_MODE"]


def _wait_for_cpus(ray: Any, wanted: float) -> None:
    """Refuse workers that would wait for a core forever; those just stopped need a moment to give theirs back."""
    deadline = monotonic() + FREEING_TIMEOUT_S
    while (free := float(ray.available_resources().get("CPU", 0))) < wanted:
        if monotonic() > deadline:
            raise ConfigError(
                f"config.num_workers: the workers need {wanted:g} CPUs, the Ray in this program has {free:g} free; "
                "stop the trainer that has the others, or start Ray with more"
            )
        sleep(0.1)
