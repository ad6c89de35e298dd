"""RLlib's side of what survives what; `survive.py` has the commands."""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import survive
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig

PARTS = 2  # iterations of each part of a run that is resumed
SMALL = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2}
REPLAY = {"train_batch_size_per_learner": 64, "num_steps_sampled_before_learning_starts": 100}
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "PPO": (PPOConfig, "CartPole-v1", SMALL),
    "APPO": (APPOConfig, "CartPole-v1", {"train_batch_size_per_learner": 256}),
    "DQN": (DQNConfig, "CartPole-v1", REPLAY),
    "SAC": (SACConfig, "Pendulum-v1", REPLAY),
}
ALONE = ("APPO",)  # which does not promise the same with runners of its own; shoal's is tried without workers too


def algorithm(kind: Any, env: str, settings: dict[str, Any], num_runners: int, seed: int) -> Any:
    """An algorithm of RLlib's; two environments in all, and a Ray in which its runners have a place."""
    if not ray.is_initialized():
        ray.init(num_cpus=4)
    return (
        kind()
        .environment(env)
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=2 // max(num_runners, 1))
        .training(**settings)
        .debugging(seed=seed)
        .build_algo()
    )


def new(seed: int = 1) -> Any:
    """PPO with its own network."""
    return algorithm(PPOConfig, "CartPole-v1", SMALL, 0, seed)


def learned(seed: int) -> Any:
    """One that has learned, so that its optimiser has a state."""
    algo = new(seed)
    algo.train()
    return algo


def _module(algo: Any) -> Any:
    return algo.learner_group._learner.module["default_policy"]


def _marked(algo: Any) -> torch.nn.Parameter:
    (found,) = [
        value for name, value in _module(algo).named_parameters() if name.startswith("vf") and value.shape == (1,)
    ]
    return found


def numbered(algo: Any, number: int) -> Any:
    """The algorithm with a number in its weights."""
    with torch.no_grad():
        _marked(algo).fill_(number)
    return algo


def save(algo: Any, place: Path) -> None:
    """As its documentation has it, into one folder, which is overwritten."""
    algo.save_to_path(str(place.absolute()))


def load(place: Path) -> Any:
    """The same."""
    return Algorithm.from_checkpoint(str(place.absolute()))


def number_of(algo: Any) -> int:
    """What was put into its weights."""
    return round(float(_marked(algo)))


def digest(algo: Any) -> str:
    """What stands for weights and the optimiser's state."""
    optimizers = [optimizer.state_dict() for optimizer in algo.learner_group._learner._optimizer_parameters]
    return survive.digest([_module(algo).state_dict(), optimizers])


def bombs(place: Path, canary: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each pickle of a checkpoint, with a stranger's object in its place."""
    for file in sorted(place.rglob("*.pkl")):
        name = str(file.relative_to(place))
        yield name, {name: pickle.dumps(survive.Bomb(canary))}


def resumed(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Weights of a run that was cut in two, and of two that were not."""
    for name, (kind, env, settings) in CASES.items():
        for num_runners in (0,) if name in ALONE else (0, 2):
            given = (kind, env, settings, num_runners, 5)
            yield (
                f"{name} with {num_runners} runners",
                [_trained(given, folder / f"{name}-{num_runners}"), _trained(given), _trained(given)],
            )


def _trained(given: Any, cut: Path | None = None) -> str:
    algo = algorithm(*given)
    for number in range(2 * PARTS):
        if cut is not None and number == PARTS:
            save(algo, cut)
            algo.stop()
            algo = load(cut)
        algo.train()
    told = survive.digest([_module(algo).state_dict()])
    algo.stop()
    return told


def train(folder: Path, num_workers: int) -> None:
    """What its documentation begins with: train in a loop, then save."""
    algo = algorithm(PPOConfig, "CartPole-v1", SMALL, num_workers, 3)
    while algo.iteration < 10**9:
        algo.train()
        survive.say(f"iter {algo.iteration}")
    save(algo, folder)


def serve() -> None:
    """A Ray as its documentation starts it, for another user of the machine to try."""
    context = ray.init(num_cpus=1)

    @ray.remote
    def nothing() -> None:
        """Starts a worker."""

    ray.get(nothing.remote())
    survive.say(json.dumps({"folder": context["session_dir"]}))
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        survive.main(sys.modules[__name__])
