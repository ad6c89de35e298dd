"""Recorded environments, and who makes them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.envs.recording import EpisodeRecorder, RecordingOptions, Trajectory, recorded


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


def test_a_recorder_that_keeps_something_needs_a_folder_for_other_processes() -> None:
    recorder = EpisodeRecorder(RecordingOptions(trajectories=True))
    with pytest.raises(TypeError, match="cannot be sent to another process: what it keeps stays here"):
        pickle.dumps(recorder)


def test_what_recorders_elsewhere_see_is_collected(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(RecordingOptions(trajectories=True), tmp_path)
    elsewhere = pickle.loads(pickle.dumps(recorder))
    for length in (1, 2):
        elsewhere.begin(5)
        elsewhere.keep(Trajectory(5, [0] * (length + 1), [1] * length, [1.0] * length))
    again = pickle.loads(pickle.dumps(recorder))  # of a process that takes the place of the first
    again.begin(5)
    assert again.begun[5] == 3
    recorder.collect()
    assert [len(trajectory.actions) for trajectory in recorder.trajectories] == [1, 2]
    recorder.collect()
    assert len(recorder.trajectories) == 2
