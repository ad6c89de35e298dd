"""Trainings on the bed that tests and benchmarks look at: requeued at their walltime, and after the loss of a node."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bed import Bed, Node, Running, wait_until
from launches import READY_S, launch, wait_until_clean

LONG_S = 600  # for what waits for Slurm, on a machine that has much else to do
LATER_S = 3  # Slurm takes no job within the second in which it revoked the job's credential
AFTER = 20  # iterations without the node, after which training has got over its loss
LOSSES = ("raylet stopped", "all of it stopped", "cut off")
SMALL = ("--seed", "5", "--quiet", "--set", "report=false", "--set", "train_batch_size=128")


def job_of(submitted: Running) -> str:
    """The job that `shoal submit` told of."""
    return str(re.findall(r"Submitted: job (\d+)", submitted.out)[0])


def shown(slurm: Bed, job: str) -> str:
    """What Slurm knows of a job."""
    return slurm.login.run(["scontrol", "show", "job", job]).out


def requeued(slurm: Bed, here: Path, times: int) -> tuple[Path, Path]:
    """A run that was requeued at its walltime so often, and one of as many iterations that never stopped."""
    train = ["shoal", "train", "CartPole-v1", *SMALL, "--set", "num_envs_per_worker=2"]
    words = ["--nodes", "1", "--walltime", "10m", "--name", "parts", "--output", "log", "--"]
    parted = [*train, "--results-dir", str(here / "parts"), "--stop", "training_iteration=30000", "--walltime", "20s"]
    job = job_of(slurm.login.run(["shoal", "submit", *words, *parted], cwd=here))
    for restart in range(1, times + 1):
        again = f"Restarts={restart} "
        wait_until(lambda again=again: again in shown(slurm, job), LONG_S, f"it is requeued, {again}")
        # A requeued job waits two minutes by Slurm's own rule, from when the old one is cleaned up.
        wait_until(lambda: runs_soon(slurm, job), LONG_S, "it runs again")
    (run,) = (here / "parts" / "CartPole-v1").iterdir()
    before = len(chain(run))
    wait_until(lambda: len(chain(run)) > before, LONG_S, "it trains again")
    slurm.login.run(["shoal", "cancel", job])
    wait_until(lambda: "JobState=CANCELLED" in shown(slurm, job), LONG_S, "it is cancelled")
    wait_until_clean(slurm)
    assert (here / "log").read_text().count("Stopped: ") == times + 1
    iterations = len(chain(run)) - 1
    whole = [*train, "--results-dir", str(here / "whole"), "--stop", f"training_iteration={iterations}"]
    slurm.login.run(whole, cwd=here, within_s=LONG_S)
    (straight,) = (here / "whole" / "CartPole-v1").iterdir()
    slurm.login.run(["shoal", "verify", str(run)], cwd=here)
    return run, straight


def chain(run: Path) -> list[str]:
    """The links of a run; the head tells of the machine, and is the same too."""
    return (run / "chain.jsonl").read_text().splitlines()


def runs_soon(slurm: Bed, job: str) -> bool:
    """Whether a job runs; if it is to wait, it is told to start soon, once: another word would put it off again."""
    told = shown(slurm, job)
    begins = re.findall(r"StartTime=(\d[\dT:-]+)", told)
    if begins and time.mktime(time.strptime(begins[0], "%Y-%m-%dT%H:%M:%S")) > time.time() + 30:
        slurm.login.popen(["scontrol", "update", f"JobId={job}", f"StartTime=now+{LATER_S}"]).wait()
    return "JobState=RUNNING" in told


class NotUp(Exception):
    """Ray did not come up on every node, so that none could be lost: the machine is too busy for Ray's own limits."""


@dataclass(frozen=True)
class Loss:
    """What the loss of a node did to a training."""

    longest_s: float  # between two iterations
    before_s: float  # the same, before the loss
    reports: int  # how often the user was told


def lost_node(bed: Bed, here: Path, how: str) -> Loss:
    """Train with a worker on each node, lose one of them, and go on; at the end nothing may be left anywhere."""
    n3 = bed.nodes["n3"]
    train = ["shoal", "train", "CartPole-v1", *SMALL, "--num-workers", "3", "--stop", "training_iteration=1000000"]
    words = launch("--hosts", "n1,n2,n3", "--num-cpus", "1", command=[*train, "--results-dir", str(here / "results")])
    running = bed.login.popen(words, cwd=here)  # which gives no CPUs itself, so that each node has one worker
    watch = _Watch(here / "results", running)
    wait_until(lambda: running.ended or "Ray is up" in running.err, 4 * READY_S, "Ray is up")
    if "could not start Ray" in running.err:
        raise NotUp(running.told())
    watch.until(lambda: watch.count >= AFTER, "it trains")
    before_s = watch.longest_s
    watch.longest_s = 0.0
    stopped = _lose(bed, n3, how)
    watch.until(lambda: "n3 was lost" in running.err and watch.healthy == 2, "the loss is noticed")
    enough = watch.count + AFTER
    watch.until(lambda: watch.count >= enough, "it trains on")
    bed.mend(n3)
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
    wait_until(lambda: not n3.processes(), READY_S, "what ran on n3 has ended")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM, running.told()
    assert "saved     checkpoint_" in running.out, running.told()
    wait_until_clean(bed)
    return Loss(watch.longest_s, before_s, running.err.count("shoal launch: n3 was lost"))


def _lose(bed: Bed, node: Node, how: str) -> Sequence[psutil.Process]:
    """Let a node be lost; what was stopped for that."""
    if how == "cut off":
        bed.cut(node)
        return ()
    stopped = [each for each in node.processes() if how == "all of it stopped" or _name(each) == "raylet"]
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    return stopped


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


class _Watch:
    """Sees the iterations of a run as they come."""

    def __init__(self, results: Path, running: Running) -> None:
        self._results, self._running = results, running
        self.count, self.healthy, self.longest_s = 0, 0, 0.0
        self._last_at = 0.0

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Look until the condition holds."""

        def holds() -> bool:
            self._look()
            assert not self._running.ended, self._running.told()
            return bool(condition())

        wait_until(holds, 4 * READY_S, what)

    def _look(self) -> None:
        files = list(self._results.glob("*/*/result.json"))
        lines = files[0].read_text().rpartition("\n")[0].splitlines() if files else []
        now = time.monotonic()
        if self.count:
            self.longest_s = max(self.longest_s, now - self._last_at)
        if len(lines) > self.count:
            self.count, self._last_at = len(lines), now
            self.healthy = json.loads(lines[-1])["num_healthy_workers"]
