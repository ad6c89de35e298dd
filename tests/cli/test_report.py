"""`shoal report`, and the report that every run leaves."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run
from gymnasium.envs.classic_control import CartPoleEnv

import shoal
from shoal.cli.main import main
from shoal.reports import video_section
from shoal.runs import own_replay
from shoal.runs import run as run_module
from shoal.runs.own_replay import films_itself

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
    assert "<td>finished</td>" in text
    assert "<td>running</td>" not in text
    assert "Return in" not in text
    assert "after 192 steps" in text
    assert not (trained(tmp_path / "off", report=False) / "report.html").exists()


class ClosesLate(CartPoleEnv):
    """Tells at its end whether the run has its outcome and its report by then."""

    def close(self) -> None:
        root = Path(os.environ["ROOT_OF_RUNS"])
        found = {file.name for file in root.glob("x/*/*") if file.name in ("report.html", "outcome.json")}
        (root / "closed").write_text(" ".join(sorted(found)))


def test_the_report_is_there_before_environments_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT_OF_RUNS", str(tmp_path))
    trained(tmp_path, env=ClosesLate)
    assert (tmp_path / "closed").read_text() == "outcome.json report.html"


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


def test_a_replay_stands_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    folder = trained(tmp_path, checkpoint_freq=1)
    assert "films an episode of it" in (folder / "report.html").read_text()
    done = typed(folder, "--video")
    assert done.exit_code == 0, done.output
    assert re.search(r"replay.mp4: return (\d+), \1 steps, checkpoint_00000\d$", done.output, re.MULTILINE)
    video = base64.b64encode((folder / "replay.mp4").read_bytes()).decode()
    text = (folder / "report.html").read_text()
    assert f'src="data:video/mp4;base64,{video}"' in text
    assert "media-src data:;" in text
    monkeypatch.setattr(video_section, "MOST_BYTES", 100)
    assert typed(folder).exit_code == 0
    text = (folder / "report.html").read_text()
    assert "too large to stand in this page" in text
    assert 'href="replay.mp4"' in text
    assert "data:video" not in text


def test_a_run_films_its_own_replay_where_that_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not films_itself("CartPole-v1", 59)
    assert not films_itself("no-such-env", 1e6)
    assert not films_itself("mine:Rod", 1e6)
    assert not films_itself(None, 1e6)
    pytest.importorskip("av")
    assert films_itself("CartPole-v1", 61)
    monkeypatch.setattr(own_replay, "LEAST_TRAINING_S", 0.0)
    assert 'src="data:video/mp4;base64,' in (trained(tmp_path / "a") / "report.html").read_text()
    monkeypatch.setattr(own_replay, "LONGEST_S", 0.001)
    late = trained(tmp_path / "b")
    assert not (late / "replay.mp4").exists()
    assert "None yet" in (late / "report.html").read_text()


def test_a_run_that_films_its_evaluations_has_the_last_in_its_report(tmp_path: Path) -> None:
    pytest.importorskip("av")
    tree = {"env": "CartPole-v1", "name": "x", "results_dir": str(tmp_path), "stop": {"training_iteration": 2}}
    list(
        shoal.run({**tree, "config": {**SMALL, "evaluation_interval": 1, "evaluation_duration": 1, "record_env": True}})
    )
    (folder,) = (tmp_path / "x").iterdir()
    text = (folder / "report.html").read_text()
    last = base64.b64encode((folder / "videos" / "iteration_000002.mp4").read_bytes()).decode()
    assert f'src="data:video/mp4;base64,{last}"' in text
    assert 'href="videos/iteration_000001.mp4"' in text


def test_what_evaluations_left_in_the_folder_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = trained(tmp_path)
    (tmp_path / "cases.csv").write_text("case,seed\ncalm,1\nwindy,2\n")
    words = ["evaluate", str(folder), "--cases", str(tmp_path / "cases.csv"), "--trajectories"]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert typed(folder).exit_code == 0
    text = (folder / "report.html").read_text()
    (file,) = folder.glob("evaluation_*.parquet")
    assert f"Trajectories: {file.name}" in text
    assert f"Cases: {file.with_suffix('.csv').name}" in text
    assert '"title":"case windy"' in text
    file.write_bytes(b"half")
    assert typed(folder).exit_code == 0  # what cannot be read is left out
    assert "Trajectories:" not in (folder / "report.html").read_text()
    refused = typed(folder, "--trajectories", file)
    assert refused.exit_code == 2
    assert "cannot be read" in refused.output


def test_only_a_few_runs_are_filmed(tmp_path: Path) -> None:
    for seed in range(5):
        fake_run(tmp_path, "x", seed)
    done = typed("x", "--results-dir", tmp_path, "--video", "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "--video: films an episode of each run, of at most 4 (got 5); name fewer runs" in done.output


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
    fake_run(tmp_path, "empty", iterations=0, outcome=None)
    done = typed(*words, "--results-dir", tmp_path)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert sentence in line


def test_runs_without_results_are_not_counted_but_told(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path, "x", seed, stop={"episode_reward_mean": 5}) for seed in range(3)]
    (folders[2] / "result.json").write_text("")
    done = typed("x", "--results-dir", tmp_path, "-o", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    warning = f"1 of 3 runs has no results and is left out: {folders[2].name}."
    assert done.stdout == f"{tmp_path / 'r.html'}: 2 runs; open it in a browser\n"
    assert done.stderr == f"Warning: {warning}\n"
    text = (tmp_path / "r.html").read_text()
    assert "2 of 2 runs solved it" in text
    assert warning in text
    assert f"{folders[2].name}</a>" in text
