"""Environments in processes of their own: in sweeps, on all cores of a worker, and when a run with hung ones ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hanging_env
import pytest
from desks import WatchedDesk

import shoal
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.incidents import read_incidents


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[WatchedDesk]:
    shutil.copy(hanging_env.__file__, tmp_path / "hanging.py")
    desk = WatchedDesk(tmp_path)
    yield desk
    desk.kill_all()


def has_trained(desk: WatchedDesk) -> bool:
    return any("\n" in file.read_text() for file in (desk.home / "shoal_results").glob("*/*/result.json"))


WORDS = ("hanging.py:Hanging", "--set", "num_envs_per_worker=3", "--set", "train_batch_size=60", "--set")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 85)],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_whose_environments_hang_is_ended(
    desk: WatchedDesk, number: signal.Signals, code: int, workers: int
) -> None:
    more = ["env_isolation=process", "--set", f"num_workers={workers}", "--checkpoint-freq", "0"]
    child = desk.start("train", *WORDS, *more, "--stop", "timesteps_total=1e9")
    desk.wait_for(child, lambda: has_trained(desk))
    (desk.home / "now").touch()
    desk.wait_for(child, lambda: any(desk.home.glob("hangs*")))  # the others may have done all steps of a fragment
    printed, ended = desk.end(child, number)  # within its deadline, and no process is left
    assert ended == code, printed + desk.complaints()
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_walltime_ends_a_run_whose_environments_hang(desk: WatchedDesk, workers: int) -> None:
    more = ["env_isolation=process", "--set", f"num_workers={workers}", "--stop", "timesteps_total=1e9"]
    more += ["--walltime", "00:01:00" if workers else "00:00:30"]  # Ray starts meanwhile
    child = desk.start("train", *WORDS, *more)
    desk.wait_for(child, lambda: has_trained(desk))
    (desk.home / "now").touch()
    printed, ended = desk.end(child)
    assert ended == 85, printed + desk.complaints()
    assert any(desk.home.glob("hangs*"))
    assert read_checkpoint(desk.run_folder()).summary["training_iteration"] >= 1


@pytest.mark.slow
def test_trials_of_a_sweep_are_isolated(tmp_path: Path) -> None:
    """Each trial goes on through environments that hang, exit and crash, and keeps what happened."""
    desk = WatchedDesk(tmp_path)
    config: dict[str, Any] = {
        "env": "shoal.envs:FaultEnv",
        "env_config": {"every": 60, "kinds": ["hang", "exit", "segfault"]},
        "env_step_timeout_s": 1,
        "num_envs_per_worker": 2,
        "train_batch_size": 200,
        "max_env_failures": None,
    }
    program = (
        f"import shoal\nconfig = {config!r} | {{'lr': {{'grid_search': [1e-3, 1e-4]}}}}\n"
        "shoal.tune.run('PPO', name='sweep', config=config, stop={'training_iteration': 2}, max_concurrent_trials=2)\n"
    )
    try:
        printed, code = desk.end(desk.start_program(program))
    finally:
        desk.kill_all()
    assert code == 0, printed + desk.complaints()
    runs = [file.parent for file in (tmp_path / "shoal_results").rglob("result.json")]
    assert len(runs) == 2
    for run in runs:
        results = [json.loads(line) for line in (run / "result.json").read_text().splitlines()]
        assert len(results) == 2
        kept = read_incidents(run)
        assert len(kept) == results[-1]["env_failures_total"] > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells where a process runs")
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_environments_of_one_worker_run_on_all_cores_that_it_was_given(workers: int) -> None:
    def processor_of(_: Any) -> int:  # that this process was last on
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[36])

    config = {"num_workers": workers, "num_envs_per_worker": 4, "env_isolation": "process", "train_batch_size": 800}
    config |= {"num_cpus_per_worker": 2} if workers else {}
    seen: set[int] = set()
    with shoal.PPO(env="CartPole-v1", config=config) as trainer:
        allowed = set(trainer.workers.foreach_env(lambda _: len(os.sched_getaffinity(0))))
        assert len(allowed) == 1
        assert min(allowed) >= 2
        deadline = time.monotonic() + 60
        while len(seen) < 2:
            assert time.monotonic() < deadline, f"all were on {seen}"
            trainer.workers.sample(200)
            seen.update(trainer.workers.foreach_env(processor_of))
