"""What a kept figure needs beside itself: machine, versions, commit, and the bars it is held against."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from math import comb
from pathlib import Path
from typing import Any

from peers import ONE_THREAD, ROOT, python_of
from rich.console import Console
from rich.table import Table

RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (
    "numpy",
    "gymnasium",
    "torch",
    "ray",
    "stable-baselines3",
    "sb3-contrib",
    "sbx-rl",
    "jax",
    "ale-py",
    "box2d",
    "mujoco",
    "envpool",
    "rltools",
    "mkl",
)

console = Console()


@dataclass(frozen=True)
class Bar:
    """One figure and the limit it has to keep."""

    name: str
    value: float
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        """The figure keeps its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of the repeats."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def with_interval(values: Sequence[float]) -> dict[str, float]:
    """The median, and between which two values the true one lies with 95 % certainty; of few values, the ends."""
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0
    while below < count // 2 and outside + comb(count, below) / 2**count <= 0.025:
        outside += comb(count, below) / 2**count
        below += 1
    cut = max(below - 1, 0)
    return {"median": statistics.median(ordered), "low": ordered[cut], "high": ordered[count - 1 - cut]}


def machine() -> dict[str, str | int | float]:
    """The processor, its cores, the memory and the operating system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "os": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions(who: str) -> dict[str, str]:
    """Python and the packages that decide speed, as installed in the virtual environment of `who`."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({'python': platform.python_version(), **{n: found[n] for n in sys.argv[1:] if n in found}}))"
    )
    answer = subprocess.run([python_of(who), "-c", code, *PACKAGES], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def commit() -> str:
    """The commit of the working tree, marked where files differ from it."""

    def said(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    # What a script keeps differs from the commit too, once the first of its parts is done.
    differs = said("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (said("rev-parse", "HEAD") or "no commit") + ("-dirty" if differs else "")


def tree() -> str:
    """Git's own name of what is in src, changes included: two commits with the same one have the same shoal.

    A commit may be missing in another copy of the repository; `git rev-parse COMMIT:src` tells the name of any.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        variables = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}

        def said(*words: str) -> str:
            done = subprocess.run(["git", *words], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
            return done.stdout.strip()

        said("read-tree", "HEAD")
        said("add", "src")
        return said("write-tree", "--prefix=src/") or "no tree"


class Record:
    """One benchmark's figures, with the machine as it was before the first of them was taken."""

    def __init__(self, name: str, who: Iterable[str], settings: dict[str, Any]) -> None:
        self.name = name
        self.head = {
            "name": name,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "tree": tree(),
            "machine": machine(),
            "versions": {each: versions(each) for each in who},
            "threads": ONE_THREAD,
            "settings": settings,
        }

    def keep(self, results: dict[str, Any], bars: Sequence[Bar]) -> Path:
        """Write everything to `benchmarks/results/NAME.json`."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        kept = {**self.head, "results": results, "bars": [{**asdict(bar), "met": bar.met} for bar in bars]}
        path.write_text(_flat_lists(json.dumps(_rounded(kept), indent=1)) + "\n")
        console.print(f"kept in {path.relative_to(ROOT)}")
        return path


def show_bars(bars: Sequence[Bar]) -> None:
    """Print each bar with its figure."""
    table = Table("bar", "measured", "limit", "", title="Bars")
    for bar in bars:
        sign = ">=" if bar.at_least else "<="
        verdict = "[green]met[/]" if bar.met else "[red]missed[/]"
        table.add_row(bar.name, f"{bar.value:.3g}{bar.unit}", f"{sign} {bar.limit:.3g}{bar.unit}", verdict)
    if bars:
        console.print(table)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _flat_lists(text: str) -> str:
    """The same JSON with each list of plain values on one line, so that a curve does not take hundreds."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)


def _rounded(value: Any) -> Any:
    """The same tree with five significant digits, and None for infinity, which JSON does not know."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
