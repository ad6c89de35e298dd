"""A run that knows when its process will be ended."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.config.experiment import experiment_from
from shoal.errors import ShoalError
from shoal.machine.deadlines import VARIABLE, Deadline, earlier, told_deadline
from shoal.runs import walltime
from shoal.runs.chain import CHAIN_FILE
from shoal.runs.run import Run, run
from shoal.runs.walltime import Walltime


class Clock:
    """A clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr(time, "time", lambda: self.now)

    def deadline(self, left: float, ask: Any = None) -> Deadline:
        return Deadline(self.now + left, "job 41", ask)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_margin_is_two_minutes_or_two_iterations_with_a_save(clock: Clock) -> None:
    watch = Walltime(clock.deadline(3600))
    clock.now += 3600 - 121
    assert not watch.is_over(1.0)
    clock.now += 2
    assert watch.is_over(1.0)
    assert watch.sentence is not None
    assert watch.sentence.endswith("in 119 s") or "1 min 59 s" in watch.sentence
    slow = Walltime(clock.deadline(3600))
    slow.save_s = 30.0
    clock.now += 3600 - 361
    assert not slow.is_over(150.0)
    assert slow.is_over(151.0)


def test_a_short_walltime_has_a_short_margin(clock: Clock) -> None:
    watch = Walltime(clock.deadline(40))
    clock.now += 29
    assert not watch.is_over(0.1)
    clock.now += 2
    assert watch.is_over(0.1)


def test_a_walltime_that_was_extended_is_found_out_when_it_is_near(clock: Clock) -> None:
    asked: list[float] = []

    def ask() -> float:
        asked.append(clock.now)
        return begun + 7200

    begun = clock.now
    watch = Walltime(clock.deadline(3600, ask))
    clock.now += 3000
    assert not watch.is_over(1.0)
    assert asked == []
    clock.now += 500
    assert not watch.is_over(1.0)
    assert len(asked) == 1
    clock.now += 3600
    assert watch.is_over(1.0)


def test_who_tells_the_earliest_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert earlier(None, Deadline(5, "a"), Deadline(3, "b")) == Deadline(3, "b")
    assert earlier(None, None) is None
    for text, at in (("1800000000", 1.8e9), ("soon", None), ("nan", None), ("", None)):
        monkeypatch.setenv(VARIABLE, text)
        found = told_deadline()
        assert (None if found is None else found.at) == at


def tree(folder: Path, name: str, **keys: Any) -> dict[str, Any]:
    config = {"train_batch_size": 128, "num_envs_per_worker": 2, "num_sgd_iter": 1, "seed": 5, "log_level": "ERROR"}
    told = {"name": name, "env": "CartPole-v1", "results_dir": str(folder), "report": False}
    return {**told, "stop": {"training_iteration": 6}, "config": config, **keys}


def test_a_run_that_is_ended_by_walltimes_is_the_run_without(tmp_path: Path) -> None:
    straight = Run.open(experiment_from(tree(tmp_path, "straight")))
    list(straight.results())
    ends = []
    for _ in range(20):
        part = Run.open(experiment_from(tree(tmp_path, "parts")))
        part.deadline = Deadline(time.time() + 3600, "job 41")
        for count, _ in enumerate(part.results()):
            if count == 1:
                part.deadline = part._walltime._deadline = Deadline(time.time() + 1, "job 41")
        assert part.outcome is not None
        ends.append(part.outcome.signal)
        if part.outcome.kind == "stopped":
            break
        assert part.outcome.sentence.startswith("job 41 ends at ")
        assert not part.is_stuck
    assert ends == [signal.SIGUSR1, signal.SIGUSR1, None]
    assert (part.folder / CHAIN_FILE).read_bytes() == (straight.folder / CHAIN_FILE).read_bytes()


SLOW = """
import time, gymnasium

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low, {}

    def step(self, action):
        time.sleep(0.2)
        return self.observation_space.low, 0.0, False, False, {}
"""


def test_an_iteration_that_is_too_long_is_cut_and_twice_in_a_row_is_once_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(walltime, "LOOK_S", 0.1)
    slow = tree(tmp_path, "slow", env="slow.py:Slow")
    slow["config"] = {**slow["config"], "train_batch_size": 4000}
    monkeypatch.setenv(VARIABLE, f"{time.time() + 2:.0f}")
    with pytest.raises(SystemExit) as first:
        list(run(slow))
    assert first.value.code == 85
    (folder,) = (tmp_path / "slow").iterdir()
    assert json.loads((folder / "outcome.json").read_text())["signal"] == signal.SIGUSR1
    monkeypatch.setenv(VARIABLE, f"{time.time() + 2:.0f}")
    with pytest.raises(ShoalError, match="twice without a finished iteration in between"):
        list(run(slow))
    assert [child.name for child in (tmp_path / "slow").iterdir()] == [folder.name]
