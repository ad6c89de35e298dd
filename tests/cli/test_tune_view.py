"""The live table, the lines of a log, and what is told at the end."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sweeps import GAMMA, LR, NET, fill, sweep

from shoal.cli.tune_view import PlainTuneView, TrialOverview, open_tune_view, overview_lines, tell_end
from shoal.data.number_text import counted
from shoal.reports.answer_files import write_answer
from shoal.reports.importance import importances
from shoal.reports.records import Event, TrialRecord, read_trials
from shoal.runs.outcomes import Outcome


def record(index: int, status: str = "running", score: float | None = None, **settings: float) -> TrialRecord:
    last = {} if score is None else {"episode_reward_mean": score, "timesteps_total": 2000.0, "timesteps_per_s": 500.0}
    paths = {f"config.{name}": value for name, value in settings.items()}
    return TrialRecord(index, index, paths, status=status, last_result=last)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("height", [3, 10, 24, 60])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_the_live_table_fits_the_screen(tmp_path: Path, width: int, height: int, count: int) -> None:
    from rich.console import Console, Group

    records = read_trials(fill(tmp_path, sweep(LR, GAMMA, NET), count, iterations=3)) if count else []
    overview = TrialOverview(sweep(LR, GAMMA, NET, num_samples=60), records)
    console = Console(
        width=width, height=height, record=True, force_terminal=True, color_system=None, file=io.StringIO()
    )
    console.print(Group(*overview_lines(overview, tmp_path / ("a long name" * 5), 3.0, width, height)))
    text = console.export_text().splitlines()
    assert len(text) < height
    assert all(len(line) <= width for line in text)
    if count == 50 and height >= 24 and width >= 80:
        assert any(line.startswith("50 of 60 trials: ") for line in text)
        assert text[-1].startswith("  and ")


def test_the_table_shows_the_best_and_those_that_run() -> None:
    overview = TrialOverview(sweep(LR, num_samples=40), [record(i, "finished", float(i), lr=i) for i in range(20)])
    for index in range(20, 24):
        overview.add(Event("result", "", record(index, "running", -float(index), lr=index)))
    overview.add(Event("started", "", record(24, "running", None, lr=24)))
    overview.add(Event("failed", "", record(25, "failed", 1e9, lr=25)))
    assert [shown.index for shown in overview.shown(8)] == [19, 18, 17, 16, 20, 21, 22, 23]
    assert [shown.index for shown in overview.shown(12)] == [19, 18, 17, 16, 15, 14, 13, 20, 21, 22, 23, 24]
    assert overview.counts() == "26 of 40 trials: 5 running, 20 finished, 1 failed"


def test_a_log_has_a_line_per_event_and_a_summary_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    view = PlainTuneView(TrialOverview(sweep(LR, num_samples=4)), lambda: now[0])
    view.show(Event("started", "trial 0 starts", record(0, lr=3e-4)))
    for second in range(70):
        now[0] = float(second)
        view.show(Event("result", "trial 0 episode_reward_mean 5", record(0, score=float(second), lr=3e-4)))
    view.show(Event("failed", "trial 0 failed: EnvError: it died\nTraceback", record(0, "failed", 69.0, lr=3e-4)))
    view.show(Event("exploited", "trial 1 copies trial 0", record(1, score=1.0, lr=6e-4)))
    view.show(Event("note", "SIGTERM: 1 running trial saves and ends"))
    assert capsys.readouterr().out.splitlines() == [
        "trial 0 starts: lr 0.0003",
        "30 s: 1 of 4 trials: 1 running; best is trial 0, episode_reward_mean 30",
        "1 min: 1 of 4 trials: 1 running; best is trial 0, episode_reward_mean 60",
        "trial 0 failed: EnvError: it died",
        "trial 1 copies trial 0: lr 0.0006",
        "SIGTERM: 1 running trial saves and ends",
    ]


def test_the_end_says_what_is_best_and_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path / "my sweep", sweep(LR, GAMMA, NET), 14)
    analysis = write_answer(folder)
    run = SimpleNamespace(folder=folder, sweep=analysis.sweep, outcome=None)
    tell_end(run, None)
    assert capsys.readouterr().out == ""
    run.outcome = Outcome("interrupted", "interrupted by SIGTERM", 15)
    tell_end(run, analysis)
    out = capsys.readouterr().out
    assert out.startswith("Stopped: interrupted by SIGTERM\n14 trials: ")
    assert f"resume            shoal tune --resume '{folder}'" in out
    assert f"train for longer  shoal train -f '{folder / 'best.yml'}'" in out
    assert f"page              {folder / 'index.html'}" in out
    assert "Importance: how much" in out
    run.outcome = Outcome("failed", "all 2 trials failed; the first: EnvError")
    tell_end(run, None)
    assert capsys.readouterr().out == f"Failed: all 2 trials failed; the first: EnvError\n  sweep  {folder}\n"


def test_the_view_knows_the_trials_of_a_sweep_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path, sweep(LR, num_samples=3), 3, early=False)
    run = SimpleNamespace(folder=folder, sweep=sweep(LR, num_samples=3), done=None)
    again = dataclasses.replace(read_trials(folder)[2], status="running")
    with open_tune_view(run, quiet=True) as view:
        view.show(Event("started", "trial 2 goes on", again))
    begin = f"cartpole: continues with 3 of 3 trials: 3 finished in {folder}\n"
    assert capsys.readouterr().out == begin
    with open_tune_view(run, quiet=False) as view:
        view.show(Event("started", "trial 2 goes on", again))
    assert capsys.readouterr().out.startswith(f"{begin}trial 2 goes on: lr ")
    run.done = "3 trials have ended"
    with open_tune_view(run, quiet=True):
        assert capsys.readouterr().out == ""


def test_one_trial_is_not_said_to_be_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = sweep(LR, num_samples=1)
    with open_tune_view(SimpleNamespace(folder=tmp_path, sweep=alone, done=None), quiet=True):
        assert capsys.readouterr().out == f"cartpole: 1 trial in {tmp_path}\n"
    assert TrialOverview(alone, [record(0)]).counts() == "1 of 1 trial: 1 running"
    assert TrialOverview(alone).counts() == "0 of 1 trial"
    told = [counted(count, "trial", ("has", "have")) for count in (0, 1, 2)]
    assert told == ["0 trials have", "1 trial has", "2 trials have"]
    assert importances(["a"], [{"a": 1}], [0.0]).note == "1 configuration is too few; at least 10 are needed"
