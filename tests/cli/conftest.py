"""A person's home, a folder to work in, and the real `shoal` command."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SHOAL = str(Path(sys.executable).with_name("shoal"))
SMALL = ["--set", "config.train_batch_size=256", "--set", "config.num_envs_per_worker=4", "--seed", "1"]
"""Iterations that take a tenth of a second."""


@dataclass(frozen=True)
class Desk:
    """Where a person sits: `home` has the results, `work` is the working folder."""

    home: Path
    work: Path
    command: str = SHOAL

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process; nothing of the tester's own terminal gets through."""
        own = ("NO_COLOR", "FORCE_COLOR", "SHOAL_DEBUG", "TERM", "COLUMNS", "PYTHONUNBUFFERED")
        kept = {name: value for name, value in os.environ.items() if name not in own}
        return {**kept, "HOME": str(self.home), **more}

    def shoal(self, *arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [SHOAL, *arguments],
            cwd=cwd or self.work,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that is listened to."""
        return subprocess.Popen(
            [SHOAL, *arguments],
            cwd=self.work,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def runs(self) -> list[Path]:
        """Every run folder."""
        return sorted((self.home / "shoal_results").glob("*/*"))


def new_desk(folder: Path) -> Desk:
    """Two empty folders."""
    desk = Desk(folder / "home", folder / "work")
    desk.home.mkdir()
    desk.work.mkdir()
    return desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return new_desk(tmp_path)


@pytest.fixture(scope="session")
def small() -> list[str]:
    return SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, subprocess.CompletedProcess[str], Path]:
    """A finished run of three iterations, what its command printed, and its folder."""
    desk = new_desk(tmp_path_factory.mktemp("trained"))
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=3", *SMALL)
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    return desk, done, run
