"""The pages on environments of other libraries, on vectors and on importing: what they say to type ends well."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.bridges.vector_env import KEYS
from shoal.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def lines_of(text: str) -> list[str]:
    return [re.split(r" +# ", line)[0] for line in re.findall(r"^ {4}(shoal .*)$", text, re.MULTILINE)]


def snippets(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(line: str) -> str:
    done = CliRunner().invoke(main, shlex.split(line)[1:], prog_name="shoal")
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    return done.output


def test_the_vector_of_the_page_steps() -> None:
    text = page("vector_envs")
    exec(snippets(text)[0], {})
    told = set(re.findall(r"`((?:env|num|max)_\w+|wrappers|horizon|randomize|seed)[`=]", text))
    assert {key for key in told if key in KEYS} >= {"env_step_timeout_s", "env_config", "randomize", "max_env_failures"}
    with pytest.raises(shoal.ConfigError, match="make_vec takes"):
        shoal.make_vec("CartPole-v1", lr=1)


@pytest.mark.slow
def test_stable_baselines_trains_as_the_page_says(home: Path) -> None:
    pytest.importorskip("stable_baselines3")
    exec(snippets(page("vector_envs"))[1], {"__name__": "__main__"})


@pytest.mark.slow
def test_old_gym(home: Path) -> None:
    text = page("doors/old_gym")
    (home / "ramp.py").write_text(snippets(text)[0])
    for line in lines_of(text)[:2]:
        typed(line)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gym") is None, reason="gym is not installed here; make test-old-gym has it")
def test_what_old_gym_makes(home: Path) -> None:
    text = page("doors/old_gym")
    (home / "old.py").write_text(snippets(text)[1])
    check, train = lines_of(text)[2:]
    typed(check)
    typed(train.replace("timesteps_total=20000", "timesteps_total=3000"))


@pytest.mark.slow
def test_pettingzoo(home: Path) -> None:
    pytest.importorskip("pettingzoo")
    listed, checked, _ = [typed(line) for line in lines_of(page("doors/pettingzoo"))]
    assert "tictactoe" in listed
    assert checked


@pytest.mark.slow
def test_minari(home: Path) -> None:
    pytest.importorskip("minari")
    for line in lines_of(page("doors/minari")):
        typed(line)


@pytest.mark.slow
def test_dm_control(home: Path) -> None:
    if find_spec("dm_control") is None or find_spec("shimmy") is None:
        pytest.skip(
            "dm_control and shimmy are not installed here; make test-dm-control runs this in an environment of its own"
        )
    check, train = lines_of(page("doors/dm_control"))
    typed(check)
    typed(train.replace("timesteps_total=100000", "timesteps_total=200"))
    made: dict[str, object] = {}
    exec(snippets(page("doors/dm_control"))[0], made)
    with closing(shoal.make_vec(made["make"], num_envs=2)) as env:
        env.reset(seed=1)
        env.step(env.action_space.sample())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gym_unity") is None, reason="ML-Agents is not installed here; make test-old-gym has it")
def test_unity_with_a_stand_in_for_the_game(home: Path) -> None:
    text = page("doors/unity")
    assert "With Unity itself it is not tested." in text
    made = snippets(text)[0].replace("from mlagents_envs.environment import", "from unity_game import")
    (home / "game.py").write_text(made)
    shutil.copy(ROOT / "tests/shared/unity_game.py", home)
    (train,) = lines_of(text)
    typed("shoal check game.py:make")
    said = typed(f"{train} --stop timesteps_total=4000 --set num_envs_per_worker=4 --seed 1")
    assert "incident" not in said


def test_the_page_on_importing_names_real_options() -> None:
    text = page("importing")
    done = CliRunner().invoke(main, ["import", "--help"], prog_name="shoal")
    options = set(re.findall(r"--[a-z-]+", done.output))
    used = {
        word for line in lines_of(text) if line.startswith("shoal import") for word in line.split() if word[:2] == "--"
    }
    assert used <= options
    for name in ("make_sb3.py", "make_rllib.py"):
        assert name in text
        assert (ROOT / "tests" / "foreign_models" / name).exists()
