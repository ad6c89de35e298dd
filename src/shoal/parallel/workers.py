"""The contract of a set of workers, and the set of one that lives in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, SampleSummary
from shoal.data.state import State
from shoal.envs.making import EnvMaker
from shoal.envs.vector import describe
from shoal.errors import CheckpointError, EnvError
from shoal.models.policy import Policy
from shoal.sampling.worker import Worker

T = TypeVar("T")


@dataclass(frozen=True)
class Health:
    """How many workers there are, and how often one was replaced."""

    num_healthy_workers: int
    num_remote_worker_restarts: int = 0


class Workers(Protocol):
    """Samples with the learner's policy, wherever the environments are."""

    policy: Policy  # the learner's
    config: AlgorithmConfig  # with the number of environments that there are
    task: Any  # which every environment gets at its next reset; None: none

    @property
    def health(self) -> Health:
        """How the workers are."""

    @property
    def steps_sampled(self) -> int:
        """Steps so far, over all environments, as they come; any thread may ask."""

    def sample(self, steps: int) -> Sample:
        """At least `steps` steps of every environment with the policy's present weights, in their order.

        A set of remote workers may leave out those that have just died; with `sample_async` the weights are those of
        the call before.
        """

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """The result of `fn(worker)` for every worker, run where the worker is."""

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """The result of `fn(env)` for every environment, in the order of environments."""

    def get_state(self) -> list[State]:
        """The state of every worker."""

    def set_state(self, states: list[State]) -> int:
        """Take over saved states; returns how many unfinished episodes begin anew."""

    def stop(self) -> None:
        """End every worker; may be called twice."""


def check_count(states: list[State], workers: int) -> None:
    """Refuse the states of another number of workers."""
    if len(states) != workers:
        raise CheckpointError(f"the checkpoint has the state of {len(states)} workers, here are {workers}")


def check_usable(*samples: SampleSummary) -> None:
    """Refuse samples that hold no real step."""
    if not any(sample.num_steps for sample in samples):
        causes = [describe(incident) for incident in samples[-1].incidents[-1:]]
        raise EnvError("\n".join([*causes, "Not one step of the batch was good: there is nothing to learn from."]))


class LocalWorkers:
    """One worker in this process, with the learner's own policy."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker) -> None:
        self.worker = Worker(config, maker)
        self.policy, self.config = self.worker.policy, self.worker.config
        self.task: Any = None
        self.health = Health(num_healthy_workers=0)

    @property
    def steps_sampled(self) -> int:
        """See `Workers`."""
        return self.worker.sampler.steps_sampled

    def sample(self, steps: int) -> Sample:
        """See `Workers`."""
        self.worker.set_task(self.task)
        return self.worker.sample(steps)

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """See `Workers`."""
        return [fn(self.worker)]

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Workers`."""
        return self.worker.foreach_env(fn)

    def get_state(self) -> list[State]:
        """See `Workers`."""
        return [self.worker.get_state()]

    def set_state(self, states: list[State]) -> int:
        """See `Workers`."""
        check_count(states, 1)
        return self.worker.set_state(states[0])

    def stop(self) -> None:
        """See `Workers`."""
        self.worker.stop()
