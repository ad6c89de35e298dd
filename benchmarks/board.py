"""What looking at a thousand runs costs: `shoal runs`, and a board over them while twenty train.

`shoal runs` is timed from the start of its process to its end: `FIRST_LISTINGS` times when nothing is known of the
runs, and then `LISTINGS` times, as a person types it. The board has one page of the list and one of a run open; its
share of a core is the processor time of its process over the time that passes, after its first look.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
from record import Bar, Record, show_bars, spread

from shoal.config.experiment import as_tree, experiment_from
from shoal.reports.run_cache import CACHE_FILE
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome, write_outcome

SETTINGS = {"runs": 1000, "running": 20, "iterations": 50, "results_per_s": 1.0}
LISTINGS = 9
FIRST_LISTINGS = 5
CONDITION = ("--where", "best > 10 and lr < 1")
"""What all of the runs meet, by a result and a setting."""


def line(iteration: int) -> str:
    """A result of about 1.5 KB."""
    learner = {f"value_{number}": 0.123456789 * iteration for number in range(50)}
    own = {"training_iteration": iteration, "timesteps_total": 2048 * iteration, "episode_reward_mean": iteration / 3}
    return json.dumps({**own, "time_total_s": float(iteration), "learner": learner}) + "\n"


def make_runs(root: Path) -> list[Path]:
    """The folders, each with its experiment, results, log and ten checkpoints."""
    experiment = experiment_from({"name": "many", "env": "CartPole-v1", "stop": {"training_iteration": 10**6}})
    tree = json.dumps(as_tree(experiment))
    results = "".join(line(number) for number in range(1, SETTINGS["iterations"] + 1))
    folders = []
    for number in range(SETTINGS["runs"]):
        folder = root / f"experiment_{number % 50}" / f"PPO_CartPole-v1_{number:05x}_2026-11-17_12-00-00"
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text(tree)
        (folder / "result.json").write_text(results)
        (folder / "log.txt").write_text("2026-11-17 12:00:00,000 INFO a line\n" * 100)
        for at in range(1, 11):
            (folder / f"checkpoint_{at:06d}").mkdir()
            for name in ("arrays.safetensors", "experiment.json", "manifest.json", "state.json"):
                (folder / f"checkpoint_{at:06d}" / name).write_text("{}")
        for name in (".started", ".lease.lock", "chain.jsonl", "config.yaml", "progress.csv", "report.html", "events"):
            (folder / name).write_text("-")
        write_outcome(folder, Outcome("stopped", "training_iteration 50 >= 50"))
        folders.append(folder)
    return folders


def listing(root: Path, *more: str) -> float:
    """Seconds that `shoal runs` takes."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "runs", str(root), *more], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    assert f"{SETTINGS['runs']} runs" in done.stdout.splitlines()[-1]
    return seconds


def first_listing(root: Path) -> float:
    """Seconds that it takes when nothing is known of the runs."""
    (root / CACHE_FILE).unlink(missing_ok=True)
    return listing(root)


def follow(url: str) -> None:
    """Read a stream as an open page does."""
    with urllib.request.urlopen(url, timeout=120) as news:
        while news.readline():
            pass


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    parser.add_argument("--quick", action="store_true", help="ten seconds; the figures are not kept")
    options = parser.parse_args()
    seconds = 10.0 if options.quick else options.seconds
    record = Record("board", ["shoal"], {**SETTINGS, "seconds": seconds})
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="board-")))
        running = make_runs(root)[: SETTINGS["running"]]
        first_listings = spread([first_listing(root) for _ in range(FIRST_LISTINGS)])
        listings = spread([listing(root) for _ in range(LISTINGS)])
        first_condition = listing(root, *CONDITION)
        conditions = spread([listing(root, *CONDITION) for _ in range(LISTINGS)])
        for folder in running:
            (folder / "outcome.json").unlink()
            stack.enter_context(Lease(folder))
        command = [sys.executable, "-m", "shoal", "board", str(root), "--port", "0"]
        board = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(board.wait)
        stack.callback(board.send_signal, signal.SIGINT)
        assert board.stdout is not None
        url = board.stdout.readline().removeprefix("Open ").strip()
        board.stdout.readline()
        first_look = sum(psutil.Process(board.pid).cpu_times()[:2])
        for path in ("events", f"at/{running[0].relative_to(root)}/events"):
            threading.Thread(target=follow, args=(url + path,), daemon=True).start()
        time.sleep(5)
        process = psutil.Process(board.pid)
        began, before = time.monotonic(), sum(process.cpu_times()[:2])
        iteration = SETTINGS["iterations"]
        while time.monotonic() - began < seconds:
            iteration += 1
            for folder in running:
                with open(folder / "result.json", "a") as file:
                    file.write(line(iteration))
            time.sleep(1 / SETTINGS["results_per_s"])
        used = sum(process.cpu_times()[:2]) - before
        share = 100 * used / (time.monotonic() - began)
        held = process.memory_info().rss / 1e6
    bars = [
        Bar("of a core, 1000 runs of which 20 train", share, 5.0, at_least=False, unit=" %"),
        Bar("shoal runs of 1000 runs", listings["median"], 1.0, at_least=False, unit=" s"),
        Bar("shoal runs of 1000 runs, nothing known", first_listings["median"], 1.0, at_least=False, unit=" s"),
        Bar("shoal runs --where of 1000 runs", conditions["median"], 1.0, at_least=False, unit=" s"),
    ]
    show_bars(bars)
    print(f"shoal runs: {listings}; when nothing is known of them: {first_listings}")
    print(f"shoal runs --where: {conditions}; when no settings are known: {first_condition:.2f} s")
    print(f"start and first look: {first_look:.1f} s of processor time; memory: {held:.0f} MB")
    if not options.quick:
        board_results = {"core_percent": share, "first_look_cpu_s": first_look, "memory_mb": held}
        asked = {"where_s": conditions, "where_first_s": first_condition}
        record.keep({**board_results, "runs_s": listings, "runs_first_s": first_listings, **asked}, bars)


if __name__ == "__main__":
    main()
