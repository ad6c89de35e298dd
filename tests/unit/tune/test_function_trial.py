"""A trial of a user's function, as Tune's processes set it up and step it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.config.sweep import sweep_from
from shoal.reports.records import results_of, write_sweep
from shoal.tune.sweep_run import OwnFunction, SweepRun


def three_reports(config: dict[str, Any]) -> None:
    for k in range(3):
        shoal.tune.report(score=config["x"] + k)


@pytest.fixture
def process_of_trial_0(tmp_path: Path) -> Callable[[], Any]:
    """Sets up what a process of trial 0 holds."""
    pytest.importorskip("ray.tune")
    tree = {"name": "test", "config": {"x": {"grid_search": [10]}}, "metric": "score", "mode": "max"}
    opened = SweepRun(sweep_from(tree, check_experiment=False), tmp_path, function=OwnFunction(three_reports))
    write_sweep(tmp_path, opened.sweep, opened.user_code, "three_reports")
    trial_class: Any = opened._trainable("life")

    def set_up() -> Any:
        trial = trial_class.__new__(trial_class)
        trial._trial_info = SimpleNamespace(trial_name="00000")
        trial.setup({"config.x": 10})
        return trial

    return set_up


def scores(tmp_path: Path) -> list[float]:
    return [result["score"] for result in results_of(tmp_path / "trials/00000")]


def test_a_process_that_is_set_up_late_and_never_steps_leaves_the_results(process_of_trial_0, tmp_path) -> None:
    """Tune gives the trial to a process that has become free while a new one starts, and then drops the new one."""
    reused = process_of_trial_0()
    assert reused.step()["score"] == 10
    process_of_trial_0()
    assert scores(tmp_path) == [10]
    assert reused.step()["score"] == 11
    assert scores(tmp_path) == [10, 11]
    reused.cleanup()


def test_a_function_that_was_interrupted_begins_anew(process_of_trial_0, tmp_path) -> None:
    lost = process_of_trial_0()
    lost.step()
    lost.step()
    lost.cleanup()
    again = process_of_trial_0()
    told = [again.step() for _ in range(3)]
    assert [(result["score"], result["training_iteration"]) for result in told] == [(10, 1), (11, 2), (12, 3)]
    assert scores(tmp_path) == [10, 11, 12]
    again.cleanup()


def test_one_call_has_ended_when_the_next_begins(tmp_path: Path) -> None:
    """A process that goes from trial to trial has one `sys.stdout`."""
    pytest.importorskip("ray.tune")
    from shoal.tune.function_trial import FunctionThread

    def tidy(config: dict[str, Any]) -> None:
        try:
            while True:
                print("trial", config["x"])
                shoal.tune.report(score=1)
        finally:
            time.sleep(0.2)
            print("tidied up after", config["x"])

    before = sys.stdout
    for x in range(3):
        call = FunctionThread(tidy, {"x": x}, tmp_path / f"{x}.txt")
        assert call.next() == ("result", {"score": 1})
        call.stop()
    assert sys.stdout is before
    logs = [(tmp_path / f"{x}.txt").read_text() for x in range(3)]
    assert logs == [f"trial {x}\ntidied up after {x}\n" for x in range(3)]
