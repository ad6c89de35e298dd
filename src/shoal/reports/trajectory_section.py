"""The trajectories of an evaluation in a report: small multiples, one for each variable, a line for each episode."""

from __future__ import annotations

from typing import Any

from shoal.data.number_text import counted
from shoal.reports.bands import thinned
from shoal.reports.drawing import escaped, tag
from shoal.reports.figure_data import FigureSpec, OwnLine, own_figure
from shoal.reports.page_shell import figure_box
from shoal.reports.trajectories import MOST_NAMED, MOST_PANELS, Trajectories

MOST_EPISODES = 100
POINTS_IN_ALL, FEWEST_POINTS, MOST_POINTS = 20_000, 60, 600
"""Points of one figure over all its lines, and at least and at most of one line."""
AXIS = ("step", "step of the episode")


def trajectory_section(found: Trajectories, figures: list[Any]) -> list[str]:
    """The heading and the boxes of a file's variables, whose figures are added to those of the page."""
    names = list(found.curves)[:MOST_PANELS]
    shown = min(len(found.episodes), MOST_EPISODES)
    boxes = []
    for name in names:
        boxes.append(figure_box(len(figures), name))
        figures.append(own_figure(FigureSpec(name, name), AXIS, "", _lines(found, name, shown), shown <= MOST_NAMED))
    words = [f"{counted(len(found.episodes), 'episode')}, a line each; pointing at one shows it in all figures"]
    if len(found.episodes) > shown:
        words.append(f"the first {shown} are shown")
    if len(found.curves) > len(names):
        words.append(f"the first {len(names)} of {len(found.curves)} variables")
    if found.left_out:
        words.append(f"left out: {', '.join(found.left_out)}")
    return [
        tag("h2", escaped(f"Trajectories: {found.file}")),
        tag("p", escaped("; ".join(words) + "."), class_="soft"),
        tag("div", *boxes, class_="figures small"),
    ]


def _lines(found: Trajectories, name: str, shown: int) -> list[OwnLine]:
    most = min(max(POINTS_IN_ALL // shown, FEWEST_POINTS), MOST_POINTS)
    lines = []
    for place, (label, curve) in enumerate(zip(found.episodes[:shown], found.curves[name])):
        if len(curve.x):
            kind = f"t s c{place}" if shown <= MOST_NAMED else "t q5 thin"
            lines.append(OwnLine(label, kind, place, thinned(curve, most)))
    return lines
