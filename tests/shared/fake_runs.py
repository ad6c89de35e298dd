"""Run folders as runs leave them, written in milliseconds: an experiment, results, an outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.config.experiment import as_tree, experiment_from
from shoal.runs.outcomes import Outcome, write_outcome

DONE = Outcome("stopped", "training_iteration 10 >= 10")


def fake_result(iteration: int, mean: float, **more: Any) -> dict[str, Any]:
    """The result of an iteration of 100 steps and a second, of which learning takes 0.7."""
    return {
        "training_iteration": iteration,
        "timesteps_total": 100 * iteration,
        "timesteps_this_iter": 100,
        "time_total_s": float(iteration),
        "time_this_iter_s": 1.0,
        "timesteps_per_s": 100.0,
        "episodes_total": 5 * iteration,
        "episode_reward_mean": mean,
        "episode_reward_min": mean - 5,
        "episode_reward_max": mean + 5,
        "episode_len_mean": 20.0,
        "env_failures_total": 0,
        "timers": {"env_s": 0.2, "policy_s": 0.1, "communicate_s": 0.0, "learn_s": 0.7},
        "learner": {"kl": 0.01, "entropy": 0.6, "policy_loss": -0.01, "vf_loss": 0.1, "vf_explained_var": 0.8},
        **more,
    }


def fake_run(
    root: Path,
    name: str = "first",
    seed: int | None = 0,
    course: Callable[[int], float] = float,
    iterations: int = 10,
    config: Mapping[str, Any] | None = None,
    run: str = "PPO",
    env: str = "CartPole-v1",
    stop: Mapping[str, Any] | None = None,
    outcome: Outcome | None = DONE,
    **more: Any,
) -> Path:
    """A run whose mean return is `course(iteration)`; its folder."""
    folder = root / name / f"{run}_{env.replace(':', '.')}_{seed if seed is not None else 9:05x}_2026-11-17_12-00-00"
    while folder.exists():
        number = int(folder.name[-19 - 6 : -20], 16) + 0x100
        folder = folder.with_name(f"{folder.name[:-25]}{number:05x}{folder.name[-20:]}")
    folder.mkdir(parents=True)
    own = {**(config or {}), **({} if seed is None else {"seed": seed})}
    tree = {"name": name, "env": env, "run": run, "results_dir": str(root), "stop": dict(stop or {}), "config": own}
    experiment = experiment_from(tree)
    (folder / "experiment.json").write_text(json.dumps({**as_tree(experiment), "search_path": []}))
    (folder / "config.yaml").write_text(f"{name}:\n  env: {env}\n")
    lines = [json.dumps(fake_result(at, course(at), **more)) + "\n" for at in range(1, iterations + 1)]
    (folder / "result.json").write_text("".join(lines))
    if outcome is not None:
        write_outcome(folder, outcome)
    return folder
