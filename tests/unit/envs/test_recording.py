"""Recorded environments, and who makes them."""

from __future__ import annotations

import pickle

import pytest

from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.envs.recording import EpisodeRecorder, RecordingOptions, recorded


def test_a_recorder_keeps_whole_episodes_from_when_it_is_on() -> None:
    recorder = EpisodeRecorder(RecordingOptions(trajectories=True))
    env = recorded(env_maker("CartPole-v1"), recorder).make(EnvContext(env_index=3))
    env.reset(seed=1)
    env.step(0)
    recorder.is_on = True
    for _ in range(2):
        env.reset(seed=1)
        env.step(0)
        env.step(1)
    env.reset(seed=1)
    env.close()
    assert [len(trajectory.obs) for trajectory in recorder.trajectories] == [3, 3]
    assert [trajectory.actions for trajectory in recorder.trajectories] == [[0, 1], [0, 1]]
    assert {trajectory.env_index for trajectory in recorder.trajectories} == {3}


def test_a_maker_of_recorded_environments_refuses_to_be_sent_away() -> None:
    maker = recorded(env_maker("CartPole-v1"), EpisodeRecorder())
    with pytest.raises(TypeError, match="cannot be sent to another process: its recorder stays here"):
        pickle.dumps(maker)
