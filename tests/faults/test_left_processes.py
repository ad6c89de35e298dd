"""What an environment in the command's own process starts and does not end goes with the command."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from desks import WatchedDesk

from shoal.machine.left_processes import VARIABLE, end_left_processes, left_processes

CARELESS = """
import multiprocessing
import subprocess
import time

import gymnasium as gym
import numpy as np


class Careless(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.solver = subprocess.Popen(["sleep", "1000"], **quiet)
        subprocess.run(["sh", "-c", "setsid sleep 1000 &"], **quiet)  # a daemon
        self.stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], **quiet)
        self.helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        self.helper.start()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, False, self.time == 20, {}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[WatchedDesk]:
    (tmp_path / "careless.py").write_text(CARELESS)
    desk = WatchedDesk(tmp_path)
    yield desk
    desk.kill_all()


def test_training_and_evaluation_end_what_the_environment_has_left_running(desk: WatchedDesk) -> None:
    settings = ("--set", "train_batch_size=64", "--set", "num_envs_per_worker=1", "--stop", "training_iteration=1")
    desk.run("train", "careless.py:Careless", *settings)
    assert "ended what the environment had left running: sh, sleep" in desk.complaints()
    desk.run("evaluate", str(desk.run_folder()), "--episodes", "1")
    assert "ended what the environment had left running" in desk.complaints()


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_nothing_either(desk: WatchedDesk) -> None:
    child = desk.start("train", "careless.py:Careless", "--set", "num_envs_per_worker=1")
    desk.wait_for(child, lambda: list(desk.home.glob("shoal_results/*/*/result.json")))
    child.send_signal(signal.SIGINT)
    _, code = desk.end(child, signal.SIGINT)
    assert code == 130


def test_a_command_that_makes_no_environment_says_nothing(desk: WatchedDesk) -> None:
    desk.run("config", "show", "lr")
    assert desk.complaints() == ""


def test_a_fork_of_the_command_and_a_program_of_the_users_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        for mark in ("", f"{os.getpid() + 1}-of-another"):
            monkeypatch.setenv(VARIABLE, mark)
            assert end_left_processes(grace_s=0, ending_s=0) == []
            assert child.poll() is None
        assert child.pid in left_processes()
    finally:
        child.kill()
        child.wait()
