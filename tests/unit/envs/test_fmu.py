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
from same_training import assert_restored_exactly

import shoal
from shoal.config.experiment import experiments_from_file
from shoal.config.program_envs import checked_program, fmu_config
from shoal.envs.context import EnvContext
from shoal.envs.fmu import FmuEnv
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker
from shoal.errors import ConfigError

pytest.importorskip("fmpy", reason="FMPy is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

SIMULATOR = Path(__file__).parents[3] / "examples/simulators/fmu"
HEATER = {"fmu": "heater.fmu", "step_size": 1.0, "stop_time": 5.0, "reward": "-abs(T - 20) - u"}


def builder() -> Any:
    return UserCode.at(SIMULATOR).load_file(str(SIMULATOR / "build_fmu.py"))


@pytest.fixture(scope="module", params=["2.0", "3.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fmu")
    builder().build(version, place / "heater.fmu")
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
        ({"step_size": None}, {}, "env.step_size: the FMU has no default for it; set env.step_size"),
        ({"stop_time": None}, {}, "env.stop_time: the FMU has no default for it"),
    ],
)
def test_bad_input_is_a_sentence(folder: Path, other: dict[str, Any], ctx: dict[str, Any], words: str) -> None:
    (folder / "text.fmu").write_text("no archive")
    with zipfile.ZipFile(folder / "empty.fmu", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(ConfigError, match=words):
        made(folder, EnvContext(ctx), **other)


def test_an_fmu_without_inputs_is_a_sentence(folder: Path) -> None:
    with zipfile.ZipFile(folder / "heater.fmu") as whole, zipfile.ZipFile(folder / "free.fmu", "w") as archive:
        for name in whole.namelist():
            content = whole.read(name)
            if name == "modelDescription.xml":
                assert b'causality="input"' in content
                content = content.replace(b'causality="input"', b'causality="local"')
            archive.writestr(name, content)
    with pytest.raises(ConfigError, match=r"free.fmu has no inputs that are numbers; name variables in env.inputs"):
        made(folder, fmu="free.fmu")


DRIFT = {
    "#include <stdlib.h>": "#include <math.h>\n#include <stdlib.h>\n#include <time.h>",
    "double values[COUNT];": "double values[COUNT], drift;",
    "memcpy(heater->values, START, sizeof START);": "*heater = (Heater){{0, 15, 10, 5}, now.tv_nsec / 1e9};",
    "static Heater *made(void) {": (
        "static Heater *made(void) {\n    struct timespec now;\n    clock_gettime(CLOCK_REALTIME, &now);"
    ),
    "double *v = heater->values, dt = duration / 100;": (
        "double *v = heater->values, dt = duration / 100;\n"
        "    v[TEMPERATURE] += heater->drift = fmod(7 * heater->drift + 0.3, 1);"
    ),
}
"""What gives the heater a drift that neither start values nor inputs determine, and that fmi2Reset leaves as it is."""


@pytest.fixture(scope="module")
def drifting(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That heater, one that cannot write its state to bytes (keeps.fmu), and one that has no states (plain.fmu)."""
    place = tmp_path_factory.mktemp("drifting")
    source = (SIMULATOR / "heater.c").read_text()
    for old, new in DRIFT.items():
        assert old in source
        source = source.replace(old, new, 1)
    (place / "heater.c").write_text(source)
    builder().build(version, place / "heater.fmu", place / "heater.c")
    keep, write = (f' can{what}FMU{"s" if version == "2.0" else "S"}tate="true"' for what in ("GetAndSet", "Serialize"))
    for name, flags in {"keeps": [write], "plain": [keep, write]}.items():
        with zipfile.ZipFile(place / "heater.fmu") as old_file, zipfile.ZipFile(place / f"{name}.fmu", "w") as new_file:
            for item in old_file.namelist():
                content = old_file.read(item)
                for flag in flags:
                    assert flag.encode() in content or not item.endswith(".xml")
                    content = content.replace(flag.encode(), b"")
                new_file.writestr(item, content)
    return place


def episode_of(env: FmuEnv, steps: int = 4) -> list[float]:
    return [float(env.step(np.array([0.4], np.float32))[0][0]) for _ in range(steps)]


def test_its_state_goes_to_another_instance(drifting: Path) -> None:
    one, other = made(drifting), made(drifting)
    try:
        one.reset()
        other.reset()
        episode_of(one, 2)
        other.set_state(one.get_state())
        assert episode_of(one, 3) == episode_of(other, 3)
        assert one._time == other._time == 5
        assert len(one.get_state()["fmu"]) == 5 * 8
    finally:
        one.close()
        other.close()


def test_a_reset_goes_back_to_the_first_state_where_the_fmu_can(drifting: Path) -> None:
    kinds = {"heater": True, "keeps": True, "plain": False}
    for name, goes_back in kinds.items():
        env = made(drifting, fmu=f"{name}.fmu")
        try:
            env.reset()
            first = episode_of(env)
            assert env.reset()[0].tolist() == [15]
            assert (episode_of(env) == first) is goes_back
            assert env.reset(options={"T": 18.0})[0].tolist() == [18]
            assert env.reset(options={"T": 18.0})[0].tolist() == [18]
            assert env.reset()[0].tolist() == [15]
            assert (env.get_state() is None) is (name != "heater")
        finally:
            env.close()


@pytest.mark.repeats(1)
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_run_goes_on_exactly_without_a_replay(drifting: Path, tmp_path: Path, isolation: str) -> None:
    config = {
        "env": {**HEATER, "stop_time": 1000.0},  # what a reset gives is for each instance to say
        "num_envs_per_worker": 2,
        "train_batch_size": 40,
        "sgd_minibatch_size": 20,
        "num_sgd_iter": 1,
        "env_isolation": isolation,
    }
    trainers: list[shoal.Trainer] = []

    def make() -> shoal.Trainer:
        trainers.append(shoal.PPO(config, search_path=[drifting]))
        return trainers[-1]

    try:
        assert_restored_exactly(make, tmp_path, 2)
    finally:
        for trainer in trainers:
            trainer.stop()


def test_its_default_experiment_says_how_long_a_step_and_an_episode_are(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(folder / "heater.fmu") as old, zipfile.ZipFile(tmp_path / "heater.fmu", "w") as new:
        for item in old.namelist():
            default = b'<DefaultExperiment stopTime="3" stepSize="0.5"/><ModelVariables>'
            new.writestr(item, old.read(item).replace(b"<ModelVariables>", default))
    env = made(tmp_path, step_size=None, stop_time=None)
    try:
        env.reset()
        ends = [env.step(np.array([0.5]))[3] for _ in range(6)]
    finally:
        env.close()
    assert ends == [False] * 5 + [True]


@pytest.mark.filterwarnings("error")
def test_a_description_with_bounds_is_kept_as_it_was_written() -> None:
    written = {"fmu": "heater.fmu", "reward": "-T", "bounds": {"u": [0.0, 1.0]}}
    assert checked_program(written) == written


def test_a_missing_reward_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"env.reward: is missing; .* --set env.reward="):
        fmu_config({"fmu": "heater.fmu"})


@pytest.mark.repeats(1)
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
