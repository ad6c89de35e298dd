"""A signal in whatever moment of a private Ray's start ends a run well, and whatever ends it leaves no folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from shoal.machine.signals import exit_code
from shoal.runs.outcomes import read_outcome

DEADLINE_S = 180.0
BEGUN = "starting a private Ray"
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]
DISPOSITIONS = """
import signal, sys
from shoal.parallel.private_ray import start_private_ray

def is_caught(number):
    with open("/proc/self/status") as status:
        (caught,) = [int(line.split()[1], 16) for line in status if line.startswith("SigCgt")]
    return bool(caught >> number - 1 & 1)

heard = []
signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
ray, private = start_private_ray(1)
traps = is_caught(signal.SIGTRAP)  # of which nobody but the core's handler for crashes has a use
signal.raise_signal(signal.SIGTERM)
private.end()
private.remove()
signal.raise_signal(signal.SIGTERM)
print(traps, len(heard))
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets have short names only."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield Path(folder)


def variables(folder: Path) -> dict[str, str]:
    given = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {**given, "TMPDIR": str(folder), "HOME": str(folder)}


class Training:
    """A command that trains with a worker, in a process of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._results, self._said = folder, folder / "results" / name, folder / f"{name}.txt"
        words = ["train", "CartPole-v1", "--name", name, "--num-workers", "1", "--results-dir", f"{folder}/results"]
        with open(self._said, "w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *words], stdout=said, stderr=said, env=variables(folder)
            )

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self._said.read_text()

    def until(self, is_so: Callable[[], object]) -> None:
        """Return when something is so, or when it has ended."""
        deadline = monotonic() + DEADLINE_S
        while not is_so() and self.process.poll() is None:
            assert monotonic() < deadline, self.said
            sleep(0.005)

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(DEADLINE_S)

    @property
    def run(self) -> Path:
        """The folder of its run."""
        (run,) = self._results.iterdir()
        return run


@contextlib.contextmanager
def trained(folder: Path, name: str) -> Iterator[Training]:
    training = Training(folder, name)
    try:
        yield training
    finally:
        training.process.kill()
        training.process.wait()


def until_nothing_is_left(folder: Path) -> None:
    """Return when there is no private folder, which somebody removes a moment after a process that was killed."""
    deadline = monotonic() + DEADLINE_S
    while [*folder.glob("shl-*")]:
        assert monotonic() < deadline
        sleep(0.01)


def test_ray_takes_no_signal_while_it_starts_and_leaves_it_when_it_ends(short_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISPOSITIONS],
        env=variables(short_folder),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["False", "2"]), done.stderr


def killed(training: Training) -> None:
    training.process.kill()


def interrupted_twice(training: Training) -> None:
    """As by a person who does not wait; the second is no echo of the first."""
    deadline = monotonic() + DEADLINE_S
    while training.process.poll() is None:
        assert monotonic() < deadline
        training.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            training.process.wait(0.5)


@pytest.mark.parametrize("end", [killed, interrupted_twice])
def test_what_ends_before_ray_is_up_leaves_no_folder(short_folder: Path, end: Callable[[Training], None]) -> None:
    with trained(short_folder, "one") as training:
        training.until(lambda: [*short_folder.glob("shl-*/token")])
        end(training)
        training.ended()
        until_nothing_is_left(short_folder)
    assert "Traceback" not in training.said


@pytest.fixture
def load() -> Iterator[None]:
    """More to do than there are cores."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("load")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_any_moment_of_the_start_ends_the_run_with_its_word(
    short_folder: Path, number: signal.Signals
) -> None:
    for moment in (0, 1, 2, 3, 5, 8):
        with trained(short_folder, f"after{moment}") as training:
            training.until(lambda: BEGUN in training.said)
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.process.wait(moment)
            training.process.send_signal(number)
            assert training.ended() == exit_code(number), training.said
        outcome = read_outcome(training.run)
        assert outcome is not None
        assert (outcome.kind, outcome.signal) == ("interrupted", number)
        until_nothing_is_left(short_folder)
        assert "received at time" not in training.said
        assert "Traceback" not in training.said
