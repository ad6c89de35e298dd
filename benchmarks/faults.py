"""A thousand faults of fourteen kinds in a million steps: iterations lost, incidents kept and replayed, what is left.

shoal trains PPO on `shoal.envs.FaultEnv` with every environment in a process of its own. The environment writes down
each fault before it happens; so faults are counted by what went wrong, and not by what was noticed of it. A flood of
lines does no harm, so it is no incident. An incident that passed a deadline though its fault is no hang, because the
machine was busy, is counted apart (`timed_out`), and so are its replays, which need not fail.

Beside it, Stable-Baselines3 (SubprocVecEnv) and RLlib (restart_failed_sub_environments) train on the same faults, one
kind at a time, each in a process of its own with a time limit: how many of five iterations they finish before the kind
ends or stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from record import Bar, Record, show_bars

import shoal
from shoal.envs.faults import KINDS
from shoal.machine.processes import adopt_orphans
from shoal.runs.incidents import read_incidents
from shoal.runs.replaying import EpisodeReplay

HARMLESS = ("log_flood",)
HANGS = ("hang", "gil_hang", "stop", "slow_reset")  # what passes a deadline however idle the machine is
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 60.0, 900.0  # of a peer's five iterations
PATIENCE = 3.0  # times what they take where nothing fails
NO_FAULT = "no fault"  # `none` is a kind: an environment that returns None
FAULTS = "faults.jsonl"  # what the environments write down
BATCH = 8000

EXPERIMENT = """
faults:
  env: shoal.envs:FaultEnv
  run: PPO
  checkpoint_freq: 5
  stop: {{timesteps_total: {steps}}}
  config:
    seed: 1
    num_envs_per_worker: 16
    train_batch_size: {size}
    env_step_timeout_s: {timeout_s}
    env_reset_timeout_s: {twice_timeout_s}
    env_memory_limit_mb: 150
    max_env_failures: null
    env_config: {{every: {every}, file: {file}}}
"""

SB3 = """
import sys
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.common.callbacks import BaseCallback
sys.path.insert(0, sys.argv[2])
from shoal_faults import FaultEnv

class Count(BaseCallback):
    def _on_step(self):
        return True
    def _on_rollout_end(self):
        print("iteration", flush=True)

if __name__ == "__main__":
    kinds, every = (["raise"], 10**9) if sys.argv[1] == "no fault" else ([sys.argv[1]], 300)
    make = lambda: FaultEnv({"kinds": kinds, "every": every, "file": sys.argv[3]})
    PPO("MlpPolicy", SubprocVecEnv([make] * 4), n_steps=100, batch_size=100, n_epochs=1).learn(2000, Count())
"""

RLLIB = """
import sys
sys.path.insert(0, sys.argv[2])
import tempfile
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from shoal_faults import FaultEnv

kinds, every = (["raise"], 10**9) if sys.argv[1] == "no fault" else ([sys.argv[1]], 300)
# Not the cluster that somebody else may run on this host.
ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=tempfile.mkdtemp())
config = (
    PPOConfig()
    .environment(FaultEnv, env_config={"kinds": kinds, "every": every, "file": sys.argv[3]})
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


def trained(settings: dict[str, int], folder: Path) -> dict[str, Any]:
    """Train through the faults, on from where an earlier call was stopped; what was lost, kept and left behind."""
    experiment, faults = folder / "faults.yml", folder / FAULTS
    twice_s = 2 * settings["timeout_s"]
    experiment.write_text(EXPERIMENT.format(**settings, twice_timeout_s=twice_s, size=BATCH, file=faults))
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    shoal_command = [Path(sys.executable).with_name("shoal"), "train", "-f", experiment, "--results-dir", folder]
    adopt_orphans()  # whoever outlives the command is ours then
    start = perf_counter()
    with open(folder / "log.txt", "ab") as log:
        environ = {**os.environ, "TMPDIR": str(scratch)}
        code = subprocess.run(shoal_command, env=environ, stdout=log, stderr=log, check=False).returncode
    if code:
        raise SystemExit(f"shoal train ended with code {code}; see {folder / 'log.txt'}")
    left = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    run = run_folder(folder)
    results = [json.loads(line) for line in (run / "result.json").read_text().splitlines()]
    (folder / f"trained-{FAULTS}").write_text(faults.read_text())  # replays write down theirs too
    return {
        "steps": results[-1]["timesteps_total"],
        "iterations": len(results),
        "iterations_lost": sum(result["timesteps_this_iter"] < BATCH * 0.9 for result in results),
        "failures": results[-1]["env_failures_total"],
        "incidents_kept": len(read_incidents(run)),
        "processes_left": len(left),
        "files_left": len(list(scratch.iterdir())),
        "seconds": results[-1]["time_total_s"],
        "seconds_of_this_call": perf_counter() - start,
    }


def run_folder(folder: Path) -> Path:
    """The folder of the one run."""
    (run,) = (each for each in (folder / "faults").iterdir() if each.is_dir() and not each.is_symlink())
    return run


class Faults:
    """The faults that the environments wrote down, and which incident came of which."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in dict.fromkeys(lines)]  # once, where a run was stopped and resumed
        self.kinds = Counter(fault["kind"] for fault in found)
        self._kind_at = {place_of(fault): fault["kind"] for fault in found}
        self._since_seed: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for fault in found:
            self._since_seed.setdefault((fault["env_index"], fault["seed"]), []).append(fault)

    def kind_of(self, entry: dict[str, Any]) -> str:
        """The kind of fault that an incident came of; a leak may be noticed some steps later."""
        before = self._since_seed.get((entry["env_index"], entry["seed"]), [])
        leaks = [f["kind"] for f in before if f["kind"] == "leak" and f["steps_since_seed"] < entry["steps_since_seed"]]
        return self._kind_at.get(place_of(entry), leaks[0] if leaks else NO_FAULT)

    def unnoticed(self, kept: list[dict[str, Any]]) -> int:
        """How many faults that do harm no incident came of."""
        noticed = {(entry["env_index"], entry["seed"]) for entry in kept}  # after each there is a new seed
        harmful = [fault for fault in self._kind_at.items() if fault[1] not in HARMLESS]
        return sum((env_index, seed) not in noticed for (env_index, seed, _), _ in harmful)


def place_of(fault: dict[str, Any]) -> tuple[int, int, int]:
    """Where a fault or an incident was."""
    return fault["env_index"], fault["seed"], fault["steps_since_seed"]


def has_timed_out(entry: dict[str, Any], kind: str) -> bool:
    """Whether an incident passed a deadline though its fault is no hang."""
    return entry["kind"] == "hang" and kind not in HANGS


def seen_again(folder: Path, most: int, progress: Progress) -> dict[str, Any]:
    """Faults, incidents and replays by the kind of fault; `most` of each kind, spread over the run, are replayed."""
    run, faults = run_folder(folder), Faults(folder / f"trained-{FAULTS}")
    kept = read_incidents(run)
    kinds: dict[str, Any] = {}
    not_again, timed_out = [], []
    for kind in [*KINDS, NO_FAULT]:
        of_kind = [entry for entry in kept if faults.kind_of(entry) == kind]
        late = [entry for entry in of_kind if has_timed_out(entry, kind)]
        sound = [entry for entry in of_kind if entry not in late]
        chosen = sound[:: max(len(sound) // most, 1)][:most]
        told = {entry["number"]: again(run, entry, progress) for entry in [*chosen, *late[:most]]}
        failed_otherwise = [entry for entry in chosen if told[entry["number"]]]
        not_again += [about(entry, kind, told) for entry in failed_otherwise]
        timed_out += [about(entry, kind, told) for entry in late]
        kinds[kind] = {
            "faults": faults.kinds[kind],
            "incidents": dict(Counter(entry["kind"] for entry in of_kind)),
            "timed_out": len(late),
            "replayed": len(chosen),
            "failed_again": len(chosen) - len(failed_otherwise),
        }
    return {
        "faults": faults.kinds.total(),
        "unnoticed": faults.unnoticed(kept),
        "by_kind": kinds,
        "replayed": sum(each["replayed"] for each in kinds.values()),
        "failed_again": sum(each["failed_again"] for each in kinds.values()),
        "not_again": not_again,
        "timed_out": timed_out,
    }


def about(entry: dict[str, Any], kind: str, told: dict[int, str]) -> dict[str, Any]:
    """An incident and what became of its replay."""
    replay = told.get(entry["number"], "not replayed") or "it failed at the same step"
    return {"incident": entry["number"], "fault": kind, "cause": entry["cause"], "replay": replay}


def again(run: Path, entry: dict[str, Any], progress: Progress) -> str:
    """What was different in the replay of an incident; empty if it failed at the same step."""

    def difference() -> str:
        replayed = EpisodeReplay(run, entry).run()
        if replayed.is_same(entry):
            return ""
        if replayed.incident is None:
            return f"nothing failed in {replayed.steps} steps"
        found = replayed.incident
        return f"it failed at step {found.step}, {found.steps_since_seed} after the seed: {found.cause}"

    told: str = progress.once(f"incident {entry['number']}", difference)
    return told


class Progress:
    """Answers that are kept in a file as they come, so that a benchmark that was stopped goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def once(self, name: str, answer: Callable[[], Any]) -> Any:
        """The answer, of this call or of an earlier one."""
        if name not in self.known:
            self.known[name] = answer()
            self._path.write_text(json.dumps(self.known, indent=1))
        return self.known[name]


def peer(who: str, kind: str, folder: Path, timeout_s: float) -> dict[str, Any]:
    """What became of a peer's five iterations with one kind of fault, within some seconds."""
    from peers import python_of

    source = Path(shoal.__file__).parent / "envs" / "faults.py"
    text = source.read_text().replace("from shoal.errors import ConfigError\n", "ConfigError = ValueError\n")
    (folder / "shoal_faults.py").write_text(text)
    program = folder / f"{who}.py"
    program.write_text(SB3 if who == "sb3" else RLLIB)
    faults = folder / f"{who}-{FAULTS}"
    faults.unlink(missing_ok=True)
    command = [python_of(who), str(program), kind, str(folder), str(faults)]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as scratch:
        environ = {**os.environ, "TMPDIR": scratch}
        environ.pop("PYTHONPATH", None)
        log = Path(scratch, "log.txt")  # a pipe would be held open by whoever outlives the peer
        ended = ""
        start = perf_counter()
        with log.open("w") as sink, Path(scratch, "errors.txt").open("w") as errors:
            process = subprocess.Popen(command, env=environ, stdout=sink, stderr=errors)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                ended = ", then hung"
        for left in psutil.Process().children(recursive=True):  # also what it has left behind
            with suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()
        out = log.read_text()
    if not ended and process.returncode:
        ended = ", then ended"
    return {
        "iterations": f"{out.splitlines().count('iteration')} of 5{ended}",
        "faults": len(faults.read_text().splitlines()) if faults.exists() else 0,
        "seconds": perf_counter() - start,
    }


def peers_of(who: str, folder: Path, progress: Progress) -> dict[str, Any]:
    """What became of a peer with each kind of fault; it has three times as long as it needs without any."""
    results = {NO_FAULT: progress.once(f"{who} {NO_FAULT}", lambda: peer(who, NO_FAULT, folder, MOST_TIMEOUT_S))}
    timeout_s = max(PATIENCE * results[NO_FAULT]["seconds"], LEAST_TIMEOUT_S)
    for kind in KINDS:
        results[kind] = progress.once(f"{who} {kind}", lambda kind=kind: peer(who, kind, folder, timeout_s))
    return results


def measured(arguments: argparse.Namespace, settings: dict[str, int], folder: Path) -> dict[str, Any]:
    """Everything that was asked for, of which what is in the folder already is taken from there."""
    progress = Progress(folder / "progress.json")
    results: dict[str, Any] = {"shoal": progress.once("trained", lambda: trained(settings, folder))}
    results["shoal"] |= seen_again(folder, arguments.replays, progress)
    for who in arguments.who:
        results[who] = peers_of(who, folder, progress)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="20,000 steps, a replay of each kind, no peers; keeps nothing"
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--who", nargs="*", default=[], choices=["sb3", "rllib"], help="peers to try")
    parser.add_argument("--replays", type=int, default=11, help="number of incidents of each kind to replay")
    parser.add_argument("--folder", type=Path, help="keep the run here; the same command continues what was stopped")
    arguments = parser.parse_args()
    settings = {"steps": arguments.steps, "every": 850, "timeout_s": 5}
    if arguments.quick:
        arguments.replays, arguments.who = 1, []
        settings = {"steps": 20_000, "every": 500, "timeout_s": 3}
    record = Record("faults", ["shoal", *arguments.who], settings)
    with tempfile.TemporaryDirectory() as name:
        folder = (arguments.folder or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        results = measured(arguments, settings, folder)
    found = results["shoal"]
    bars = [
        Bar("faults", found["faults"], settings["steps"] / 1000, True),
        Bar("kinds of faults", sum(found["by_kind"][kind]["faults"] > 0 for kind in KINDS), len(KINDS), True),
        Bar("iterations lost", found["iterations_lost"], 0, False),
        Bar("incidents kept / failures", found["incidents_kept"] / found["failures"], 1, True),
        Bar("faults that were not noticed", found["unnoticed"], 0, False),
        Bar("deadlines passed by what is no hang", len(found["timed_out"]), 0, False),
        Bar("replays that failed at the same step", found["failed_again"] / found["replayed"], 1, True),
        Bar("processes left", found["processes_left"], 0, False),
        Bar("files left", found["files_left"], 0, False),
    ]
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    record.head["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    show_bars(bars)
    if not arguments.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
