"""Draws docs/live.svg, the README's picture of the live view, from a real run: python docs/live_view.py"""

from __future__ import annotations

import io
import re
import tempfile
import time
from pathlib import Path

from rich.console import Console, Group

import shoal
from shoal.cli.live import History, live_lines

STOP = {"episode_reward_mean": 475.0}
SHOWN_AT = 400.0  # shortly before the end, so that the bar has something to say


def main() -> None:
    history = History(STOP)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for result in shoal.run({"env": "CartPole-v1", "stop": STOP, "results_dir": folder}):
            history.add(result)
            if (result["episode_reward_mean"] or 0) >= SHOWN_AT:
                break
    console = Console(record=True, width=96, file=io.StringIO())
    run = Path.home() / "shoal_results/CartPole-v1/PPO_CartPole-v1_5d81c_2026-11-15_22-10-41"
    console.print(Group(*live_lines(history, "PPO CartPole-v1", run, time.monotonic() - began, 96)))
    svg = console.export_svg(title="shoal train CartPole-v1")
    # No fonts and links from elsewhere: any monospaced font of the reader's does.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    Path(__file__).with_name("live.svg").write_text(re.sub(r"<!--.*?-->\s*", "", svg))


if __name__ == "__main__":
    main()
