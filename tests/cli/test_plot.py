"""`shoal plot`: figures in files and in the terminal."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

from shoal.cli.main import main


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["plot", *map(str, words)], prog_name="shoal")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, lr in (("slow", 1e-4), ("fast", 1e-3)):
        for seed in range(3):
            fake_run(tmp_path, name, seed, course=lambda at, seed=seed: float(at * (1 + seed)), config={"lr": lr})
    return tmp_path


def test_files_of_every_format(root: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [root / f"figure.{kind}" for kind in ("pdf", "png", "svg")]
    done = typed(root / "slow", root / "fast", *(word for file in files for word in ("-o", file)))
    assert done.exit_code == 0, done.output
    assert "6 runs in 2 groups" in done.output
    assert "95 % interval" in done.output
    assert files[0].read_bytes().startswith(b"%PDF")
    assert files[1].read_bytes().startswith(b"\x89PNG")
    text = " ".join(ET.fromstring(files[2].read_text()).itertext())
    for word in ("lr 0.0001 (n = 3)", "lr 0.001 (n = 3)", "environment steps", "return", "CartPole-v1, PPO"):
        assert word in text
    before = files[2].read_bytes()
    typed(root / "slow", root / "fast", "-o", files[2])
    assert files[2].read_bytes() == before


def test_many_lines_and_many_panels(root: Path) -> None:
    pytest.importorskip("matplotlib")
    file = root / "many.svg"
    words = ["--by", "lr", "--by", "seed", "--metric", "episode_reward_mean", "--metric", "learner/kl", "--smooth", "3"]
    done = typed(
        "slow", "fast", "--results-dir", root, *words, "--statistic", "mean", "--x", "time_total_s", "-o", file
    )
    assert done.exit_code == 0, done.output
    text = " ".join(ET.fromstring(file.read_text()).itertext())
    assert "training time (s)" in text
    assert "lr 0.001, seed 2" in text
    assert "learner/kl" in text


def test_in_the_terminal_without_matplotlib(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = typed(root / "slow", root / "fast", "--show")
    assert done.exit_code == 0, done.output
    assert "environment steps" in done.output
    assert "\x1b" not in done.output
    refused = typed(root / "slow", "-o", root / "x.pdf")
    assert refused.exit_code == 2
    (line,) = refused.output.splitlines()
    assert "a figure needs matplotlib; type `pip install 'shoal-rl[plot]'`, or use --show" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slow", "--metric", "reward_mean"], "--metric: no run has 'reward_mean'; did you mean episode_reward_mean?"),
        (["slow", "-o", "figure.jpg"], "-o figure.jpg: ends in no format of a figure; use .pdf, .png or .svg"),
        (["slow", "-o", "nowhere/f.pdf"], "there is no folder nowhere"),
        (["slwo"], "did you mean slow?"),
        (["slow", "--by", "gama"], "--by: no run has the setting 'gama'; did you mean"),
    ],
)
def test_what_is_refused(root: Path, words: list[str], sentence: str) -> None:
    done = typed(*words, "--results-dir", root)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert sentence in line
