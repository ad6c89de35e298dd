"""Stable-Baselines3's side of what survives what; `survive.py` has the commands."""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import survive
import torch
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

STEPS = 512  # of one part of a run that is resumed
LAYOUTS = {"0 workers": DummyVecEnv, "2 workers": SubprocVecEnv}
ON_POLICY = {"n_steps": 128}
OFF_POLICY = {"learning_starts": 100, "buffer_size": 2000}
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "PPO": (PPO, "CartPole-v1", ON_POLICY),
    "A2C": (A2C, "CartPole-v1", {"n_steps": 8}),
    "TRPO": (TRPO, "CartPole-v1", ON_POLICY),
    "DQN": (DQN, "CartPole-v1", OFF_POLICY),
    "SAC": (SAC, "Pendulum-v1", OFF_POLICY),
    "TD3": (TD3, "Pendulum-v1", OFF_POLICY),
}


class Told(BaseCallback):  # type: ignore[misc]
    """Prints a line after each iteration."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        survive.say(f"iter {self.num_timesteps}")


def new(seed: int = 1) -> Any:
    """A model of the size that shoal's checkpoints have in the same row."""
    return PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=seed, policy_kwargs={"net_arch": [400, 400]})


def learned(seed: int) -> Any:
    """One that has learned, so that its optimiser has a state."""
    return PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=seed, n_steps=64).learn(64)


def numbered(model: Any, number: int) -> Any:
    """The model with a number in its weights."""
    with torch.no_grad():
        model.policy.value_net.bias.fill_(number)
    return model


def save(model: Any, place: Path) -> None:
    """As its documentation has it: one file, which is overwritten."""
    model.save(place / "model.zip")


def load(place: Path) -> Any:
    """The same."""
    return PPO.load(place / "model.zip", device="cpu")


def number_of(model: Any) -> int:
    """What was put into its weights."""
    return round(float(model.policy.value_net.bias))


def digest(model: Any) -> str:
    """What stands for weights and the optimiser's state."""
    return survive.digest([model.policy.state_dict(), model.policy.optimizer.state_dict()])


def save_replay_for_ever(folder: Path) -> None:
    """Overwrite the file of a replay buffer."""
    model = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=20_000, learning_starts=10**9)
    for number in range(10**9):
        model.replay_buffer.rewards.fill(number)
        model.save_replay_buffer(folder / "replay.pkl")
        survive.say(str(number))


def replay_number(file: Path) -> int:
    """What is in each row of a saved buffer."""
    model = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=20_000)
    model.load_replay_buffer(file)
    (number,) = set(model.replay_buffer.rewards.ravel().tolist())
    return int(number)


def swapped(place: Path, other: Path) -> None:
    """Put one part of another checkpoint's in the place of this one's: its weights, or its optimiser's state."""
    files = {name: _parts(each / "model.zip") for name, each in (("own", place), ("other", other))}
    name = "policy.pth" if place.name[-1] in "02468" else "policy.optimizer.pth"
    _pack(place / "model.zip", {**files["own"], name: files["other"][name]})


def bombs(place: Path, canary: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each part of a checkpoint that can carry a stranger's object, with one in it."""
    whole = _parts(place / "model.zip")
    bomb = survive.Bomb(canary)
    settings = json.loads(whole["data"])
    for name in [key for key, value in settings.items() if isinstance(value, dict) and ":serialized:" in value]:
        packed = base64.b64encode(cloudpickle.dumps(bomb)).decode()
        changed = {**settings, name: {**settings[name], ":serialized:": packed}}
        yield f"data: {name}", {"model.zip": _packed({**whole, "data": json.dumps(changed).encode()})}
    for name in [name for name in whole if name.endswith(".pth")]:
        packed_bomb = io.BytesIO()
        torch.save(bomb, packed_bomb, pickle_module=pickle)
        yield name, {"model.zip": _packed({**whole, name: packed_bomb.getvalue()})}


def _parts(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(parts: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _pack(file: Path, parts: dict[str, bytes]) -> None:
    file.write_bytes(_packed(parts))


def resumed(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Weights of a run that was cut in two, and of two that were not."""
    for name, (kind, env, settings) in CASES.items():
        for layout, vector in LAYOUTS.items():
            yield (
                f"{name} with {layout}",
                [
                    _trained(kind, env, settings, vector, folder / "cut"),
                    _trained(kind, env, settings, vector),
                    _trained(kind, env, settings, vector),
                ],
            )


def _trained(kind: Any, env: str, settings: dict[str, Any], vector: Any, cut: Path | None = None) -> str:
    envs = make_vec_env(env, 2, seed=5, vec_env_cls=vector)
    model = kind("MlpPolicy", envs, device="cpu", seed=5, **settings)
    has_replay = hasattr(model, "save_replay_buffer")
    if cut is None:
        model.learn(2 * STEPS)
    else:
        model.learn(STEPS)
        model.save(cut)
        if has_replay:
            model.save_replay_buffer(f"{cut}.pkl")
        envs.close()
        envs = make_vec_env(env, 2, seed=5, vec_env_cls=vector)
        model = kind.load(cut, envs, device="cpu")
        if has_replay:
            model.load_replay_buffer(f"{cut}.pkl")
        model.learn(STEPS, reset_num_timesteps=False)
    envs.close()
    return survive.digest([model.policy.state_dict()])


def train(folder: Path, num_workers: int) -> None:
    """What its documentation begins with: learn, then save."""
    vector = SubprocVecEnv if num_workers else DummyVecEnv
    envs = make_vec_env("CartPole-v1", max(num_workers, 1), seed=3, vec_env_cls=vector)
    model = PPO("MlpPolicy", envs, n_steps=256, device="cpu", seed=3)
    try:
        model.learn(10**9, callback=Told())
    finally:
        survive.say("learn has ended")
    model.save(folder / "model.zip")


if __name__ == "__main__":
    survive.main(sys.modules[__name__])
