"""When a stage ends."""

from __future__ import annotations

import json
from typing import Any

from gymnasium import spaces

from shoal.config.ppo import PPOConfig
from shoal.data.batch import Episode
from shoal.data.state import State
from shoal.envs.making import env_maker
from shoal.envs.tasks import TaskSettableEnv
from shoal.runs.curriculum import Curriculum


class Rungs(TaskSettableEnv):
    observation_space = action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.task: Any = None

    def get_task(self) -> Any:
        return self.task

    def set_task(self, task: Any) -> None:
        self.task = task

    def reset(self, **_: Any) -> Any:
        raise AssertionError("never reset")

    def step(self, action: Any) -> Any:
        raise AssertionError("never stepped")


def curriculum(*stages: Any, **keys: Any) -> Curriculum:
    config = PPOConfig(curriculum={"stages": stages, "min_episodes": 2}, evaluation_interval=1, **keys)
    return Curriculum(config, env_maker(Rungs))


def after(course: Curriculum, episodes: int = 5, task: Any = None, **result: Any) -> Any:
    """The task of the iteration after one with this result."""
    course.counted([Episode(0, 1.0, 1, {}, course.task if task is None else task)] * episodes)
    course.report(result)
    course.advance()
    return course.task


def test_a_stage_ends_when_any_limit_is_reached() -> None:
    course = curriculum({"task": 1, "until": {"episode_reward_mean": 0.5, "timesteps_total": 100}}, {"task": 2})
    assert course.task == 1
    assert after(course, episode_reward_mean=0.4, timesteps_total=50) == 1
    assert after(course, episode_reward_mean=None, timesteps_total=99) == 1
    assert after(course, episode_reward_mean=0.4, timesteps_total=100) == 2
    assert course.stages_passed == 1
    assert after(course, episode_reward_mean=9.0) == 2


def test_smaller_may_be_better() -> None:
    course = curriculum({"task": 1, "until": {"episode_len_mean": "<= 20"}}, {"task": 2})
    assert after(course, episode_len_mean=21.0) == 1
    assert after(course, episode_len_mean=20.0) == 2


def test_statistics_count_only_with_enough_episodes_of_the_stage() -> None:
    until = {"custom_metrics/score_mean": 1, "episodes_total": 1000}
    course = curriculum({"task": 1, "until": until}, {"task": 2, "until": until}, {"task": 3})
    good = {"custom_metrics": {"score_mean": 5.0}}
    assert after(course, episodes=1, **good) == 1
    assert after(course, episodes=7, task=0, **good) == 1, "episodes of another task"
    assert after(course, episodes=1, **good) == 2
    assert after(course, episodes=1, **good) == 2, "a stage begins to count anew"
    assert after(course, episodes=0, episodes_total=1000) == 3, "a counter needs no episodes"


def test_an_evaluation_counts_when_it_comes_later() -> None:
    course = curriculum({"task": 1, "until": {"evaluation/episode_reward_mean": 3}}, {"task": 2})
    result: dict[str, Any] = {}
    course.report(result)
    result["evaluation"] = {"episode_reward_mean": 4.0}
    assert course.advance()
    assert course.task == 2
    assert not course.advance(), "a result counts once"


def test_the_last_stage_can_be_passed_too_and_remains() -> None:
    course = curriculum({"task": "only", "until": {"timesteps_total": 10}})
    assert after(course, timesteps_total=10) == "only"
    assert course.stages_passed == 1
    assert after(course, timesteps_total=20) == "only"
    assert course.stages_passed == 1


def test_a_state_goes_through_json_and_back() -> None:
    stages = [{"task": k, "until": {"timesteps_total": 10 * k}} for k in (1, 2, 3)]
    first, second = curriculum(*stages), curriculum(*stages)
    after(first, timesteps_total=10)
    first.report({"timesteps_total": 20})
    second.set_state(State(json.loads(json.dumps(first.get_state().values))))
    assert first.advance()
    assert second.advance()
    assert first.get_state() == second.get_state()
    assert second.task == 3


def test_a_checkpoint_without_a_curriculum_begins_with_the_first_stage() -> None:
    course = curriculum({"task": 4})
    course.set_state(State({"task": None, "stages_passed": 0, "episodes": 0, "result": None}))
    assert course.task == 4
