"""What stands in the place of workers where nothing is sampled: a policy, and the recorded steps that it learns from.

The steps of an `input` are bound to the policy by their spaces: those of the environment if there is one, else those
that the files tell. Files of other spaces, or without the columns that such spaces need, are refused before anything
is trained (`RecordedSteps.check`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from shoal.config.offline import OfflineConfig
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample
from shoal.data.experience import Experience
from shoal.data.state import State
from shoal.envs.experience_columns import ExperienceColumns
from shoal.envs.experience_files import RecordedSteps, find_steps
from shoal.envs.making import EnvMaker, spaces_of
from shoal.envs.randomizing import first_draw
from shoal.envs.spaces import Space
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.parallel.ray_session import Session
from shoal.sampling.worker import Worker

T = TypeVar("T")


class OfflineWorkers:
    """Keeps the contract of `Workers` without an environment; `share` gives the recorded steps."""

    num_healthy_workers = 0
    num_remote_worker_restarts = 0
    steps_sampled = 0
    oldest_pending_version = None

    def __init__(self, config: OfflineConfig, maker: EnvMaker) -> None:
        self.config: AlgorithmConfig = config
        self.task: Any = None
        self.agents: tuple[str, ...] = ()
        self.session: Session | None = None  # of processes that learn together
        self.steps: RecordedSteps = find_steps(config.input)
        self.spaces = input_spaces(config, maker, self.steps)
        self.policy: Policy = build_policy(*self.spaces, config, maker.user_code)
        self.columns = ExperienceColumns(self.policy.obs_spec, self.policy.action_spec)
        self.steps.check(self.spaces, [*self.columns.names, *config.columns])

    @property
    def names(self) -> list[str]:
        """The columns that are read, as far as there are any."""
        return [*self.columns.names, *self.columns.final_names, "reward", "terminated"]

    def share(self) -> tuple[Experience, int]:
        """All recorded steps, read in this process."""
        return self._experience, 0

    @cached_property
    def _experience(self) -> Experience:
        table = self.steps.table(self.names)
        return self.columns.experience(table, self.steps.starts, f"config.input: {self.steps.name}")

    def sample(self, steps: int) -> Sample:
        """There is nothing to sample."""
        raise NotImplementedError("algorithms that learn offline do not sample")

    def begin_fragments(self, steps: int, version: int) -> None:
        """There is nothing to sample."""
        raise NotImplementedError("algorithms that learn offline do not sample")

    def finished_fragments(self, wait: bool = True) -> list[Sample]:  # noqa: ARG002
        """There is nothing to sample."""
        return []

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:  # noqa: ARG002
        """See `Workers`: there is none."""
        return []

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:  # noqa: ARG002
        """See `Workers`: there is none."""
        return []

    def get_state(self) -> list[State]:
        """See `Workers`: there is none."""
        return []

    def set_state(self, states: list[State]) -> int:  # noqa: ARG002
        """See `Workers`: there is none."""
        return 0

    def stop(self) -> None:
        """See `Workers`: there is none."""


def input_spaces(config: OfflineConfig, maker: EnvMaker, steps: RecordedSteps) -> tuple[Space, Space]:
    """The spaces of observations and actions: the environment's, or without one those that the steps tell."""
    if config.env is not None:
        drawn = first_draw(config, maker.user_code)
        return spaces_of(maker, {**config.env_config, **drawn.env_config}, config.env_ranks)
    found = steps.spaces()
    if found is None:
        raise ConfigError(f"config.input: {steps.name} does not tell its spaces; set env, which has them")
    return found
