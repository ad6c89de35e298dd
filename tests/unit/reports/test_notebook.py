"""Runs, lists of results and sweeps in a notebook."""

from __future__ import annotations

import gc
import xml.etree.ElementTree as ET
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
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


def test_outside_of_a_notebook_live_results_are_results(tmp_path: Path) -> None:
    closed = []

    def results() -> Generator[dict[str, Any], None, None]:
        try:
            yield from (fake_result(at, at) for at in range(1, 4))
        finally:
            closed.append(True)

    assert [result["training_iteration"] for result in shoal.live(results())] == [1, 2, 3]
    for _ in shoal.live(results()):
        break
    gc.collect()
    assert closed == [True, True]


LIVE = """
import shoal
keys = {"env": "CartPole-v1", "results_dir": FOLDER, "stop": {"training_iteration": 3}}
small = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
for result in shoal.live(shoal.run({**keys, "config": small}), every_s=0):
    pass
"""


@pytest.mark.slow
def test_results_are_drawn_live_in_a_kernel(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cell = nbformat.v4.new_code_cell(LIVE.replace("FOLDER", repr(str(tmp_path))))
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120)
    drawn: list[str] = []

    def note(message: dict[str, Any], *_: Any) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            drawn.append(words(message["content"]["data"]["text/html"]))

    process = client.process_message
    client.process_message = lambda message, *rest: (note(message), process(message, *rest))[1]
    client.execute()
    starts = [text.split(" environment")[0].strip() for text in drawn]
    assert starts[0] == "no results yet"
    assert [start.split()[0] for start in starts[1:]] == ["1", "2", "3", "3"]
    (shown,) = (out for out in cell["outputs"] if out["output_type"] == "display_data")
    assert "3 results" in shown["data"]["text/html"]
