"""How runs, lists of results and sweeps show themselves in a notebook: a sentence, a curve, a table and no script.

A notebook that is not trusted runs no scripts and has a style of its own, so everything is drawn here, in its colours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.data.number_text import counted, number_text
from shoal.data.results import numbers
from shoal.reports.bands import thinned
from shoal.reports.curves import Curve
from shoal.reports.drawing import Frame, escaped, line, scale_of, tag
from shoal.reports.plot_data import WORDS
from shoal.reports.records import results_of
from shoal.runs.folders import DEFAULT_RESULTS, find_run

if TYPE_CHECKING:
    from shoal.reports.analysis import Analysis

MOST_ROWS = 8
RETURN = "episode_reward_mean"
COLUMNS = ("training_iteration", "timesteps_total", "episode_reward_mean", "episode_len_mean", "timesteps_per_s")
BLUE = "#2b8fc9"  # is seen on white and on black


class Results(list[dict[str, Any]]):
    """The results of a run, one for each iteration, which show themselves in a notebook.

    `Results(shoal.run(tree))` trains and keeps them; `Results.read(RUN)` are those of a run's folder.
    """

    def __init__(self, results: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(results)

    @classmethod
    def read(cls, run: str | Path, results_dir: str = DEFAULT_RESULTS) -> Results:
        """The results in the folder of a run, or of the newest run of that name; it may still be training."""
        return cls(results_of(find_run(run, results_dir)))

    def _repr_html_(self) -> str:
        """The curve of the return, and the last results."""
        if not self:
            return tag("p", "no results yet")
        flat = [numbers(result) for result in self]
        rows = [[number_text(row.get(name)) for name in COLUMNS] for row in flat[-MOST_ROWS:]]
        more = f", the last {MOST_ROWS} of them" if len(self) > MOST_ROWS else ""
        head = tag("p", escaped(f"{counted(len(self), 'result')}{more}"))
        points = [(row["timesteps_total"], row[RETURN]) for row in flat if RETURN in row and "timesteps_total" in row]
        return head + _curve(points, RETURN) + _table(COLUMNS, rows)


def live(results: Iterable[dict[str, Any]], every_s: float = 1.0) -> Iterator[dict[str, Any]]:
    """The same results, one by one; in a notebook, they are drawn below the cell while they come.

    `for result in shoal.live(shoal.run(tree)): ...`. The drawing changes at most every `every_s` seconds, and once more
    at the end, however that comes. Where there is no notebook, nothing is drawn.
    """
    shown = _Shown.below_this_cell()
    seen, drawn_at = Results(), 0.0
    try:
        for result in results:
            seen.append(result)
            if shown is not None and monotonic() - drawn_at >= every_s:
                shown.draw(seen)
                drawn_at = monotonic()
            yield result
    finally:
        if isinstance(results, Generator):
            results.close()  # a loop that was left saves the run
        if shown is not None:
            shown.draw(seen)


class _Shown:
    """A place below a notebook's cell that is drawn again and again."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._handle = display(_Html("<p>no results yet</p>"), display_id=True)

    @classmethod
    def below_this_cell(cls) -> _Shown | None:
        """The place; None where no notebook's kernel runs this."""
        if "IPython" not in sys.modules:
            return None
        from IPython import get_ipython
        from IPython.display import display

        shell = get_ipython()
        return cls(display) if shell is not None and getattr(shell, "kernel", None) is not None else None

    def draw(self, results: Results) -> None:
        """Put the results as they are now in the place of those before."""
        self._handle.update(_Html(results._repr_html_()))


class _Html:
    """Markup that shows itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def run_html(folder: Path) -> str:
    """What a run's folder shows of it: the verdict, the curve of its return, and where it is."""
    from shoal.reports.reported_runs import RunGroup, read_run
    from shoal.reports.run_verdict import verdict_of

    run = read_run(folder)
    where = tag("code", escaped(folder))
    if not run.columns:
        return tag("p", "no results yet, ", where)
    curve = run.curve(RETURN)
    points = [] if curve is None else list(zip(curve.x.tolist(), curve.y.tolist()))
    sentence = tag("p", tag("b", escaped(f"{run.algorithm} {run.env}: ")), escaped(verdict_of([RunGroup("", (run,))])))
    return sentence + _curve(points, RETURN) + tag("p", where)


def analysis_html(analysis: Analysis) -> str:
    """What came of a sweep: how many trials, the best of them with their settings, and whether they differ."""
    from shoal.reports.answer import answer_of
    from shoal.reports.labels import value_text

    answer = answer_of(analysis)
    parts = [tag("p", tag("b", escaped(f"{analysis.sweep.name}: ")), escaped(answer.counts()))]
    if answer.groups:
        head = ["rank", "trials", analysis.sweep.metric, *(answer.names[path] for path in answer.paths)]
        rows = []
        for rank, group in enumerate(answer.groups[:MOST_ROWS], start=1):
            settings = [value_text(group.trials[0].settings.get(path)) for path in answer.paths]
            rows.append([str(rank), answer.called(group).partition(" ")[2], answer.score(group), *settings])
        parts.append(_table(head, rows))
    if answer.verdict:
        parts.append(tag("p", escaped(answer.verdict)))
    return "".join([*parts, tag("p", tag("code", escaped(analysis.folder / "index.html")))])


def _curve(points: Sequence[tuple[float, float]], metric: str) -> str:
    """A small drawing in the notebook's own colours; nothing of fewer than two points."""
    if len(points) < 2:
        return ""
    whole = Curve(np.array([x for x, _ in points], np.float64), np.array([y for _, y in points], np.float64))
    curve = thinned(whole, 600)
    frame = Frame(560, 220, left=56, top=26, bottom=44)
    x = scale_of([float(curve.x.min()), float(curve.x.max())], *frame.across)
    y = scale_of([float(curve.y.min()), float(curve.y.max())], *frame.up)
    places = [(x(a), y(b)) for a, b in zip(curve.x.tolist(), curve.y.tolist())]
    lattice = frame.lattice(x, y, WORDS["timesteps_total"], WORDS.get(metric, metric))
    faint = {"fill": "currentColor", "stroke": "currentColor", "stroke_width": "0.2", "font_size": "11"}
    drawn = [tag("g", lattice, **faint), line(places, fill="none", stroke=BLUE, stroke_width="2")]
    size = {"viewBox": f"0 0 {frame.width} {frame.height}", "width": frame.width, "height": frame.height}
    return tag("svg", *drawn, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=metric, **size)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = tag("thead", tag("tr", *(tag("th", escaped(name)) for name in head)))
    return tag("table", titles, tag("tbody", *(tag("tr", *(tag("td", escaped(text)) for text in row)) for row in rows)))
