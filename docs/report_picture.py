"""Draws docs/report.png, the README's picture of a report, from real runs by Chromium: python docs/report_picture.py"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import shoal

SEEDS = 3
STEPS = 60_000
SIZE = "1180,770"


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Error: there is neither chromium nor google-chrome; install one of them.")
    with tempfile.TemporaryDirectory() as folder:
        for lr in (7e-4, 1e-4):
            for seed in range(SEEDS):
                experiment = {"env": "CartPole-v1", "name": "cartpole", "results_dir": folder}
                changed = {"stop": {"timesteps_total": STEPS}, "config": {"lr": lr, "seed": seed}}
                for _ in shoal.run({**experiment, **changed}):
                    pass
        page, picture = Path(folder, "report.html"), Path(__file__).with_name("report.png")
        report = [sys.executable, "-m", "shoal", "report", str(Path(folder, "cartpole")), "-o", str(page)]
        subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
        drawn = [f"--window-size={SIZE}", "--hide-scrollbars", "--virtual-time-budget=4000", f"--screenshot={picture}"]
        subprocess.run([browser, "--headless", "--no-sandbox", *drawn, page.as_uri()], check=True, capture_output=True)
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
