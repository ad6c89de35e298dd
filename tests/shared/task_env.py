"""Environments with tasks and options, functions that set them, and hooks; other processes find them by this file."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

import shoal
from shoal import EnvContext


class Ladder(shoal.TaskSettableEnv):
    """A walk that shows, in what it sees and in its info, the task, option and configuration of the episode."""

    observation_space = spaces.Box(-1000, 1000, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config) -> None:
        self.index, self.mass, self.task = config.env_index, config.get("mass", 1.0), 0

    def get_task(self):
        return self.task

    def set_task(self, task) -> None:
        if not isinstance(task, int) or task > 50:
            raise ValueError(f"there is no rung {task}")
        self.task = task

    def sample_tasks(self, n_tasks):
        return self.np_random.integers(0, 50, n_tasks).tolist()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rung, self.wind, self.steps = self.task, (options or {}).get("wind", 0.0), 0
        self.place = self.np_random.normal()
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        self.place += self.mass * (action - 1) + self.wind + self.np_random.normal()
        info = {"rung": self.rung, "wind": self.wind, "mass": self.mass}
        return self.seen(), float(action), bool(abs(self.place) > 5), self.steps >= 12, info

    def seen(self):
        return np.array([self.place, self.rung, self.wind, self.mass], np.float32)


class Failing(Ladder):
    """Raises in some of its episodes, by their seed."""

    def step(self, action):
        if self.np_random.random() < 0.05:
            raise RuntimeError("diverged")
        return super().step(action)


class Plain(Ladder):
    """Has no tasks."""

    get_task = set_task = property()  # type: ignore[assignment]


class Leaving(Ladder):
    """Leaves the program when it is given a task."""

    def set_task(self, task):
        raise SystemExit(4)


class Growing(Ladder):
    """Shows more at higher tasks, which no network can follow."""

    def set_task(self, task) -> None:
        super().set_task(task)
        self.observation_space = spaces.Box(-1000, 1000, (4 + task,), np.float32)


class NeedsMass(Ladder):
    """Cannot be made, nor reset, without what is drawn for it."""

    def __init__(self, config) -> None:
        self.index, self.mass, self.task = config.env_index, config["mass"], 0

    def reset(self, *, seed=None, options=None):
        assert options is not None
        assert set(options) == {"wind"}
        return super().reset(seed=seed, options=options)


def vector(config):
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv([lambda k=k: Ladder(EnvContext(env_index=k)) for k in range(4)])


def every_hundred_steps(train_results, task_settable_env, env_ctx):
    return train_results["timesteps_total"] // 100


def one_more(train_results, task_settable_env, env_ctx):
    return task_settable_env.get_task() + 1


def drawn(train_results, task_settable_env, env_ctx):
    return task_settable_env.sample_tasks(3)[-1]


def when_good(train_results, task_settable_env, env_ctx):
    """Written for numbers: where no episode has ended yet, there must be one too."""
    return 7 if train_results["episode_reward_mean"] > 1000 else 3


def raises(train_results, task_settable_env, env_ctx):
    return 1 / 0


def gives_nothing(train_results, task_settable_env, env_ctx):
    pass


def gives_a_tuple(train_results, task_settable_env, env_ctx):
    return 1, 2


def too_high(train_results, task_settable_env, env_ctx):
    return 99


def too_few_arguments(train_results):
    return 1


class Moves(shoal.DefaultCallbacks):
    """Sums up what was done in an episode, and notes what the driver does."""

    def on_episode_start(self, *, worker, env, episode, **kwargs) -> None:
        assert env.steps == 0
        assert episode.length == 0
        episode.user_data["moves"] = 0

    def on_episode_step(self, *, worker, env, episode, **kwargs) -> None:
        assert env.steps == episode.length
        episode.user_data["moves"] += int(episode.last_action)

    def on_episode_end(self, *, worker, env, episode, **kwargs) -> None:
        assert env.steps == episode.length > 0
        assert episode.last_info["rung"] == env.rung
        assert worker.get_policy() is worker.policy
        episode.custom_metrics["moves"] = episode.user_data["moves"]
        episode.custom_metrics["same"] = episode.user_data["moves"] == episode.total_reward

    def on_train_result(self, *, trainer, result, **kwargs) -> None:
        result["custom_metrics"]["twice"] = 2 * trainer.iteration

    def on_evaluate_end(self, *, trainer, evaluation_metrics, **kwargs) -> None:
        evaluation_metrics["iteration"] = trainer.iteration

    def on_checkpoint(self, *, trainer, checkpoint, **kwargs) -> None:
        with open(f"{checkpoint}.seen", "w") as file:
            file.write(str(trainer.iteration))


class BadStart(shoal.DefaultCallbacks):
    def on_episode_start(self, **kwargs) -> None:
        raise KeyError("start")


class BadStep(shoal.DefaultCallbacks):
    def on_episode_step(self, *, episode, **kwargs) -> None:
        if episode.length == 3:
            raise KeyError("step")


class BadEnd(shoal.DefaultCallbacks):
    def on_episode_end(self, **kwargs) -> None:
        raise KeyError("end")


class BadMetric(shoal.DefaultCallbacks):
    def on_episode_end(self, *, episode, **kwargs) -> None:
        episode.custom_metrics["path"] = [1, 2]


class BadResult(shoal.DefaultCallbacks):
    def on_train_result(self, **kwargs) -> None:
        raise KeyError("result")


class BadCheckpoint(shoal.DefaultCallbacks):
    def on_checkpoint(self, **kwargs) -> None:
        raise KeyError("checkpoint")


class Misspelt(shoal.DefaultCallbacks):
    def on_episode_ends(self, **kwargs) -> None:
        pass


class Classic(shoal.DefaultCallbacks):
    def on_episode_end(self, *, worker, base_env, policies, episode, **kwargs) -> None:
        pass


class NoCallbacks:
    pass
