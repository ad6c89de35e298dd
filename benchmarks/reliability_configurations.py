"""Configurations and command lines with something wrong: refused in words, or they mean something."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliability_figures import Found, none_of

from shoal.config.experiment import Experiment, as_tree, experiment_from
from shoal.errors import ConfigError, ShoalError

SAMPLED: dict[str, Any] = {
    "env_config": {"mesh": {"n": [1, 2]}, "note": "no"},
    "num_workers": 3,
    "num_envs_per_worker": 4,
    "gamma": 0.99,
    "evaluation_interval": 5,
    "evaluation_duration": 10,
    "model": {"fcnet_hiddens": [32], "fcnet_activation": "tanh"},
}
ON_POLICY: dict[str, Any] = {**SAMPLED, "train_batch_size": 960, "lambda_": 0.95, "sgd_minibatch_size": 120}
PPO: dict[str, Any] = {
    **ON_POLICY,
    "lr_schedule": [[0, 3e-4], [100000, 0]],
    "vf_clip_param": 10,
    "clip_param": 0.2,
    "entropy_coeff": 0.01,
    "num_sgd_iter": 4,
    "grad_clip": 0.5,
}
OFF_POLICY: dict[str, Any] = {
    **SAMPLED,
    "train_batch_size": 64,
    "learning_starts": 500,
    "timesteps_per_iteration": 1000,
    "training_intensity": 32,
    "n_step": 2,
    "lr": 1e-3,
    "replay_buffer_config": {"capacity": 20_000, "prioritized_replay": True, "prioritized_replay_alpha": 0.6},
}
EVOLUTION: dict[str, Any] = {**SAMPLED, "num_rollouts": 16, "episodes_per_rollout": 2, "noise_stdev": 0.2}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", PPO),
    "APPO": ("CartPole-v1", {**PPO, "vtrace_clip_rho_threshold": 1.0, "max_staleness": 8}),
    "TRPO": ("CartPole-v1", {**ON_POLICY, "max_kl": 0.02, "cg_iters": 8, "cg_damping": 0.1, "line_search_steps": 9}),
    "DQN": (
        "CartPole-v1",
        {
            **OFF_POLICY,
            "target_network_update_freq": 400,
            "exploration_config": {"initial_epsilon": 0.9, "final_epsilon": 0.05, "epsilon_timesteps": 5000},
        },
    ),
    "SAC": ("Pendulum-v1", {**OFF_POLICY, "tau": 0.01, "initial_alpha": 0.1, "target_entropy": -1.0}),
    "ES": ("CartPole-v1", {**EVOLUTION, "lr": 0.05}),
    "ARS": ("CartPole-v1", {**EVOLUTION, "lr": 0.05, "rollouts_used": 8}),
    "CEM": ("CartPole-v1", {**EVOLUTION, "elite_frac": 0.25, "extra_std": 0.1, "extra_decay_time": 10}),
    "CMAES": ("CartPole-v1", {**EVOLUTION, "max_full_covariance": 400}),
    "MARWIL": ("", {"input": "recorded", "train_batch_size": 200, "sgd_minibatch_size": 50, "beta": 1.0, "lr": 1e-3}),
}
FACTORS = (-1, 0, 1e-9, 1e-3, 0.7, 10, 1e4, 1e9)
TREES: dict[str, dict[str, Any]] = {
    run: {
        "name": "ratio",
        **({"env": env} if env else {}),
        "run": run,
        "stop": {"timesteps_total": 1e5, "time_total_s": "1-12:00:00"},
        "checkpoint_freq": 2,
        "config": config,
    }
    for run, (env, config) in SETTINGS.items()
}
ODD: list[Any] = [
    None, True, False, -1, 0, 2**31 - 1, 2**63, 10**400, 1e308, -1e308, float("nan"), float("inf"), "auto", "", "\0",
    "no", "1e-4", "12:30", "os:system", b"x", (), [], {}, [float("nan")], [[0, float("inf")]],
    {"a": 1}, {1: 2}, "x" * 10_000, 0.5, -0.5, 1.5, 1e-300,
]  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """What a setting may be, said here anew and not asked of the code that is tried."""

    low: float
    high: float
    is_whole: bool = False
    words: tuple[Any, ...] = ()  # that it may be too


def _count(low: float = 1, high: float = 2**31 - 1, *words: Any) -> Bound:
    return Bound(low, high, True, words)


POSITIVE = 5e-324
HUGE = 1e300  # nobody has said what is too much; but there is an end before overflow
BOUNDS: dict[str, Bound] = {
    "num_workers": _count(0, 1e6, "auto"),
    "num_envs_per_worker": _count(1, 2**31 - 1, "auto"),  # what memory has room for is said when a run starts
    "train_batch_size": _count(1, 2**31 - 1, "auto"),
    "sgd_minibatch_size": _count(),
    "num_sgd_iter": _count(1, 10_000),
    "evaluation_interval": _count(1, 2**31 - 1, None),
    "evaluation_duration": _count(1, 1e7, "auto"),
    "checkpoint_freq": _count(0),
    "learning_starts": _count(0),
    "timesteps_per_iteration": _count(),
    "n_step": _count(1, 10_000),
    "capacity": _count(),
    "target_network_update_freq": _count(),
    "epsilon_timesteps": _count(),
    "num_rollouts": _count(),
    "episodes_per_rollout": _count(),
    "rollouts_used": _count(1, 2**31 - 1, None),
    "extra_decay_time": _count(0),
    "max_full_covariance": _count(),
    "cg_iters": _count(),
    "line_search_steps": _count(),
    "max_staleness": _count(),
    "gamma": Bound(0, 1),
    "lambda_": Bound(0, 1),
    "elite_frac": Bound(0, 1),
    "initial_epsilon": Bound(0, 1),
    "final_epsilon": Bound(0, 1),
    "tau": Bound(POSITIVE, 1),
    "lr": Bound(0, 1000),
    "clip_param": Bound(POSITIVE, 1e10),
    "vf_clip_param": Bound(POSITIVE, 1e10, words=(None,)),
    "grad_clip": Bound(POSITIVE, 1e10, words=(None,)),
    "vtrace_clip_rho_threshold": Bound(POSITIVE, 1e10),
    "entropy_coeff": Bound(0, HUGE),
    "training_intensity": Bound(POSITIVE, HUGE, words=(None,)),
    "prioritized_replay_alpha": Bound(0, HUGE),
    "initial_alpha": Bound(POSITIVE, HUGE),
    "target_entropy": Bound(-HUGE, HUGE, words=("auto",)),
    "noise_stdev": Bound(POSITIVE, HUGE),
    "extra_std": Bound(0, HUGE, words=(None,)),
    "max_kl": Bound(POSITIVE, HUGE, words=("auto",)),
    "cg_damping": Bound(0, HUGE, words=("auto",)),
    "beta": Bound(0, HUGE),
    "prioritized_replay": Bound(1, 0, words=(True, False)),
}


def nonsense(settings: dict[str, Any], path: str = "") -> list[str]:
    """What of accepted settings cannot be meant: no number, unbounded, or beyond what it may be."""
    found = []
    for key, value in settings.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            found += nonsense(value, f"{name}.")
        elif not (_holds(BOUNDS[key], value) if key in BOUNDS else _is_finite(value)):
            found.append(f"{name}={value!r}")
    batch, minibatch = settings.get("train_batch_size"), settings.get("sgd_minibatch_size")
    if isinstance(batch, int) and isinstance(minibatch, int) and minibatch > batch:
        found.append(f"sgd_minibatch_size={minibatch} of train_batch_size={batch}")
    return found


def _holds(bound: Bound, value: Any) -> bool:
    if isinstance(value, str | bool) or value is None:
        return value in bound.words
    if not isinstance(value, int | float):
        return False
    return bound.low <= value <= bound.high and not (bound.is_whole and value != int(value))


def _is_finite(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


def mutated(tree: dict[str, Any], choose: random.Random) -> dict[str, Any]:
    """The tree with one to three things wrong."""
    changed: dict[str, Any] = json.loads(json.dumps(tree))
    for _ in range(choose.randint(1, 3)):
        here = changed
        while True:
            key = choose.choice(list(here))
            if not isinstance(here[key], dict) or not here[key] or choose.random() < 0.3:
                break
            here = here[key]
        match choose.randrange(6):
            case 4 | 5 if type(here[key]) in (int, float) and abs(here[key]) < HUGE:
                here[key] *= choose.choice(FACTORS)
            case 0 | 1:
                here[key] = choose.choice(ODD)
            case 2:
                here[choose.choice([f"{key}x", str(key)[:-1], "learning_rate", "", 5, None])] = here.pop(key)
            case _:
                del here[key]
        if not here:
            break
    return changed


def _is_same(one: Any, other: Any) -> bool:
    """Whether two trees are equal; a NaN, which may be the environment's own, equals another."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other or (one != one and other != other))


def configurations(count: int, _: Path) -> Found:
    """Trees with something wrong are refused in words, or mean something; so are command lines."""
    from click.testing import CliRunner

    from shoal.cli.main import main

    choose = random.Random(17)
    outcomes: Counter[str] = Counter()
    of_runs: Counter[str] = Counter()
    bad: list[str] = []
    for number in range(count):
        run = list(TREES)[number % len(TREES)]
        tree = mutated(TREES[run], choose)
        try:
            if number // len(TREES) % 20:
                outcome = tried_tree(tree)
            else:
                words = _words(tree, choose)
                ended = CliRunner().invoke(main, words)
                outcome = _tried_words(ended)
        except Exception as error:
            outcome = f"traceback: {type(error).__name__}: {str(error)[:100]}"
        outcomes[outcome.partition(":")[0]] += 1
        of_runs[f"{run}: {outcome.partition(':')[0]}"] += 1
        if outcome.startswith(("traceback", "nonsense")):
            bad.append(f"{outcome} of {str(tree)[:300]}")
    bars = [none_of("tracebacks", outcomes["traceback"]), none_of("accepted nonsense", outcomes["nonsense"])]
    figure = f"{outcomes['traceback']} tracebacks, {outcomes['nonsense']} accepted nonsense"
    figure += f" ({outcomes['refused']:,} refused in words, {outcomes['accepted']:,} accepted; {', '.join(TREES)})"
    return Found(count, figure, bars, more={"outcomes": outcomes, "of_runs": of_runs, "bad": bad[:20]})


def tried_tree(tree: dict[str, Any]) -> str:
    """Whether a tree is accepted, refused, or neither of them as it should be."""
    try:
        experiment = experiment_from(tree)
    except ConfigError as error:
        return "refused" if error.problems and all(error.problems) else "traceback: no sentence"
    try:
        again = as_tree(experiment)
    except ConfigError as error:  # what only a program can give, such as bytes, is refused when a run is written
        return "refused" if error.problems and all(error.problems) else "traceback: no sentence"
    is_same = isinstance(experiment, Experiment) and _is_same(as_tree(experiment_from(again)), again)
    settings = {key: value for key, value in again["config"].items() if key != "env_config"}
    wrong = nonsense(settings) + nonsense(again["stop"]) + nonsense({"checkpoint_freq": again["checkpoint_freq"]})
    if not is_same:
        wrong.append("it is another when it is read again")
    return f"nonsense: {', '.join(wrong)}" if wrong else "accepted"


def _words(tree: dict[str, Any], choose: random.Random) -> list[str]:
    """A command line that says some of it."""
    words = ["train", str(tree.get("env") or "CartPole-v1").replace("\0", ""), "--dry-run"]
    run = tree.get("run")
    if isinstance(run, str):
        words += ["--run", run.replace("\0", "")]
    config = tree.get("config")
    for key, value in list(config.items() if isinstance(config, dict) else [])[: choose.randint(1, 4)]:
        words += ["--set", f"config.{key}={value}".replace("\0", "")]
    return words


def _tried_words(ended: Any) -> str:
    error = ended.exception
    if error is not None and not isinstance(error, SystemExit | ShoalError):
        return f"traceback: {type(error).__name__}: {error}"
    return "accepted" if ended.exit_code == 0 else "refused"
