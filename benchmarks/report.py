"""How long `shoal report` takes for a hundred runs of 10,000 results, and how long a browser takes to open the page.

Opening is the time from the start of the navigation until the figures in sight are drawn, as Chromium's own clock has
it, in a browser that was not open before; beside it stands the processor time of the page's main thread, which other
work on the machine does not lengthen. It needs chromium (Debian's package of that name).

    python benchmarks/report.py              # --quick: 4 runs of 200 results, nothing is kept
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import ROOT
from record import Bar, Record, console, show_bars, spread

sys.path.insert(0, str(ROOT / "tests" / "shared"))
from browser import Browser
from fake_runs import fake_run

OPENINGS = 5
DRAWN = """
new Promise(function (done) {
  function look() {
    var seen = Array.from(document.querySelectorAll("figure[data-figure] .box")).filter(function (box) {
      var at = box.getBoundingClientRect();
      return at.top < innerHeight && at.bottom > 0;
    });
    if (seen.length && seen.every(function (box) { return box.querySelector("svg"); })) {
      requestAnimationFrame(function () { done({drawn: performance.now(), figures: seen.length}); });
    } else { setTimeout(look, 5); }
  }
  look();
})"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    runs, points = (4, 200) if quick else (100, 10_000)
    record = Record("report", ["shoal"], {"runs": runs, "results_of_each": points, "openings": OPENINGS})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for seed in range(runs):
            config = {"lr": (1 + seed % 10) * 1e-4}
            fake_run(root, "many", seed, lambda at, seed=seed: at**0.5 * (1 + seed % 7), points, config)
        page = root / "report.html"
        command = [sys.executable, "-m", "shoal", "report", "many", "--results-dir", str(root), "-o", str(page)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        opened = [opening(page) for _ in range(OPENINGS)]
        results: dict[str, Any] = {
            "write_s": written,
            "write_cpu_s": used.ru_utime + used.ru_stime,
            "page_mb": page.stat().st_size / 1e6,
            "open_s": spread([one[0] for one in opened]),
            "open_cpu_s": spread([one[1] for one in opened]),
        }
    console.print_json(json.dumps(results))
    bars = [Bar("a page of 100 runs with 10,000 results each opens", results["open_s"]["median"], 2.0, False, " s")]
    show_bars(bars)
    if not quick:
        record.keep(results, bars)


def opening(page: Path) -> tuple[float, float]:
    """Seconds until what is in sight is drawn, in a browser of its own, and seconds of the processor."""
    with Browser() as browser:
        browser.call("Performance.enable", timeDomain="threadTicks")
        browser.open(page)
        found = browser.value(DRAWN)
        assert not browser.problems(), browser.problems()
        metrics = {one["name"]: one["value"] for one in browser.call("Performance.getMetrics")["metrics"]}
        return float(found["drawn"]) / 1000, float(metrics["ThreadTime"])


if __name__ == "__main__":
    main()
