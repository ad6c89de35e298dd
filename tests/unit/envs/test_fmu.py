"""FMUs: one built here from C, for both versions of FMI."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.config.experiment import experiments_from_file
from shoal.envs.context import EnvContext
from shoal.envs.fmu import FmuEnv
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker
from shoal.errors import ConfigError

pytest.importorskip("fmpy", reason="FMPy is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

SIMULATOR = Path(__file__).parents[3] / "examples/simulators/fmu"
HEATER = {"fmu": "heater.fmu", "step_size": 1.0, "stop_time": 5.0, "reward": "-abs(T - 20) - u"}


@pytest.fixture(scope="module", params=["2.0", "3.0"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fmu")
    builder = UserCode.at(SIMULATOR).load_file(str(SIMULATOR / "build_fmu.py"))
    builder.build(request.param, place / "heater.fmu")
    return place


def made(folder: Path, ctx: EnvContext | None = None, **other: Any) -> FmuEnv:
    maker = env_maker({**HEATER, **other}, UserCode.at(folder))
    env = pickle.loads(pickle.dumps(maker)).make(ctx or EnvContext())
    assert isinstance(env, FmuEnv)
    return env


def test_its_variables_are_spaces_and_it_follows_its_equation(folder: Path) -> None:
    env = made(folder, EnvContext({"outside": 0.0}))
    try:
        assert env.action_space == spaces.Box(0, 1, (1,))
        assert env.observation_space == spaces.Box(-50, 100, (1,))
        obs, _ = env.reset(seed=1)
        assert obs.tolist() == [15]
        temperature, ends = 15.0, []
        for _ in range(5):
            obs, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
            for _ in range(100):
                temperature += 0.01 / 10 * (10 - temperature)
            assert obs[0] == pytest.approx(temperature, rel=1e-6)
            assert reward == pytest.approx(-abs(temperature - 20) - 0.5, rel=1e-5)
            ends.append((terminated, truncated))
        assert ends == [(False, False)] * 4 + [(False, True)]
        assert env.reset(options={"T": 18.0})[0].tolist() == [18]
        assert env.reset()[0].tolist() == [15]
    finally:
        env.close()
    assert not Path(env._folder).exists()


def test_an_end_is_a_formula_and_bounds_may_be_others(folder: Path) -> None:
    env = made(folder, terminated="T > 16", bounds={"u": [0, 3]}, outputs=["T", "outside"])
    try:
        assert env.action_space == spaces.Box(0, 3, (1,))
        assert env.reset()[0].tolist() == [15, 5]
        assert env.step(np.array([3.0]))[2] is True
    finally:
        env.close()


@pytest.mark.parametrize(
    ("other", "ctx", "words"),
    [
        ({"fmu": "nothing.fmu"}, {}, "there is no file"),
        ({"fmu": "text.fmu"}, {}, "is no FMU"),
        ({"fmu": "empty.fmu"}, {}, "is no FMU"),
        ({"inputs": ["v"]}, {}, "has no variable v; its inputs are u"),
        ({"inputs": ["capacity"]}, {}, r"set env.bounds.capacity=\[LOW, HIGH\]"),
        ({"reward": "-X"}, {}, "unknown name X; there are T, time, u"),
        ({"terminated": "T >"}, {}, "is no formula"),
        ({}, {"mass": 1}, "has no variable mass; start values have u, T, capacity, outside"),
        ({"step_size": 0}, {}, "env.step_size: must be more than 0"),
        ({"bounds": {"u": [1, 0]}}, {}, "u must be"),
    ],
)
def test_bad_input_is_a_sentence(folder: Path, other: dict[str, Any], ctx: dict[str, Any], words: str) -> None:
    (folder / "text.fmu").write_text("no archive")
    with zipfile.ZipFile(folder / "empty.fmu", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(ConfigError, match=words):
        made(folder, EnvContext(ctx), **other)


def test_the_example_is_learned(folder: Path) -> None:
    shutil.copy(SIMULATOR / "heater.yml", folder)
    [experiment] = experiments_from_file(folder / "heater.yml")
    config = {**experiment.config.model_dump(exclude_unset=True), "seed": 3}
    trainer = shoal.PPO(config, search_path=[folder])
    try:
        best = max(trainer.train()["episode_reward_mean"] for _ in range(15))
    finally:
        trainer.stop()
    assert best > -12  # at random: about -28
