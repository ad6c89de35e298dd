"""`benchmarks/learning.py`: which pieces count, what is made of them, and what they are held against."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shoal

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with its results elsewhere."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import learning

    monkeypatch.setattr(learning, "RESULTS", tmp_path)
    return learning


def lesson_of(learning: Any, key: str) -> Any:
    (found,) = (each for each in learning.LESSONS if each.key == key)
    return found


def kept(piece: Any, final: float) -> dict[str, Any]:
    return {"key": piece.key, "final": final, "settings": piece.settings, "wall_s": 1, "cpu_s": 1, "commit": "x"}


def test_the_mean_of_the_middle_half_leaves_out_a_quarter_at_each_end(learning: Any) -> None:
    from learning_page import iqm

    assert iqm([100.0, 1.0, 2.0, -100.0, 3.0]) == 2.0
    assert iqm([1.0, 2.0, 6.0]) == 3.0
    assert iqm([-50.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 700.0]) == 3.5


def test_an_interval_is_around_the_mean_and_of_equal_values_a_point(learning: Any) -> None:
    from learning_page import interval, iqm

    values = [3.0, 9.0, 4.0, 7.0, 5.0]
    low, high = interval(values)
    assert min(values) <= low < iqm(values) < high <= max(values)
    assert interval(values) == (low, high)
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_a_piece_is_there_until_its_settings_change(learning: Any) -> None:
    lesson = lesson_of(learning, "peers/PPO/CartPole-v1/defaults")
    piece, store = learning.Piece(lesson, "shoal", 0), learning.Store("peers")
    assert store.get(piece) is None
    store.add(kept(piece, 1.0))
    store.add(kept(piece, 2.0))
    again = learning.Store("peers")
    assert again.get(piece)["final"] == 2.0
    assert again.get(learning.Piece(replace(lesson, steps=lesson.steps + 1), "shoal", 0)) is None
    assert again.get(learning.Piece(replace(lesson, config={**lesson.config, "lr": 0.1}), "shoal", 0)) is None
    assert again.get(learning.Piece(lesson, "shoal", 1)) is None


def test_a_piece_from_before_a_default_changed_is_measured_again(
    learning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson = lesson_of(learning, "peers/PPO/CartPole-v1/defaults")
    ours, theirs = learning.Piece(lesson, "shoal", 0), learning.Piece(lesson, "sb3", 0)
    store = learning.Store("peers")
    store.add(kept(ours, 1.0))
    store.add(kept(theirs, 1.0))
    monkeypatch.setattr(learning, "config_tree", lambda config: {**shoal.PPO.get_default_config(), "lr": 0.5})
    assert store.get(ours) is None
    assert store.get(theirs) is not None


def test_a_key_that_is_new_and_off_leaves_pieces_as_they_are(learning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = lesson_of(learning, "peers/PPO/CartPole-v1/defaults")
    before, tree_of = learning.resolved(lesson), learning.config_tree
    monkeypatch.setattr(learning, "config_tree", lambda config: {**tree_of(config), "new": None, "newer": False})
    assert learning.resolved(lesson) == before
    monkeypatch.setattr(learning, "config_tree", lambda config: {**tree_of(config), "new": 1})
    assert learning.resolved(lesson) != before


def test_every_lesson_has_settings_that_shoal_takes(learning: Any) -> None:
    for lesson in learning.LESSONS:
        assert len(learning.resolved(lesson)) == 12


def test_half_a_line_of_a_killed_process_is_no_piece(learning: Any) -> None:
    piece = learning.Piece(lesson_of(learning, "bars/PPO/Pendulum-v1/defaults"), "shoal", 0)
    store = learning.Store("bars")
    store.add(kept(piece, 1.0))
    with store.path.open("a") as file:
        file.write(json.dumps(kept(piece, 3.0))[:40])
    again = learning.Store("bars")
    assert again.get(piece)["final"] == 1.0
    again.tidy()
    assert [json.loads(line)["final"] for line in again.path.read_text().splitlines()] == [1.0]


def bars_from(learning: Any, lesson: Any, ours: list[float], theirs: list[float]) -> list[Any]:
    from learning_page import table_of

    store = learning.Store("peers")
    for who, finals in (("shoal", ours), ("sb3", theirs)):
        for seed, final in enumerate(finals):
            store.add(kept(learning.Piece(lesson, who, seed), final))
    found = store.measured([lesson])
    finals = {key: [piece["final"] for piece in each] for key, each in found.items()}
    bars: list[Any] = learning.bars_of(table_of(found, [lesson]), finals, [lesson])
    return bars


def test_shoal_is_held_against_the_lower_end_of_the_peers_interval(learning: Any) -> None:
    lesson = lesson_of(learning, "peers/PPO/Hopper-v5/defaults")
    (bar,) = bars_from(learning, lesson, [8.0, 9.0, 10.0], [4.0, 5.0, 9.0])
    assert bar.name == "PPO Hopper-v5, defaults, beside SB3"
    assert (bar.value, bar.limit, bar.met) == (9.0, 4.0, True)
    (bar,) = bars_from(learning, lesson, [1.0, 1.0, 2.0], [4.0, 5.0, 9.0])
    assert not bar.met


def test_two_seeds_are_too_few_for_a_bar(learning: Any) -> None:
    lesson = lesson_of(learning, "peers/PPO/Hopper-v5/defaults")
    assert not bars_from(learning, lesson, [8.0, 9.0], [4.0, 5.0, 9.0])
