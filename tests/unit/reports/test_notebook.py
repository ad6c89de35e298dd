"""Runs, lists of results and sweeps in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from fake_runs import fake_result, fake_run

import shoal
from shoal.reports.analysis import Analysis
from shoal.runs.run import Run


def words(text: str) -> str:
    """The text of a piece of a page, which is well-formed."""
    root = ET.fromstring(f"<div>{text}</div>")
    assert not list(root.iter("script"))
    return " ".join(root.itertext())


def test_a_list_of_results(tmp_path: Path) -> None:
    results = shoal.Results(fake_result(at, at) for at in range(1, 21))
    shown = results._repr_html_()
    assert words(shown).startswith("20 results, the last 8 of them")
    assert "<polyline" in shown
    assert isinstance(results, list)
    assert words(shoal.Results()._repr_html_()) == "no results yet"
    folder = fake_run(tmp_path, "x", iterations=3)
    assert [result["training_iteration"] for result in shoal.Results.read(folder)] == [1, 2, 3]
    assert shoal.Results.read("x", str(tmp_path)) == shoal.Results.read(folder)


def test_a_run(tmp_path: Path) -> None:
    opened = Run.resume(fake_run(tmp_path, "x", stop={"training_iteration": 99}))
    shown = opened._repr_html_()
    assert words(shown).startswith("PPO CartPole-v1:  Return 10 after 1,000 steps, still rising")
    assert str(opened.folder) in shown
    assert "no results yet" in Run.resume(fake_run(tmp_path, "y", iterations=0))._repr_html_()


def test_a_sweep(filled: Callable[..., Path]) -> None:
    analysis = Analysis(filled(20))
    text = words(analysis._repr_html_())
    assert "20 trials" in text
    assert str(analysis.best_trial.record.index) in text
