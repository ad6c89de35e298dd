"""The page on searches is so: its file and commands are right, its program runs, its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.config.algorithms import ALGORITHMS
from shoal.config.search_spaces import KINDS
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS
from shoal.reports.analysis import Analysis

PAGE = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
COMMANDS = [re.split(r" +# ", line)[0].strip() for line in re.findall(r"^ {4}(shoal tune -f .*)$", PAGE, re.MULTILINE)]


def fenced(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def run(words: list[str], folder: Path) -> str:
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_right(command: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.yml").write_text(fenced("yaml"))
    words = [word for word in shlex.split(command)[1:] if word != "--dry-run"]
    printed = run([sys.executable, "-m", "shoal", *words, "--dry-run"], tmp_path)
    assert re.match(r"cartpole_sweep: \d+ trials\n", printed)


@pytest.mark.slow
def test_the_program_runs(tmp_path: Path) -> None:
    printed = run([sys.executable, "-c", fenced("python")], tmp_path)
    best, checkpoint, *_ = printed.splitlines()
    assert best in ("0.001", "0.0001")
    assert "/shoal_results/first_sweep/" in checkpoint


def test_the_words_of_python_are_there() -> None:
    section = PAGE.partition("## In Python")[2]
    words = re.findall(r"`(\w+)(?:\(\))?`", section.partition("classic names:")[2].partition("`shoal.tune.Analysis")[0])
    assert len(words) > 10
    assert all(hasattr(Analysis, word) for word in words)
    calls = re.findall(r"=(tune\.\w+\.\w+\([^)]*\))` is\s`(?:scheduler|search_alg)=(.*?)`", section)
    assert len(calls) == 2
    for call, meant in calls:
        made, value = eval(call, {"tune": shoal.tune}), eval(meant)
        assert made == (value if isinstance(value, dict) else {"type": value})


def test_tables_are_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [name for name in rows if name in SCHEDULERS or name in SEARCHERS] == [
        *SCHEDULERS,
        *SEARCHERS,
    ]
    assert all(f"{{{kind}: " in PAGE for kind in KINDS)
    assert all(f"`{key}`" in PAGE for kind in ALGORITHMS.values() for key in kind.mutable)
    for entry in (*SEARCHERS.values(), *SCHEDULERS.values()):
        assert not entry.extra or f"'shoal-rl[{entry.extra}]'" in PAGE
