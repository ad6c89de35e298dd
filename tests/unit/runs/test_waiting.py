"""What is said while a result is waited for."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from shoal.cli import live
from shoal.cli.live import PlainView, live_lines, open_view
from shoal.cli.progress import ReminderTimes, activity_phrases
from shoal.config.experiment import algorithm_config
from shoal.runs.activity import Activity, progress

SAMPLING = Activity("training", 1, since=0.0, sampled=lambda: 340, due=2048, size_key="train_batch_size")


def test_steps_so_far_their_rate_and_when_the_result_is_due() -> None:
    assert activity_phrases(SAMPLING, "", 340.0) == [
        "iteration 1: 340 of 2,048 steps in 5 min 40 s, 1.0 steps/s",
        "its result is due in 28 min 28 s",
        "a smaller config.train_batch_size gives results sooner",
    ]
    assert len(activity_phrases(SAMPLING, "", 3.4)) == 2  # nothing is too long there


@pytest.mark.parametrize(
    ("activity", "told"),
    [
        (Activity(since=0.0), "starting 3 workers (40 s so far)"),
        (Activity("ending", since=0.0), "starting 3 workers (40 s so far)"),
        (Activity("closing", since=0.0), "closing the environments (40 s so far)"),
        (Activity("evaluating", 7, since=0.0), "iteration 7: evaluating (40 s so far)"),
        (
            Activity("training", 1, 0.0, lambda: 0, 2048),
            "iteration 1: the first of 2,048 steps is not done yet (40 s so far)",
        ),
        (
            Activity("training", 2, 0.0, lambda: 1024, 2048, workers=3),
            "iteration 2: 1,024 of 2,048 steps have come from 3 workers (40 s so far)",
        ),
        (
            Activity("training", 2, 0.0, lambda: 2048, 2048),
            "iteration 2: 2,048 steps are sampled, the agent learns from them (40 s so far)",
        ),
    ],
)
def test_what_is_waited_for(activity: Activity, told: str) -> None:
    assert activity_phrases(activity, "starting 3 workers", 40.0) == [told]


def test_lines_come_less_and_less_often() -> None:
    reminders = ReminderTimes()
    assert [t for t in range(3000) if reminders.is_time(0.0, float(t))] == [10, 60, 660, 1260, 1860, 2460]
    assert not reminders.is_time(3000.0, 3005.0)
    assert reminders.is_time(3000.0, 3011.0)


@pytest.mark.parametrize(
    ("algorithm", "keys", "expected"),
    [
        ("PPO", {"train_batch_size": 100, "num_envs_per_worker": 8}, (104, "train_batch_size")),
        (
            "DQN",
            {"timesteps_per_iteration": 100, "num_envs_per_worker": 1, "n_step": 1},
            (100, "timesteps_per_iteration"),
        ),
    ],
)
def test_how_many_steps_an_iteration_takes(algorithm: str, keys: dict[str, int], expected: tuple[int, str]) -> None:
    config = algorithm_config(algorithm, {"env": "CartPole-v1", **keys})
    assert (config.steps_per_iteration * config.num_envs, config.batch_key) == expected


def test_a_batch_log_has_what_begins_and_a_line_about_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    monkeypatch.setattr(progress, "level", logging.INFO)
    begun, enough = threading.Event(), threading.Event()

    def activity() -> Activity:
        assert begun.wait(60)  # the view's thread may look before anything has begun
        enough.set()
        return Activity("training", 1, time.monotonic() - 11.0, lambda: 11, 2048, "train_batch_size")

    with open_view("PPO Slow", Path("run"), {}, quiet=False, log_level="INFO", activity=activity):
        progress.info("making %d environments", 8)
        begun.set()
        assert enough.wait(60)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "making 8 environments"
    assert lines[1].startswith("iteration 1: 11 of 2,048 steps in ")
    assert lines[1].endswith("; a smaller config.train_batch_size gives results sooner")


def test_quiet_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "level", logging.INFO)
    with open_view("PPO Slow", Path("run"), {}, quiet=True, log_level="INFO", activity=Activity):
        progress.info("making 8 environments")
    assert capsys.readouterr() == ("", "")


def test_the_live_view_says_what_is_done_before_the_first_result() -> None:
    phrases = activity_phrases(Activity(since=0.0), "starting a private Ray", 3.0)
    lines = live_lines(live.History({}), "PPO Slow", Path("run"), 3.0, 80, phrases)
    assert [line.plain for line in lines][1:] == ["starting a private Ray (3 s so far)"]


def test_threads_write_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView({})
    threads = [threading.Thread(target=lambda: [view.begin("x" * 50) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().out.splitlines() == ["x" * 50] * 200
