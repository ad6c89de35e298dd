"""The live view and the plain lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.live import MOST_POINTS, History, live_lines, plain_line, sparkline
from shoal.data.number_text import duration_text, rate_text


def history(stop: dict[str, float], *results: dict[str, Any]) -> History:
    made = History(stop)
    for result in results:
        made.add(result)
    return made


RESULT = {
    "training_iteration": 12,
    "timesteps_total": 24576,
    "episode_reward_mean": 187.31,
    "episode_reward_min": 9.0,
    "episode_reward_max": 500.0,
    "episode_len_mean": 187.3,
    "episodes_total": 1234,
    "timesteps_per_s": 23456.0,
    "time_this_iter_s": 0.1,
    "time_total_s": 5.0,
    "timers": {"env_s": 0.04, "policy_s": 0.03, "learn_s": 0.02},
    "env_failures_total": 0,
}


def test_the_plain_line() -> None:
    shown = plain_line(history({"timesteps_total": 49152}, RESULT))
    assert shown == "iter   12  steps   24576  return   187.3  len 187.3  23k steps/s  eta 5 s"


def test_the_plain_line_before_any_episode_and_with_failures() -> None:
    result = {**RESULT, "episode_reward_mean": None, "episode_len_mean": float("nan"), "env_failures_total": 3}
    shown = plain_line(history({}, result))
    assert shown == "iter   12  steps   24576  return       -  len     -  23k steps/s  failures 3"


@pytest.mark.parametrize("width", [10, 20, 40, 80, 200])
@pytest.mark.parametrize("results", [[], [RESULT], [RESULT] * 100])
def test_the_live_view_fits(width: int, results: list[dict[str, Any]]) -> None:
    from rich.console import Console, Group

    made = history({"episode_reward_mean": 475.0}, *results)
    console = Console(width=width, record=True, force_terminal=True, color_system=None, file=io.StringIO())
    lines = live_lines(made, "PPO CartPole-v1", Path("/somewhere/with/a long/name" * 5), 3.0, width)
    console.print(Group(*lines))
    text = console.export_text()
    assert len(text.splitlines()) == len(lines)
    assert all(len(line) <= width for line in text.splitlines())
    if results and width >= 80:
        assert "return    187.3   min 9.0  max 500.0" in text
        assert "env 40%  policy 30%  learning 20%" in text
        assert "episode_reward_mean 187.3 of 475" in text


@pytest.mark.parametrize(
    ("values", "cells", "shown"),
    [
        ([], 10, ""),
        ([1.0], 10, "▁"),
        ([0.0, 1.0], 10, "▁█"),
        ([0.0] * 50 + [7.0] * 50, 4, "▁▁██"),
        ([float(i) for i in range(8)], 8, "▁▂▃▄▅▆▇█"),
        ([1.0, 2.0], 0, ""),
        ([1.0, 2.0], -3, ""),
        ([5.0, 5.0, 5.0], 3, "▁▁▁"),
        ([1e308, -1e308], 2, ""),
    ],
)
def test_sparkline(values: list[float], cells: int, shown: str) -> None:
    assert sparkline(values, cells) == shown


def test_a_long_run_stays_small() -> None:
    made = history({}, *({"episode_reward_mean": float(i)} for i in range(3 * MOST_POINTS)))
    assert len(made.returns) <= MOST_POINTS + 1
    assert made.returns == sorted(made.returns)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (829.6, "830"), (2300, "2.3k"), (9_960, "10k"), (23_456, "23k"), (1.23e6, "1.2M")]
)
def test_rate(value: float, text: str) -> None:
    assert rate_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (4.2, "5 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
