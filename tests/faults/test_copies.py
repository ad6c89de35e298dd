"""Code that forks and lets the copy come back: one process answers, one trains, and the copies are gone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import shoal
from shoal.envs import copies, env_process

MOST_FORKS = 4
SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "num_envs_per_worker": 2}


class Forking(gymnasium.Env[Any, Any]):
    """Its method `where` forks some times, each as a failed exec does: the child returns, or raises."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.where, self.how, self.pids = config["where"], config["how"], Path(config["pids"])
        self.time = 0
        self._maybe("constructor")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self._maybe("reset")
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self._maybe("step")
        return self._observed(), 1.0, False, self.time == 9, {}

    def _observed(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def _maybe(self, where: str) -> None:
        # The names of the files bound the number of forks, whichever process it is that makes them.
        for number in range(MOST_FORKS if where == self.where else 0):
            try:
                descriptor = os.open(self.pids / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            pid = ctypes.CDLL(None).fork() if self.how == "in C" else os.fork()
            if pid == 0:
                if self.how == "raises":
                    os.execv("/no/such/program", ["program"])
                return
            os.write(descriptor, str(pid).encode())
            os.close(descriptor)
            return


def forked(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.iterdir()]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize(
    ("where", "how"), [("step", "returns"), ("step", "raises"), ("step", "in C"), ("reset", "returns")]
)
def test_a_copy_that_comes_back_ends_and_changes_nothing(
    where: str, how: str, isolation: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = []
    for place in (where, "nowhere"):
        folder = tmp_path / place
        folder.mkdir()
        given = {"where": place, "how": how, "pids": str(folder)}
        trainer = shoal.PPO(env=Forking, config={**SMALL, "seed": 3, "env_isolation": isolation, "env_config": given})
        for _ in range(3):
            result = trainer.train()
        weights.append(np.concatenate([part.ravel() for part in trainer.get_policy().get_weights().values()]))
        assert result["env_failures_total"] == 0
        trainer.stop()
    np.testing.assert_array_equal(*weights)
    pids = forked(tmp_path / where)
    assert len(pids) == MOST_FORKS
    assert not any(map(lives, pids))
    assert "has come back in a copy of process" in capfd.readouterr().err


class Unguarded(Forking):
    """Its copies are not ended by the process that they come back in."""

    def __init__(self, config: Any) -> None:
        env_process.end_copy = lambda *_: None
        super().__init__(config)


def test_two_processes_that_answer_as_one_environment_are_an_incident(tmp_path: Path) -> None:
    given = {"where": "step", "how": "returns", "pids": str(tmp_path)}
    trainer = shoal.PPO(env=Unguarded, config={**SMALL, "seed": 3, "env_isolation": "process", "env_config": given})
    results = [trainer.train() for _ in range(4)]
    trainer.stop()
    assert 0 < results[-1]["env_failures_total"] <= MOST_FORKS
    assert not any(map(lives, forked(tmp_path)))


def test_children_that_keep_to_themselves_are_left_alone() -> None:
    with copies.comes_back_once("step()"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    assert child.poll() is None
    child.communicate(b"\n")
