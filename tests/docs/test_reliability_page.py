"""RELIABILITY.md is what the kept figures say, and the script that makes it works in small."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pages import Page

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "reliability.py"


@pytest.fixture(scope="module")
def reliability() -> Iterator[Any]:
    """The script, whose parts are imported as it does it itself."""
    before = list(sys.path)
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        yield importlib.import_module("reliability")
    finally:
        sys.path[:] = before


def test_the_page_is_what_was_measured(reliability: Any, tmp_path: Path) -> None:
    assert reliability.page(ROOT / "benchmarks" / "results") == (ROOT / "RELIABILITY.md").read_text()
    kept = {
        "date": "2026-11-18T00:00:00+00:00",
        "commit": "0123456789abcdef-dirty",
        "results": {"count": 1000, "figure": "3 loaded silently"},
        "bars": [{"met": False}],
    }
    (tmp_path / "reliability-corruptions.json").write_text(json.dumps(kept))
    sb3 = {"corruptions": {"count": 200, "figure": "7 of 200"}, "two-runs": {"not_applicable": "it has no folder"}}
    (tmp_path / "reliability-sb3.json").write_text(json.dumps({"results": sb3}))
    page = reliability.page(tmp_path)
    assert "| 1,000 | 3 loaded silently (**the bar is not reached**) | 7 of 200 | not measured | 2026-11-18 " in page
    assert "`0123456789+`" in page
    assert "Bars that are not reached: corruptions." in page
    assert (
        "| 2 runs on one folder at once | exactly 1 proceeds | | not measured | not applicable | not measured |" in page
    )
    assert "Not applicable to Stable-Baselines3:\n\n- `two-runs`: it has no folder\n" in page
    (tmp_path / "reliability-corruptions.json").write_text(json.dumps({**kept, "tree": "fedcba9876543210"}))
    assert "src `fedcba9876` |" in reliability.page(tmp_path)


def test_pythons_and_numpys_are_told_as_they_were_tried(reliability: Any, tmp_path: Path) -> None:
    def tried(python: str, numpy: str, link: str, install: str = "pinned") -> dict[str, Any]:
        return {"python": python, "numpy": numpy, "link": link, "passed": 439, "steps": {"install": install}}

    rows = [
        tried("3.10.13", "2.2.6", "a"),
        tried("3.13.0", "2.2.6", "a"),
        tried("3.14", "2.2", "", "no such Python here"),
        tried("3.13.0", "2.4.6", "b"),
    ]
    kept = {"date": "2026-11-19", "commit": "0" * 40, "tree": "1" * 40, "results": {"tried": rows}, "bars": []}
    (tmp_path / "versions.json").write_text(json.dumps(kept))
    page = reliability.page(tmp_path)
    assert "| 3 | the same chain on Python 3.10.13, 3.13.0 with NumPy 2.2.6, and another one with NumPy 2.4.6; " in page
    assert "439 tests or more pass in each; there was no Python 3.14 |" in page


def test_every_row_names_a_test_that_is_there(reliability: Any) -> None:
    for row in reliability.ROWS:
        assert row.small == "" or (ROOT / row.small).is_file(), row.name
    assert [row.name for row in reliability.ROWS if not row.small] == ["versions", "mutants"]
    named = {name for peer in reliability.peers.NOT_APPLICABLE.values() for name in peer} | {*reliability.peers.HOOKS}
    assert named <= {row.name for row in reliability.ROWS}


def test_what_was_accepted_is_held_against_bounds_of_its_own(reliability: Any) -> None:
    nonsense = reliability.configurations.nonsense
    assert nonsense({"gamma": 1.0, "num_workers": "auto", "replay_buffer_config": {"capacity": 5}}) == []
    wrong: dict[str, Any] = {"gamma": 1.5, "num_workers": -1, "sgd_minibatch_size": True, "lr": float("nan")}
    assert nonsense(wrong) == ["gamma=1.5", "num_workers=-1", "sgd_minibatch_size=True", "lr=nan"]
    assert nonsense({"replay_buffer_config": {"capacity": 2.5}}) == ["replay_buffer_config.capacity=2.5"]
    assert nonsense({"train_batch_size": 64, "sgd_minibatch_size": 65}) == [
        "sgd_minibatch_size=65 of train_batch_size=64"
    ]
    assert all(
        reliability.configurations.tried_tree(tree) == "accepted" for tree in reliability.configurations.TREES.values()
    )


def test_what_found_nobody_was_not_refused(reliability: Any) -> None:
    answers = {
        "grpc": {"a": 16, "b": 12, "c": None, "d": 12},
        "jobs": {"e": 401, "f": 0},
        "files": {"g": "PermissionError"},
    }
    told = reliability.cluster.told_of(reliability.cluster.answered(answers), 0)
    assert told.startswith("0 succeed: 1 gRPC calls and 1 job requests were refused by authentication, 1 reads ")
    assert "not counted: 2 gRPC calls of methods that the port does not have, 1 to a port" in told


def test_seeds_in_two_processes_go_on_where_they_were_stopped(reliability: Any, tmp_path: Path) -> None:
    cluster = reliability.cluster
    with patch.object(cluster, "PIECE", 2), patch.object(cluster, "JOBS", 2):
        assert cluster.launcher_seeds(4, tmp_path).figure == "0 violations in 4 seeds"
        with patch.object(cluster, "ProcessPoolExecutor") as pool:
            again = cluster.launcher_seeds(4, tmp_path)
    assert again.figure == "0 violations in 4 seeds"
    assert not pool.return_value.__enter__.return_value.submit.called


@pytest.mark.slow
def test_rows_can_be_measured_in_small() -> None:
    rows = ["corruptions", "hostile", "configurations", "launcher", "saves"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *rows, "--quick"], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missed" not in done.stdout


def test_seeds_of_the_launcher_run_as_the_page_says() -> None:
    lines = [line for line in Page("docs/reliability.md").typed() if "simulated_launch" in line]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line.replace("--count 1000", "--count 10"))
        done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "--count" not in line or re.match(r"10 seeds in .*: 0 refuted\n", done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["luck"], "there is no part luck; the parts are saves, "),
        (["workers"], "workers: not measured here of shoal; type: python benchmarks/workers.py killed"),
        (["two-runs", "--peer", "sb3"], "two-runs: not measured here of sb3; its runs have no folder of their own"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    reliability: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.object(sys, "argv", ["reliability.py", *words]), pytest.raises(SystemExit, match="2"):
        reliability.main()
    assert said in capsys.readouterr().err
