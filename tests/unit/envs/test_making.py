from __future__ import annotations

import functools
import logging
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, OrderEnforcing, TimeLimit

from shoal.envs import gym_ids
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import notice_once
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.making import EnvMaker, env_maker, strip
from shoal.envs.registry import register_env
from shoal.errors import ConfigError, EnvError

ENV = """
import gymnasium
from gymnasium import spaces

class CustomEnv(gymnasium.Env):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, config):
        self.config = config
        import neighbour
        self.word = neighbour.WORD

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 1.0, True, False, {}

class Failing(CustomEnv):
    def __init__(self, config):
        raise RuntimeError("no licence")

class Outer:
    class Inner(CustomEnv):
        pass

instance = CustomEnv.__new__(CustomEnv)
number = 3

def not_an_env(config):
    return object()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "custom_env.py").write_text(ENV)
    (tmp_path / "neighbour.py").write_text("WORD = 'hello'\n")
    return tmp_path


class Plain(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Keywords(Plain):
    def __init__(self, size=3, *, speed=1.0, env_index=None):
        self.size, self.speed, self.env_index = size, speed, env_index


class Arguments(Plain):
    def __init__(self, grid, goal, seed_it=False):
        self.grid, self.goal = grid, goal


def make(env: object, config: dict[str, Any] | None = None, user_code: UserCode = INSTALLED) -> Any:
    return env_maker(env, user_code).make(
        EnvContext(config, worker_index=1, vector_index=2, env_index=5, num_workers=3)
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("custom_env.CustomEnv", "custom_env.CustomEnv"),
        ("custom_env:CustomEnv", "custom_env.CustomEnv"),
        ("custom_env.py:CustomEnv", "custom_env.CustomEnv"),
        ("custom_env.Outer.Inner", "custom_env.Outer.Inner"),
        ("custom_env:Outer.Inner", "custom_env.Outer.Inner"),
    ],
)
def test_modules_and_files(folder: Path, source: str, name: str) -> None:
    before = list(sys.path)
    maker = env_maker(source, UserCode.at(folder))
    assert (maker.name, maker.source) == (name, source)
    env: Any = maker.make(EnvContext({"a": 1}, env_index=4))
    assert env.word == "hello"
    assert env.config == {"a": 1}
    assert env.config.env_index == 4
    assert sys.path == before


def test_a_file_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(f"{folder}/custom_env.py:CustomEnv").word == "hello"
    monkeypatch.chdir(folder.parent)
    assert make(f"{folder.name}/custom_env.py:CustomEnv").word == "hello"
    monkeypatch.setenv("HOME", str(folder))
    assert make("~/custom_env.py:CustomEnv").word == "hello"


def test_a_package(folder: Path) -> None:
    (folder / "simulations").mkdir()
    (folder / "simulations" / "__init__.py").touch()
    (folder / "simulations" / "flow.py").write_text(ENV)
    assert make("simulations.flow.CustomEnv", user_code=UserCode.at(folder)).word == "hello"
    assert make("simulations.flow:CustomEnv", user_code=UserCode.at(folder)).word == "hello"


def test_the_same_text_gives_the_same_class(folder: Path) -> None:
    first, second = (make("custom_env.py:CustomEnv", user_code=UserCode.at(folder)) for _ in range(2))
    assert type(first) is type(second)
    assert pickle.loads(pickle.dumps(type(first))) is type(first)


def test_two_folders_with_modules_of_one_name(tmp_path: Path) -> None:
    for word in ("first", "second"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "twin.py").write_text(f"def make():\n    raise RuntimeError('{word}')\n")
        with pytest.raises(EnvError, match=word):
            make("twin:make", user_code=UserCode.at(tmp_path / word))


@pytest.mark.parametrize("source", ["custom_env.CustomEnv", "custom_env.py:CustomEnv"])
def test_another_process_finds_it_again(folder: Path, source: str) -> None:
    path = folder / "maker.pickle"
    path.write_bytes(pickle.dumps(env_maker(source, UserCode.at(folder))))
    code = (
        "import pickle, sys; from shoal.envs.context import EnvContext;"
        f"maker = pickle.load(open({str(path)!r}, 'rb')); print(maker.name, maker.make(EnvContext()).word)"
    )
    src = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": src}, cwd="/", capture_output=True, text=True
    )
    assert done.stdout == "custom_env.CustomEnv hello\n", done.stderr


def test_classes_and_callables() -> None:
    maker = env_maker(Keywords)
    assert maker.name == "Keywords"
    assert maker.source.endswith(":Keywords")
    assert isinstance(make(lambda config: Keywords(config["size"]), {"size": 7}), Keywords)
    assert env_maker(lambda config: None).name == "lambda"
    assert env_maker(functools.partial(Keywords, size=2)).name == "Keywords"
    assert make(functools.partial(Keywords, size=2)).size == 2

    class Local(Plain):
        pass

    assert env_maker(Local).name == "Local"
    again = cloudpickle.loads(cloudpickle.dumps(env_maker(lambda config: Keywords(9))))
    assert again.make(EnvContext()).size == 9


def test_registered_names_come_first() -> None:
    register_env("CartPole-v1", lambda config: Keywords(config["size"]))
    try:
        maker = env_maker("CartPole-v1")
        assert (maker.name, maker.source) == ("CartPole-v1", "CartPole-v1")
        assert maker.make(EnvContext({"size": 4})).size == 4  # type: ignore[union-attr]
    finally:
        from shoal.envs import registry

        del registry._creators["CartPole-v1"]


def test_how_constructors_are_called() -> None:
    env = make(Keywords, {"size": 8, "speed": 0.5})
    assert (env.size, env.speed, env.env_index) == (8, 0.5, 5)
    env = make(Arguments, {"grid": 1, "goal": 2})
    assert (env.grid, env.goal) == (1, 2)

    class Config(Plain):
        def __init__(self, config=None):
            self.config = config

    assert make(Config, {"a": 1}).config.env_index == 5

    class Anything(Plain):
        def __init__(self, **kwargs):
            self.kwargs = kwargs

    assert make(lambda config: Anything(**config), {"a": 1}).kwargs == {"a": 1}, "everybody's idiom"
    assert make(Keywords, {"env_index": 7}).env_index == 7, "what the user says goes before what shoal would"

    assert make(Anything, {"a": 1}).kwargs == {"a": 1}
    assert isinstance(make(Plain), Plain)


@pytest.mark.parametrize(
    ("env", "config", "sentence"),
    [
        (Keywords, {"sise": 1}, r"env_config\.sise: env Keywords takes no such argument; it takes size, speed"),
        (Plain, {"a": 1}, r"env_config\.a: env Plain takes no such argument; it takes none at all"),
        (Arguments, {}, "its constructor also needs goal"),
        (Arguments, {"grid": 1}, "its constructor needs goal"),
        (
            "CartPole-v1",
            {"gravity": 1},
            r"env_config\.gravity: env CartPole-v1 takes no such argument; it takes sutton",
        ),
        (Keywords(), {}, r"an environment already made \(Keywords\)"),
        (None, {}, r"env: needs a Gymnasium id.*\(got None\)"),
        (3, {}, r"\(got 3\)"),
    ],
)
def test_words_that_make_no_environment(env: object, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(env, config)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("custom_envv.CustomEnv", r"no module 'custom_envv' in /.* or the installed packages"),
        ("custom_envv:CustomEnv", r"no module 'custom_envv' in /"),
        ("custom_env.CustomENV", r"custom_env\.py has no 'CustomENV'; did you mean CustomEnv\?"),
        ("custom_env:Zzz", r"custom_env\.py has no 'Zzz'; its environments are: CustomEnv, Failing"),
        ("custom_env.py:Zzz", r"custom_env\.py has no 'Zzz'"),
        ("nothing.py:CustomEnv", r"no file 'nothing\.py' in /"),
        ("/nothing.py:CustomEnv", r"no file '/nothing\.py'$"),
        ("custom_env.py", r"which class in it\? Type custom_env\.py:MyEnv"),
        ("custom_env:", "type my_module:MyEnv"),
        ("custom_env:number", "that is of type int; name a class"),
        ("custom_env:instance", "that is of type CustomEnv; name a class"),
        ("some_program:<lambda>", "start from that program"),
        ("<script>alert(1)</script>", "no such Gymnasium id"),
        ("__main__:Zzz", "defined in the program that started the run"),
        ("CartPole.v1", "did you mean CartPole-v1"),
        ("CartPole-v9", "no such version; type CartPole-v0 or CartPole-v1"),
        ("CartPole", r"which version\? type CartPole-v0 or CartPole-v1"),
        ("CartPoole-v1", r"did you mean CartPole-v1"),
        ("LunarLander-v2", "type LunarLander-v3"),
        ("Pong-v5", "type Pong-v0 or Pong-v4 or ALE/Pong-v5"),
        ("Pung-v5", r"did you mean .*ALE/Pong-v5"),
        ("myenv", r"no name given with shoal\.register_env"),
        ("no such thing!", "no such Gymnasium id"),
    ],
)
def test_texts_that_mean_nothing(folder: Path, source: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        env_maker(source, UserCode.at(folder))
    assert caught.value.exit_code == 2
    assert source in str(caught.value)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import math\n\nimport not_installed_anywhere\n", "ModuleNotFoundError.*not_installed_anywhere.*broken.py:3"),
        ("x = 1\nx.y\n", "AttributeError.*broken.py:2"),
        ("x = = 1\n", "SyntaxError.*broken.py:1"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n", "SystemExit: 2.*broken.py:2"),
    ],
)
@pytest.mark.parametrize("source", ["{0}.Env", "{0}.py:Env"])
def test_errors_inside_the_users_module(tmp_path: Path, code: str, sentence: str, source: str) -> None:
    module = f"m{abs(hash(code))}_broken"
    (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(EnvError, match=sentence) as caught:
        env_maker(source.format(module), UserCode.at(tmp_path))
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is not None
    assert not [name for name in sys.modules if module in name]


def test_a_constructor_that_raises(folder: Path) -> None:
    with pytest.raises(EnvError, match=r"RuntimeError: no licence \(.*custom_env\.py:23\)") as caught:
        make("custom_env.Failing", user_code=UserCode.at(folder))
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(EnvError, match=r"env_index is an attribute of the config; type config\.env_index' \(.*:\d+\)$"):
        make(lambda config: config["env_index"])
    with pytest.raises(EnvError, match=r"KeyError: 'Scalar' \(.*\); does env_config lack 'Scalar'\?"):
        make(lambda config: config["Scalar"])


def test_something_that_is_no_environment(folder: Path) -> None:
    with pytest.raises(EnvError, match="gave object without reset, step, observation_space, action_space") as caught:
        make("custom_env:not_an_env", user_code=UserCode.at(folder))
    assert caught.value.exit_code == 2

    class NoSpaces(gymnasium.Env):
        pass

    with pytest.raises(EnvError, match="gave NoSpaces without observation_space, action_space"):
        make(NoSpaces)


def test_the_standard_library_is_never_hidden(tmp_path: Path) -> None:
    (tmp_path / "fractions.py").write_text("class Env: pass\n")
    (tmp_path / "colorsys.py").write_text("class Env: pass\n")
    with UserCode.at(tmp_path).importable():
        import colorsys
    assert not colorsys.__file__.startswith(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"module 'fractions' is /.*which hides .*fractions\.py; type the file instead"
    ):
        env_maker("fractions:Env", UserCode.at(tmp_path))


def test_user_code_comes_before_installed_packages(tmp_path: Path) -> None:
    with UserCode.at(tmp_path).importable():
        place = sys.path.index(str(tmp_path))
        assert place > sys.path.index(os.path.dirname(os.__file__))
        assert all(sys.path.index(entry) > place for entry in sys.path if entry.endswith("site-packages"))


def test_what_a_module_adds_to_sys_path_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "adds.py").write_text("import sys\nsys.path.insert(0, '/somewhere')\n")
    UserCode.at(tmp_path).load_file("adds.py")
    assert sys.path[0] == "/somewhere"
    assert str(tmp_path) not in sys.path


def test_code_that_anyone_can_change_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "open_env.py").write_text("class Env: pass\n")
    (tmp_path / "open_env.py").chmod(0o666)
    with caplog.at_level(logging.INFO, "shoal"):
        env_maker("open_env:Env", UserCode.at(tmp_path))
    assert f"environment code comes from {tmp_path}/open_env.py" in caplog.text
    assert "can be written by every user" in caplog.text


def test_old_versions_are_told_once_and_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    notice_once.cache_clear()
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "shoal"):
        warnings.simplefilter("error")
        for _ in range(3):
            maker = env_maker("CartPole-v0")
            assert strip(maker.make(EnvContext()))[1] == 200  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == [
        "env CartPole-v0 is an old version; CartPole-v1 is the current one"
    ]


def test_gymnasium_ids_take_keywords() -> None:
    assert make("CartPole-v1", {"sutton_barto_reward": True}).unwrapped._sutton_barto_reward
    assert strip(make("CartPole-v1", {"max_episode_steps": 7}))[1] == 7


def test_an_id_registered_here_works_where_it_is_not() -> None:
    gymnasium.register("OnlyHere-v0", entry_point=Keywords, kwargs={"size": 6}, max_episode_steps=11)
    data = cloudpickle.dumps(env_maker("OnlyHere-v0"))
    del gymnasium.registry["OnlyHere-v0"]
    again: EnvMaker = cloudpickle.loads(data)
    env, limit = strip(again.make(EnvContext()))  # type: ignore[arg-type]
    assert (env.size, limit) == (6, 11)  # type: ignore[attr-defined]


def test_gymnasiums_module_and_id(folder: Path) -> None:
    (folder / "registers.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('FromModule-v0', entry_point='custom_env:CustomEnv', kwargs={'config': {}})\n"
    )
    maker = env_maker("registers:FromModule-v0", UserCode.at(folder))
    assert maker.name == "FromModule-v0"
    env: Any = maker.make(EnvContext())
    assert env.unwrapped.word == "hello"


ATARI = [
    ("ALE/Pong-v5", (210, 160, 3), 4, 0.25),
    ("Pong-v0", (210, 160, 3), (2, 5), 0.25),
    ("PongNoFrameskip-v4", (210, 160, 3), 1, 0.0),
    ("Pong-ram-v0", (128,), (2, 5), 0.25),
    ("Pong-ram-v4", (128,), (2, 5), 0.0),
    ("Pong-ramNoFrameskip-v4", (128,), 1, 0.0),
    ("Pong-ramDeterministic-v0", (128,), 4, 0.25),
    ("SpaceInvadersDeterministic-v4", (210, 160, 3), 3, 0.0),
]


@pytest.mark.parametrize(("env_id", "shape", "frameskip", "sticky"), ATARI)
def test_atari_names_old_and_new(env_id: str, shape: tuple[int, ...], frameskip: Any, sticky: float) -> None:
    pytest.importorskip("ale_py")
    maker = env_maker(env_id)
    assert maker.name == env_id.replace("/", "_")
    env: Any = maker.make(EnvContext())
    assert env.observation_space.shape == shape
    assert env.unwrapped._frameskip == frameskip
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == pytest.approx(sticky)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.observation_space.contains(env.step(0)[0])
    env.close()


def test_atari_settings_can_be_changed() -> None:
    pytest.importorskip("ale_py")
    assert make("Pong-ram-v0", {"frameskip": 4}).unwrapped._frameskip == 4


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Pong-ram-v0", "PongNoFrameskip-v9", "Pong-v0"])
def test_without_the_atari_extra(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {key: spec for key, spec in gymnasium.registry.items() if "ale_py" not in str(spec.entry_point)}
    monkeypatch.setattr(gymnasium, "registry", others)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal-rl\[atari\]'"):
        env_maker(env_id)


def test_nearest_ids_know_registered_names() -> None:
    register_env("my_reactor", Plain)
    assert gym_ids.nearest_ids("my_reactr") == ["my_reactor"]


def test_strip_takes_off_gymnasiums_own_outer_wrappers() -> None:
    env = gymnasium.make("CartPole-v1")
    bare, limit = strip(TimeLimit(OrderEnforcing(env), 20))
    assert bare is env.unwrapped
    assert limit == 20
    assert strip(TimeLimit(env, 1000))[1] == 500
    assert strip(env.unwrapped) == (env.unwrapped, None)


def test_strip_stops_at_other_wrappers() -> None:
    class MyLimit(TimeLimit):
        pass

    inner = ClipReward(gymnasium.make("CartPole-v1"), -1, 1)
    assert strip(TimeLimit(inner, 9)) == (inner, 9)
    own = MyLimit(gymnasium.make("CartPole-v1"), 9)
    assert strip(own) == (own, None)
