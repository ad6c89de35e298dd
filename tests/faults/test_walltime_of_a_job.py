"""A run whose deadline its scheduler alone tells: no option, no signal, and SIGKILL when the time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from desks import Desk

from shoal.reports.records import results_of

LENGTH_S = 20  # of each part: a few seconds to start in, some iterations, and a margin of a quarter
PACED = """
import os, time
from gymnasium.envs.classic_control import CartPoleEnv

class Paced(CartPoleEnv):
    def reset(self, **given):
        time.sleep(float(os.environ.get("PACE_S", "0")))  # a simulator that is slow in the job alone
        return super().reset(**given)
"""
# As `docs/resume.md` has it, for one node: what has saved is put back into the queue.
JOB = """#!/bin/bash
shoal train paced.py:Paced {options} --results-dir parts --stop training_iteration=1000000
code=$?
[ $code = 85 ] && scontrol requeue "$SLURM_JOB_ID" && exit 0
exit $code
"""
OPTIONS = "--seed 5 --quiet --set report=false --set train_batch_size=64 --set num_envs_per_worker=2"
# Stand-ins for Slurm's programs, which know of one job what is in two files.
SQUEUE = """#!/bin/sh
[ "$*" = "--noheader --jobs=41 --format=%L %e" ] || exit 1
left=$(($(cat {folder}/end) - $(date +%s)))
echo asked >>{folder}/asked
echo "0:$left $(date -d @$(cat {folder}/end) +%Y-%m-%dT%H:%M:%S)"
"""
SCONTROL = '#!/bin/sh\necho "$*" >>{folder}/told\n'


class SimulatedSlurm:
    """Runs one job, and again when it is requeued; it kills what is still there when the time is over."""

    def __init__(self, folder: Path, desk: Desk) -> None:
        self.folder, self.desk, self.restarts = folder, desk, 0
        for name, text in {"squeue": SQUEUE, "scontrol": SCONTROL}.items():
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)

    @property
    def asked(self) -> int:
        """How often somebody has asked when the job ends."""
        path = self.folder / "asked"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, script: Path, tells_end: bool) -> int:
        """The exit code of the job's script; it tells of its end by a variable, as since Slurm 22.05, or if asked."""
        end = int(time.time()) + LENGTH_S
        (self.folder / "end").write_text(str(end))
        job = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": str(self.restarts)}
        if tells_end:
            job["SLURM_JOB_END_TIME"] = str(end)
        path = f"{self.folder}:{Path(self.desk.command).parent}:{os.environ['PATH']}"
        env = self.desk.environment(**job, PATH=path, PACE_S="0.02")
        with subprocess.Popen(["bash", script], cwd=self.desk.work, env=env, start_new_session=True) as process:
            try:
                code = process.wait(end - time.time())
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError("it was still there when its time was over") from None
        self.restarts += 1
        return code


@pytest.mark.slow
def test_simulated_slurm_alone_tells_when_the_job_ends_and_the_parts_are_the_whole(tmp_path: Path) -> None:
    desk = Desk.new(tmp_path)
    (tmp_path / "slurm").mkdir()
    slurm = SimulatedSlurm(tmp_path / "slurm", desk)
    (desk.work / "paced.py").write_text(PACED)
    script = desk.work / "job.sh"
    script.write_text(JOB.format(options=OPTIONS))
    lengths = []
    for tells_end in (True, False):
        before = slurm.asked
        assert slurm.run(script, tells_end) == 0
        assert slurm.asked > before, "at the latest when the end comes near, for it may have been moved"
        (run,) = (desk.work / "parts" / "paced.Paced").iterdir()
        lengths.append(len(results_of(run)))
        assert (run / f"checkpoint_{lengths[-1]:06d}").is_dir(), "all that was trained is saved"
    assert (slurm.folder / "told").read_text() == "requeue 41\n" * 2
    assert 0 < lengths[0] < lengths[1]
    assert (run / "log.txt").read_text().count("Slurm job 41 ends at ") == 4, "at the start, and at the end"
    whole = [*OPTIONS.split(), "--results-dir", "whole", "--stop", f"training_iteration={lengths[1]}"]
    done = desk.shoal("train", "paced.py:Paced", *whole)
    assert done.returncode == 0, done.stderr
    (straight,) = (desk.work / "whole" / "paced.Paced").iterdir()
    assert (straight / "chain.jsonl").read_bytes() == (run / "chain.jsonl").read_bytes()
    last = f"checkpoint_{lengths[1]:06d}/arrays.safetensors"
    assert (straight / last).read_bytes() == (run / last).read_bytes()
