"""The peers' virtual environments, and processes that run in them.

`python benchmarks/peers.py` makes them; the other scripts make them on first use.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ("sb3", "rllib")

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Set for shoal and for the peers alike: networks this small only lose by more threads."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended well."""

    started: float  # time.monotonic(), which all processes of a machine share
    ended: float
    peak_rss_mb: float
    answer: dict[str, Any]


def python_of(who: str) -> Path:
    """The interpreter that runs this, for shoal, or a peer's, whose environment is made if missing or outdated."""
    if who == "shoal":
        return Path(sys.executable)
    folder = ROOT / ".venvs" / who
    wanted = (HERE / f"requirements-{who}.txt").read_text()
    stamp = folder / "requirements.txt"
    python = folder / "bin" / "python"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f"{who}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # where two scripts want it at once, the second waits until the first has it
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        sys.stderr.write(f"making .venvs/{who} (once, some minutes)\n")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # torch comes first and alone: a resolver that meets it late has fetched other versions of it by then.
        torch, *others = wanted.split()
        for packages in ([torch], [torch, *others]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        stamp.write_text(wanted)
    return python


def source_of(commit: str) -> Path:
    """The source of shoal as it was at a commit, taken out of the repository once."""
    folder = ROOT / ".venvs" / f"shoal-{commit}"
    if not (folder / "src").exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "--extract", "--directory", str(folder)], input=packed, check=True)
    return folder / "src"


def ask(who: str, task: str, runner: str = "", source: Path = ROOT / "src", **arguments: Any) -> Ended:
    """Run one task of `runners/run_WHO.py`, or of another runner, in a process of its own and give its answer.

    `source` is that of shoal.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        answer = Path(folder) / "answer.json"
        script = HERE / "runners" / f"run_{runner or who}.py"
        command = [str(python_of(who)), str(script), task, json.dumps(arguments), str(answer)]
        started, ended, peak = _run(command, who, Path(folder), source)
        return Ended(started, ended, peak, json.loads(answer.read_text()))


def shoal_command(*words: str, results_dir: Path) -> Ended:
    """Run `shoal WORDS --results-dir RESULTS_DIR` and give the last line of the run's result.json."""
    shoal = Path(sys.executable).with_name("shoal")
    if not shoal.exists():
        raise SystemExit(
            f"there is no `shoal` command beside {sys.executable}: run `make setup` and use .venv/bin/python"
        )
    command = [str(shoal), *words, "--results-dir", str(results_dir)]
    started, ended, peak = _run(command, "shoal", results_dir)
    (lines,) = results_dir.glob("**/result.json")
    return Ended(started, ended, peak, json.loads(lines.read_text().splitlines()[-1]))


def _run(command: list[str], who: str, folder: Path, source: Path = ROOT / "src") -> tuple[float, float, float]:
    """Start, watch and wait; its start, its end, and the highest memory seen on the way."""
    log = folder / "log.txt"
    with log.open("w") as sink:
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=_environment(who, source), stdout=sink, stderr=sink)
        peak = 0.0
        try:
            while process.poll() is None:
                peak = max(peak, _peak_rss_mb(process.pid))
                try:
                    process.wait(timeout=0.02)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        ended = time.monotonic()
    if process.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-30:])
        raise RuntimeError(f"{who} ended with code {process.returncode}:\n{tail}")
    return started, ended, peak


def _environment(who: str, source: Path = ROOT / "src") -> dict[str, str]:
    """This process's variables with one thread each, and the shoal of this source for shoal alone."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own = {"PYTHONPATH": str(source)} if who == "shoal" else {}
    return {**kept, **ONE_THREAD, **own, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


def _peak_rss_mb(pid: int) -> float:
    """VmHWM of a process; `ru_maxrss` would count the parent's memory, which a child holds until it calls exec."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


if __name__ == "__main__":
    for peer in PEERS:
        sys.stdout.write(f"{peer}: {python_of(peer).relative_to(ROOT)}\n")
