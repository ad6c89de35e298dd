"""The live view on a real terminal, with tmux as the terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from fake_runs import DONE, fake_result, fake_run

from shoal.runs.lease import LEASE, LOST_AFTER_S, this_process
from shoal.runs.outcomes import write_outcome

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

DEADLINE_S = 120


@dataclass(frozen=True)
class Terminal:
    """A terminal in a tmux of its own."""

    socket: str
    environment: dict[str, str]

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self.socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def open(self, desk: Any, width: int, *arguments: str, **variables: str) -> None:
        """Type a shoal command; its exit code is shown after its end."""
        names = " ".join(
            f"{name}={shlex.quote(value)}" for name, value in {"HOME": str(desk.home), **variables}.items()
        )
        shell = f"cd {desk.work}; env {names} {shlex.join([desk.command, *arguments])}; echo ended with $?; exec cat"
        self.tmux("new-session", "-d", "-x", str(width), "-y", "24", shell)

    def screen(self, *flags: str) -> str:
        """All lines so far."""
        return self.tmux("capture-pane", "-p", "-S", "-", *flags)

    def shows_cursor(self) -> bool:
        return self.tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def until(self, is_so: Callable[[str], Any]) -> str:
        """The screen as soon as it fulfils the condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_so(shown := self.screen()):
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        return shown


@pytest.fixture
def terminal(desk: Any) -> Iterator[Terminal]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:  # a socket's path must be short
        made = Terminal(f"{folder}/tmux", {**desk.environment(), "LC_ALL": "C.UTF-8"})
        try:
            yield made
        finally:
            subprocess.run(["tmux", "-S", made.socket, "kill-server"], capture_output=True, check=False)


def view(criterion: str) -> re.Pattern[str]:
    """The view, complete and with no line of it broken."""
    lines = [
        r"PPO CartPole-v1  \d+ s  .*",
        r"return +[\d.]+   min [\d.]+  max [\d.]+   [▁▂▃▄▅▆▇█]+",
        r"length +[\d.]+   [\d,]+ episodes   env \d+%  policy \d+%.*",
        r"steps +[\d,]+   [\d.]+k? steps/s   iteration \d+",
        rf"━+ +\d+%  {criterion} \d+ of \d+  eta \d+ .*",
    ]
    return re.compile("^" + "\n".join(lines) + "$", re.MULTILINE)


def test_a_run_that_finishes(desk: Any, terminal: Terminal, small: list[str]) -> None:
    terminal.open(desk, 80, "train", "CartPole-v1", "--stop", "training_iteration=25", *small)
    shown = terminal.until(lambda text: "ended with" in text)
    assert "ended with 0" in shown
    assert len(view("training_iteration").findall(shown)) == shown.count("steps/s") == 1
    assert "100%  training_iteration 25 of 25" in shown
    for words in ("Finished: training_iteration 25 >= 25", "saved     checkpoint_000025", "evaluate  shoal evaluate "):
        assert words in shown
    assert terminal.shows_cursor()
    assert "\x1b[32m" in terminal.screen("-e")


def test_a_run_that_is_stopped_in_a_narrow_terminal(desk: Any, terminal: Terminal, small: list[str]) -> None:
    stop = ["--stop", "timesteps_total=1000000"]
    terminal.open(desk, 60, "train", "CartPole-v1", *stop, *small, NO_COLOR="1")
    terminal.until(view("timesteps_total").search)
    assert not terminal.shows_cursor()
    assert not re.search(r"\x1b\[[\d;]*3[0-7][;m]", terminal.screen("-e"))
    terminal.tmux("send-keys", "C-c")
    shown = terminal.until(lambda text: "ended with" in text)
    assert "ended with 130" in shown
    assert "Stopped: interrupted by SIGINT" in shown
    assert "Traceback" not in shown
    assert len(view("timesteps_total").findall(shown)) == shown.count("steps/s") == 1
    assert terminal.shows_cursor()


SLOW = """
import time
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        time.sleep(0.1)
        return super().step(action)
"""


def test_a_slow_simulator_shows_life_in_its_first_iteration(desk: Any, terminal: Terminal) -> None:
    (desk.work / "slow.py").write_text(SLOW)
    terminal.open(desk, 80, "train", "slow.py:Slow", "--stop", "timesteps_total=100000")
    shown = terminal.until(re.compile(r"iteration 1: \d+ of 2,048 steps in \d+ s, [\d.]+ steps/s").search)
    due = r"^its result is due in \d+ min.*\na smaller config.train_batch_size gives results sooner$"
    assert re.search(due, shown, re.MULTILINE)
    terminal.tmux("send-keys", "C-c")
    assert "ended with 130" in terminal.until(lambda text: "ended with" in text)


def test_a_terminal_that_closes_leaves_a_saved_run(desk: Any, terminal: Terminal, small: list[str]) -> None:
    terminal.open(desk, 80, "train", "CartPole-v1", "--stop", "timesteps_total=1e9", *small)
    terminal.until(view("timesteps_total").search)
    terminal.tmux("kill-session")
    (run,) = desk.runs()
    deadline = time.monotonic() + DEADLINE_S
    while (run / ".lease").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(run.glob("checkpoint_*"))
    assert "The run ends: interrupted by SIGHUP." in (run / "log.txt").read_text()


@pytest.mark.repeats(1)
@pytest.mark.parametrize(("flags", "variables"), [(["--quiet"], {}), ([], {"TERM": "dumb"})])
def test_no_live_view_where_none_is_wanted(
    desk: Any, terminal: Terminal, small: list[str], flags: list[str], variables: dict[str, str]
) -> None:
    arguments = ["train", "CartPole-v1", "--stop", "training_iteration=2", *small, *flags]
    terminal.open(desk, 80, *arguments, **variables)
    shown = terminal.until(lambda text: "ended with" in text)
    assert "ended with 0" in shown
    assert "━" not in shown
    assert ("iter    2 " in shown) == (not flags)


def test_config_show_is_a_table(desk: Any, terminal: Terminal) -> None:
    terminal.open(desk, 80, "config", "show", "model")
    shown = terminal.until(lambda text: "ended with" in text)
    assert "ended with 0" in shown
    assert re.search(r"^key +type +default +meaning", shown, re.MULTILINE)
    assert "model.fcnet_hiddens" in shown


def test_a_run_of_another_host_is_watched_while_its_heartbeat_comes(desk: Any, terminal: Terminal) -> None:
    folder = fake_run(desk.work / "results", outcome=None)
    owner = replace(this_process(), host="n0042", boot="another", nonce="theirs")
    (folder / LEASE).write_text(json.dumps(asdict(owner)))
    before = sorted(path.name for path in folder.iterdir())
    terminal.open(desk, 80, "watch", "first", "--results-dir", "results", "--interval", "0.1")
    terminal.until(lambda text: "iteration 10" in text)
    with open(folder / "result.json", "a") as file:
        file.write(json.dumps(fake_result(11, 11.0)) + "\n")
    os.utime(folder / LEASE)
    shown = terminal.until(lambda text: "iteration 11" in text)
    assert "ended with" not in shown
    assert not terminal.shows_cursor()
    long_ago = time.time() - 2 * LOST_AFTER_S
    write_outcome(folder, DONE)
    (folder / LEASE).unlink()  # as it gives the folder back at its end
    shown = terminal.until(lambda text: "ended with" in text)
    assert "Finished: training_iteration 10 >= 10" in shown
    assert "ended with 0" in shown
    assert terminal.shows_cursor()
    assert sorted(path.name for path in folder.iterdir()) == sorted({*before, "outcome.json"} - {LEASE})
    (folder / "outcome.json").unlink()
    (folder / LEASE).write_text(json.dumps(asdict(owner)))
    os.utime(folder / LEASE, (long_ago, long_ago))
    terminal.tmux("kill-session")
    terminal.open(desk, 80, "watch", "first", "--results-dir", "results")
    shown = terminal.until(lambda text: "ended with" in text)
    assert "Nobody trains it, and it left no word" in shown
    assert "ended with 1" in shown
