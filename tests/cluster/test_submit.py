"""`shoal submit`, `jobs`, `logs` and `cancel` on real Slurm: a job from the login node to its end or its requeue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bed import Bed, Running, wait_until
from launches import PROBE, READY_S, seen, wait_until_clean

SAVING = "trap 'echo saving; exit 85' TERM USR1; echo on; while :; do sleep 0.1; done"


def test_a_job_is_submitted_followed_and_done(slurm: Bed, here: Path) -> None:
    words = ["--nodes", "3", "--walltime", "10m", "--name", "look", "--", *PROBE, str(here / "go")]
    script = slurm.login.run(["shoal", "submit", "--dry-run", *words], cwd=here).out
    submitted = slurm.login.run(["shoal", "submit", *words], cwd=here)
    assert _without_folder(script) in _without_folder(submitted.out), "what is shown is what is submitted"
    job = _job(submitted)
    following = slurm.login.popen(["shoal", "logs", job, "-f"], cwd=here)
    wait_until(lambda: seen(following.out), READY_S, "what the command prints is followed")
    assert [told["nodes"] for told in seen(following.out)] == [["n1", "n2", "n3"]]
    assert re.search(rf"^{job} +RUNNING +look +3 ", slurm.login.run(["shoal", "jobs"]).out, re.MULTILINE)
    (here / "go").touch()
    assert following.wait() == 0, following.told()
    logs = Path(re.findall(r"logs of its nodes are in (\S+)\.", following.err)[0])
    assert sorted(path.name for path in (logs / "logs").iterdir()) == ["n1", "n2", "n3"]
    assert job not in slurm.login.run(["shoal", "jobs"]).out
    assert job in slurm.login.run(["shoal", "jobs", "--all"]).out
    wait_until_clean(slurm)


@pytest.mark.slow
def test_a_job_is_requeued_when_it_has_saved_and_cancelled(slurm: Bed, here: Path) -> None:
    words = ["--nodes", "1", "--walltime", "10m", "--name", "save", "--output", "log", "--", "sh", "-c", SAVING]
    log = here / "log"

    def begin() -> str:
        log.unlink(missing_ok=True)
        job = _job(slurm.login.run(["shoal", "submit", *words], cwd=here))
        wait_until(lambda: log.exists() and "on\n" in log.read_text(), READY_S, "the command runs")
        return job

    job = begin()
    slurm.login.run(["scancel", "--batch", "--signal=USR1", job])  # as Slurm does before the walltime ends
    wait_until(lambda: "PENDING" in _shown(slurm, job) and "Restarts=1" in _shown(slurm, job), 60, "it is queued again")
    assert "saving" in log.read_text()
    slurm.login.run(["shoal", "cancel", job])
    wait_until(lambda: "JobState=CANCELLED" in _shown(slurm, job), 60, "it is cancelled while it waits")

    job = begin()
    slurm.login.run(["shoal", "cancel", job])
    wait_until(lambda: "saving" in log.read_text(), 60, "the command is told to save")
    wait_until(lambda: "JobState=CANCELLED" in _shown(slurm, job), 60, "it is cancelled while it runs")
    wait_until_clean(slurm)


@pytest.mark.slow
def test_a_preamble_runs_in_a_login_shell_and_may_end_the_job(slurm: Bed, here: Path) -> None:
    profile = slurm.home / ".bash_profile"
    profile.write_text('module() { [ "$2" = rl ] && export LOADED=$2; }\n')
    log = here / "log"
    file = here / "job.yml"
    keys = "walltime: 10m\nname: loads\noutput: log\ncommand: [sh, -c, 'echo has $LOADED']\n"
    try:
        file.write_text(f"{keys}preamble:\n  - module load rl\n")
        slurm.login.run(["shoal", "submit", "-f", "job.yml"], cwd=here)
        wait_until(lambda: log.exists() and "has rl\n" in log.read_text(), READY_S, "the module is loaded")
        wait_until_clean(slurm)
        file.write_text(f"{keys}preamble:\n  - module load rl\n  - module load nothing\n")
        job = _job(slurm.login.run(["shoal", "submit", "-f", "job.yml"], cwd=here))
        wait_until(lambda: "JobState=FAILED" in _shown(slurm, job), READY_S, "the job has failed")
        assert "Line 2 of the preamble failed with exit code 1: module load nothing\n" in log.read_text()
        assert log.read_text().count("Ray is up") == 1
    finally:
        profile.unlink()


def _job(submitted: Running) -> str:
    return re.findall(r"Submitted: job (\d+)", submitted.out)[0]


def _shown(slurm: Bed, job: str) -> str:
    return slurm.login.run(["scontrol", "show", "job", job]).out


def _without_folder(script: str) -> str:
    """The script without the name of the job's folder, in which the time stands."""
    return re.sub(r"look-\d+-\d+(-\d+)?", "FOLDER", script)
