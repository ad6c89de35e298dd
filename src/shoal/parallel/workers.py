"""The contract of a set of workers: one in this process (`sampling/worker.py`), or many on hosts (`ray_workers.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample, SampleSummary
from shoal.data.state import State
from shoal.envs.vector import describe
from shoal.errors import EnvError
from shoal.models.policy import Policy
from shoal.sampling.worker import Worker

T = TypeVar("T")


class Workers(Protocol):
    """Samples with the learner's policy, wherever the environments are."""

    policy: Policy  # the learner's
    config: AlgorithmConfig  # with the number of environments that there are
    agents: tuple[str, ...]  # of each environment, if there are several
    task: Any  # which every environment gets at its next reset; None: none

    @property
    def num_healthy_workers(self) -> int:
        """How many processes of their own are up."""

    @property
    def num_remote_worker_restarts(self) -> int:
        """How often one of them was replaced."""

    @property
    def steps_sampled(self) -> int:
        """Steps so far, over all environments, as they come; any thread may ask."""

    def sample(self, steps: int) -> Sample:
        """At least `steps` steps of every environment with the policy's present weights, in their order.

        A set of remote workers may leave out those that have just died; with `sample_async` the weights are those of
        the call before.
        """

    @property
    def oldest_pending_version(self) -> int | None:
        """The version of the oldest weights that a fragment is being sampled with; None: none is."""

    def begin_fragments(self, steps: int, version: int) -> None:
        """Let every worker that rests begin a fragment of `steps` steps of each of its environments.

        `version` is the learner's number for the policy as it is now; it grows with the updates. What begins later with
        the same version begins with the same weights, also where the learner is in the middle of the next update.
        """

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """The fragments that have been finished since the last call, one sample each, in no promised order.

        Waits for the first unless `wait` is False. Each batch has its environments' places among all in `columns` and
        the `weights_version` that it began with. In this process nothing is sampled beside the learner: a fragment that
        has begun is sampled when it is waited for, by the present weights.
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


def check_usable(*samples: SampleSummary) -> None:
    """Refuse samples that hold no real step."""
    if not any(sample.num_steps for sample in samples):
        causes = [describe(incident) for incident in samples[-1].incidents[-1:]]
        raise EnvError("\n".join([*causes, "Not one step of the batch was good: there is nothing to learn from."]))
