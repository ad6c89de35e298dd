"""`shoal plot`: figures in files and in the terminal."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run
from gymnasium import spaces

from shoal.cli.main import main
from shoal.envs.recording import Trajectory
from shoal.reports.curves import Curve
from shoal.reports.figures import write_figure
from shoal.reports.trajectories import Trajectories, curves_plot, read_trajectories
from shoal.runs.trajectories import write_trajectories


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
        (["slow", "--metric", "episode_reward"], "did you mean episode_reward_mean?"),
        (["slwo"], "did you mean slow?"),
        (["slow", "--metric", "Loss"], "no run has 'Loss'; did you mean learner/policy_loss or learner/vf_loss?"),
        (["slow", "--metric", ""], "no run has ''; there are env_failures_total, "),
        (["slow", "--by", "gama"], "--by: no run has the setting 'gama'; did you mean"),
    ],
)
def test_what_is_refused(root: Path, words: list[str], sentence: str) -> None:
    done = typed(*words, "--results-dir", root)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert sentence in line


def walks(file: Path, episodes: int, cases: list[str] | None = None) -> Path:
    """Episodes of 3, 4, ... steps that go to the right and up; what is done is 0, 1, 0, ..."""
    pytest.importorskip("pyarrow")
    kept = []
    for number in range(episodes):
        obs = [
            {"at": np.array([step, step * number], np.float32), "eye": np.zeros((9, 9))} for step in range(4 + number)
        ]
        steps = 3 + number
        kept.append(Trajectory(number, obs, [step % 2 for step in range(steps)], [1.0] * steps, True))
    space = spaces.Dict({"at": spaces.Box(-99, 99, (2,)), "eye": spaces.Box(0, 1, (9, 9), np.float64)})
    write_trajectories(file, kept, space, spaces.Discrete(2), cases or [])
    return file


def test_trajectories_are_curves_of_each_variable(tmp_path: Path) -> None:
    found = read_trajectories(walks(tmp_path / "x.parquet", 2, ["calm", "windy"]))
    assert found.episodes == ("case calm", "case windy")
    assert list(found.curves) == ["obs.at[0]", "obs.at[1]", "action", "reward"]
    assert found.curves["obs.at[1]"][1].y.tolist() == [0, 1, 2, 3, 4]
    assert found.curves["action"][0].x.tolist() == [0, 1, 2]  # after the last observation nothing is done
    assert found.left_out == ("obs.eye (81 numbers)",)


def test_what_goes_up_and_down_all_the_time_is_drawn_thinly(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    steps = np.arange(400.0)
    curves = {"action": (Curve(steps, steps % 2),), "height": (Curve(steps, np.sin(steps / 40)),)}
    data = curves_plot(Trajectories("x.parquet", ("episode 0",), curves, ()))
    assert [panel.lines[0].is_restless for panel in data.panels] == [True, False]
    write_figure(data, tmp_path / "both.svg")
    lines = re.findall(r'stroke: #0072b2;[^"]*stroke-width: ([\d.]+)', (tmp_path / "both.svg").read_text())
    assert sorted(lines) == ["0.4", "1.3"]


def test_names_are_drawn_as_they_are_and_within_the_page(root: Path, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("matplotlib")
    pattern = f"{'long' * 24}, {'name' * 24}"
    names = ("cost $x^$ eur", "a $x_1$", pattern)
    for name in names:
        for seed in range(2):
            fake_run(root, name, seed, course=float)
    for file, chosen in (("three.svg", names), ("two.png", names[:2]), ("long.png", (pattern, "slow"))):
        words = [root / name for name in chosen]
        done = typed(*words, "--by", "name", "-o", root / file)
        assert done.exit_code == 0, done.output
    text = " ".join(ET.fromstring((root / "three.svg").read_text()).itertext())
    for word in ("cost $x^$ eur (n = 2)", "a $x_1$ (n = 2)", "longlong", "…", "name (n = 2)", "environment steps"):
        assert word in text
    assert max(map(len, text.split("\n"))) < 60
    assert [str(warning.message) for warning in recwarn if "layout" in str(warning.message)] == []


def test_a_legend_of_long_names_stands_beside_the_curves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: (figure.draw_without_rendering(), kept.append(figure))
    )
    fake_run(root, "x" * 200, 0, course=float)
    assert typed(root / ("x" * 200), root / "slow", "--by", "name", "-o", root / "a.png").exit_code == 0
    [axes] = kept[0].axes
    legend = axes.get_legend().get_window_extent()
    assert legend.x0 >= axes.get_window_extent().x1
    for part in (legend, axes.xaxis.label.get_window_extent(), axes.yaxis.label.get_window_extent()):
        assert part.union([part, kept[0].bbox]).bounds == kept[0].bbox.bounds, "it is on the page"


def test_trajectories_in_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = walks(tmp_path / "x.parquet", 3, ["calm", "windy", "storm"])
    done = typed("--trajectories", file, "-o", tmp_path / "all.svg", "-o", tmp_path / "all.pdf")
    assert done.exit_code == 0, done.output
    assert "x.parquet: 3 episodes; left out: obs.eye (81 numbers)" in done.output
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")
    text = " ".join(ET.fromstring((tmp_path / "all.svg").read_text()).itertext())
    for word in ("obs.at[0]", "obs.at[1]", "action", "reward", "case storm", "step"):
        assert word in text
    done = typed("--trajectories", file, "--paths", "obs.at[0],obs.at[1]", "-o", tmp_path / "paths.svg")
    assert "3 paths; a dot is where one begins, a cross where it ends" in done.output
    text = " ".join(ET.fromstring((tmp_path / "paths.svg").read_text()).itertext())
    assert "obs.at[1]" in text
    assert "action" not in text


def test_many_trajectories_in_the_terminal_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = walks(tmp_path / "x.parquet", 12)
    done = typed("--trajectories", file, "--metric", "obs.at[1]", "--show")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "obs.at[1]"
    assert lines[-2] == "  a median"
    assert "the thick one is their median" in lines[-1]
    assert any("·" in line and "a" in line for line in lines[1:-4])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trajectories", "x.parquet", "--metric", "obs.at"], "has no variable 'obs.at'; did you mean obs.at["),
        (["--trajectories", "x.parquet", "--paths", "action"], "--paths: give two variables, e.g. --paths obs.at[0],"),
        (["--trajectories", "x.parquet", "--paths", "action,z"], "x.parquet has no variable 'z'"),
        (["--trajectories", "x.parquet", "slow"], "Use either RUN... or --trajectories (got slow too)."),
        (["--trajectories", "x.parquet", "--by", "lr"], "--by is for runs; leave it out with --trajectories."),
        (["--trajectories", "x.parquet", "--paths", "a,b", "--metric", "a"], "Use either --metric or --paths."),
        (["--trajectories", "none.parquet"], "--trajectories none.parquet: there is no such file"),
        (
            ["--trajectories", "table.parquet"],
            "has no columns episode and step of numbers; give a file of `shoal evaluate",
        ),
        (["--trajectories", "words.parquet"], "has no columns episode and step of numbers"),
        (["--trajectories", "text.parquet"], "text.parquet: cannot be read"),
        (["--paths", "a,b"], "--paths is for --trajectories FILE.parquet"),
        ([], "Name a RUN, or a file of --trajectories."),
    ],
)
def test_trajectories_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    monkeypatch.chdir(tmp_path)
    walks(tmp_path / "x.parquet", 2)
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "table.parquet")
    parquet.write_table(pa.table({"episode": ["x"], "step": ["a"], "obs": ["q"]}), tmp_path / "words.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    done = typed(*words)
    assert done.exit_code == 2
    assert sentence in done.output.splitlines()[-1]


def test_runs_without_data_are_not_counted_but_told(root: Path) -> None:
    (empty,) = (root / "slow").glob("*_00001_*")
    (empty / "result.json").write_text("")
    done = typed("slow", "--results-dir", root)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("episode_reward_mean over timesteps_total; 2 runs in 1 group; lines")
    assert done.stderr == f"Warning: 1 of 3 runs has no episode_reward_mean and is left out: {empty.name}.\n"
    (other,) = (root / "slow").glob("*_00002_*")
    (other / "result.json").write_text("")
    assert typed("slow", "--results-dir", root).stdout.splitlines()[-1].endswith("; 1 run in 1 group")


@pytest.mark.parametrize("size", ["1e308", "NaN", "Infinity", "1" * 400])
def test_returns_that_no_figure_holds(tmp_path: Path, size: str, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("matplotlib")
    folder = fake_run(tmp_path)
    text = (folder / "result.json").read_text()
    for place, sign in ((3, ""), (4, "-")):
        number = f"{sign}{size}".replace("-NaN", "NaN")
        text = text.replace(f'"episode_reward_mean": {place}.0', f'"episode_reward_mean": {number}')
        text = text.replace(f'"episode_reward_min": {place - 5}.0', f'"episode_reward_min": {number}')
    (folder / "result.json").write_text(text)
    for words in ((), ("-o", tmp_path / "x.svg"), ("-o", tmp_path / "x.png")):
        done = typed(folder, *words)
        assert done.exit_code == 0, done.output
        sentence = "2 results are left out, whose episode_reward_mean is not finite or beyond 1e+38"
        assert done.stderr == f"Warning: {sentence}: {folder.name}.\n"
    done = CliRunner().invoke(main, ["report", str(folder)], prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert "2 results are left out" in done.stderr
    assert "2 results are left out" in (folder / "report.html").read_text()
    assert [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning] == []


def test_names_of_anybodys_cannot_command_the_terminal(tmp_path: Path) -> None:
    file = fake_run(tmp_path) / "experiment.json"
    tree = json.loads(file.read_text())
    tree["run"], tree["config"]["env"] = "PPO\x1b]0;mine\x07", "Cart\nPole"
    file.write_text(json.dumps(tree))
    done = typed(file.parent)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == r"Cart\nPole, PPO\x1b]0;mine\x07"
