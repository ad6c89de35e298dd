"""The table of schedulers, and those that installed packages add to it by entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.cluster.allocation import allocation
from shoal.cluster.job_files import Source, job_from
from shoal.cluster.schedulers import BUILT_IN, all_schedulers, find_scheduler, names, scheduler_called
from shoal.errors import ClusterError, ConfigError

MOON = """
from dataclasses import replace
from shoal.cluster.host_lists import Host
from shoal.cluster.scheduler import HostVariables
from shoal.cluster.slurm import SLURM

LIST = HostVariables(("MOON_HOSTS",), lambda environ: [Host(name) for name in environ["MOON_HOSTS"].split()])
COMMANDS = replace(SLURM.commands, submit=("mooncast",))
MOON = replace(SLURM, name="moon", title="Moon", job_variable="MOON_ID", host_variables=(LIST,), commands=COMMANDS)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with three entry points: one is good, one cannot be imported, one is no scheduler."""
    (tmp_path / "moon_scheduler.py").write_text(MOON)
    about = tmp_path / "moon_scheduler-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: moon-scheduler\nVersion: 1.0\n")
    points = {"moon": "moon_scheduler:MOON", "broken": "nowhere:X", "odd": "moon_scheduler:LIST", "slurm": "nowhere:Y"}
    lines = [f"{name} = {value}" for name, value in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[shoal.schedulers]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "moon_scheduler", raising=False)
    return tmp_path


def test_a_package_adds_a_scheduler_that_is_loaded_when_it_is_named(package: Path) -> None:
    assert names() == [*BUILT_IN, "moon", "broken", "odd"]
    assert job_from([Source({"walltime": "20m", "command": ["true"], "scheduler": "moon"})]).scheduler == "moon"
    assert "moon_scheduler" not in sys.modules, "a name costs no import"
    assert scheduler_called("moon").title == "Moon"
    assert scheduler_called("slurm") is BUILT_IN["slurm"], "a name of ours stays ours"
    (package / "mooncast").touch(mode=0o755)
    assert find_scheduler({"PATH": str(package)}).name == "moon"
    given = allocation({"MOON_ID": "7", "MOON_HOSTS": "crater1 crater2"})
    assert given is not None
    assert (given.scheduler, given.job_id, [host.name for host in given.hosts]) == ("moon", "7", ["crater1", "crater2"])


@pytest.mark.usefixtures("package")
def test_what_cannot_be_loaded_is_named_and_stands_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ClusterError, match="the scheduler broken of nowhere:X cannot be loaded: No module named 'nowh"):
        scheduler_called("broken")
    with pytest.raises(ClusterError, match="moon_scheduler:LIST is not a Scheduler called odd"):
        scheduler_called("odd")
    assert [each.name for each in all_schedulers()] == [*BUILT_IN, "moon"]
    assert "broken" in caplog.text


def test_a_name_that_nobody_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no scheduler 'slrum'; use --scheduler with one of slurm, lsf"):
        scheduler_called("slrum")
    with pytest.raises(
        ClusterError, match=r"neither sbatch \(Slurm\) nor bsub \(LSF\) nor qsub \(Cobalt, PBS, Grid Eng"
    ):
        find_scheduler({"PATH": str(tmp_path)})
