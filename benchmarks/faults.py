"""A thousand faults of fourteen kinds in a million steps: iterations lost, incidents kept and replayed, what is left.

shoal trains PPO on `shoal.envs.FaultEnv` with every environment in a process of its own. Beside it, Stable-Baselines3
(SubprocVecEnv) and RLlib (restart_failed_sub_environments) train on the same faults, one kind at a time, each in a
process of its own with a time limit: how many iterations they finish before the kind ends or stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from record import Bar, Record, show_bars

import shoal
from shoal.envs.faults import KINDS
from shoal.runs.incidents import read_incidents
from shoal.runs.replaying import Replay

FATAL = [kind for kind in KINDS if kind != "log_flood"]
PEER_TIMEOUT_S = 60

SB3 = """
import sys
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.common.callbacks import BaseCallback
sys.path[:0] = sys.argv[2:]
from shoal_faults import FaultEnv

class Count(BaseCallback):
    def _on_step(self):
        return True
    def _on_rollout_end(self):
        print("iteration", flush=True)

if __name__ == "__main__":
    make = lambda: FaultEnv({"kinds": [sys.argv[1]], "every": 300})
    PPO("MlpPolicy", SubprocVecEnv([make] * 4), n_steps=100, batch_size=100, n_epochs=1).learn(2000, Count())
"""

RLLIB = """
import sys
sys.path[:0] = sys.argv[2:]
from ray.rllib.algorithms.ppo import PPOConfig
from shoal_faults import FaultEnv

config = (
    PPOConfig()
    .environment(FaultEnv, env_config={"kinds": [sys.argv[1]], "every": 300})
    .env_runners(num_env_runners=2, num_envs_per_env_runner=2, rollout_fragment_length=100)
    .fault_tolerance(restart_failed_sub_environments=True, delay_between_env_runner_restarts_s=0)
    .training(train_batch_size=400, minibatch_size=100, num_epochs=1)
)
algorithm = config.build_algo()
before = 0
for _ in range(5):
    now = algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0)
    if now > before:
        print("iteration", flush=True)
    before = now
"""


def thousand(steps: int, every: int, folder: Path) -> dict[str, Any]:
    """Train through the faults; what was lost and what was kept."""
    size = 8000
    experiment = {
        "name": "faults",
        "env": "shoal.envs:FaultEnv",
        "run": "PPO",
        "results_dir": str(folder),
        "checkpoint_at_end": True,
        "stop": {"timesteps_total": steps},
        "config": {
            "num_envs_per_worker": 16,
            "train_batch_size": size,
            "env_step_timeout_s": 3,
            "env_reset_timeout_s": 6,
            "env_memory_limit_mb": 250,
            "max_env_failures": None,
            "env_config": {"every": every},
        },
    }
    start = perf_counter()
    short, iterations, failures = 0, 0, 0
    for result in shoal.run(experiment, new=True):
        iterations += 1
        failures = result["env_failures_total"]
        short += result["timesteps_this_iter"] < size * 0.9
    (run,) = (folder / "faults").iterdir()
    kept = read_incidents(run)
    left = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    return {
        "iterations": iterations,
        "iterations_lost": short,
        "failures": failures,
        "incidents_kept": len(kept),
        "kinds": dict(Counter(entry["kind"] for entry in kept)),
        "processes_left": len(left),
        "seconds": perf_counter() - start,
        "run": str(run),
    }


def replayed(run: Path, most: int) -> tuple[int, int]:
    """How many of some incidents failed again at the same step, and how many were tried."""
    kept = read_incidents(run)
    chosen = kept[:: max(len(kept) // most, 1)][:most]
    return sum(Replay(run, entry).run().is_same(entry) for entry in chosen), len(chosen)


def peer(who: str, kind: str, folder: Path) -> str:
    """What became of a peer's five iterations with one kind of fault."""
    from peers import python_of

    source = Path(shoal.__file__).parent / "envs" / "faults.py"
    text = source.read_text().replace("from shoal.errors import ConfigError\n", "ConfigError = ValueError\n")
    (folder / "shoal_faults.py").write_text(text)
    program = folder / f"{who}.py"
    program.write_text(SB3 if who == "sb3" else RLLIB)
    command = [python_of(who), str(program), kind, str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    ended = ""
    try:
        out, _ = process.communicate(timeout=PEER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        ended = ", then hung"
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        out, _ = process.communicate()
    finished = out.count("iteration")
    if not ended and process.returncode:
        ended = ", then ended"
    return f"{finished} of 5{ended}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20,000 steps and no peers; keeps nothing")
    parser.add_argument("--who", nargs="*", default=[], choices=["sb3", "rllib"], help="peers to try")
    parser.add_argument("--replays", type=int, default=50)
    arguments = parser.parse_args()
    steps, every = (20_000, 500) if arguments.quick else (1_000_000, 900)
    record = Record("faults", ["shoal", *arguments.who], {"steps": steps, "every": every})
    with tempfile.TemporaryDirectory() as name:
        results: dict[str, Any] = {"shoal": thousand(steps, every, Path(name))}
        same, tried = replayed(Path(results["shoal"].pop("run")), 5 if arguments.quick else arguments.replays)
        results["shoal"] |= {"replayed": tried, "failed_again": same}
        for who in arguments.who:
            results[who] = {kind: peer(who, kind, Path(name)) for kind in FATAL}
    found = results["shoal"]
    bars = [
        Bar("faults", found["failures"], 1000 if not arguments.quick else 10, True),
        Bar("iterations lost", found["iterations_lost"], 0, False),
        Bar("incidents kept / failures", found["incidents_kept"] / found["failures"], 1, True),
        Bar("replays that failed at the same step", same / tried, 1, True),
        Bar("processes left", found["processes_left"], 0, False),
    ]
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    show_bars(bars)
    if not arguments.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
