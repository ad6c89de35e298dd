"""What can be trained here, found without running anybody's code before it must be."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs import registry
from shoal.envs.catalogue import (
    current_ids,
    in_short,
    known_ids,
    short_reason,
    spaces_of_ids,
)
from shoal.envs.packages import registering_packages
from shoal.envs.registry import register_env

REGISTERING = (
    "from gymnasium.envs.registration import register\nregister(id='Lander-v3', entry_point='lander_envs:E')\n"
)


def install(folder: Path, name: str, metadata: str = "", entry_points: str = "", init: str = "") -> None:
    """A distribution as pip leaves it."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n{metadata}")
    (about / "RECORD").write_text(f"{name}/__init__.py,,\n")
    (about / "top_level.txt").write_text(name + "\n")
    if entry_points:
        (about / "entry_points.txt").write_text(entry_points)
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(init or "raise RuntimeError('nobody may import this')\n")


def test_packages_that_register_ids_are_found_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "announced_envs", entry_points="[gymnasium.envs]\n__root__ = announced_envs.__init__:register\n")
    install(tmp_path, "lander_envs", "Requires-Dist: gymnasium>=1.0\n", init=REGISTERING)
    install(tmp_path, "highway_env")  # a known one, which announces nothing
    install(tmp_path, "plain_tools", "Requires-Dist: gymnasium; extra == 'gym'\n", init=REGISTERING)
    install(tmp_path, "quiet_tools", "Requires-Dist: gymnasium\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registering_packages()
    assert {name: found.get(name) for name in ("announced_envs", "lander_envs", "highway_env")} == {
        "announced_envs": "announced-envs",
        "lander_envs": "lander-envs",
        "highway_env": "highway-env",
    }
    assert not {"plain_tools", "quiet_tools", "shoal", "gymnasium"} & set(found)
    assert not {"announced_envs", "lander_envs", "highway_env"} & set(sys.modules)


def test_versions_that_a_newer_one_replaces_are_left_out() -> None:
    ids = known_ids()
    current = current_ids(gymnasium.registry.values())
    assert ids.index("CartPole-v1") < ids.index("CartPole-v0")
    assert "CartPole-v1" in current
    assert not {"CartPole-v0", "GymV21Environment-v0"} & set(current)


def test_spaces_come_from_another_process_which_may_hang_or_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("crashes", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    register_env("hangs", lambda _: signal.pause())
    register_env("prints", lambda _: print("noise") or gymnasium.make("CartPole-v1"))
    register_env("needs", lambda _: importlib.import_module("no_such_package"))
    try:
        found = dict(spaces_of_ids(["crashes", "prints", "needs", "CartPole-v1"]))
        monkeypatch.setattr("shoal.envs.catalogue.MAKING_S", 0.5)
        found |= dict(spaces_of_ids(["hangs"]))
    finally:
        for name in ("crashes", "hangs", "prints", "needs"):
            del registry._creators[name]
    assert found["crashes"] == "its process ended with code -9"
    assert found["hangs"] == "takes more than 0.5 s to make"
    assert found["needs"] == "needs the package no_such_package"
    for name in ("prints", "CartPole-v1"):
        assert [in_short(space) for space in found[name]] == ["Box(4)", "Discrete(2)"]


def test_looking_ends_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.envs.catalogue.BUDGET_S", 0.0)
    assert {answer for _, answer in spaces_of_ids(["CartPole-v1", "Acrobot-v1"])} == {
        "was not checked, because that takes long; give a PATTERN"
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'env X: MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`',
            'needs pip install "gymnasium[mujoco]"',
        ),
        ("env X: No module named 'jax.numpy'", "needs the package jax"),
        ("the licence is gone; ask for another.\nTraceback", "the licence is gone"),
    ],
)
def test_a_reason_is_short(text: str, reason: str) -> None:
    assert short_reason(text) == reason


def test_spaces_in_short() -> None:
    image = spaces.Box(0, 255, (96, 96, 3), np.uint8)
    space = spaces.Dict({"image": image, "speed": spaces.Box(0, 1, ())})
    assert in_short(image) == "Box(96, 96, 3) uint8"
    assert in_short(space) == "Dict(image, speed)"
    assert in_short(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))) == "Tuple(Discrete(3), Discrete(2))"
