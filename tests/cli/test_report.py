"""`shoal report`, and the report that every run leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

import shoal
from shoal.cli.main import main
from shoal.runs import run as run_module

SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)], prog_name="shoal")


def trained(root: Path, **more: object) -> Path:
    tree = {"env": "CartPole-v1", "name": "x", "results_dir": str(root), "stop": {"training_iteration": 3}, **more}
    for _ in shoal.run({**tree, "config": SMALL}):
        pass
    (folder,) = (root / "x").iterdir()
    return folder


def test_every_run_leaves_a_report_unless_it_is_off(tmp_path: Path) -> None:
    folder = trained(tmp_path / "on")
    text = (folder / "report.html").read_text()
    assert "Return in" not in text
    assert "after 192 steps" in text
    assert not (trained(tmp_path / "off", report=False) / "report.html").exists()


def test_a_report_that_fails_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_module, "REPORT_WRITER", "shoal.reports.run_report:nothing_of_this_name")
    folder = trained(tmp_path)
    assert (folder / "outcome.json").exists()
    assert "report.html cannot be written" in caplog.text


def test_a_page_of_runs(tmp_path: Path) -> None:
    one, two = fake_run(tmp_path, "x", 0), fake_run(tmp_path, "x", 1)
    done = typed(one)
    assert done.exit_code == 0, done.output
    assert (one / "report.html").exists()
    cases = tmp_path / "cases.csv"
    cases.write_text("case,wind,episode_reward,error\n1,2.5,10,\n2,3.5,,it broke\n")
    file = tmp_path / "both.html"
    done = typed("x", "--results-dir", tmp_path, "-o", file, "--cases", cases)
    assert done.output == f"{file}: 2 runs; open it in a browser\n"
    text = file.read_text()
    assert "Cases: cases.csv" in text
    assert "it broke" in text
    assert f'href="x/{two.name}/"' in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nobody"], "there is no run at"),
        (["x", "-o", "page.pdf"], "-o page.pdf: is not the name of a page; write e.g. -o report.html"),
        (["x", "-o", "nowhere/page.html"], "there is no folder"),
        (["x", "--cases", "none.csv"], "--cases none.csv: cannot be read"),
        (["x", "--by", "lrr"], "did you mean"),
        (["empty"], "has no results yet"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    fake_run(tmp_path, "x")
    fake_run(tmp_path, "empty", iterations=0)
    done = typed(*words, "--results-dir", tmp_path)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert sentence in line
