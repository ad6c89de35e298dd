"""The videos of runs in a report: one of each run stands in the page, the others are links."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shoal.reports.drawing import escaped, tag
from shoal.reports.reported_runs import ReportedRun
from shoal.reports.run_sections import link_to
from shoal.runs.bounded_files import small_bytes

REPLAY_FILE = "replay.mp4"  # as `runs/playing.py` calls it, which brings all that plays with it
MOST_BYTES = 4 << 20  # of a video that stands in the page
MOST_EMBEDDED = 4
MOST_LINKS = 50


def videos(runs: Sequence[ReportedRun], place: Path) -> list[str]:
    """The replay of each run, or the last video that its evaluations left, in the page, and links to the others."""
    shown: list[str] = []
    links: list[Path] = []
    for run in runs:
        found = sorted(run.path.rglob("*.mp4"))
        first = _first(run.path, found)
        if first is not None and len(shown) < MOST_EMBEDDED:
            shown.append(_embedded(run, first, place, len(runs) > 1))
            found.remove(first)
        links += found
    items = [tag("li", tag("a", escaped(_name(video)), href=link_to(video, place))) for video in links[:MOST_LINKS]]
    players = [tag("div", *shown, class_="figures small")] if shown else []
    parts = [*players, *([tag("ul", *items)] if items else [])]
    if not parts and len(runs) == 1:
        words = "None yet. If the environment draws, shoal report RUN --video films an episode of it."
        parts = [tag("p", escaped(words), class_="soft")]
    return [tag("h2", "Videos"), *parts] if parts else []


def _first(run: Path, found: Sequence[Path]) -> Path | None:
    """The video of a run that is shown: its replay, or the newest of its evaluations."""
    recorded = [video for video in found if video.name.startswith("iteration_")]
    return run / REPLAY_FILE if run / REPLAY_FILE in found else recorded[-1] if recorded else None


def _name(video: Path) -> str:
    return f"{video.parent.name}/{video.name}" if video.name.startswith("iteration_") else video.name


def _embedded(run: ReportedRun, video: Path, place: Path, several: bool) -> str:
    """The video itself, if it is small enough to be a part of the page."""
    data, when = b"", ""
    with suppress(OSError):
        told = video.stat()
        when = time.strftime(", filmed %Y-%m-%d %H:%M", time.localtime(told.st_mtime))
        size = f"{told.st_size / 1e6:.1f} MB" if told.st_size > 1e6 else f"{told.st_size / 1e3:.0f} kB"
        when = f" ({size}{when})"
        data = small_bytes(video) if told.st_size <= MOST_BYTES else b""
    link = tag("a", escaped(_name(video)), href=link_to(video, place))
    words = f"{run.path.name}: " if several else ""
    if not data:
        too_large = f"{when}, which is too large to stand in this page"
        return tag("p", escaped(words), link, escaped(too_large))
    source = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    player = tag(
        "video",
        "This browser shows no videos.",
        src=source,
        controls="controls",
        loop="loop",
        muted="muted",
        playsinline="playsinline",
        aria_label=f"{words}{_name(video)}",
    )
    return tag("figure", player, tag("figcaption", escaped(words), link, escaped(when)), class_="film")
