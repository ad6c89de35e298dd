"""Environments whose difficulty can be set: the tasks of a curriculum."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym


class TaskSettableEnv(gym.Env[Any, Any]):
    """An environment whose task can be read and set; the next `reset` begins an episode of the task.

    A task is whatever JSON can say: a number, a text, a list, a mapping. Environments that have the methods without
    this class, and those behind wrappers, serve as well.
    """

    def get_task(self) -> Any:
        """The present task."""
        raise NotImplementedError

    def set_task(self, task: Any) -> None:
        """Take on a task; what is none is refused with an exception."""
        raise NotImplementedError

    def sample_tasks(self, n_tasks: int) -> list[Any]:
        """Some tasks by chance, for an `env_task_fn` that wants them."""
        raise NotImplementedError


def lacks_tasks(env: gym.Env[Any, Any]) -> list[str]:
    """The methods that an environment would need for tasks and does not have."""
    return [name for name in ("get_task", "set_task") if not env.has_wrapper_attr(name)]


def set_task(env: gym.Env[Any, Any], task: Any) -> None:
    """Give an environment its task, of which it may do with its own copy as it likes."""
    env.get_wrapper_attr("set_task")(copy.deepcopy(task))


def get_task(env: gym.Env[Any, Any]) -> Any:
    """The environment's own word on its task."""
    return env.get_wrapper_attr("get_task")()
