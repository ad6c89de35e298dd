"""Runs: resumed, interrupted, killed, and started twice."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
from desks import DEADLINE_S, WatchedDesk
from record import console
from reliability_figures import Found, all_of, none_of

import shoal
from shoal.runs.checkpoints import newest_good, read_checkpoint

GONE_S = 10.0
MOST_START_S = 3.0  # after its process was made, that a run is signalled
MOST_MOMENT_S = 2.0  # or after its first iteration
SAVED, NOTHING, LOST = "saved", "nothing to save", "lost"
EARLY = "before Python had read our first line"
LEFT = ("processes", "files", "segments")  # that a killed run may leave
SMALL: dict[str, Any] = {"train_batch_size": 256, "sgd_minibatch_size": 64, "num_sgd_iter": 2}
DQN = {"learning_starts": 100, "timesteps_per_iteration": 200, "replay_buffer_config": {"capacity": 1000}}
SAC = {"learning_starts": 100, "timesteps_per_iteration": 200, "replay_buffer_config": {"capacity": 1000}}
FEW: dict[str, Any] = {"num_rollouts": 16}
OFFLINE: dict[str, Any] = {"train_batch_size": 200, "sgd_minibatch_size": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", SMALL),
    "APPO": ("CartPole-v1", SMALL),
    "TRPO": ("CartPole-v1", SMALL),
    "DQN": ("CartPole-v1", DQN),
    "SAC": ("Pendulum-v1", SAC),
    "ES": ("CartPole-v1", FEW),
    "ARS": ("CartPole-v1", FEW),
    "CEM": ("CartPole-v1", FEW),
    "CMAES": ("CartPole-v1", FEW),
    "BC": ("", OFFLINE),
    "MARWIL": ("", OFFLINE),
}
ALONE = ("APPO",)  # whose workers do not wait for each other, so that no two runs with some are the same
NUM_ENVS = 4
TRAIN = [
    *("train", "CartPole-v1", "--seed", "3", "--checkpoint-freq", "1"),
    *("--set", "config.train_batch_size=512", "--set", "config.num_envs_per_worker=4"),
    *("--stop", "timesteps_total=1e9"),
]
OWN_MEMORY = 'mount --bind "$0" /dev/shm && exec "$@"'
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGUSR1: 85}


def resumed(most_workers: int, folder: Path) -> Found:
    """Two iterations, saved, loaded, two more; against four in one go. With up to `most_workers` - 1 workers."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    different = []
    tried = 0
    try:
        recorded = str(folder / "recorded")
        with shoal.PPO(env="CartPole-v1", config={**SMALL, "seed": 5, "output": recorded}) as trainer:
            for _ in range(4):
                trainer.train()
        for name in CASES:
            for num_workers in range(1 if name in ALONE else most_workers):
                tried += 1
                if _weights(name, num_workers, folder, True) != _weights(name, num_workers, folder, False):
                    different.append(f"{name} with {num_workers} workers")
                console.print(f"  {name} with {num_workers} workers; different so far: {different}", style="dim")
    finally:
        ray.shutdown()
    names = ", ".join(f"{name} without workers" if name in ALONE else name for name in CASES)
    figure = f"{tried - len(different)} of {tried} byte-equal ({names})"
    if different:
        figure += f"; not: {', '.join(different)}"
    return Found(tried, figure, [none_of("different", len(different))])


def _weights(name: str, num_workers: int, folder: Path, is_cut: bool) -> dict[str, bytes]:
    """The arrays of a training of four iterations."""
    env, settings = CASES[name]
    place = folder / f"{name}-{num_workers}-{is_cut}"
    config = {**settings, "seed": 5, "num_workers": num_workers}
    given: dict[str, Any] = {"config": config}
    if env:
        given["env"] = env
        config["num_envs_per_worker"] = NUM_ENVS // max(num_workers, 1)
    else:
        config["input"] = str(folder / "recorded")
    with getattr(shoal, name)(**given) as trainer:
        for _ in range(2 if is_cut else 4):
            trainer.train()
        path = trainer.save(place)
    if is_cut:
        with getattr(shoal, name)(**given) as trainer:
            trainer.restore(path)
            for _ in range(2):
                trainer.train()
            path = trainer.save(place / "again")
    return {key: array.tobytes() for key, array in read_checkpoint(path).state.arrays.items()}


def signals(count: int, folder: Path) -> Found:
    """A signal at a random moment of the start or of training: saved or nothing to save, one code, no process.

    `count` of them come when our first line has been read; those before are counted apart. A third have two workers.
    """
    choose = random.Random(17)
    outcomes: Counter[str] = Counter()
    with_workers: Counter[str] = Counter()
    bad = []
    number = -1
    while sum(outcomes.values()) - outcomes[EARLY] < count:
        number += 1
        home = folder / f"{number:03}"
        home.mkdir()
        # This may be a shell's background job, which ignores some signals, and so would what it starts.
        desk = WatchedDesk(home, ("env", "--default-signal"))
        which = list(CODES)[number % len(CODES)]
        is_trained = bool(number // len(CODES) % 2)
        has_workers = number // (2 * len(CODES)) % 3 == 2
        child = desk.start(*TRAIN, *(("--num-workers", "2") if has_workers else ()))
        # With workers the start has Ray's in it, which takes longer.
        moment_s = choose.uniform(0, MOST_MOMENT_S if is_trained else MOST_START_S * (1 + has_workers))
        if is_trained:
            first_iteration(child)
        sleep(moment_s)
        is_ours = _has_handlers(child)
        child.send_signal(which)
        outcome, wrong = _signalled(desk, child, which, is_ours)
        outcomes[outcome] += 1
        with_workers[outcome] += has_workers
        layout = "2 workers" if has_workers else "no workers"
        console.print(f"  {number + 1}: {which.name}, {layout}, {outcome}", style="dim")
        if wrong:
            phase = "its first iteration" if is_trained else "its start"
            bad.append(f"{which.name} {moment_s:.2f} s after {phase}, {layout}: {wrong}")
            console.print(f"  {bad[-1]}", style="dim")
    tried = sum(outcomes.values())
    told = ", ".join(f"{outcomes[name]} {name}" for name in (SAVED, NOTHING) if outcomes[name])
    beside = f"{sum(with_workers.values())} of {tried} with 2 workers; {outcomes[EARLY]} came {EARLY}"
    good = tried - len(bad) - outcomes[EARLY]
    bars = [
        all_of("saved or nothing to save, documented code, no orphan", good, count),
        none_of("of all, with something wrong", len(bad)),
    ]
    more = {"outcomes": outcomes, "with_workers": with_workers, "bad": bad}
    return Found(count, f"{good} of {count} ({told}; {beside})", bars, more=more)


def _signalled(
    desk: WatchedDesk, child: subprocess.Popen[str], which: signal.Signals, is_ours: bool
) -> tuple[str, str]:
    """How a run ended that was signalled, and what is wrong with that; before our first line, Python ends by itself."""
    wrong = []
    try:
        printed, _ = child.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        wrong.append(f"it had not ended after {DEADLINE_S} s")
        for process in desk.processes():
            with suppress(psutil.Error):
                process.kill()
    code = child.wait()
    code = 128 - code if code < 0 else code
    _, alive = psutil.wait_procs(desk.processes(), timeout=GONE_S)
    if alive:
        wrong.append(f"{len(alive)} processes are left")
    outcome = _saved(desk.home)
    if outcome == LOST:
        wrong.append("what was trained is not saved")
    if not is_ours and outcome == NOTHING:
        return EARLY, "; ".join(wrong)
    if code != CODES[which]:
        wrong.append(f"code {code}")
    complaints = desk.complaints()
    if "Traceback" in printed + complaints:
        wrong.append("a traceback")
    if wrong:
        wrong.append(f"it said {(printed + complaints)[-2000:]!r}")
    return outcome, "; ".join(wrong)


def _has_handlers(child: subprocess.Popen[str]) -> bool:
    """Whether a process has handlers of its own for signals, which is the first thing that the command does."""
    mask = 1 << signal.SIGUSR1 - 1
    try:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{child.pid}/status").read_text())
    except OSError:
        return True
    return caught is None or bool(int(caught[1], 16) & mask)


def first_iteration(child: subprocess.Popen[str]) -> None:
    """Wait until a run has trained."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("iter"):
            return


def _saved(home: Path) -> str:
    """Whether every iteration that a run has told of is in a good checkpoint."""
    files = list((home / "shoal_results").glob("*/*/result.json"))
    if not files:
        return NOTHING
    told = [json.loads(line)["training_iteration"] for line in files[0].read_text().splitlines()]
    found = newest_good(files[0].parent)
    if not told:
        return NOTHING
    return SAVED if found is not None and found.summary["training_iteration"] >= told[-1] else LOST


def two_runs(count: int, folder: Path) -> Found:
    """Two processes resume one run in the same moment."""
    desk = WatchedDesk(folder)
    child = desk.start(*TRAIN)
    first_iteration(child)
    desk.end(child, signal.SIGTERM)
    run = str(desk.run_folder())
    alone = 0
    for _ in range(count):
        children = [desk.start("resume", run, "--quiet", "--stop", "timesteps_total=1e9") for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ends = {pool.submit(child.wait, DEADLINE_S): child for child in children}
            first = concurrent.futures.wait(ends, return_when=concurrent.futures.FIRST_COMPLETED).done
            others = [child for child in children if child.poll() is None]
            for other in others:
                other.send_signal(signal.SIGTERM)
        codes = sorted(child.returncode for child in children)
        for child in children:
            desk.end(child)
        alone += len(first) == 1 and codes == [1, 143]
        read_checkpoint(Path(run))
    return Found(count, f"exactly 1 proceeds in {alone} of {count}", [all_of("exactly one proceeds", alone, count)])


def killed_driver(count: int, folder: Path) -> Found:
    """kill -9 of a run with two workers; what is left of it ten seconds later."""

    def start(desk: WatchedDesk, place: Path) -> subprocess.Popen[str]:
        return desk.start(*TRAIN, "--num-workers", "2", TMPDIR=str(place))

    left, slowest, told = left_of_killed(count, folder, start)
    figure = ", ".join(f"{left[what]} {what}" for what in LEFT)
    bars = [none_of(f"{what} after 10 s", left[what]) for what in LEFT]
    return Found(count, f"{figure} after 10 s", bars, more={"slowest_s": slowest, "left": told})


def left_of_killed(
    count: int, folder: Path, start: Callable[[WatchedDesk, Path], subprocess.Popen[str]]
) -> tuple[Counter[str], float, list[str]]:
    """What is left ten seconds after kill -9 of runs, how long its processes lived at most, and the names of it all."""
    left: Counter[str] = Counter()
    told = []
    slowest = 0.0
    for number in range(count):
        home = folder / f"{number:03}"
        place, memory = home / "tmp", home / "shm"
        place.mkdir(parents=True)
        memory.mkdir()
        desk = WatchedDesk(home, ("unshare", "--mount", "sh", "-c", OWN_MEMORY, str(memory)))
        with _mounted(memory):
            child = start(desk, place)
            first_iteration(child)
            child.kill()
            killed_at = monotonic()
            with child, suppress(psutil.TimeoutExpired):
                psutil.wait_procs(desk.processes(), timeout=GONE_S)
            slowest = max(slowest, monotonic() - killed_at)
            sleep(max(0.0, killed_at + GONE_S - monotonic()))
            alive = desk.processes()
            found = {
                "processes": [_words_of(process) for process in alive],
                "files": os.listdir(place),
                "segments": os.listdir(memory),
            }
            for process in alive:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(alive, timeout=GONE_S)
        for what, names in found.items():
            left[what] += len(names)
            told += [f"{what}: {name}" for name in names]
        console.print(f"  {number + 1} of {count}: {found}", style="dim")
    return left, slowest, told


@contextmanager
def _mounted(memory: Path) -> Iterator[None]:
    """A folder of shared memory, which stands for a machine's /dev/shm: what other runs leave in that is not ours."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(memory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(memory)], check=True)


def _words_of(process: psutil.Process) -> str:
    """The command line of a process, which may end meanwhile."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return "ended meanwhile"
