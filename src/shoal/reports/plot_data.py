"""What a plot of runs shows: for each metric a panel, in it for each group of runs a line with its band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from shoal.data.number_text import counted
from shoal.errors import ConfigError
from shoal.reports.bands import Band, Statistic, band_of, smoothed
from shoal.reports.curves import Curve
from shoal.reports.reported_runs import ReportedRun, RunGroup, check_metric, grouped, left_out

AXES = ("timesteps_total", "time_total_s", "training_iteration", "episodes_total")
WORDS = {
    "episode_reward_mean": "return",
    "episode_len_mean": "episode length",
    "evaluation/episode_reward_mean": "return in evaluation",
    "timesteps_total": "environment steps",
    "time_total_s": "training time (s)",
    "training_iteration": "iteration",
    "episodes_total": "episodes",
    "timesteps_per_s": "environment steps per second",
}
"""How the axes of a plot are called; other results by their own names."""


@dataclass(frozen=True)
class PlotLine:
    """One group in one panel; `rests` is how single runs went on where not all of them went.

    One of many that are not told apart has no label. One that is restless goes up and down so often that a line of the
    usual width would fill the panel.
    """

    label: str
    band: Band
    rests: tuple[Curve, ...] = ()
    is_restless: bool = False


@dataclass(frozen=True)
class Panel:
    """One metric; `is_path` where `x` does not grow, but goes where an episode goes."""

    metric: str
    axis: str
    lines: tuple[PlotLine, ...]
    is_path: bool = False

    @property
    def colours(self) -> list[int]:
        """The number of each line's colour: those without a label share the first."""
        numbers = count(int(any(not line.label for line in self.lines)))
        return [next(numbers) if line.label else 0 for line in self.lines]

    @property
    def y_label(self) -> str:
        """What its vertical axis shows."""
        return WORDS.get(self.metric, self.metric)

    @property
    def x_label(self) -> str:
        """What its horizontal axis shows."""
        return WORDS.get(self.axis, self.axis)


@dataclass(frozen=True)
class PlotData:
    """Everything that is drawn, and the sentence that says what it is; `short_caption` is one without bands.

    `warnings` say what is not drawn.
    """

    title: str
    panels: tuple[Panel, ...]
    caption: str
    short_caption: str
    warnings: tuple[str, ...] = ()


def plot_data(
    runs: Sequence[ReportedRun],
    metrics: Sequence[str],
    axis: str,
    smooth: int = 1,
    statistic: Statistic = "iqm",
    by: Sequence[str] = (),
) -> PlotData:
    """What to draw of runs; a metric that none of them has is refused."""
    for metric in metrics:
        check_metric(runs, metric)
    warnings = dict.fromkeys(sentence for metric in metrics for sentence in left_out(runs, metric, axis))
    runs = [run for run in runs if any(run.curve(metric, axis) is not None for metric in metrics)] or runs
    groups = grouped(runs, by)
    panels = tuple(Panel(metric, axis, _lines(groups, metric, axis, smooth, statistic)) for metric in metrics)
    empty = next((panel for panel in panels if not panel.lines), None)
    if empty is not None:
        raise ConfigError(f"--metric: no run has {empty.metric!r} beside {axis}")
    envs, algorithms = {run.env for run in runs}, {run.algorithm for run in runs}
    title = ", ".join(words for words in (_only(envs), _only(algorithms)) if words)
    captions = [_caption(groups, runs, panels, smooth, statistic, has_bands) for has_bands in (True, False)]
    return PlotData(title, panels, captions[0], captions[1], tuple(warnings))


def _lines(
    groups: Sequence[RunGroup], metric: str, axis: str, smooth: int, statistic: Statistic
) -> tuple[PlotLine, ...]:
    found = []
    for group in groups:
        curves = [smoothed(curve, smooth) for curve in group.curves(metric, axis)]
        if not curves:
            continue
        label = group.label if len(curves) == 1 else f"{group.label} (n = {len(curves)})"
        band = band_of(curves, statistic)
        if band is None:  # one began where another had ended
            found += [PlotLine(label, single) for curve in curves if (single := band_of([curve])) is not None]
        else:
            end = float(band.x[-1])
            rests = tuple(_after(curve, end) for curve in curves if curve.x[-1] > end)
            found.append(PlotLine(label, band, rests))
    return tuple(found)


def _after(curve: Curve, end: float) -> Curve:
    later = curve.x >= end
    return Curve(curve.x[later], curve.y[later])


def _caption(
    groups: Sequence[RunGroup],
    runs: Sequence[ReportedRun],
    panels: Sequence[Panel],
    smooth: int,
    statistic: Statistic,
    has_bands: bool,
) -> str:
    metrics = " and ".join(panel.metric for panel in panels)
    words = [f"{metrics} over {panels[0].axis}", f"{counted(len(runs), 'run')} in {counted(len(groups), 'group')}"]
    if any(len(group.runs) > 1 for group in groups):
        middle = "interquartile mean" if statistic == "iqm" else "mean"
        bands = ", bands its 95 % interval (bootstrap)" if has_bands else ""
        words.append(f"lines are the {middle} over seeds{bands}")
    if smooth > 1:
        words.append(f"moving mean over {smooth} results")
    if has_bands and any(line.rests for panel in panels for line in panel.lines):
        words.append("dashed: single runs, after another has ended")
    return "; ".join(words)


def _only(names: set[str]) -> str:
    return next(iter(names)) if len(names) == 1 else ""
