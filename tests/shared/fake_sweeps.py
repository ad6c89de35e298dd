"""Folders of sweeps as the engine writes them, without the training."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.sweep import MethodChoice, Setting, Sweep
from shoal.reports.records import Exploit, TrialRecord

LR = Setting("config.lr", "loguniform", (1e-5, 1e-2))
GAMMA = Setting("config.gamma", "uniform", (0.9, 0.999))
BATCH = Setting("config.train_batch_size", "choice", (1024, 2048, 4096))
NET = Setting("config.model.fcnet_hiddens", "choice", ([32, 32], [64, 64], [256, 256]))


def sweep(*settings: Setting, **keys: Any) -> Sweep:
    """A sweep of PPO on CartPole over `settings`."""
    config: dict[str, Any] = {"num_envs_per_worker": 4}
    for setting in settings:
        *way, last = setting.path.split(".")[1:]
        here = config
        for name in way:
            here = here.setdefault(name, {})
        here[last] = {setting.kind: list(setting.args)}
    tree = {"name": "cartpole", "run": "PPO", "env": "CartPole-v1", "stop": {"timesteps_total": 50_000}}
    return Sweep(**{"name": "cartpole", "tree": {**tree, "config": config}, "settings": settings, **keys})


def write_sweep(folder: Path, made: Sweep, records: Sequence[TrialRecord]) -> Path:
    """`sweep.json` and `trials.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"sweep": dataclasses.asdict(made), "search_path": [], "shoal": "0"}
    (folder / "sweep.json").write_text(json.dumps(content))
    (folder / "trials.json").write_text(json.dumps([dataclasses.asdict(record) for record in records]))
    return folder


def write_results(folder: Path, record: TrialRecord, results: Sequence[dict[str, Any]], is_run: bool = True) -> None:
    """`result.json` of a trial, and for a run `experiment.json`."""
    place = folder / record.folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "result.json").write_text("".join(json.dumps(result) + "\n" for result in results))
    if is_run:
        (place / "experiment.json").write_text("{}")


def draw(setting: Setting, rng: np.random.Generator) -> Any:
    """A value of a setting."""
    if setting.kind in ("choice", "grid_search"):
        return setting.args[rng.integers(len(setting.args))]
    low, high = setting.args[:2]
    if setting.kind == "loguniform":
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))
    return float(rng.uniform(low, high))


def score_of(settings: dict[str, Any], share: float, rng: np.random.Generator) -> float:
    """A return that is best at lr 3e-4, and a little better with a larger net."""
    fit = math.exp(-((math.log10(settings.get("config.lr", 3e-4)) + 3.5) ** 2))
    fit *= 0.7 + 0.3 * (sum(settings.get("config.model.fcnet_hiddens", [64])) / 512)
    return 20 + 480 * fit * (1 - math.exp(-4 * share)) + float(rng.normal(0, 8))


def fill(
    folder: Path, made: Sweep, count: int, iterations: int = 25, early: bool = True, seed: int = 0, is_run: bool = True
) -> Path:
    """A whole sweep of `count` configurations: the worse half stopped early, one failed, one running."""
    rng = np.random.default_rng(seed)
    records = []
    for group in range(count):
        chosen = {setting.path: draw(setting, rng) for setting in made.settings}
        final = score_of(chosen, 1.0, rng)
        for own in range(made.seeds):
            index = group * made.seeds + own
            record = TrialRecord(index, group, chosen, own if made.seeds > 1 else None, folder=f"trials/{index:05d}")
            stop = max(iterations // 4, 1) if early and final < 200 else iterations
            results = [
                {
                    "training_iteration": at,
                    "timesteps_total": 2000 * at,
                    "episode_reward_mean": score_of(chosen, at / iterations, rng),
                    "episode_len_mean": 20.0,
                    "time_total_s": 1.5 * at,
                    "learner": {"kl": 0.01},
                }
                for at in range(1, stop + 1)
            ]
            status, reason = (
                ("stopped early", "asha: worse than two thirds at 12500 steps")
                if stop < iterations
                else (
                    "finished",
                    "timesteps_total 50000 >= 50000",
                )
            )
            if early and index == 1:
                status, reason = "failed", "EnvError: the simulator died\nTraceback ..."
            last = {key: value for key, value in results[-1].items() if key != "learner"}
            records.append(
                dataclasses.replace(record, status=status, reason=reason, last_result={**last, "learner/kl": 0.01})
            )
            write_results(folder, record, results, is_run)
    return write_sweep(folder, made, records)


def fill_population(folder: Path, count: int = 6, iterations: int = 40, every: int = 8) -> Path:
    """A population over lr: at each turn the worst takes over the best."""
    made = sweep(LR, GAMMA, scheduler=MethodChoice("pbt"))
    rng = np.random.default_rng(1)
    settings = [{setting.path: draw(setting, rng) for setting in made.settings} for _ in range(count)]
    first = [dict(own) for own in settings]
    skill, exploits = np.zeros(count), [[] for _ in range(count)]
    rows: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for at in range(1, iterations + 1):
        for trial in range(count):
            best_lr = -2.5 - 2 * at / iterations
            skill[trial] += 12 * math.exp(-((math.log10(settings[trial]["config.lr"]) - best_lr) ** 2))
            result = {"training_iteration": at, "timesteps_total": 1000 * at, "time_total_s": float(at)}
            rows[trial].append({**result, "episode_reward_mean": float(skill[trial] + rng.normal(0, 2))})
        if at % every == 0 and at < iterations:
            order = np.argsort(skill)
            for worse, better in ((int(order[0]), int(order[-1])), (int(order[1]), int(order[-2]))):
                skill[worse] = skill[better]
                factor = (0.8, 1.2)[int(rng.integers(2))]
                settings[worse] = {**settings[better], "config.lr": settings[better]["config.lr"] * factor**3}
                exploits[worse].append(Exploit(at, 1000 * at, better, settings[worse]))
    records = []
    for trial in range(count):
        record = TrialRecord(
            trial,
            trial,
            settings[trial],
            status="finished",
            folder=f"trials/{trial:05d}",
            exploits=tuple(exploits[trial]),
            last_result=rows[trial][-1],
            first_settings=first[trial],
        )
        write_results(folder, record, rows[trial])
        records.append(record)
    return write_sweep(folder, made, records)
