"""When a job's walltime ends, by each scheduler: variables, and stand-ins that print what their programs do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.cluster.scheduler import length
from shoal.cluster.walltimes import job_deadline

NOW = 1_800_000_000.0
BEGUN = time.localtime(NOW - 600)

ENDS = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + 600))

PBS = f"""Job Id: 41.pbs01
    Job_Name = ppo
    resources_used.walltime = 00:09:10
    Resource_List.select = 2:ncpus=4
    Resource_List.walltime = 00:20:00
    stime = {time.strftime("%a %b %d %H:%M:%S %Y", BEGUN)}
"""
TORQUE = PBS.replace("stime", "start_time")
USED = "\n".join(line for line in PBS.splitlines() if "stime" not in line)
SGE = "job_number:                 41\nhard resource_list:         h_rt=1200,mem_free=4G\nqsub_time: never\n"
SGE_LIST = f"""<job_info><queue_info>
<job_list state="running"><JB_job_number>40</JB_job_number>
<JAT_start_time>2000-01-01T00:00:00</JAT_start_time></job_list>
<job_list state="running"><JB_job_number>41</JB_job_number>
<JAT_start_time>{time.strftime("%Y-%m-%dT%H:%M:%S", BEGUN)}</JAT_start_time></job_list></queue_info></job_info>"""
HOSTS = {
    "slurm": {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n1"},
    "pbs": {"PBS_JOBID": "41.pbs01", "PBS_NODEFILE": "/nowhere"},
    "lsf": {"LSB_JOBID": "41", "LSB_HOSTS": "n1"},
    "cobalt": {"COBALT_JOBID": "41", "COBALT_PARTNAME": "1"},
    "sge": {"JOB_ID": "41", "SGE_ROOT": "/sge", "QUEUE": "all.q"},
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without schedulers, and a clock that stands still."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(time, "time", lambda: NOW)
    return tmp_path / "bin"


def stand_in(programs: Path, name: str, prints: str, code: int = 0) -> None:
    (programs / f"{name}.txt").write_text(prints)
    script = f'#!/bin/sh\necho "$*" >>{programs}/asked\n'
    if name == "qstat" and "job_info" in prints:  # Grid Engine's has two answers
        (programs / "job.txt").write_text(SGE)
        script += f'case "$1" in -j) cat {programs}/job.txt; exit 0;; esac\n'
    (programs / name).write_text(f"{script}cat {programs}/{name}.txt\nexit {code}\n")
    (programs / name).chmod(0o755)


@pytest.mark.parametrize(
    ("scheduler", "program", "prints"),
    [
        ("slurm", "squeue", "10:00\n"),
        ("slurm", "squeue", f"11:00 {ENDS}\n"),  # moved by an administrator, to the second
        ("slurm", "squeue", "10:00 12 August, Sunday\n"),
        ("pbs", "qstat", PBS),
        ("pbs", "qstat", TORQUE),
        ("lsf", "bjobs", "600 second(s)|20.0/hostA\n"),
        ("cobalt", "qstat", "JobID  TimeRemaining\n======\n41     00:10:00\n"),
        ("sge", "qstat", SGE_LIST),
    ],
)
def test_the_scheduler_is_asked(programs: Path, scheduler: str, program: str, prints: str) -> None:
    stand_in(programs, program, prints)
    found = job_deadline(HOSTS[scheduler])
    assert found is not None
    assert found.left() == pytest.approx(600, abs=1)
    assert "41" in (programs / "asked").read_text()
    assert "job 41" in found.source


def test_pbs_that_tells_no_start_tells_what_was_used(programs: Path) -> None:
    stand_in(programs, "qstat", USED)
    found = job_deadline(HOSTS["pbs"])
    assert found is not None
    assert found.left() == 20 * 60 - (9 * 60 + 10)


@pytest.mark.parametrize(
    ("scheduler", "variable", "program"),
    [("slurm", "SLURM_JOB_END_TIME", "squeue"), ("cobalt", "COBALT_ENDTIME", "qstat")],
)
def test_a_variable_is_believed_until_it_is_asked_again(
    programs: Path, scheduler: str, variable: str, program: str
) -> None:
    stand_in(programs, program, "1:00:00\n")
    found = job_deadline({**HOSTS[scheduler], variable: f"{NOW + 300:.0f}"})
    assert found is not None
    assert found.left() == 300
    assert not (programs / "asked").exists()
    assert found.asked_again().left() == 3600, "an administrator has extended it"
    stand_in(programs, program, "", code=1)
    assert found.asked_again() == found, "who cannot tell changes nothing"


@pytest.mark.parametrize("scheduler", list(HOSTS))
@pytest.mark.parametrize(
    "prints", ["UNLIMITED\n", f"UNLIMITED {ENDS}\n", "", "Job <41> is not found\n", "41|x|1e400\n\0"]
)
def test_what_is_not_understood_is_no_deadline(programs: Path, scheduler: str, prints: str) -> None:
    for program in ("squeue", "qstat", "bjobs"):
        stand_in(programs, program, prints)
    assert job_deadline(HOSTS[scheduler]) is None
    assert job_deadline({**HOSTS[scheduler], "SLURM_JOB_END_TIME": "soon", "COBALT_ENDTIME": "-1"}) is None


def test_without_programs_or_outside_of_a_job_nobody_knows(programs: Path) -> None:
    assert list(programs.iterdir()) == []
    assert [job_deadline(environ) for environ in (*HOSTS.values(), {})] == [None] * 6


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7200", 7200), ("30:00", 1800), ("02:00:01", 7201), ("1-02:00:00", 93600), ("N/A", None), ("1:2:3:4", None)],
)
def test_lengths(text: str, seconds: float | None) -> None:
    assert length(text) == seconds
