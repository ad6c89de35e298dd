"""A person's home, a folder to work in, and the real `shoal` command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from desks import Desk

SMALL = ["--set", "config.train_batch_size=256", "--set", "config.num_envs_per_worker=4", "--seed", "1"]
"""Iterations that take a tenth of a second."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk.new(tmp_path)


@pytest.fixture(scope="session")
def small() -> list[str]:
    return SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, subprocess.CompletedProcess[str], Path]:
    """A finished run of three iterations, what its command printed, and its folder."""
    desk = Desk.new(tmp_path_factory.mktemp("trained"))
    done = desk.shoal("train", "CartPole-v1", "--stop", "training_iteration=3", *SMALL)
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    return desk, done, run
