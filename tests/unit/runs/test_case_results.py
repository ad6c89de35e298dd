"""What came of cases."""

from __future__ import annotations

from pathlib import Path

from shoal.data.batch import Episode
from shoal.envs.cases import read_cases
from shoal.runs.case_results import case_rows, summary_of
from shoal.sampling.evaluation_episodes import EpisodeResults


def test_results_stand_beside_their_cases(tmp_path: Path) -> None:
    (tmp_path / "cases.csv").write_text("options.x\n1\n2\n3\n")
    cases = read_cases(tmp_path / "cases.csv", {})
    episodes = [Episode(0, 5.0, 10, {"drag": 0.5}), Episode(2, 7.0, 20, {"lift": 1.5, "drag": 1.0})]
    found = EpisodeResults(episodes, 30, 1, {1: "diverged"})
    header, rows = case_rows(cases, found)
    assert header == ["case", "options.x", "episode_reward", "episode_len", "error", "drag", "lift"]
    assert rows == [
        [1, "1", 5.0, 10, "", 0.5, ""],
        [2, "2", "", "", "diverged", "", ""],
        [3, "3", 7.0, 20, "", 1.0, 1.5],
    ]
    summary = summary_of(found)
    assert summary["episode_reward"] | {"ci_low": 0, "ci_high": 0} == {
        "mean": 6.0,
        "ci_low": 0,
        "ci_high": 0,
        "min": 5.0,
        "max": 7.0,
    }
    assert 5 <= summary["episode_reward"]["ci_low"] <= 6 <= summary["episode_reward"]["ci_high"] <= 7
    assert summary["lift"]["ci_low"] is None
    assert summary_of(EpisodeResults([], 0)) == {}
