"""What environments in processes of their own cost, and what ready-first stepping brings.

Sampling 8 CartPoles in processes beside gymnasium's AsyncVectorEnv and beside one process; 16 simulators that wait 5 ms
a step, and ten times as long in 5 % of their steps, ready-first beside lockstep; 16 of which one hangs: steps per
second before and after, and the time to stop while one hangs; the time that `shoal train` takes to end while its
environments hang, after SIGINT, SIGTERM and where the margin of a walltime begins, with and without a worker, and the
processes that are left then; and what the guard of every observation and reward adds to sampling in one process.
Repeats are interleaved; ratios are those of medians.

What a process for each environment can reach at all is measured in the same run: 8 processes that are woken, do nothing
and answer, of which only the last wakes the one that waits (`rounds_per_s`), and the same with as many as there are
cores. A round takes as long as the machine needs to wake so many processes, which on virtual ones is most of the time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv
from peers import ROOT, ask
from record import Bar, Record, show_bars, spread

import shoal
from shoal.runs.walltime import SHARE

sys.path.insert(0, str(ROOT / "tests" / "shared"))

import hanging_env
from desks import DEADLINE_S, WatchedDesk

CARTPOLES = 8
WAITERS = 16
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}
WALLTIME, SAVED = "walltime", 85
WALLTIME_S = 40  # in which Ray starts, the run trains and its environments begin to hang
SETTINGS: dict[str, Any] = {"seed": 1, "train_batch_size": 1600}


def async_cartpoles(config: Any) -> Any:  # noqa: ARG001
    return AsyncVectorEnv([lambda: gym.make("CartPole-v1", disable_env_checker=True)] * CARTPOLES)


class Waiter(gym.Env[Any, Any]):
    """A simulator that waits: `slow` of its steps take ten times as long; the first one may hang at a step."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.step_s, self.slow = config.get("step_s", 0.005), config.get("slow", 0.0)
        self.hang_at = config.get("hang_at") if config.env_index == 0 else None
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> Any:  # noqa: ARG002
        self.taken += 1
        if self.taken == self.hang_at:
            sleep(1000)
        sleep(self.step_s * (10 if self.np_random.random() < self.slow else 1))
        return np.zeros(4, np.float32), 0.0, False, False, {}


def cartpole_rate(case: str, steps: int) -> float:
    """Steps per second of sampling."""
    isolation = "process" if case == "processes" else "none"
    settings = {**SETTINGS, "num_envs_per_worker": CARTPOLES, "env_isolation": isolation}
    with shoal.PPO(env=async_cartpoles if case == "async" else "CartPole-v1", config=settings) as trainer:
        trainer.workers.sample(100)
        rates = []
        for _ in range(5):
            start = perf_counter()
            sample = trainer.workers.sample(steps)
            rates.append(sample.num_steps / (perf_counter() - start))
        return float(np.median(rates))


def rounds_per_s(processes: int, rounds: int) -> float:
    """How often per second so many processes can be woken and heard, each with one byte: what none of ours can beat."""
    ready, answering = os.pipe()
    others = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
    sockets, pids = [], []
    for _ in range(processes):
        mine, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            while theirs.recv(1) == b"s":
                try:
                    os.eventfd_read(others)
                except BlockingIOError:  # the last one
                    os.write(answering, b"x")
            os._exit(0)
        theirs.close()
        sockets.append(mine)
        pids.append(pid)
    start = perf_counter()
    for _ in range(rounds):
        if processes > 1:
            os.eventfd_write(others, processes - 1)
        for each in sockets:
            each.send(b"s")
        os.read(ready, 1)
    rate = rounds / (perf_counter() - start)
    for each, pid in zip(sockets, pids, strict=True):
        each.send(b"q")
        os.waitpid(pid, 0)
        each.close()
    for descriptor in (ready, answering, others):
        os.close(descriptor)
    return rate


def uneven_rates(steps: int) -> tuple[float, float]:
    """Steps per second of ready-first and of lockstep stepping."""
    settings = {
        **SETTINGS,
        "num_envs_per_worker": WAITERS,
        "env_isolation": "process",
        "env_config": {"slow": 0.05},
    }
    with shoal.PPO(env=Waiter, config=settings) as trainer:
        trainer.workers.sample(5)
        start = perf_counter()
        sample = trainer.workers.sample(steps)
        ready_first = sample.num_steps / (perf_counter() - start)
        worker = trainer.workers.foreach_worker(lambda worker: worker)[0]
        vector, policy = worker.vector, trainer.get_policy()
        from shoal.envs.vector import Steps

        out = Steps(policy.obs_spec.allocate(WAITERS), np.zeros(WAITERS, np.float32), *np.zeros((3, WAITERS), bool))
        actions = np.zeros((WAITERS, policy.action_spec.size), policy.action_spec.dtype)
        start = perf_counter()
        for _ in range(steps):
            policy.network.act(policy.encoder(out.obs))
            vector.step(actions, None, out)
        return ready_first, steps * WAITERS / (perf_counter() - start)


def hung(steps: int) -> dict[str, float]:
    """Steps per second before one of the environments hangs and after its deadline, and seconds to stop in a hang."""
    settings = {
        **SETTINGS,
        "num_envs_per_worker": WAITERS,
        "env_step_timeout_s": 1.0,
        "env_config": {"hang_at": 2 * steps + steps // 2},
    }
    rates = []
    with shoal.PPO(env=Waiter, config=settings) as trainer:
        failures = []
        for _ in range(4):
            start = perf_counter()
            sample = trainer.workers.sample(steps)
            rates.append(sample.num_steps / (perf_counter() - start))
            failures.append(len(sample.incidents))
    assert failures == [0, 0, 1, 0]
    trainer = shoal.PPO(
        env=Waiter,
        config={**SETTINGS, "num_envs_per_worker": WAITERS, "env_isolation": "process", "env_config": {"hang_at": 2}},
    )
    vector = trainer.workers.foreach_worker(lambda worker: worker.vector)[0]
    policy = trainer.get_policy()
    vector.reset(policy.obs_spec.allocate(WAITERS))
    actions = np.zeros((WAITERS, policy.action_spec.size), policy.action_spec.dtype)
    vector.send(list(range(WAITERS)), actions)
    done: list[int] = []
    while len(done) < WAITERS:
        done += vector.wait()
    vector.send(list(range(WAITERS)), actions)
    vector.wait()  # the first one hangs from here on
    start = perf_counter()
    trainer.stop()
    return {"before": rates[1], "after": rates[3], "stop_s": perf_counter() - start}


def ended(how: str, workers: int) -> tuple[float, int]:
    """Seconds that `shoal train` takes to end while its environments hang, and how many processes are left then.

    The margin of a walltime is a share of it; here it begins as early as it can, as if nothing had come before it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(hanging_env.__file__, folder / "hanging.py")
        desk = WatchedDesk(folder)
        words = ["train", "hanging.py:Hanging", "--stop", "timesteps_total=1e9", "--set", f"num_workers={workers}"]
        words += ["--set", "env_isolation=process", "--set", "num_envs_per_worker=3", "--set", "train_batch_size=60"]
        words += ["--walltime", f"00:00:{WALLTIME_S}"] if how == WALLTIME else []
        began = time()
        child = desk.start(*words)
        try:
            desk.wait_for(child, lambda: any(folder.glob("shoal_results/*/*/result.json")))
            (folder / "now").touch()
            desk.wait_for(child, lambda: any(folder.glob("hangs*")))
            told = time()
            if how != WALLTIME:
                child.send_signal(signal.Signals[how])
            else:
                told = max(told, began + WALLTIME_S * (1 - SHARE))
            printed, _ = child.communicate(timeout=DEADLINE_S)
            took = time() - told
            left = len(psutil.wait_procs(desk.processes(), timeout=1.0)[1])
        finally:
            desk.kill_all()
        code = 128 - child.returncode if child.returncode < 0 else child.returncode
        if code != SIGNALS.get(how, SAVED):
            raise SystemExit(f"shoal train ended with code {code} after {how}:\n{printed}{desk.complaints()}")
    return took, left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; keeps nothing")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    repeats, steps = (1, 50) if arguments.quick else (arguments.repeats, 200)
    record = Record("isolation", ["shoal"], {"repeats": repeats, "steps": steps})
    rates: dict[str, list[float]] = {"processes": [], "async": [], "one process": []}
    ready, lock, before, after, stops, guard = [], [], [], [], [], []
    ends = {f"{how}, {workers} workers": (how, workers) for how in [*SIGNALS, WALLTIME] for workers in (0, 1)}
    if arguments.quick:
        ends = dict(list(ends.items())[:1])
    end_s: dict[str, list[float]] = {case: [] for case in ends}
    left = 0
    floors: dict[int, list[float]] = {CARTPOLES: [], len(os.sched_getaffinity(0)): []}
    for _ in range(repeats):
        for processes, found_rates in floors.items():
            found_rates.append(rounds_per_s(processes, 10 * steps))
        for case in rates:
            rates[case].append(cartpole_rate(case, steps))
        first, second = uneven_rates(steps)
        ready.append(first)
        lock.append(second)
        found = hung(steps)
        before.append(found["before"])
        after.append(found["after"])
        stops.append(found["stop_s"])
        for case, how_and_workers in ends.items():
            took, left_then = ended(*how_and_workers)
            end_s[case].append(took)
            left += left_then
        guard.append(ask("shoal", "guard", num_envs=64, steps=64, rounds=5 if arguments.quick else 60).answer["extra"])
    medians = {case: float(np.median(values)) for case, values in rates.items()}
    bars = [
        Bar("8 CartPoles in processes / AsyncVectorEnv", medians["processes"] / medians["async"], 2.0, True, "x"),
        Bar("uneven simulators, ready-first / lockstep", float(np.median(ready) / np.median(lock)), 1.5, True, "x"),
        Bar("16 simulators after one has hung / before", float(np.median(after) / np.median(before)), 0.9, True, "x"),
        Bar("stop while one hangs", max(stops), 10.0, False, " s"),
        Bar("shoal train ends while environments hang", max(map(max, end_s.values())), 10.0, False, " s"),
        Bar("processes left by it", left, 0, False),
        Bar("guard in one process, added to sampling", float(np.median(guard)), 0.03, False),
    ]
    results = {
        "cartpole_steps_per_s": {case: spread(values) for case, values in rates.items()},
        "empty_processes_rounds_per_s": {str(count): spread(values) for count, values in floors.items()},
        "cartpole_rounds_of_empty_ones": medians["processes"] / CARTPOLES / float(np.median(floors[CARTPOLES])),
        "uneven_steps_per_s": {"ready_first": spread(ready), "lockstep": spread(lock)},
        "hung_steps_per_s": {"before": spread(before), "after": spread(after)},
        "stop_s": spread(stops),
        "end_s": {case: spread(values) for case, values in end_s.items()},
        "guard_in_one_process": spread(guard),
    }
    show_bars(bars)
    if not arguments.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
