"""`shoal submit`, `jobs`, `logs` and `cancel` on real Slurm: a job from the login node to its end or its requeue."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bed import PATH, Bed, wait_until
from launches import PROBE, READY_S, seen, wait_until_clean
from trainings import LONG_S, SMALL, chain, job_of, requeued, runs_soon, shown

SAVING = "trap 'echo saving; exit 85' TERM USR1; echo on; while :; do sleep 0.1; done"


@pytest.mark.slow
def test_a_job_is_submitted_followed_and_done(slurm: Bed, here: Path) -> None:
    words = ["--nodes", "3", "--walltime", "10m", "--name", "look", "--", *PROBE, str(here / "go")]
    script = slurm.login.run(["shoal", "submit", "--dry-run", *words], cwd=here).out
    submitted = slurm.login.run(["shoal", "submit", *words], cwd=here)
    assert _without_folder(script) in _without_folder(submitted.out), "what is shown is what is submitted"
    job = job_of(submitted)
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
        job = job_of(slurm.login.run(["shoal", "submit", *words], cwd=here))
        wait_until(lambda: log.exists() and "on\n" in log.read_text(), READY_S, "the command runs")
        return job

    job = begin()
    slurm.login.run(["scancel", "--batch", "--signal=USR1", job])  # as Slurm does before the walltime ends
    wait_until(
        lambda: "PENDING" in shown(slurm, job) and "Restarts=1" in shown(slurm, job), LONG_S, "it is queued again"
    )
    assert "saving" in log.read_text()
    slurm.login.run(["shoal", "cancel", job])
    wait_until(lambda: "JobState=CANCELLED" in shown(slurm, job), LONG_S, "it is cancelled while it waits")

    job = begin()
    slurm.login.run(["shoal", "cancel", job])
    wait_until(lambda: "saving" in log.read_text(), LONG_S, "the command is told to save")
    wait_until(lambda: "JobState=CANCELLED" in shown(slurm, job), LONG_S, "it is cancelled while it runs")
    wait_until_clean(slurm)


@pytest.mark.slow
def test_a_preamble_runs_in_a_login_shell_and_may_end_thejob_of(slurm: Bed, here: Path) -> None:
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
        job = job_of(slurm.login.run(["shoal", "submit", "-f", "job.yml"], cwd=here))
        wait_until(lambda: "JobState=FAILED" in shown(slurm, job), READY_S, "the job has failed")
        assert "Line 2 of the preamble failed with exit code 1: module load nothing\n" in log.read_text()
        assert log.read_text().count("Ray is up") == 1
    finally:
        profile.unlink()


CONTAINER = """#!/bin/bash
# Stands in for Apptainer: it checks the words, and runs the command where no scheduler's program can be started.
[ "$1" = exec ] || exit 90
shift
while [[ $1 = --* ]]; do
  [ "$1" = --nv ] && shift && continue
  [ -d "$2" ] || { echo "$1 $2: no such folder" >&2; exit 91; }
  shift 2
done
[ -f "$1" ] || exit 92
shift
hostname >>"${0%/*}/hosts"
export PATH="${0%/*}/inside:$PATH"
exec "$@"
"""


@pytest.mark.slow
def test_simulated_a_container_on_every_node_needs_nothing_of_slurm(slurm: Bed, here: Path) -> None:
    (here / "inside").mkdir()
    (here / "shoal.sif").touch()
    programs = {"apptainer": CONTAINER, **dict.fromkeys(("inside/srun", "inside/ssh"), "#!/bin/sh\nexit 99\n")}
    for name, text in programs.items():
        (here / name).write_text(text)
        (here / name).chmod(0o755)
    keys = "walltime: 10m\nname: boxed\nnodes: 3\noutput: log\ncontainer: shoal.sif\n"
    path = f"preamble: ['export PATH={here}:{PATH}']\n"
    (here / "job.yml").write_text(f"{keys}{path}command: [{', '.join(PROBE)}, {here / 'go'}]\n")
    job = job_of(slurm.login.run(["shoal", "submit", "-f", "job.yml"], cwd=here))
    log = here / "log"
    wait_until(lambda: log.exists() and seen(log.read_text()), READY_S, "the command runs")
    assert seen(log.read_text())[0]["nodes"] == ["n1", "n2", "n3"]
    assert sorted((here / "hosts").read_text().split()) == ["n1", "n2", "n3"]
    (here / "go").touch()
    wait_until(lambda: "JobState=COMPLETED" in shown(slurm, job), LONG_S, "the job ends with its command")
    wait_until_clean(slurm)

    save = f"{keys}{path}command: [sh, -c, {json.dumps(SAVING)}]\n"
    (here / "job.yml").write_text(save)
    log.unlink()
    job = job_of(slurm.login.run(["shoal", "submit", "-f", "job.yml"], cwd=here))
    wait_until(lambda: log.exists() and "on\n" in log.read_text(), READY_S, "the command runs")
    slurm.login.run(["scancel", "--batch", "--signal=USR1", job])
    wait_until(lambda: "Restarts=1" in shown(slurm, job), LONG_S, "what has saved is queued again")
    assert "saving" in log.read_text()
    slurm.login.run(["scancel", job])
    wait_until(lambda: "JobState=CANCELLED" in shown(slurm, job), LONG_S, "it is cancelled while it waits")
    wait_until_clean(slurm)


def _without_folder(script: str) -> str:
    """The script without the name of the job's folder, in which the time stands."""
    return re.sub(r"look-\d+-\d+(-\d+)?", "FOLDER", script)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_requeued_three_times_is_the_run_that_never_stopped(slurm: Bed, here: Path) -> None:
    run, straight = requeued(slurm, here, 3)
    assert chain(run) == chain(straight)


# Waits until its end is where the test wants it: Slurm's own programs can move it, but not a variable that tells of it.
MOVED = """#!/bin/sh
unset SLURM_JOB_END_TIME
part=${{SLURM_RESTART_COUNT:-0}}
touch on$part
while [ ! -e go$part ]; do sleep 0.1; done
{train} --results-dir parts --stop training_iteration=1000000
code=$?
[ $code = 85 ] && scontrol requeue "$SLURM_JOB_ID" && exit 0
exit $code
"""


@pytest.mark.slow
def test_slurm_alone_tells_when_a_job_ends_which_is_requeued_and_loses_nothing(slurm: Bed, here: Path) -> None:
    train = ["shoal", "train", "CartPole-v1", *SMALL, "--set", "num_envs_per_worker=2"]
    (here / "job.sh").write_text(MOVED.format(train=" ".join(train)))
    words = ["sbatch", "--parsable", "--requeue", "--time=10", "-N1", "--open-mode=append", "--output=log", "job.sh"]
    job = slurm.login.run(words, cwd=here).out.strip()
    wait_until((here / "on0").exists, READY_S, "the job runs")
    slurm.login.run(["scontrol", "update", f"JobId={job}", "EndTime=now+30"])
    (here / "go0").touch()
    wait_until(lambda: "Restarts=1 " in shown(slurm, job), LONG_S, "it is requeued")
    told = (here / "log").read_text()
    assert f"Stopped: Slurm job {job} ends at " in told, told
    assert "saved     checkpoint_" in told, told
    (run,) = (here / "parts" / "CartPole-v1").iterdir()
    before = len(chain(run))
    assert before > 1
    (here / "go1").touch()
    wait_until(lambda: runs_soon(slurm, job), LONG_S, "it runs again")
    wait_until(lambda: len(chain(run)) > before, LONG_S, "it trains again")
    slurm.login.run(["scancel", job])
    wait_until(lambda: "JobState=CANCELLED" in shown(slurm, job), LONG_S, "it is cancelled")
    wait_until_clean(slurm)
    whole = [*train, "--results-dir", "whole", "--stop", f"training_iteration={len(chain(run)) - 1}"]
    slurm.login.run(whole, cwd=here, within_s=LONG_S)
    (straight,) = (here / "whole" / "CartPole-v1").iterdir()
    assert chain(run) == chain(straight)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_of_one_minute_without_a_signal_has_saved_before_slurm_ends_it(slurm: Bed, here: Path) -> None:
    train = "shoal train CartPole-v1 --seed 5 --quiet --set report=false --results-dir results"
    (here / "job.sh").write_text(f"#!/bin/sh\n{train} --stop training_iteration=1000000\necho code $?\n")
    slurm.login.run(["sbatch", "--wait", "--time=1", "-N1", "--output=log", "job.sh"], cwd=here, within_s=LONG_S)
    told = (here / "log").read_text()
    assert "code 85" in told, told
    assert "saved     checkpoint_" in told, told
    assert "DUE TO TIME LIMIT" not in told
    wait_until_clean(slurm)
