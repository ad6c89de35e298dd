"""What came of cases: a CSV of results, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

from shoal.data.metrics import mean_interval
from shoal.envs.cases import Cases
from shoal.sampling.evaluation_episodes import EpisodeResults

RESULTS = ("episode_reward", "episode_len", "error")
"""The columns that are added to those of the cases, before the numbers of the last `info`."""
LONGEST_HEADER = 1 << 20


def are_results(file: BinaryIO) -> bool:
    """Whether a file has the results of cases, by its header."""
    return b"," + ",".join(RESULTS).encode() in file.readline(LONGEST_HEADER)


def case_rows(cases: Cases, results: EpisodeResults) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of the results: each case as it was given, and what came of it."""
    episodes = {episode.env_index: episode for episode in results.episodes}
    metrics = sorted({name for episode in results.episodes for name in episode.metrics})
    named = "case" in cases.columns
    header = [*([] if named else ["case"]), *cases.columns, *RESULTS, *metrics]
    rows = []
    for place, given in enumerate(cases.rows):
        episode = episodes.get(place)
        came = [episode.reward, episode.length, ""] if episode else ["", "", results.failed_cases.get(place, "")]
        numbers = [episode.metrics.get(name, "") if episode else "" for name in metrics]
        own = [given[name] for name in cases.columns]
        rows.append([*([] if named else [place + 1]), *own, *came, *numbers])
    return header, rows


def case_names(cases: Cases, results: EpisodeResults) -> list[str]:
    """What the case of each episode is called: by its own name, or by its number."""
    return [str(cases.rows[at].get("case") or at + 1) for at in (episode.env_index for episode in results.episodes)]


def summary_of(results: EpisodeResults) -> dict[str, dict[str, Any]]:
    """Mean, its 95 % interval by the bootstrap, smallest and largest of every number that cases have."""
    columns: dict[str, Sequence[float]] = {
        "episode_reward": [episode.reward for episode in results.episodes],
        "episode_len": [float(episode.length) for episode in results.episodes],
    }
    for name in sorted({name for episode in results.episodes for name in episode.metrics}):
        columns[name] = [episode.metrics[name] for episode in results.episodes if name in episode.metrics]
    summary = {}
    for name, values in columns.items():
        if values:
            low, high = mean_interval(values)
            mean = sum(values) / len(values)
            summary[name] = {"mean": mean, "ci_low": low, "ci_high": high, "min": min(values), "max": max(values)}
    return summary
