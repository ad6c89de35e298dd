"""Sweeps whose driver is stopped or killed: every trial is saved, no process stays, and nothing is trained twice."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from desks import WatchedDesk

from shoal.reports.records import TrialRecord, read_results, read_trials
from shoal.runs.checkpoints import read_checkpoint

ITERATIONS = 15

ALGORITHM = f"""
import sys
import shoal

config = {{
    "env": "CartPole-v1", "lr": {{"grid_search": [1e-3, 1e-4, 1e-5, 1e-6]}}, "train_batch_size": 128,
    "num_envs_per_worker": 2, "model": {{"fcnet_hiddens": [8]}},
}}
show = lambda event: print(event.sentence, flush=True)
try:
    shoal.tune.run("PPO", name="sweep", config=config, stop={{"training_iteration": {ITERATIONS}}}, checkpoint_freq=5,
                   max_concurrent_trials=2, resume=True, show=show)
except KeyboardInterrupt:
    sys.exit(130)
"""
TOGETHER = ALGORITHM.replace("max_concurrent_trials=2", "seeds=2").replace(
    "config = {", "import shoal.tune.seeds_trial\n\nshoal.tune.seeds_trial.ROUNDS = 1\nconfig = {", 1
)
FUNCTION = """
import os
import shoal

def slow(config):
    with open(os.path.expanduser("~/begun"), "a") as file:
        print(config["x"], file=file)
    for k in range(30):
        shoal.tune.report(score=config["x"] + k)

show = lambda event: print(event.sentence, flush=True)
shoal.tune.run(slow, name="sweep", config={"x": {"grid_search": list(range(12))}}, metric="score", mode="max",
               max_concurrent_trials=2, resume=True, show=show)
"""


class SweepDesk(WatchedDesk):
    """A desk with one sweep."""

    @property
    def sweep(self) -> Path:
        (found,) = (self.home / "shoal_results").glob("sweep/sweep_*")
        return found

    def records(self) -> list[TrialRecord]:
        return read_trials(self.sweep)

    def results(self, record: TrialRecord) -> list[dict[str, Any]]:
        return read_results(self.sweep, record)


@pytest.fixture
def desk(tmp_path: Path) -> SweepDesk:
    return SweepDesk(tmp_path)


def await_line(child: subprocess.Popen[str], *words: str) -> None:
    """Read until a line that has these words, in this order of lines."""
    assert child.stdout is not None
    waiting = list(words)
    for line in child.stdout:
        if waiting[0] in line:
            waiting.pop(0)
            if not waiting:
                return
    raise AssertionError(f"the program ended before it told {waiting[0]!r}")


@pytest.mark.repeats(0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGKILL, 137), (signal.SIGINT, 130), (signal.SIGUSR1, 85)],
)
def test_a_sweep_goes_on_after_a_signal(desk: SweepDesk, number: signal.Signals, code: int) -> None:
    child = desk.start_program(ALGORITHM)
    await_line(child, "finished", "starts", "episode_reward_mean")
    printed, ended = desk.end(child, number)
    assert ended == code
    before = {record.index: record for record in desk.records()}
    done = {int(file.parent.name): file.stat().st_mtime_ns for file in desk.sweep.glob("trials/*/.done")}
    assert done
    if number != signal.SIGKILL:
        assert "save" in printed
        begun = [record for record in before.values() if record.status == "interrupted"]
        assert begun
        for record in begun:
            if record.last_result:
                saved = read_checkpoint(desk.sweep / record.folder).summary["training_iteration"]
                assert saved >= record.last_result["training_iteration"]
                assert saved == told_by(desk, record)[-1]

    printed, ended = desk.end(desk.start_program(ALGORITHM))
    assert ended == 0
    assert [record.index for record in desk.records()] == [0, 1, 2, 3]
    assert [record.settings["config.lr"] for record in desk.records()] == [1e-3, 1e-4, 1e-5, 1e-6]
    for record in desk.records():
        assert record.status == "finished"
        assert told_by(desk, record) == list(range(1, ITERATIONS + 1))
        if record.index in done:
            assert (desk.sweep / record.folder / ".done").stat().st_mtime_ns == done[record.index]
            assert f"trial {record.index} starts" not in printed
            assert f"trial {record.index} finished" not in printed

    if number == signal.SIGTERM:
        assert desk.end(desk.start_program(ALGORITHM)) == ("", 0), "a sweep that has ended is only looked at"


@pytest.mark.slow
@pytest.mark.repeats(0, slow=2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, 137), (signal.SIGINT, 130)])
def test_seeds_that_train_together_go_on_after_a_signal(desk: SweepDesk, number: signal.Signals, code: int) -> None:
    child = desk.start_program(TOGETHER)
    await_line(child, "finished", "starts", "episode_reward_mean")
    _, ended = desk.end(child, number)
    assert ended == code
    done = {int(file.parent.name): file.stat().st_mtime_ns for file in desk.sweep.glob("trials/*/.done")}
    assert done
    assert len(done) < 8

    _, ended = desk.end(desk.start_program(TOGETHER))
    assert ended == 0
    records = desk.records()
    assert [(record.index, record.seed) for record in records] == [(k, k % 2) for k in range(8)]
    assert [record.settings["config.lr"] for record in records] == [1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5, 1e-6, 1e-6]
    for record in records:
        assert record.status == "finished"
        assert told_by(desk, record) == list(range(1, ITERATIONS + 1))
        if record.index in done:
            assert (desk.sweep / record.folder / ".done").stat().st_mtime_ns == done[record.index]


def told_by(desk: SweepDesk, record: TrialRecord) -> list[int]:
    return [result["training_iteration"] for result in desk.results(record)]


@pytest.mark.slow
def test_functions_that_have_ended_are_not_called_again_after_kill_9(desk: SweepDesk) -> None:
    child = desk.start_program(FUNCTION)
    await_line(child, "finished", "finished", "finished")
    desk.end(child, signal.SIGKILL)
    ended = {
        record.settings["config.x"]
        for record in [TrialRecord(k, k, {"config.x": k}, folder=f"trials/{k:05d}") for k in range(12)]
        if (desk.sweep / record.folder / ".done").exists()
    }
    assert len(ended) >= 3
    assert desk.end(desk.start_program(FUNCTION))[1] == 0
    begun = [int(line) for line in (desk.home / "begun").read_text().split()]
    assert set(begun) == set(range(12))
    assert all(begun.count(x) == 1 for x in ended)
    assert [record.status for record in desk.records()] == ["finished"] * 12
    assert json.loads((desk.sweep / "outcome.json").read_text())["sentence"] == "12 trials have ended"
