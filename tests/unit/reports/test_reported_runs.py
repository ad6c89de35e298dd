"""Which runs a person means, how they are grouped and labelled, and what is drawn of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from shoal.errors import ConfigError
from shoal.reports import result_columns
from shoal.reports.bands import band_of, smoothed, thinned
from shoal.reports.curves import Curve
from shoal.reports.plot_data import plot_data
from shoal.reports.reported_runs import folders_meant, grouped, read_run, read_runs
from shoal.reports.statistics import iqm
from shoal.reports.terminal_plot import terminal_plot


def curve(*points: tuple[float, float]) -> Curve:
    return Curve(np.array([x for x, _ in points], float), np.array([y for _, y in points], float))


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    for seed in range(3):
        for lr in (1e-2, 1e-3):
            fake_run(tmp_path, f"lr{lr}", seed, config={"lr": lr, "log_level": "ERROR" if seed else "WARN"})
    runs = read_runs([str(tmp_path / "lr0.01"), str(tmp_path / "lr0.001")])
    groups = grouped(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("lr 0.001", 3), ("lr 0.01", 3)]
    assert [group.label for group in grouped(runs, ["name"])] == ["lr0.001", "lr0.01"]
    assert len(grouped(runs, ["seed"])) == 3
    with pytest.raises(ConfigError, match=r"--by: no run has the setting 'lrr'; did you mean .*lr"):
        grouped(runs, ["lrr"])


def test_an_algorithms_own_defaults_are_not_told(tmp_path: Path) -> None:
    fake_run(tmp_path, "a", 0, config={"lr": 1e-3})
    fake_run(tmp_path, "a", 0, config={"lr": 1e-4})
    fake_run(tmp_path, "b", 0, run="DQN")
    labels = [group.label for group in grouped(read_runs([str(tmp_path / "a"), str(tmp_path / "b")]))]
    assert sorted(label.split(",")[0] for label in labels) == ["DQN", "PPO", "PPO"]
    assert all(label.count(",") == 1 for label in labels)


def test_a_run_a_name_a_checkpoint_and_a_folder_that_is_none(tmp_path: Path) -> None:
    first, second = fake_run(tmp_path, "x", 0), fake_run(tmp_path, "x", 1)
    assert folders_meant(str(first)) == [first]
    assert folders_meant("x", str(tmp_path)) == [first, second]
    assert set(folders_meant(str(tmp_path / "x"))) == {first, second}
    with pytest.raises(ConfigError, match="there is no run at"):
        folders_meant("y", str(tmp_path))
    fake_run(tmp_path, "empty", iterations=0, outcome=None)
    with pytest.raises(ConfigError, match="has no results yet"):
        read_runs(["empty"], str(tmp_path))


def test_half_written_lines_and_lacking_values(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, iterations=3)
    with open(folder / "result.json", "a") as file:
        file.write('{"training_iteration": 4, "timesteps_total": 400, "episode_reward_mean": null}\n[1]\n{"training_it')
    run = read_run(folder)
    assert len(run.column("training_iteration")) == 4
    assert math.isnan(run.column("episode_reward_mean")[-1])
    assert run.last("episode_reward_mean") == 3
    found = run.curve("episode_reward_mean")
    assert found is not None
    assert found.x.tolist() == [100, 200, 300]
    assert run.curve("nothing") is None
    (folder / "experiment.json").write_text("{")
    with pytest.raises(ConfigError, match="experiment cannot be read"):
        read_run(folder)


def test_columns_are_those_of_each_line_whatever_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_columns, "BATCH", 3)
    lines = [
        '{"a": 1, "b": {"c": 2.5, "d": null}, "e": "3", "f": true, "g": [1]}',
        '{"a": 2, "b": {"c": NaN, "d": 4}}',
        '{"b": {"d": Infinity}, "a": 3}',
        '{"a": 4, "b": {',
        '{"a": 5}, {"a": 6}',
        '[{"a": 7}]',
        "[" * 100_000,
        '{"a": ' * 900 + "1" + "}" * 900,
        f'{{"a": 1{"0" * 400}, "h": 8}}',
        "",
        '{"h": 9}',
    ]
    (tmp_path / "result.json").write_text("\n".join(lines) + "\n")
    found, unusable = result_columns.read_columns(tmp_path / "result.json")
    assert unusable == {"a": 1, "b/c": 1, "b/d": 1}
    nested = [name for name in found if name.count("/") > 1]
    found = {name: column.tolist() for name, column in found.items() if name not in nested}
    nan = math.nan
    expected = {
        "a": [1, 2, 3, nan, nan, nan],
        "b/c": [2.5, nan, nan, nan, nan, nan],
        "b/d": [nan, 4, nan, nan, nan, nan],
        "h": [nan, nan, nan, nan, 8, 9],
    }
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_equal(found[name], column)
    long = [json.dumps({"a": k, "b": {"c": k * 0.5}}) for k in range(2000)]
    (tmp_path / "result.json").write_text("\n".join(long) + "\n")
    thin, _ = result_columns.read_columns(tmp_path / "result.json", most_lines=100)
    assert (thin["a"][0], thin["a"][-1]) == (0, 1999)
    assert len(thin["a"]) <= 102
    assert (thin["b/c"] == thin["a"] * 0.5).all()


def test_the_middle_of_seeds_and_its_band() -> None:
    curves = [curve((0, level), (10, level + 10)) for level in (0.0, 1.0, 2.0, 3.0, 100.0)]
    band = band_of(curves)
    assert band is not None
    values = [0.0, 1.0, 2.0, 3.0, 100.0]
    assert band.middle.tolist() == [iqm(values), iqm(values) + 10]
    assert (band.low <= band.middle).all()
    assert (band.high >= band.middle).all()
    mean = band_of(curves, "mean")
    assert mean is not None
    assert mean.middle[0] == pytest.approx(np.mean(values))
    again = band_of(curves)
    assert again is not None
    assert (again.low == band.low).all()


def test_a_band_ends_with_the_first_curve_that_ends(tmp_path: Path) -> None:
    fake_run(tmp_path, "x", 0, iterations=5)
    fake_run(tmp_path, "x", 1, iterations=10)
    (panel,) = plot_data(read_runs(["x"], str(tmp_path)), ["episode_reward_mean"], "timesteps_total").panels
    (line,) = panel.lines
    assert line.band.x[-1] == 500
    assert [rest.x.tolist() for rest in line.rests] == [[500, 600, 700, 800, 900, 1000]]
    assert band_of([curve((0, 1), (1, 1)), curve((5, 1), (6, 1))]) is None


def test_moving_mean() -> None:
    jagged = curve(*((at, at % 2) for at in range(20)))
    smooth = smoothed(jagged, 4)
    assert np.ptp(smooth.y[2:-2]) < 0.3
    assert smooth.y[0] == jagged.y[0]
    assert smoothed(jagged, 1) is jagged
    assert np.allclose(smoothed(curve(*((at, 2 * at) for at in range(9))), 5).y, 2 * np.arange(9))


def test_thinning_keeps_every_peak() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=10_000)
    y[[3, 5_000, 9_998]] = 50, -70, 60
    thin = thinned(Curve(np.arange(10_000.0), y), 400)
    assert len(thin.x) <= 402
    assert {50.0, -70.0, 60.0} <= set(thin.y.tolist())
    assert thin.x[0] == 0
    assert thin.x[-1] == 9_999
    assert (np.diff(thin.x) > 0).all()


def test_a_plot_of_characters(tmp_path: Path) -> None:
    fake_run(tmp_path, "x", 0, course=lambda at: 10.0 * at)
    fake_run(tmp_path, "y", 0, course=lambda at: -10.0 * at, config={"lr": 0.5})
    one = plot_data(read_runs(["x"], str(tmp_path)), ["episode_reward_mean"], "timesteps_total")
    lines = terminal_plot(one.panels[0], 60, 10)
    assert lines[0] == "return"
    assert max(map(len, lines)) <= 60
    narrow = terminal_plot(one.panels[0], 1, 10)
    assert narrow[-1].strip() == "environment steps", "it has a line of its own"
    assert narrow[-2].split() == ["100", "1000"]
    rising = [line.partition("┤")[2] or line.partition("│")[2] for line in lines[1:11]]
    ends = [len(row.rstrip()) for row in rising]
    assert ends == sorted(ends, reverse=True)
    two = plot_data(read_runs(["x", "y"], str(tmp_path)), ["episode_reward_mean"], "timesteps_total")
    text = "\n".join(terminal_plot(two.panels[0], 60, 10))
    assert "  a lr" in text
    assert "  b lr 0.5" in text
    painted = terminal_plot(two.panels[0], 60, 10, lambda mark, place: f"<{place}{mark}>")
    assert any("<1" in line for line in painted)


def test_a_metric_that_does_not_move_is_drawn(tmp_path: Path) -> None:
    fake_run(tmp_path, "x", 0, course=lambda at: 7.0, iterations=1)
    data = plot_data(read_runs(["x"], str(tmp_path)), ["episode_reward_mean"], "timesteps_total")
    assert len(terminal_plot(data.panels[0], 40, 8)) == 11
