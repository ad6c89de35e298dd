"""shoal's side of the benchmarks of many workers."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import task
from processes import below, kill_one_of, pss_mb

import shoal

SLEEPING = f"{Path(__file__).with_name('simulators.py')}:Sleeping"


def trainer_of(env: str, num_workers: int, num_envs: int, batch: int, **config: Any) -> shoal.PPO:
    """PPO with `num_envs` environments in all; workers share cores, so that any number of them fits."""
    cores = {"num_cpus_per_worker": min(1.0, 2 / num_workers)} if num_workers else {}
    return shoal.PPO(
        env=env,
        config={
            "num_workers": num_workers,
            "num_envs_per_worker": num_envs // max(num_workers, 1),
            "train_batch_size": batch,
            **cores,
            **config,
        },
    )


def sampling(
    env: str, num_workers: int, num_envs: int, steps: int, rounds: int, env_config: dict[str, Any]
) -> task.Answer:
    """Steps per second of `workers.sample` alone, and of whole iterations."""
    with trainer_of(env, num_workers, num_envs, steps * num_envs, env_config=env_config) as trainer:
        trainer.train()
        alone, overall = [], []
        for _ in range(rounds):
            started = perf_counter()
            taken = trainer.workers.sample(steps).num_steps
            alone.append(taken / (perf_counter() - started))
            started = perf_counter()
            taken = trainer.train()["timesteps_this_iter"]
            overall.append(taken / (perf_counter() - started))
    return {"sampling": statistics.median(alone), "overall": statistics.median(overall)}


def paired(
    env: str, num_workers: int, num_envs: int, steps: int, rounds: int, env_config: dict[str, Any]
) -> task.Answer:
    """Steps per second of sampling with no workers and with some, in turns, since a shared machine's speed drifts."""
    layouts = {"inside": 0, "workers": num_workers}
    rates: dict[str, list[float]] = {name: [] for name in layouts}
    with contextlib.ExitStack() as stack:
        trainers = {
            name: stack.enter_context(trainer_of(env, count, num_envs, steps * num_envs, env_config=env_config))
            for name, count in layouts.items()
        }
        for _ in range(rounds + 1):
            for name, trainer in trainers.items():
                started = perf_counter()
                taken = trainer.workers.sample(steps).num_steps
                rates[name].append(taken / (perf_counter() - started))
    inside, workers = rates["inside"][1:], rates["workers"][1:]
    ratios = [many / one for one, many in zip(inside, workers, strict=True)]
    answer = {"inside": inside, "workers": workers, "ratio": ratios}
    return {name: statistics.median(values) for name, values in answer.items()}


def bare(processes: int, num_envs: int, seconds: float) -> task.Answer:
    """Steps per second of Pong without any policy, in so many processes at once: what the machine itself gives."""
    with get_context("spawn").Pool(processes) as pool:
        ready = pool.starmap(_pong, [(num_envs // processes, 0.1)] * processes, chunksize=1)
        rates = pool.starmap(_pong, [(num_envs // processes, seconds)] * len(ready), chunksize=1)
    return {"sampling": sum(rates)}


def _pong(num_envs: int, seconds: float) -> float:
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    envs = [gym.make("ALE/Pong-v5", obs_type="ram").unwrapped for _ in range(num_envs)]
    for env in envs:
        env.reset(seed=0)
    started, steps = perf_counter(), 0
    while perf_counter() - started < seconds:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(steps % 6)
            steps += 1
            if terminated or truncated:
                env.reset()
    return steps / (perf_counter() - started)


def killed(num_workers: int, steps: int, sleep_s: float, seconds: float, every_s: float) -> task.Answer:
    """Steps per second undisturbed, and with `kill -9` of one worker every so often."""
    config = {"env_config": {"sleep_s": sleep_s}, "log_level": "ERROR"}
    with trainer_of(SLEEPING, num_workers, num_workers, steps * num_workers, **config) as trainer:
        trainer.train()

        def rate() -> tuple[float, float]:
            started, taken, longest = perf_counter(), 0, 0.0
            while perf_counter() - started < seconds:
                result = trainer.train()
                taken += result["timesteps_this_iter"]
                longest = max(longest, result["time_this_iter_s"])
            return taken / (perf_counter() - started), longest

        calm, _ = rate()
        with kill_one_of(is_worker, every_s) as kills:
            struck, longest = rate()
        restarts = trainer.train()["num_remote_worker_restarts"]
    return {"calm": calm, "struck": struck, "kills": len(kills), "longest_s": longest, "restarts": restarts}


def replaced(num_workers: int, times: int) -> task.Answer:
    """Seconds from `kill -9` of a worker until all of them are up again and answer, so many times."""
    seconds = []
    with trainer_of(SLEEPING, num_workers, num_workers, 20 * num_workers, log_level="ERROR") as trainer:
        for k in range(times):
            trainer.train()
            sleep(1.0)  # as where deaths are rare: there is a spare process again
            before = trainer.workers.foreach_worker(lambda _: os.getpid())
            os.kill(before[k % num_workers], signal.SIGKILL)
            started = perf_counter()
            after = trainer.workers.foreach_worker(lambda _: os.getpid())
            seconds.append(perf_counter() - started)
            assert len(set(before) - set(after)) == 1, (before, after)
        restarts = trainer.train()["num_remote_worker_restarts"]
        assert restarts == times, restarts
    return {"seconds": seconds}


def crowd(num_workers: int) -> task.Answer:
    """Start-up and memory of every process of a run on the NumPy path, and whether a worker has imported torch."""
    started = perf_counter()
    share = min(1.0, 16 / num_workers)
    with trainer_of(
        "CartPole-v1", num_workers, 8 * num_workers, 16 * num_workers, num_cpus_per_worker=share
    ) as trainer:
        start_s = perf_counter() - started
        for _ in range(3):
            trainer.train()
        torch = any(trainer.workers.foreach_worker(lambda _: "torch" in sys.modules)) or "torch" in sys.modules
        held: dict[str, list[float]] = {}
        for pid, command in below(os.getpid()).items():
            held.setdefault(_role(pid, command), []).append(pss_mb(pid))
    return {
        "start_s": start_s,
        "pss_mb": sum(sum(each) for each in held.values()),
        "parts_mb": {role: {"processes": len(each), "sum": sum(each)} for role, each in held.items()},
        "torch": torch,
    }


def is_worker(pid: int, _: str) -> bool:
    """Whether a process is a worker: it has called itself so."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("shoal-worker")
    return False


def _role(pid: int, command: str) -> str:
    """What a process is to the run, from its command line."""
    if pid == os.getpid():
        return "driver"
    if is_worker(pid, command):
        return "workers"
    if "fork_server" in command:
        return "fork servers and spare workers"
    if command.startswith("ray::Host"):
        return "hosts"
    if command.startswith("ray::RemoteWorker"):  # before hosts had actors
        return "workers"
    return "idle workers" if command.startswith("ray::IDLE") else "Ray's daemons"


if __name__ == "__main__":
    task.main({f.__name__: f for f in (sampling, paired, bare, killed, replaced, crowd)})
