"""Which task the training environments get, and when they get the next."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from shoal.config.episode_variation import comparison, task_value
from shoal.config.result_names import OVER_EPISODES
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Episode
from shoal.data.results import numbers, plain_json
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import error_text, notice_once, pass_on_interrupts
from shoal.envs.importing import UserCode
from shoal.envs.making import EnvMaker
from shoal.envs.randomizing import first_draw
from shoal.envs.tasks import get_task, lacks_tasks, set_task
from shoal.errors import CallbackError, ConfigError, ShoalError
from shoal.runs.stopping import missing_metric

NOT_YET = ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean")


class Curriculum:
    """The task of every iteration: none, a stage's (`curriculum`), or what the user's function says (`env_task_fn`).

    It is chosen when the iteration begins, by the result before it: so an evaluation counts whenever it was made, and
    all that the choice depends on is in the checkpoint.
    """

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker) -> None:
        self.task: Any = None  # None: the environments' own
        self.stages_passed = 0
        self._stages, self._min_episodes = config.curriculum.stages, config.curriculum.min_episodes
        self._episodes = 0  # that have ended at the stage's task
        self._result: Mapping[str, Any] | None = None  # what the next task is chosen by
        self._function = load_task_fn(config, maker.user_code)
        tasks = {f"config.curriculum.stages[{k}].task": stage["task"] for k, stage in enumerate(self._stages)}
        if config.evaluation_config.task is not None:
            tasks["config.evaluation_config.task"] = config.evaluation_config.task
        if tasks:
            check_tasks(tasks, config, maker)
        if self._stages:
            self.task = self._stages[0]["task"]
        self._probe = None if self._function is None else TaskProbe("config.env_task_fn", config, maker)

    def advance(self) -> bool:
        """Choose the task of the coming iteration; True if a new stage begins."""
        result, self._result = self._result, None
        if result is None:
            return False
        if self._function is not None:
            self.task = self._asked(plain_json(result))
            return False
        self._warn_of_missing(result)
        if not self._is_passed(numbers(result)):
            return False
        self.stages_passed += 1
        self._episodes = 0
        if self.stages_passed == len(self._stages):
            return False
        self.task = self._stages[self.stages_passed]["task"]
        return True

    def counted(self, episodes: list[Episode]) -> list[Episode] | None:
        """The episodes that the statistics of a stage are about: those at its task; None: all."""
        if not self._stages:
            return None
        own = [episode for episode in episodes if episode.task == self.task]
        self._episodes += len(own)
        return own

    def report(self, result: dict[str, Any]) -> None:
        """Write the task into an iteration's result, by which the next one is chosen."""
        if self._probe is None and not self._stages:
            return
        result["task"] = self.task if self._probe is None else self._probe.task
        if self._stages:
            result["stages_passed"] = self.stages_passed
        self._result = result

    def get_state(self) -> State:
        """Task and stage, and the result that the next task is chosen by."""
        return State(
            {
                "task": self.task,
                "stages_passed": self.stages_passed,
                "episodes": self._episodes,
                "result": None if self._result is None else plain_json(self._result),
            }
        )

    def set_state(self, state: State) -> None:
        """Take over a saved curriculum."""
        values = state.values
        self.stages_passed, self._episodes = int(values["stages_passed"]), int(values["episodes"])
        self._result = values["result"]
        self.task = values["task"]
        if self._stages:
            self.task = self._stages[min(self.stages_passed, len(self._stages) - 1)]["task"]
        elif self._probe is not None:
            task = self._probe.first_task if self.task is None else self.task
            if task is not None:
                self._probe.set("env_task_fn", task, CallbackError)

    def close(self) -> None:
        """Close the environment that `env_task_fn` looks at."""
        if self._probe is not None:
            self._probe.close()

    def _is_passed(self, values: Mapping[str, float]) -> bool:
        if self.stages_passed >= len(self._stages):
            return False
        for name, limit in self._stages[self.stages_passed]["until"].items():
            if name.startswith(OVER_EPISODES) and self._episodes < self._min_episodes:
                continue
            sign, wanted = comparison(name, limit)
            if name in values and (values[name] >= wanted if sign == ">=" else values[name] <= wanted):
                return True
        return False

    def _warn_of_missing(self, result: Mapping[str, Any]) -> None:
        if self.stages_passed < len(self._stages):
            for name in self._stages[self.stages_passed]["until"]:
                if why := missing_metric(name, result):
                    notice_once(f"config.curriculum.stages[{self.stages_passed}].until.{name}: {why}")

    def _asked(self, result: dict[str, Any]) -> Any:
        """What the user's function answers, if it is a task."""
        assert self._function is not None
        assert self._probe is not None
        # As classic RLlib has it: no episode yet is a number that nothing is greater or less than.
        result |= {name: math.nan for name in NOT_YET if result.get(name) is None}
        name = getattr(self._function, "__name__", "env_task_fn")
        self._probe.seed(int(result["training_iteration"]))
        try:
            task = self._function(result, self._probe.env, self._probe.context)
        except ShoalError:
            raise
        except BaseException as error:
            pass_on_interrupts(error)
            raise CallbackError(f"env_task_fn {name} failed: {error_text(error)}") from error
        try:
            task = task_value(task)
        except ValueError as error:
            raise CallbackError(f"env_task_fn {name} returned {task!r:.200}: {error}") from None
        self._probe.set(f"env_task_fn {name}", task, CallbackError)
        return task


class TaskProbe:
    """An environment that is never stepped: it tells whether a task is one, and is what `env_task_fn` looks at.

    Its task is always the newest, while those of training have theirs only from their next reset on.
    """

    def __init__(self, key: str, config: AlgorithmConfig, maker: EnvMaker) -> None:
        self._seed = config.seed
        drawn = first_draw(config, maker.user_code)
        self.context = EnvContext(
            {**config.env_config, **drawn.env_config},
            env_index=-1,
            num_workers=config.worker_count,
            env_ranks=config.env_ranks,
        )
        env = maker.make(self.context)
        try:
            if isinstance(env, VectorEnv):
                raise ConfigError(f"{key}: a native vector environment, or one of several agents, has no tasks")
            if missing := lacks_tasks(env):
                raise ConfigError(
                    f"{key}: the environment has no {' and no '.join(missing)}; "
                    "derive it from shoal.TaskSettableEnv, with get_task and set_task"
                )
            self.env: gym.Env[Any, Any] = env
            self._spaces = env.observation_space, env.action_space
            self.task = self.first_task = _task_of(env, key)
        except BaseException:
            env.close()
            raise

    def seed(self, iteration: int) -> None:
        """Give the environment a stream of chance, so that what `sample_tasks` gives follows from the run's seed."""
        self.env.unwrapped.np_random = generator(self._seed, Stream.TASKS, iteration)

    def set(self, who: str, task: Any, refusal: type[ShoalError]) -> None:
        """Set the task that `who` names; what the environment refuses is an error of the given kind."""
        try:
            set_task(self.env, task)
        except BaseException as error:
            pass_on_interrupts(error)
            raise refusal(f"{who}: set_task refuses {task!r}: {error_text(error)}") from error
        if (self.env.observation_space, self.env.action_space) != self._spaces:
            raise refusal(f"{who}: {task!r} changes the environment's spaces, which must stay the same")
        self.task = task

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
        self.context.release()


def check_tasks(tasks: Mapping[str, Any], config: AlgorithmConfig, maker: EnvMaker) -> None:
    """Refuse, before training, what is no task of the environment."""
    probe = TaskProbe(next(iter(tasks)), config, maker)
    try:
        for key, task in tasks.items():
            probe.set(key, task, ConfigError)
    finally:
        probe.close()


def load_task_fn(config: AlgorithmConfig, user_code: UserCode) -> Callable[..., Any] | None:
    """The user's function, after a look whether it can be called."""
    source = config.env_task_fn
    if source is None:
        return None
    function = user_code.load_named("config.env_task_fn", source) if isinstance(source, str) else source
    if not callable(function):
        raise ConfigError(f"config.env_task_fn: must be a function (got a {type(function).__name__})")
    try:
        inspect.signature(function).bind({}, None, None)
    except TypeError as error:
        raise ConfigError(
            f"config.env_task_fn: is called with train_results, task_settable_env, env_ctx, and {error}"
        ) from None
    except ValueError:
        pass  # compiled code may have no signature
    return function


def _task_of(env: gym.Env[Any, Any], key: str) -> Any:
    """The task that the environment begins with."""
    try:
        task = get_task(env)
        return None if task is None else task_value(task)
    except BaseException as error:
        pass_on_interrupts(error)
        raise ConfigError(f"{key}: get_task() returns no task: {error_text(error)}") from error
