"""The classic words, read from a folder."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_sweeps import LR, NET, fill, sweep, write_results, write_sweep

from shoal.errors import ConfigError, ShoalError
from shoal.reports.analysis import ELSEWHERE, Analysis
from shoal.reports.records import TrialRecord

Filled = Callable[..., Path]


def small(folder: Path, curves: list[list[float | None]], **keys: object) -> Analysis:
    """A sweep over lr whose trials have these returns."""
    records = []
    for index, values in enumerate(curves):
        record = TrialRecord(index, index, {"config.lr": 10.0**-index}, status="finished", folder=f"trials/{index:05d}")
        results = [
            {"training_iteration": at, "timesteps_total": 100 * at, "episode_reward_mean": value, "own": {"x": at}}
            for at, value in enumerate(values, start=1)
        ]
        write_results(folder, record, results)
        last = {"training_iteration": len(values), "timesteps_total": 100 * len(values), "own/x": len(values)}
        if values and values[-1] is not None:
            last["episode_reward_mean"] = values[-1]
        records.append(dataclasses.replace(record, last_result=last if values else {}))
    write_sweep(folder, sweep(LR, **keys), records)
    return Analysis(folder)


def test_scopes(tmp_path: Path) -> None:
    early, steady, late = [9.0, 8, 1, 1, 1, 1], [5.0] * 6, [0.0, 0, 0, 0, 0, 6]
    analysis = small(tmp_path, [early, steady, late])
    best = {scope: analysis.get_best_trial(scope=scope).trial_id for scope in ("last", "avg", "last-5-avg", "all")}
    assert best == {"last": "00002", "avg": "00001", "last-5-avg": "00001", "all": "00000"}
    assert analysis.get_best_trial(mode="min").trial_id == "00000"
    assert analysis.get_best_trial("own/x", "max", "avg").trial_id == "00000"
    with pytest.raises(ConfigError, match="scope: must be one of last, avg"):
        analysis.get_best_trial(scope="best")
    with pytest.raises(ConfigError, match="mode: must be max or min"):
        analysis.get_best_trial(mode="maximum")


def test_the_best_config_is_whole(tmp_path: Path) -> None:
    analysis = small(tmp_path, [[1.0], [3.0], [2.0]])
    assert analysis.get_best_config("episode_reward_mean", "max") == {
        "env": "CartPole-v1",
        "num_envs_per_worker": 4,
        "lr": 0.1,
    }
    assert analysis.best_config == analysis.get_best_config()
    analysis.best_config["lr"] = 7
    assert analysis.best_config["lr"] == 0.1
    assert analysis.best_result["episode_reward_mean"] == 3.0
    assert analysis.best_trial.logdir == str(tmp_path / "trials/00001")


def test_every_classic_word_works_or_says_the_word(tmp_path: Path) -> None:
    folder = tmp_path / "sweep_1a2b3_2026-11-16_21-30-05"
    analysis = small(folder, [[1.0], [3.0, 2.5]])
    assert (
        analysis.get_best_logdir("episode_reward_mean", "max") == analysis.best_logdir == str(folder / "trials/00001")
    )
    assert analysis.get_best_logdir(mode="min") == str(folder / "trials/00000")
    assert list(analysis.best_dataframe["episode_reward_mean"]) == [3.0, 2.5]
    assert list(analysis.best_result_df["trial_id"]) == ["00001"]
    assert {name: config["lr"] for name, config in analysis.get_all_configs().items()} == {"00000": 1.0, "00001": 0.1}
    assert analysis.get_last_checkpoint() is None
    assert analysis.get_best_checkpoint(analysis.best_logdir) is None
    stats = analysis.stats()
    assert time.strftime("%H-%M-%S", time.localtime(stats["start_time"])) == "21-30-05"
    assert stats["timestamp"] == (folder / "trials.json").stat().st_mtime
    assert (stats["num_trials"], stats["trials"], stats["timesteps_total"]) == (2, {"finished": 2}, 300)
    for word, hint in ELSEWHERE.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{word}'; {re.escape(hint)}"):
            getattr(analysis, word)
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = analysis.zzz


def test_an_unknown_metric_names_the_near_one(tmp_path: Path) -> None:
    analysis = small(tmp_path, [[1.0], [3.0]])
    with pytest.raises(ConfigError, match="has reported episode_rewrd_mean; did you mean episode_reward_mean"):
        analysis.get_best_config("episode_rewrd_mean", "max")
    with pytest.raises(ConfigError, match="did you mean episode_reward_mean"):
        analysis.get_best_trial("reward", "max")
    with pytest.raises(ConfigError, match="no trial has reported zzz; there are episode_reward_mean, own/x"):
        analysis.dataframe("zzz", "max")


def test_a_sweep_without_a_metric_asks_for_one(tmp_path: Path) -> None:
    analysis = small(tmp_path, [[1.0], [3.0]], metric="")
    assert analysis.get_best_config(metric="episode_reward_mean", mode="min")["lr"] == 1.0
    with pytest.raises(ConfigError, match="metric: the sweep names none; give metric and mode"):
        _ = analysis.best_trial


def test_the_last_score_may_be_older_than_the_last_result(tmp_path: Path) -> None:
    analysis = small(tmp_path, [[7.0, None, None], [3.0, 5.0, None]])
    assert analysis.best_trial.trial_id == "00000"
    assert analysis.get_best_trial("episode_reward_mean", "min").trial_id == "00001"


def test_failed_trials_are_never_best_and_no_score_is_said(tmp_path: Path) -> None:
    analysis = small(tmp_path, [[7.0], [3.0], []])
    records = [dataclasses.replace(analysis.records[0], status="failed"), *analysis.records[1:]]
    write_sweep(tmp_path, analysis.sweep, records)
    assert Analysis(tmp_path).best_trial.trial_id == "00001"
    empty = tmp_path / "empty"
    write_sweep(empty, sweep(LR), [TrialRecord(0, 0, {"config.lr": 1})])
    with pytest.raises(ShoalError, match="has a score yet"):
        _ = Analysis(empty).best_trial
    with pytest.raises(ConfigError, match="is no sweep"):
        Analysis(tmp_path / "elsewhere")


def test_with_seeds_the_best_is_the_best_mean(tmp_path: Path) -> None:
    records = []
    for index, (group, score) in enumerate([(0, 100.0), (0, 0.0), (1, 60.0), (1, 61.0)]):
        last = {"training_iteration": 1.0, "episode_reward_mean": score}
        records.append(TrialRecord(index, group, {"config.lr": group}, index % 2, "finished", last_result=last))
    write_sweep(tmp_path, sweep(LR, seeds=2), records)
    analysis = Analysis(tmp_path)
    assert analysis.best_trial.trial_id == "00003"
    assert analysis.best_config["seed"] == 1
    assert [group.mean for group in analysis.groups()] == [60.5, 50.0]


def test_data_frames(filled: Filled) -> None:
    analysis = Analysis(filled(6, early=False))
    frame = analysis.dataframe()
    assert len(frame) == 6
    assert {"trial_id", "status", "config/lr", "config/model/fcnet_hiddens", "learner/kl", "logdir"} <= set(frame)
    best = analysis.dataframe(metric="episode_reward_mean", mode="max")
    assert (best["episode_reward_mean"] >= frame["episode_reward_mean"]).all()
    assert len(analysis.trial_dataframes["00003"]) == 25
    assert list(analysis.results_df.index) == [f"{index:05d}" for index in range(6)]
    assert analysis.results["00002"]["training_iteration"] == 25
    with pytest.raises(ConfigError, match="give metric and mode together"):
        analysis.dataframe(metric="episode_reward_mean")


def test_a_line_that_was_cut_short_is_left(filled: Filled) -> None:
    folder = filled(3, early=False)
    with open(folder / "trials/00001/result.json", "a") as file:
        file.write('{"training_iteration": 26, "episode_rew')
    analysis = Analysis(folder)
    assert len(analysis.trial_dataframes["00001"]) == 25
    assert analysis.curves[1].x[-1] == 50_000


def test_the_best_checkpoint_is_one_that_exists(tmp_path: Path) -> None:
    from shoal.data.state import State
    from shoal.runs.checkpoints import write_checkpoint

    analysis = small(tmp_path, [[1.0, 9.0, 8.0, 8.5]])
    assert analysis.best_checkpoint is None
    for at, score in ((2, 9.0), (4, 8.5)):
        summary = {"training_iteration": at, "episode_reward_mean": score}
        write_checkpoint(tmp_path / "trials/00000", State({}, {}), {}, summary)
    assert analysis.best_checkpoint == tmp_path / "trials/00000/checkpoint_000002"
    assert analysis.get_best_checkpoint(mode="min") == tmp_path / "trials/00000/checkpoint_000004"
    assert analysis.get_best_checkpoint(metric="own/x").name == "checkpoint_000004"


def test_importance_of_a_sweep_that_stopped_trials_early(tmp_path: Path) -> None:
    analysis = Analysis(fill(tmp_path, sweep(LR, NET), 40))
    assert {record.status for record in analysis.records} >= {"stopped early", "finished"}
    assert analysis.importances.settings[0].paths == ("config.lr",)
    assert analysis.importances.settings[0].share > 0.5


def test_reading_needs_neither_ray_nor_torch(filled: Filled) -> None:
    folder = filled(12)
    code = (
        "import sys; from shoal.reports.answer_files import write_answer; from pathlib import Path;"
        f"write_answer(Path({json.dumps(str(folder))}));"
        "print([name for name in ('ray', 'torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
