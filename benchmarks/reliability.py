"""What survives what: each row of RELIABILITY.md is a part of this script, with a JSON of its own.

python benchmarks/reliability.py saves corruptions   measure these parts, and write the page
python benchmarks/reliability.py --peer sb3 saves     the same of another library, in an environment of its own
python benchmarks/reliability.py --quick             all parts, with small counts, into a folder that is not kept
python benchmarks/reliability.py launcher --folder F  in F, where it goes on where it was stopped; so does mutants
python benchmarks/reliability.py launcher --jobs 2   in two processes
python benchmarks/reliability.py --page              write the page from what was measured before
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / "tests" / folder) for folder in ("shared", "faults", "cluster"))]

import record  # noqa: E402
import reliability_bed as bed  # noqa: E402
import reliability_cluster as cluster  # noqa: E402
import reliability_configurations as configurations  # noqa: E402
import reliability_peers as peers  # noqa: E402
import reliability_runs as runs  # noqa: E402
import reliability_saves as saves  # noqa: E402
from record import Record, console, show_bars  # noqa: E402
from reliability_figures import Found  # noqa: E402

PAGE = HERE.parent / "RELIABILITY.md"
PEERS = {"sb3": "Stable-Baselines3", "rllib": "RLlib"}


SURVIVAL = "tests/cluster/test_survival.py"
SLOW, LONG = "make test-slow", "make test-long"


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
    small: str = ""  # the test that tries it in small
    when: str = "make test"  # that test runs
    source: str = ""  # the name of that JSON
    by: str = ""  # what makes it
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda kept: kept["results"]  # count and figure in it


def _workers(kept: dict[str, Any]) -> dict[str, Any]:
    found = kept["results"]
    share = {who: round(100 * found[who]["share"]["median"]) for who in found if "share" in found[who]}
    peers = {"rllib": f"{share['rllib']} %"} if "rllib" in share else {}
    kills = int(found["shoal"]["kills"]["median"])
    return {"count": kills, "figure": f"{share['shoal']} %", "peers": peers, "met": share["shoal"] >= 90}


def _cancels(kept: dict[str, Any]) -> dict[str, Any]:
    count = len(kept["results"]["runs"])
    good = min(int(bar["value"]) for bar in kept["bars"])
    return {"count": count, "figure": f"{good} of {count} saved, ended with 143, left nothing"}


def _versions(kept: dict[str, Any]) -> dict[str, Any]:
    """The NumPy that most Pythons were tried with says most; pairs that are not there are named."""
    rows = kept["results"]["tried"]
    tried = [row for row in rows if row["link"]]
    by_numpy: dict[str, list[str]] = {}
    for row in tried:
        by_numpy.setdefault(row["numpy"], []).append(row["python"])
    numpy, pythons = max(by_numpy.items(), key=lambda found: len(found[1]))
    links = {row["link"] for row in tried if row["numpy"] == numpy}
    same = "the same chain" if len(links) == 1 else f"{len(links)} chains"
    absent = sorted({row["python"] for row in rows if row["steps"]["install"] == "no such Python here"})
    figure = f"{same} on Python {', '.join(dict.fromkeys(pythons))} with NumPy {numpy}"
    if len(by_numpy) > 1:
        every = "the same" if len({row["link"] for row in tried}) == 1 else "another one"
        figure += f", and {every} with NumPy {', '.join(each for each in by_numpy if each != numpy)}"
    figure += f"; {min(row['passed'] for row in tried)} tests or more pass in each"
    if absent:
        figure += f"; there was no Python {', '.join(absent)}"
    return {"count": len(tried), "figure": figure}


ROWS = (
    Row("saves", "kill -9 at a random moment of a save", "all resumable, 0 acknowledged checkpoints lost",
        saves.killed_saves, 200, 6, 200, small="tests/faults/test_checkpoints.py"),
    Row("replay", "kill -9 at a random moment of a save of replay, whose checkpoints share files",
        "all resumable, 0 acknowledged checkpoints lost", saves.killed_replay, 200, 6, 200,
        small="tests/faults/test_checkpoints.py"),
    Row("calls", "every system call of a save failed once (ENOSPC, EIO, EDQUOT, short write)",
        "the old checkpoint intact at all points", saves.failed_calls,
        small="tests/faults/test_every_call.py", when=SLOW),
    Row("corruptions", "corruptions of a checkpoint (flip, truncate, swap, zero, garbage)",
        "0 loaded silently, 0 tracebacks", saves.corruptions, 1000, 50, 1000,
        small="tests/faults/test_checkpoints.py"),
    Row("hostile", "hostile checkpoints and configurations with a canary, under every command that reads them",
        "0 executed", saves.hostile, 50, 8, 50, small="tests/faults/test_strangers.py"),
    Row("resume", "resume against an uninterrupted run, all algorithms, 0, 1 and 2 workers", "byte-equal",
        runs.resumed, 3, 1, small="tests/unit/runs/test_chain.py"),
    Row("versions", "the same hash chain on Python 3.10 to 3.13", "one chain for each NumPy, and all tests pass",
        source="versions", by="make test-versions", read=_versions),
    Row("signals", "SIGTERM, SIGINT, SIGHUP, SIGUSR1 at random moments, start-up included",
        "all saved or nothing to save, documented code, 0 orphans", runs.signals, 100, 4, 100,
        small="tests/faults/test_runs.py"),
    Row("configurations", "mutated configurations and command lines", "0 tracebacks, 0 accepted nonsense",
        configurations.configurations, 10_000, 300, 10_000, small="tests/docs/test_reliability_page.py", when=SLOW),
    Row("two-runs", "2 runs on one folder at once", "exactly 1 proceeds", runs.two_runs, 100, 2, 100,
        small="tests/faults/test_runs.py"),
    Row("workers", "kill -9 of 1 of 4 workers every 5 s", ">= 90 % of throughput", source="workers-killed",
        by="python benchmarks/workers.py killed", read=_workers, small="tests/contract/test_workers.py"),
    Row("node", "a node of three stopped or cut off while training goes on", "< 10 s", bed.lost_nodes, 9, 3,
        small=SURVIVAL, when=SLOW),
    Row("unable", "a host on which srun cannot start the launch (srun and salloc, three hosts)",
        "named within 5 s of srun's own error", bed.unable, 10, 2, small=SURVIVAL, when=SLOW),
    Row("launchers", "kill -9 of mpirun, mpiexec and srun that started a launch",
        "nothing left after 10 s; of srun alone no process, and no file after the next launch",
        bed.killed_launchers, 12, 4, small=SURVIVAL, when=SLOW),
    Row("driver", "kill -9 of the driver of a run with 2 workers", "0 processes, files, segments after 10 s",
        runs.killed_driver, 10, 1, small="tests/faults/test_runs.py", when=SLOW),
    Row("driver-nodes", "kill -9 of the driver of a run with workers on three hosts", "nothing left on any after 10 s",
        bed.killed_driver, 10, 1, small=SURVIVAL, when=LONG),
    Row("strangers", "second uid: job APIs, gRPC, folder, token, planted address", "0 succeed",
        cluster.strangers, small="tests/faults/test_second_user.py", when=SLOW),
    Row("walltime", "walltime on real Slurm, 3 requeues", "final weights equal", bed.walltime, 3, 1,
        small="tests/cluster/test_submit.py", when=LONG),
    Row("cancels", "scancel of a job that trains, on real Slurm", "all saved, one documented code, nothing left",
        source="cancels", by="python benchmarks/cancels.py", asked=20, read=_cancels, small=SURVIVAL, when=SLOW),
    Row("launcher", "launcher seeds", "100,000 seeds, 0 violations", cluster.launcher_seeds, 100_000, 40, 100_000,
        small="tests/faults/test_launch_seeds.py"),
    Row("mutants", "mutation score of checkpoints, durable writing, wire protocol", ">= 90 %",
        cluster.mutants, 400, 4),
)  # fmt: skip


def measure(row: Row, is_quick: bool, count: int | None, where: Path | None) -> bool:
    """Measure a row and keep it; whether it meets its bar."""
    assert row.measure is not None
    wanted = count or (row.quick if is_quick else row.count)
    kept = Record(f"reliability-{row.name}", ["shoal"], {"count": wanted, "quick": is_quick})
    with tempfile.TemporaryDirectory(prefix="shoal-reliability-") as folder:
        found = row.measure(wanted, where or Path(folder))
    kept.keep({"count": found.count, "figure": found.figure, **found.more}, found.bars)
    show_bars(found.bars)
    return all(bar.met for bar in found.bars)


def measure_peer(who: str, row: str, count: int | None) -> None:
    """Measure another library in a row, and keep it beside what is known of it in the others."""
    hook, counts = peers.HOOKS[row]
    kept = Record(f"reliability-{who}", [who], {})
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        found = hook(who, count or counts[who], Path(folder))
    console.print(f"{who}, {row}: {found.figure}")
    told = {"count": found.count, "figure": found.figure, "date": kept.head["date"], **found.more}
    kept.keep({**_of_peer(who, record.RESULTS), **_without(who), row: told}, [])


def _of_peer(who: str, results: Path) -> dict[str, Any]:
    file = results / f"reliability-{who}.json"
    found: dict[str, Any] = json.loads(file.read_text())["results"] if file.is_file() else {}
    return found


def _without(who: str) -> dict[str, Any]:
    return {row: {"not_applicable": why} for row, why in peers.NOT_APPLICABLE[who].items()}


def page(results: Path) -> str:
    """The whole page, from what was measured."""
    lines = [
        "# Reliability",
        "",
        "What was tried, how often, and what came of it. Written by `benchmarks/reliability.py` from the JSON files in",
        "`benchmarks/results`; each row is measured by one command. The last column says of what source: git's name",
        "of the folder `src` (`git rev-parse COMMIT:src` says that of a commit), or, of older figures, the commit,",
        "which may be missing in your copy of the repository. A + stands for changes that were not committed yet.",
        "",
        "| test | bar | count | measured | Stable-Baselines3 | RLlib | date | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed, absent = [], []
    of_peers = {who: _of_peer(who, results) for who in PEERS}
    for row in ROWS:
        kept = _kept(row, results)
        told = [_told_of_peer(of_peers[who].get(row.name), (kept or {}).get("peers", {}).get(who)) for who in PEERS]
        if kept is None:
            absent.append(row)
            lines.append(f"| {row.test} | {row.bar} | | not measured | {told[0]} | {told[1]} | | |")
            continue
        figure = kept["figure"]
        if not kept["met"]:
            missed.append(row)
            figure += " (**the bar is not reached**)"
        elif kept["count"] < row.asked:
            missed.append(row)
            figure += f" (**the bar asks for {row.asked:,}**)"
        lines.append(
            f"| {row.test} | {row.bar} | {kept['count']:,} | {figure} | {told[0]} | {told[1]} | {kept['date']} "
            f"| {kept['source']} |"
        )
    lines += ["", "Again, and the test that tries it in small:", ""]
    lines += [f"- {_again(row)}; {_small(row)}" for row in ROWS]
    for who, title in PEERS.items():
        reasons: dict[str, list[str]] = {}
        for name, found in of_peers[who].items():
            if "not_applicable" in found:
                reasons.setdefault(found["not_applicable"], []).append(f"`{name}`")
        if reasons:
            lines += ["", f"Not applicable to {title}:", ""]
            lines += [f"- {', '.join(names)}: {why}" for why, names in reasons.items()]
    for title, rows in (("Bars that are not reached", missed), ("Not measured", absent)):
        if rows:
            lines += ["", f"{title}: {', '.join(row.name for row in rows)}."]
    return "\n".join(lines) + "\n"


def _again(row: Row) -> str:
    if row.by:
        return f"`{row.by}`, which keeps `{row.source}.json`: {row.test}"
    return f"`python benchmarks/reliability.py {row.name}`: {row.test}"


def _small(row: Row) -> str:
    return f"`{row.small}` (`{row.when}`)" if row.small else "no test"


def _told_of_peer(found: dict[str, Any] | None, beside: str | None) -> str:
    """The cell of a peer; `beside` was measured together with shoal's own figure."""
    if beside is not None:
        return beside
    if found is None:
        return "not measured"
    return "not applicable" if "not_applicable" in found else f"{found['figure']}"


def _kept(row: Row, results: Path) -> dict[str, Any] | None:
    """What was measured of a row; None: nothing yet."""
    file = results / f"{row.source or f'reliability-{row.name}'}.json"
    if not file.is_file():
        return None
    read = json.loads(file.read_text())
    found = row.read(read)
    mark = "+" if read["commit"].endswith("-dirty") else ""
    return {
        "met": all(bar["met"] for bar in read["bars"]),
        **found,
        "date": read["date"][:10],
        # A tree has its changes in its name.
        "source": f"src `{read['tree'][:10]}`" if "tree" in read else f"`{read['commit'][:10]}{mark}`",
    }


def _why_not(names: list[str], who: str | None) -> str:
    """What to do or to know where a part cannot be measured by this script."""
    if who is None:
        return "type: " + ", ".join(row.by for row in ROWS if row.name in names)
    return ", ".join(peers.NOT_APPLICABLE[who].get(name, "nobody has written how") for name in names)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS if row.measure is not None or row.name in peers.HOOKS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; all without a word")
    parser.add_argument("--quick", action="store_true", help="small counts; nothing is kept")
    parser.add_argument("--count", type=int, help="how often, in place of the part's own number")
    parser.add_argument("--peer", choices=PEERS, help="another library, in an environment that takes minutes")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds of the launcher")
    parser.add_argument("--folder", type=Path, help="where to work; launcher and mutants go on there")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(names)):
        parser.error(f"there is no part {', '.join(unknown)}; the parts are {', '.join(names)}")
    can = [row.name for row in ROWS if row.measure is not None]
    if given.peer is not None:
        can = [name for name, (_, counts) in peers.HOOKS.items() if given.peer in counts]
    if cannot := sorted(set(given.parts) - set(can)):
        parser.error(
            f"{', '.join(cannot)}: not measured here of {given.peer or 'shoal'}; {_why_not(cannot, given.peer)}"
        )
    if given.quick:
        record.RESULTS = Path(tempfile.mkdtemp(prefix="shoal-reliability-results-"))
        record.ROOT = record.RESULTS
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    cluster.JOBS = given.jobs
    met = [True]
    for row in ROWS if not given.page else ():
        if row.name not in (given.parts or can):
            continue
        console.rule(row.test)
        if given.peer is None:
            met.append(measure(row, given.quick, given.count, given.folder))
        else:
            measure_peer(given.peer, row.name, given.count)
    if not given.quick:
        PAGE.write_text(page(record.RESULTS))
        console.print(f"written to {PAGE.name}")
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
