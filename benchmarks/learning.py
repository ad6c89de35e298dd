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
import hashlib
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

from learning_page import ENOUGH, PEERS, peer_of, table_of, write_page
from lessons import LESSONS, SEEDS, Lesson, peer_lesson
from peers import ROOT, ask, python_of
from record import RESULTS, Bar, Record, commit, console, show_bars

from shoal.config.experiment import algorithm_class, config_tree
from shoal.config.trpo import MAX_KL_PER_NUMBER

CURVE_POINTS = 40
IDLE_KEYS = (
    *("env", "seed", "log_level", "num_workers", "framework", "kernel", "vectorization", "preprocessor_pref"),
    *(
        "num_cpus_per_worker",
        "num_learners",
        "num_cpus_per_learner",
        "env_isolation",
        "multiagent",
        "max_overfit_ratio",
    ),
    *("max_env_failures", "max_worker_restarts", "recreate_failed_workers", "restore_episodes"),
    *("evaluation_config", "evaluation_duration", "evaluation_duration_unit"),
)
"""Keys that say where and how something is computed, and not what a lesson learns."""
LIBRARIES = ("shoal", "sb3", "rllib")


@dataclass(frozen=True)
class Piece:
    """One lesson, learned by one library with one seed."""

    lesson: Lesson
    who: str
    seed: int

    @property
    def taught(self) -> Lesson:
        """The lesson itself, or the one that the peer is taught in its place, which is then measured once for both."""
        if self.who == "shoal" or not self.lesson.peer_run:
            return self.lesson
        return peer_lesson(self.lesson)

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.taught.key}/{self.who}/{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """All that its result depends on, beside the library."""
        lesson = asdict(self.taught)
        names = ("run", "env", "steps", "kind", "config", "env_config", "reward_unit", "normalize")
        if self.lesson.recorded:
            names = ("run", "env", "steps", "recorded")
        settings = {name: lesson[name] for name in names}
        if self.who == "shoal":
            settings["resolved"] = resolved(self.taught)
        return settings

    def learn(self) -> dict[str, Any]:
        """Its curve and what that took."""
        if self.lesson.recorded:
            runner, told = "imitate", {"folder": str(recorded_steps(self.lesson, self.seed))}
        else:
            runner, told = "learn", {}
        started = time.monotonic()
        told |= {name: value for name, value in self.settings.items() if name != "resolved"}
        answer = ask(self.who, runner, seed=self.seed, **told).answer
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


def resolved(lesson: Lesson) -> str:
    """A short hash of shoal's settings with their defaults: a piece from before a default changed is measured again.

    Keys that are null or off count as missing, so that a new key which changes nothing leaves old pieces as they are.
    """
    given = {**lesson.config, "input": "recorded"} if lesson.recorded else lesson.config
    config = algorithm_class(lesson.run).model_validate(given)
    tree = {
        **config_tree(config),
        "num_envs_per_worker": config.envs_per_worker,
        "max_kl_per_number": MAX_KL_PER_NUMBER,
    }
    said = {key: value for key, value in leaves(tree).items() if key.partition(".")[0] not in IDLE_KEYS and value}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def leaves(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a tree by their paths."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return found


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


def bars_of(rows: list[dict[str, Any]], finals: dict[str, list[float]], lessons: list[Lesson]) -> list[Bar]:
    """The worst seed against the least that it has to reach, every unit of reward against the unit of 1, and shoal's
    interquartile mean against the lower end of the peer's interval, where both have seeds enough."""
    bars: list[Bar] = []
    for lesson, row in zip(lessons, rows, strict=True):
        ours, theirs = (row.get(who, {"each": ()}) for who in ("shoal", peer_of([lesson])))
        if min(len(ours["each"]), len(theirs["each"])) >= ENOUGH:
            name = f"{lesson.run} {lesson.name}, {lesson.kind}, beside {PEERS[peer_of([lesson])]}"
            bars.append(Bar(name, ours["iqm"], theirs["interval"][0], True))
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
        wanted = {piece.key: piece for piece in pieces}.values()
        missing = [piece for piece in wanted if options.again or store.get(piece) is None]
        console.print(f"{len(missing)} of {len(wanted)} pieces are to be measured")
        learn(missing, store, options.jobs, options.minutes)
    if not store.pieces:
        raise SystemExit("nothing is measured yet")
    store.tidy()
    every = [each for each in LESSONS if each.part == options.part]
    found = store.measured(every)
    finals = {key: [piece["final"] for piece in each] for key, each in found.items()}
    rows = table_of(found, every)
    bars = bars_of(rows, finals, every)
    show_bars(bars)
    write_page(options.part, rows, found, every)
    record.keep({"table": rows}, bars)


if __name__ == "__main__":
    main()
