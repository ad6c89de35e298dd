"""What survives what: each row of RELIABILITY.md is a part of this script, with a JSON of its own.

python benchmarks/reliability.py saves corruptions   measure these parts, and write the page
python benchmarks/reliability.py --quick             all parts, with small counts, into a folder that is not kept
python benchmarks/reliability.py launcher --folder F  in F, where it goes on where it was stopped; so does mutants
python benchmarks/reliability.py --page              write the page from what was measured before
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / "tests" / folder) for folder in ("shared", "faults", "cluster"))]

import record  # noqa: E402
import reliability_bed as bed  # noqa: E402
import reliability_cluster as cluster  # noqa: E402
import reliability_runs as runs  # noqa: E402
import reliability_saves as saves  # noqa: E402
from record import Record, console, show_bars  # noqa: E402
from reliability_figures import Found  # noqa: E402

PAGE = HERE.parent / "RELIABILITY.md"


@dataclass(frozen=True)
class Row:
    """One row of the page."""

    name: str
    test: str
    bar: str
    measure: Callable[[int, Path], Found] | None = None  # None: another script keeps the JSON
    count: int = 1
    quick: int = 1
    asked: int = 0  # how often the bar wants it tried
    source: str = ""  # the name of that JSON
    by: str = ""  # what makes it
    peers: Mapping[str, Callable[[int, Path], str]] = field(default_factory=dict)  # the same of other libraries


ROWS = (
    Row("saves", "kill -9 at a random moment of a save", "all resumable, 0 acknowledged checkpoints lost",
        saves.killed_saves, 200, 6, 200, peers={"sb3": saves.sb3_killed_saves}),
    Row("replay", "kill -9 at a random moment of a save of replay, whose checkpoints share files",
        "all resumable, 0 acknowledged checkpoints lost", saves.killed_replay, 200, 6, 200),
    Row("calls", "every system call of a save failed once (ENOSPC, EIO, EDQUOT, short write)",
        "the old checkpoint intact at all points", saves.failed_calls),
    Row("corruptions", "corruptions of a checkpoint (flip, truncate, swap, zero, garbage)",
        "0 loaded silently, 0 tracebacks", saves.corruptions, 1000, 50, 1000, peers={"sb3": saves.sb3_flips}),
    Row("hostile", "hostile checkpoints and configurations with a canary, under every command that reads them",
        "0 executed", saves.hostile, 50, 8, 50, peers={"sb3": saves.sb3_hostile}),
    Row("resume", "resume against an uninterrupted run, all algorithms, 0, 1 and 2 workers", "byte-equal",
        runs.resumed, 3, 1),
    Row("signals", "SIGTERM, SIGINT, SIGHUP, SIGUSR1 at random moments, start-up included",
        "all saved or nothing to save, documented code, 0 orphans", runs.signals, 100, 4, 100),
    Row("configurations", "mutated configurations and command lines", "0 tracebacks, 0 accepted nonsense",
        runs.configurations, 10_000, 300, 10_000),
    Row("two-runs", "2 runs on one folder at once", "exactly 1 proceeds", runs.two_runs, 100, 2, 100),
    Row("workers", "kill -9 of 1 of 4 workers every 5 s", ">= 90 % of throughput", source="workers-killed",
        by="python benchmarks/workers.py killed"),
    Row("node", "a node of three stopped or cut off while training goes on", "< 10 s", bed.lost_nodes, 9, 3),
    Row("driver", "kill -9 of the driver of a run with 2 workers", "0 processes, files, segments after 10 s",
        runs.killed_driver, 10, 1),
    Row("strangers", "second uid: job APIs, gRPC, folder, token, planted address", "0 succeed",
        cluster.strangers),
    Row("walltime", "walltime on real Slurm, 3 requeues", "final weights equal", bed.walltime, 3, 1),
    Row("cancels", "scancel of a job that trains, on real Slurm", "all saved, one documented code, nothing left",
        source="cancels", by="python benchmarks/cancels.py", asked=20),
    Row("launcher", "launcher seeds", "100,000 seeds, 0 violations", cluster.launcher_seeds, 100_000, 40, 100_000),
    Row("mutants", "mutation score of checkpoints, durable writing, wire protocol", ">= 90 %",
        cluster.mutants, 400, 4),
)  # fmt: skip


def measure(row: Row, is_quick: bool, count: int | None, with_peers: bool, where: Path | None) -> bool:
    """Measure a row and keep it; whether it meets its bar. Peers that are not asked keep what they came to before."""
    assert row.measure is not None
    wanted = count or (row.quick if is_quick else row.count)
    peers = row.peers if with_peers else {}
    before = _kept(row, record.RESULTS)
    told = dict(before["peers"]) if before is not None else {}
    kept = Record(f"reliability-{row.name}", ["shoal", *peers], {"count": wanted, "quick": is_quick})
    with tempfile.TemporaryDirectory(prefix="shoal-reliability-") as folder:
        found = row.measure(wanted, where or Path(folder))
    for who, ask in peers.items():
        with tempfile.TemporaryDirectory(prefix="shoal-reliability-") as folder:
            told[who] = ask(wanted, Path(folder))
    results = {"count": found.count, "figure": found.figure, "peers": told, **found.more}
    kept.keep(results, found.bars)
    show_bars(found.bars)
    return all(bar.met for bar in found.bars)


def page(results: Path) -> str:
    """The whole page, from what was measured."""
    lines = [
        "# Reliability",
        "",
        "What was tried, how often, and what came of it. Written by `benchmarks/reliability.py` from the JSON files in",
        "`benchmarks/results`; each row is measured by one command, and a small form of it is a test of every change.",
        "A commit with a + had changes that were not committed yet.",
        "",
        "| test | bar | count | measured | Stable-Baselines3 | RLlib | date | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed, absent = [], []
    for row in ROWS:
        kept = _kept(row, results)
        if kept is None:
            absent.append(row)
            lines.append(f"| {row.test} | {row.bar} | | not measured | | | | |")
            continue
        peers = kept["peers"]
        told = [peers.get(name, "not measured") for name in ("sb3", "rllib")]
        figure = kept["figure"]
        if not kept["met"]:
            missed.append(row)
            figure += " (**the bar is not reached**)"
        elif kept["count"] < row.asked:
            missed.append(row)
            figure += f" (**the bar asks for {row.asked:,}**)"
        lines.append(
            f"| {row.test} | {row.bar} | {kept['count']:,} | {figure} | {told[0]} | {told[1]} | {kept['date']} "
            f"| `{kept['commit']}` |"
        )
    lines += ["", "Again: `python benchmarks/reliability.py NAME`, with these names:", ""]
    lines += [f"- `{row.name}`: {row.test}{_how(row)}" for row in ROWS]
    for title, rows in (("Bars that are not reached", missed), ("Not measured", absent)):
        if rows:
            lines += ["", f"{title}: {', '.join(row.name for row in rows)}."]
    return "\n".join(lines) + "\n"


def _how(row: Row) -> str:
    return f" (by {row.by}, which keeps `{row.source}.json`)" if row.source else ""


def _kept(row: Row, results: Path) -> dict[str, Any] | None:
    """What was measured of a row; None: nothing yet."""
    file = results / f"{row.source or f'reliability-{row.name}'}.json"
    if not file.is_file():
        return None
    read = json.loads(file.read_text())
    found = read["results"]
    if row.source == "workers-killed":
        share = {who: round(100 * found[who]["share"]["median"]) for who in found if "share" in found[who]}
        kills = found["shoal"]["kills"]["median"]
        peers = {"rllib": f"{share['rllib']} %"} if "rllib" in share else {}
        found = {"count": int(kills), "figure": f"{share['shoal']} %", "peers": {**peers, "sb3": "the run ends"}}
        is_met = share["shoal"] >= 90
    else:
        is_met = all(bar["met"] for bar in read["bars"])
        if row.source == "cancels":
            count = len(found["runs"])
            figure = f"{min(int(bar['value']) for bar in read['bars'])} of {count} saved, ended with 143, left nothing"
            found = {"count": count, "figure": figure}
    return {
        "count": found["count"],
        "figure": found["figure"],
        "peers": found.get("peers", {}),
        "met": is_met,
        "date": read["date"][:10],
        "commit": read["commit"][:10] + ("+" if read["commit"].endswith("-dirty") else ""),
    }


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS if row.measure is not None]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; all without a word")
    parser.add_argument("--quick", action="store_true", help="small counts; nothing is kept")
    parser.add_argument("--count", type=int, help="how often, in place of the part's own number")
    parser.add_argument("--peers", action="store_true", help="the other libraries too; their environments take minutes")
    parser.add_argument("--folder", type=Path, help="where to work; launcher and mutants go on there")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(names)):
        parser.error(f"there is no part {', '.join(unknown)}; the parts are {', '.join(names)}")
    if given.quick:
        record.RESULTS = Path(tempfile.mkdtemp(prefix="shoal-reliability-results-"))
        record.ROOT = record.RESULTS
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    met = [True]
    if not given.page:
        for row in ROWS:
            if row.measure is not None and (row.name in given.parts or not given.parts):
                console.rule(row.test)
                met.append(measure(row, given.quick, given.count, given.peers, given.folder))
    if not given.quick:
        PAGE.write_text(page(record.RESULTS))
        console.print(f"written to {PAGE.name}")
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
