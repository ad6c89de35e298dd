"""Plots for papers and slides, drawn by matplotlib into a PDF, PNG or SVG file."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from shoal.data.number_text import tick_text
from shoal.errors import ConfigError
from shoal.reports.plot_data import Panel, PlotData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("pdf", "png", "svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#555555")
"""Okabe and Ito's, which people of every kind of colour vision can tell apart; yellow is too pale for a line."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MOST_IN_ROW = 4  # panels; more stand in rows of three
MOST_IN_FRAME = 6  # lines whose names stand inside the panel; the names of more stand beside it
LONGEST_IN_FRAME = 28  # letters of such a name; longer ones stand beside it, too
LINE_LENGTH = 40  # letters of a line of text; names that are longer go over several
MOST_LINES = 3
LETTER_INCHES = 0.06  # of a name in the legend
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.3,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "pdf.fonttype": 42,  # text stays text, as journals ask
    "svg.fonttype": "none",
    "svg.hashsalt": "shoal",
}


def check_file(path: Path) -> str:
    """The format that a file's name asks for; others are refused, and so is a folder that is not there."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"-o {path}: ends in no format of a figure; use .pdf, .png or .svg")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"-o {path}: {what}; give the name of a file in a folder that exists")
    return kind


def write_figure(data: PlotData, path: Path, panel_inches: tuple[float, float] = (3.4, 2.4)) -> None:
    """Draw the plot into a file; the same runs always give the same file."""
    kind = check_file(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "-o: a figure needs matplotlib; type `pip install 'shoal-rl[plot]'`, or use --show to draw in the terminal"
        ) from None
    with matplotlib.rc_context(STYLE):
        count = len(data.panels)
        columns = count if count <= MOST_IN_ROW else MOST_IN_ROW - 1
        rows = ceil(count / columns)
        named = max(sum(bool(line.label) for line in panel.lines) for panel in data.panels)
        longest = max(len(row) for panel in data.panels for line in panel.lines for row in _rows(line.label))
        is_beside = named > 1 and (named > MOST_IN_FRAME or longest > LONGEST_IN_FRAME)
        share = 1.0 if rows == 1 else 0.7  # small multiples
        width = panel_inches[0] * columns * share
        if is_beside:
            width += max(1.5, 0.4 + LETTER_INCHES * longest)
        figure = Figure(figsize=(width, panel_inches[1] * rows * share), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, axes in zip(data.panels, all_axes):
            _draw(panel, axes)
        if named and len(data.panels[-1].lines) > 1:
            _add_legend(all_axes[count - 1], is_beside)
        for axes in all_axes[count:]:
            axes.set_axis_off()
        if data.title:
            figure.suptitle(_wrapped(data.title), fontsize=8)
        dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
        try:
            figure.savefig(path, format=kind, dpi=300, metadata=dates[kind])
        except OSError as error:
            raise ConfigError(f"-o {path}: cannot be written: {error.strerror or error}; give another file") from None


def _add_legend(axes: Axes, is_beside: bool) -> None:
    outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if is_beside else {"loc": "best"}
    for key in axes.legend(**outside).get_lines():
        key.set(linewidth=STYLE["lines.linewidth"], alpha=1)


def _rows(text: str) -> list[str]:
    """A name over several lines, of which one that is too long for them loses its middle."""
    rows = wrap(text, LINE_LENGTH)
    if len(rows) > MOST_LINES:
        half = MOST_LINES * LINE_LENGTH // 2
        rows = wrap(f"{text[: half - 10]}…{text[-half + 10 :]}", LINE_LENGTH)
    return rows or [""]


def _wrapped(text: str) -> str:
    return "\n".join(_rows(text))


def _draw(panel: Panel, axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for place, line in zip(panel.colours, panel.lines):
        colour = COLOURS[place % len(COLOURS)]
        band = line.band
        look: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.4, "zorder": 2}  # of one of many
        if line.label:
            look = {
                "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
                "label": _wrapped(line.label),
                "zorder": 3,
            }
            if line.is_restless:
                look |= {"linewidth": 0.4, "alpha": 0.7}
        axes.plot(band.x, band.middle, color=colour, **look)
        if panel.is_path:
            axes.plot(band.x[:1], band.middle[:1], "o", color=colour, markersize=3, zorder=4)
            axes.plot(band.x[-1:], band.middle[-1:], "x", color=colour, markersize=4, zorder=4)
        if band.count > 1:
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.18, linewidth=0, zorder=2)
        for rest in line.rests:
            axes.plot(rest.x, rest.y, color=colour, linewidth=0.6, linestyle=(0, (2, 2)), alpha=0.8)
    axes.set_xlabel(_wrapped(panel.x_label))
    axes.set_ylabel(_wrapped(panel.y_label))
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
