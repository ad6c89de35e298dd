"""RELIABILITY.md is what the kept figures say, and the script that makes it works in small."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import Page

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "reliability.py"

PAGE = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
from pathlib import Path
import reliability
sys.stdout.write(reliability.page(Path(sys.argv[1])))
"""


def page_of(results: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PAGE, results], check=True, capture_output=True, text=True)
    return done.stdout


def test_the_page_is_what_was_measured(tmp_path: Path) -> None:
    assert page_of(ROOT / "benchmarks" / "results") == (ROOT / "RELIABILITY.md").read_text()
    kept = {
        "date": "2026-11-18T00:00:00+00:00",
        "commit": "0123456789abcdef-dirty",
        "results": {"count": 1000, "figure": "3 loaded silently", "peers": {"sb3": "7 of 200"}},
        "bars": [{"met": False}],
    }
    (tmp_path / "reliability-corruptions.json").write_text(json.dumps(kept))
    page = page_of(tmp_path)
    assert "| 1,000 | 3 loaded silently (**the bar is not reached**) | 7 of 200 | not measured | 2026-11-18 " in page
    assert "`0123456789+`" in page
    assert "Bars that are not reached: corruptions." in page
    assert "| 2 runs on one folder at once | exactly 1 proceeds | | not measured |" in page


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


def test_a_row_that_is_none_is_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "luck"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no part luck; the parts are saves, " in done.stderr
