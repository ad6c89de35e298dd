"""What came of a run or of several, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.config.result_names import COUNTERS
from shoal.data.number_text import counted, duration_text, number_text, percent_text, rate_text, tick_text
from shoal.errors import ConfigError
from shoal.reports.comparison import compared
from shoal.reports.reported_runs import ReportedRun, RunGroup
from shoal.runs.outcomes import read_outcome

RETURN = "episode_reward_mean"
TIMERS = ("env", "policy", "learn", "communicate", "idle")
TIMER_WORDS = {
    "env": "the environment takes",
    "policy": "choosing actions takes",
    "learn": "learning takes",
    "communicate": "messages between processes take",
    "idle": "waiting for workers takes",
}
MUCH = 0.05  # of the range of returns, by which a run still rises


@dataclass(frozen=True)
class TimeShares:
    """Where the time of a run went, as shares of it, and what the environment alone would allow."""

    shares: dict[str, float]
    """By the names of `TIMERS`, and `other`."""
    steps_per_s: float
    env_limit: float | None
    """Steps per second if nothing but the environments took time."""


def time_shares(run: ReportedRun) -> TimeShares | None:
    """Sums over all iterations; None if the run has no times.

    With workers, it is the learner's time that is shared out: what they sample while it learns costs none, and idle is
    what it waits longer than a worker samples on average. (`timers/idle` is of a worker, and has learning in it.)
    """
    whole = float(np.nansum(run.column("time_this_iter_s")))
    if whole <= 0:
        return None
    names = (*TIMERS[:-1], "wait")
    seconds = {name: float(np.nansum(run.column(f"timers/{name}_s"))) for name in names}
    waited, env = seconds.pop("wait"), seconds["env"]
    if "timers/wait_s" in run.columns:
        free = max(whole - seconds["learn"] - seconds["communicate"], 0.0)
        sampled = seconds["env"] + seconds["policy"]
        part = min(free / sampled, 1.0) if sampled > 0 else 0.0
        seconds |= {name: part * seconds[name] for name in ("env", "policy")}
        seconds["idle"] = min(waited, free) - part * sampled
    shares = {name: min(value / whole, 1.0) for name, value in seconds.items() if value > 0}
    shares["other"] = max(1 - sum(shares.values()), 0.0)
    steps = float(np.nansum(run.column("timesteps_this_iter")))
    return TimeShares(shares, steps / whole, steps / env if env > 0 else None)


def verdict_of(groups: Sequence[RunGroup]) -> str:
    """The sentence with which a report begins."""
    if len(groups) > 1:
        return _several(groups)
    runs = groups[0].runs
    return _one(runs[0]) if len(runs) == 1 else _seeds(runs)


def _one(run: ReportedRun) -> str:
    parts = [_reached(run)]
    if (times := time_shares(run)) is not None:
        largest = max(times.shares, key=lambda name: times.shares[name] if name != "other" else -1)
        if largest != "other":
            share = times.shares[largest]
            parts.append(
                f"{TIMER_WORDS[largest]} {percent_text(share)} of the time, at {rate_text(times.steps_per_s)} steps/s"
            )
    if failures := run.last("env_failures_total"):
        parts.append(counted(int(failures), "environment failure"))
    return "; ".join(parts) + "."


def _reached(run: ReportedRun) -> str:
    """How far one run came: whether it met its goal, how it ended, and how its return moves."""
    outcome = read_outcome(run.path)
    steps = f"{int(run.last('timesteps_total') or 0):,} steps"
    mean = run.last(RETURN)
    if outcome is not None and outcome.kind == "failed":
        return f"Failed after {steps}: {outcome.sentence.splitlines()[0]}"
    if (solved := solved_at(run)) is not None:
        seconds = f" in {duration_text(solved[1])}" if solved[1] else ""
        return f"Solved at {tick_text(solved[0])} steps{seconds} ({goal_text(run)})"
    if mean is None:
        return f"No episode has ended in {steps}"
    goal = f"Not solved ({goal_text(run)}): " if goal_text(run) else ""
    best = float(np.nanmax(run.column(RETURN)))
    was = f", the best was {number_text(best)}" if best > mean else ""
    state = ", interrupted" if outcome is not None and outcome.kind == "interrupted" else ""
    return f"{goal}{'r' if goal else 'R'}eturn {number_text(mean)} after {steps}{was}, {_trend(run)}{state}"


def goals(run: ReportedRun) -> dict[str, float]:
    """The criteria of `stop` that are no counters: what the run was to reach."""
    stop = run.tree.get("stop")
    found = stop if isinstance(stop, dict) else {}
    return {name: float(limit) for name, limit in found.items() if name not in (*COUNTERS, "stages_passed", "task")}


def goal_text(run: ReportedRun) -> str:
    """`episode_reward_mean of 475`; empty without a goal."""
    return " or ".join(f"{name} of {number_text(limit)}" for name, limit in goals(run).items())


def solved_at(run: ReportedRun) -> tuple[float, float] | None:
    """Steps and seconds at the first result that reached a goal; None if none did."""
    found = []
    for name, limit in goals(run).items():
        places = np.flatnonzero(np.nan_to_num(run.column(name), nan=-np.inf) >= limit)
        if len(places) and len(run.column("timesteps_total")):
            times = run.column("time_total_s")
            found.append(
                (float(run.column("timesteps_total")[places[0]]), float(times[places[0]]) if len(times) else 0.0)
            )
    return min(found, default=None)


def _trend(run: ReportedRun) -> str:
    values = run.column(RETURN)
    values = values[~np.isnan(values)]
    part = len(values) // 5
    if part < 1:
        return "too few results to see a trend"
    late, before = values[-part:].mean(), values[-2 * part : -part].mean()
    much = MUCH * float(np.ptp(values))
    if late - before > much:
        return "still rising"
    return "falling" if before - late > much else "no longer rising"


def _seeds(runs: Sequence[ReportedRun]) -> str:
    solved = [found for run in runs if (found := solved_at(run)) is not None]
    returns = [mean for run in runs if (mean := run.last(RETURN)) is not None]
    if not returns:
        return f"No episode has ended in {counted(len(runs), 'run')}."
    from shoal.reports.comparison import Scored

    told = f"return {Scored('', tuple(returns)).text()}"
    if solved:
        steps = tick_text(float(np.median([one[0] for one in solved])))
        count = f"{len(solved)} of {len(runs)} runs"
        return f"{count} solved it, at {steps} steps in the median ({goal_text(runs[0])}); {told}."
    goal = f"None of {len(runs)} runs solved it ({goal_text(runs[0])}): " if goal_text(runs[0]) else ""
    return f"{goal}{told if goal else f'R{told[1:]}'}."


def _several(groups: Sequence[RunGroup]) -> str:
    """The best group beside the second."""
    scored = [group for group in groups if any(run.curve(RETURN) is not None for run in group.runs)]
    if len({run.env for group in groups for run in group.runs}) > 1:
        runs = [run for group in groups for run in group.runs]
        return (
            f"{counted(len(runs), 'run')} of {len(groups)} kinds in several environments, whose returns do not compare."
        )
    if len(scored) < 2:
        return f"{counted(len(groups), 'group')} of runs, of which fewer than two have a return."
    axis = "timesteps_total"
    try:
        from shoal.reports.comparison import common_end, scored_at

        end = common_end([run for group in scored for run in group.runs], RETURN, axis)
        sides = [(scored_at(group.label, group.runs, RETURN, axis, end), group) for group in scored]
        ranked = sorted((side for side in sides if side[0].scores), key=lambda side: -side[0].iqm)
        (_, first), (_, second) = ranked[:2]
        others = f" Of {len(groups)} groups these are the best two." if len(groups) > 2 else ""
        made = compared((first.label, first.runs), (second.label, second.runs), RETURN, axis, at=end)
        return made.sentence() + others
    except (ConfigError, ValueError):
        return f"{counted(len(groups), 'group')} of runs, which have no steps in common."
