"""What shoal learns, with curves: held against bars, and beside SB3, sb3-contrib and RLlib at equal steps.

Lessons stand in `lessons.py`, in five parts. A piece is one lesson with one library and one seed; each is kept in
`results/learning-PART.jsonl` as soon as it ends. So a part can be measured over several nights: the same command goes
on with the pieces that are missing. Pieces whose settings have changed since are measured again.

    python benchmarks/learning.py bars                                    # about half an hour
    python benchmarks/learning.py peers --run TRPO --env Hopper-v5        # some of it
    python benchmarks/learning.py peers --minutes 480                     # begins no piece after eight hours
    python benchmarks/learning.py peers --show                            # table and curves of what there is
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

from learning_page import table_of, write_page
from lessons import LESSONS, SEEDS, Lesson
from peers import ROOT, ask, python_of
from record import RESULTS, Bar, Record, commit, console, show_bars

CURVE_POINTS = 40
LIBRARIES = ("shoal", "sb3", "rllib")


@dataclass(frozen=True)
class Piece:
    """One lesson, learned by one library with one seed."""

    lesson: Lesson
    who: str
    seed: int

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.lesson.key}/{self.who}/{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """All that its result depends on, beside the library."""
        lesson = asdict(self.lesson)
        taught = ("run", "env", "steps", "kind", "config", "env_config", "reward_unit", "normalize")
        if self.lesson.recorded:
            taught = ("run", "env", "steps", "recorded")
        found = {name: lesson[name] for name in taught}
        if self.who != "shoal" and self.lesson.peer_run:
            found["run"] = self.lesson.peer_run
        return found

    def learn(self) -> dict[str, Any]:
        """Its curve and what that took."""
        if self.lesson.recorded:
            runner, told = "imitate", {"folder": str(recorded_steps(self.lesson, self.seed))}
        else:
            runner, told = "learn", {}
        started = time.monotonic()
        answer = ask(self.who, runner, seed=self.seed, **self.settings, **told).answer
        return {
            "key": self.key,
            "final": answer["final"],
            "wall_s": time.monotonic() - started,
            "cpu_s": answer["cpu_s"],
            "curve": thinned(answer["curve"]),
            "commit": commit(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "settings": self.settings,
        }


def recorded_steps(lesson: Lesson, seed: int) -> Path:
    """The folder with the steps that a lesson learns from; they are made once, and are the same for every library."""
    folder = ROOT / ".venvs" / "recorded" / f"{lesson.env}-{lesson.recorded}-{seed}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=ROOT / ".venvs") as unfinished:
            ask("shoal", "record", env=lesson.env, recorded=lesson.recorded, seed=seed, folder=unfinished)
            folder.parent.mkdir(exist_ok=True)
            shutil.copytree(unfinished, folder)
    return folder


class Store:
    """The pieces of one part that are there already, in a file of one line each; of two of a kind the last counts."""

    def __init__(self, part: str) -> None:
        self.path = RESULTS / f"learning-{part}.jsonl"
        self.pieces: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        """Take in what the file has, other processes' pieces too."""
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else the process that wrote it was killed
                    piece = json.loads(line)
                    self.pieces[piece["key"]] = piece

    def get(self, piece: Piece) -> dict[str, Any] | None:
        """The piece, if it was measured with the settings that it has now."""
        kept = self.pieces.get(piece.key)
        if kept is None or kept["settings"] != json.loads(json.dumps(piece.settings)):
            return None
        return kept

    def measured(self, lessons: list[Lesson]) -> dict[str, list[dict[str, Any]]]:
        """What was measured of every lesson with the settings that it has now, by lesson and library."""
        found: dict[str, list[dict[str, Any]]] = {}
        seeds = 1 + max(int(key.rpartition("/")[2]) for key in self.pieces)
        for lesson, who, seed in product(lessons, LIBRARIES, range(seeds)):
            piece = self.get(Piece(lesson, who, seed))
            if piece is not None:
                found.setdefault(f"{lesson.key}/{who}", []).append(piece)
        return found

    def add(self, found: dict[str, Any]) -> None:
        """Keep one."""
        self.pieces[found["key"]] = found
        RESULTS.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(found) + "\n")

    def tidy(self) -> None:
        """Write each piece once, in order."""
        self.read()
        lines = [json.dumps(self.pieces[key]) for key in sorted(self.pieces)]
        whole = self.path.with_suffix(".tmp")
        whole.write_text("\n".join(lines) + "\n")
        whole.replace(self.path)


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most `CURVE_POINTS` points of a curve, the last one among them."""
    stride = -(-len(curve) // CURVE_POINTS)
    return [[steps, float(f"{mean:.5g}")] for steps, mean in curve[::-stride][::-1]]


def learn(pieces: list[Piece], store: Store, jobs: int, minutes: float) -> None:
    """Measure pieces, `jobs` at once, and keep each as it ends; begin none after so many minutes."""
    deadline = time.monotonic() + 60 * minutes

    def one(piece: Piece) -> dict[str, Any] | None:
        return piece.learn() if time.monotonic() < deadline else None

    for who in {piece.who for piece in pieces}:
        python_of(who)
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, piece) for piece in pieces]):
            found = done.result()
            if found is not None:
                store.add(found)
                console.print(f"  {found['key']}: {found['final']:.1f} in {found['cpu_s']:.0f} s of CPU", style="dim")


def bars_of(finals: dict[str, list[float]], lessons: list[Lesson]) -> list[Bar]:
    """The worst seed against the least that it has to reach, and every unit of reward against the unit of 1."""
    bars: list[Bar] = []
    for lesson in lessons:
        found = finals.get(f"{lesson.key}/shoal")
        if found and lesson.least is not None:
            bars.append(Bar(f"{lesson.run} {lesson.name}, worst of {len(found)} seeds", min(found), lesson.least, True))
        plain = finals.get(f"{lesson.part}/{lesson.run}/{lesson.env} x1/{lesson.kind}/shoal")
        if found and plain and lesson.reward_unit != 1:
            share = statistics.fmean(found) / statistics.fmean(plain)
            bars.append(Bar(f"{lesson.run} {lesson.name}, share of x1", share, 0.85, True))
    return bars


def main() -> None:
    """Measure what is missing, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted({each.part for each in LESSONS}))
    parser.add_argument("--run", nargs="+", choices=sorted({each.run for each in LESSONS}))
    parser.add_argument("--env", nargs="+", help="environments by their ids, or tasks by their names in the table")
    parser.add_argument("--who", nargs="+", choices=LIBRARIES)
    parser.add_argument("--kind", nargs="+", choices=("defaults", "same"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no piece after so many")
    parser.add_argument("--again", action="store_true", help="measure also what is there already")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    lessons = [
        each
        for each in LESSONS
        if each.part == options.part
        and (options.run is None or each.run in options.run)
        and (options.env is None or not {each.env, each.name}.isdisjoint(options.env))
        and (options.kind is None or each.kind in options.kind)
    ]
    pieces = [
        Piece(lesson, who, seed)
        for seed in range(options.seeds)
        for lesson in lessons
        for who in lesson.who
        if options.who is None or who in options.who
    ]
    store = Store(options.part)
    record = Record(f"learning-{options.part}", sorted({piece.who for piece in pieces}), {"seeds": options.seeds})
    if not options.show:
        missing = [piece for piece in pieces if options.again or store.get(piece) is None]
        console.print(f"{len(missing)} of {len(pieces)} pieces are to be measured")
        learn(missing, store, options.jobs, options.minutes)
    if not store.pieces:
        raise SystemExit("nothing is measured yet")
    store.tidy()
    every = [each for each in LESSONS if each.part == options.part]
    found = store.measured(every)
    finals = {key: [piece["final"] for piece in each] for key, each in found.items()}
    rows = table_of(found, every)
    bars = bars_of(finals, every)
    show_bars(bars)
    write_page(options.part, rows, found, every)
    record.keep({"table": rows}, bars)


if __name__ == "__main__":
    main()
