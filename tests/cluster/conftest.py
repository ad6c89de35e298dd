"""One cluster for all tests of a process: real Slurm, MPI, sshd and Ray, on three nodes that are namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bed import PATH, PROGRAMS, Bed
from daemons import SLURM_PROGRAMS, start_slurm

Need = Callable[..., None]


@pytest.fixture(scope="session")
def need() -> Need:
    """Skip a test whose programs are not installed."""

    def check(*programs: str) -> None:
        if missing := [name for name in programs if shutil.which(name, path=PATH) is None]:
            pytest.skip(f"not installed: {', '.join(missing)} (.ci/run has the Debian packages)")

    return check


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory, need: Need) -> Iterator[Bed]:
    if os.geteuid() != 0:
        pytest.skip("the nodes are namespaces, which only root can make")
    need(*PROGRAMS)
    probe = subprocess.run(
        ["unshare", "--net", "--mount-proc", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    if probe.returncode != 0:
        pytest.skip(f"namespaces cannot be made here: {probe.stderr.strip()}")
    with Bed(tmp_path_factory.mktemp("bed")) as made:
        yield made


@pytest.fixture(scope="session")
def slurm(bed: Bed, need: Need) -> Bed:
    """The same bed, with Slurm running."""
    need(*SLURM_PROGRAMS)
    start_slurm(bed)
    return bed


@pytest.fixture
def here(bed: Bed, request: pytest.FixtureRequest) -> Path:
    """A new folder that all nodes see."""
    folder = bed.folder / "work" / f"{next(bed.counter):03}-{request.node.name.replace('/', '-')}"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def tidy(bed: Bed) -> Iterator[None]:
    """What a failed test leaves behind is not the next one's."""
    yield
    bed.sweep()
