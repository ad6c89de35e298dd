"""`CaseEnv` on a real solver in C: its numbers, what counts as diverged, what is kept, and that PPO learns on it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.envs import CaseEnv
from shoal.envs.context import EnvContext
from shoal.errors import ConfigError, EnvError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/simulators/case"
CELLS = 64
X = np.arange(CELLS) * 2 * np.pi / CELLS

Make = Callable[..., Any]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example whose solver is built by the command in its source."""
    folder = tmp_path_factory.mktemp("example") / "case"
    shutil.copytree(EXAMPLE, folder)
    [command] = re.findall(r"cc -O2 .*", (folder / "burgers.c").read_text())
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return folder


@pytest.fixture
def made(example: Path, tmp_path: Path) -> Iterator[Make]:
    """Makes the example's environment, with some of its attributes changed; failed cases are kept in `failed`."""
    spec = util.spec_from_file_location("burgers_env", example / "burgers_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    envs = []

    def make(env_index: int = 3, **changes: Any) -> Any:
        changed = type("Changed", (module.Burgers,), {"failed_dir": tmp_path / "failed", **changes})
        envs.append(changed(EnvContext(env_index=env_index)))
        return envs[-1]

    yield make
    for env in envs:
        env.close()
        env.config.release()


def advanced(u: np.ndarray, force: float, viscosity: float = 0.2) -> np.ndarray:
    """Burgers' equation as `burgers.c` solves it: upwind in space, 20 explicit steps in time."""
    dx, dt = 2 * np.pi / CELLS, 0.01
    for _ in range(20):
        left, right = np.roll(u, 1), np.roll(u, -1)
        slope = np.where(u > 0, u - left, right - u) / dx
        u = u + dt * (-u * slope + viscosity * (left - 2 * u + right) / dx**2 + force * np.sin(X))
    return u


def failed(env: Any) -> dict[str, Any]:
    """The info of a step that diverges."""
    first, _ = env.reset(seed=1)
    obs, reward, terminated, truncated, info = env.step(np.array([0.5], np.float32))
    assert reward == env.penalty
    assert (terminated, truncated) == (True, False)
    assert obs is first
    return info


def kept_cases(folder: Path) -> list[str]:
    return sorted(case.name for case in (folder / "failed").glob("*"))


def test_steps_are_those_of_the_scheme(made: Make) -> None:
    env = made()
    obs, _ = env.reset(seed=4)
    amplitude = np.random.Generator(np.random.PCG64(4)).uniform(-1, 1)
    wave = amplitude * np.sin(X)
    np.testing.assert_allclose(obs, [amplitude, 0], atol=1e-6)
    for force in (0.5, -1.0, 0.25):
        obs, reward, terminated, truncated, info = env.step(np.array([force], np.float32))
        wave = advanced(wave, force)
        np.testing.assert_allclose(np.loadtxt(env.case / "state.txt"), wave, atol=1e-12)
        np.testing.assert_allclose(obs, [2 * np.mean(wave * np.sin(X)), 2 * np.mean(wave * np.cos(X))], atol=1e-6)
        assert reward == pytest.approx(-np.mean(wave**2))
        assert (terminated, truncated, info) == (False, False, {})
    assert (env.case / "control.txt").read_text() == "force 0.25\nviscosity 0.2\n"


def test_each_episode_has_a_copy_of_the_template(made: Make, example: Path) -> None:
    env = made()
    env.reset(seed=1)
    first = env.case
    assert Path(env.config.scratch_dir) in first.parents
    for step in range(25):
        *_, truncated, _ = env.step(np.zeros(1, np.float32))
        assert truncated == (step == 24)
    env.reset()
    assert env.case != first
    assert not first.exists()
    assert not (env.case / "control.txt").exists()
    env.close()
    assert not env.case.exists()
    assert sorted(file.name for file in (example / "template").iterdir()) == ["burgers", "control.txt.template"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"inputs": lambda self, action: {"force": 1e9}},
            r"the solver ended with code 1; it printed last: diverged at step \d+",
        ),
        ({"inputs": lambda self, action: {"force": "much"}}, "the solver ended with code 2"),
        ({"command": ("sleep", "600"), "timeout_s": 0.2}, "the solver took more than 0.2 s"),
        ({"command": ("sh", "-c", "kill -9 $$")}, "the solver ended with code -9"),
        ({"command": ("sh", "-c", "echo nonsense > state.txt")}, "its output cannot be read: ValueError: .*nonsense.*"),
        ({"command": ("rm", "state.txt")}, "its output cannot be read: FileNotFoundError: .*"),
        ({"command": ("sh", "-c", "echo nan > state.txt")}, "its reward is nan"),
        (
            {"command": ("sh", "-c", "head -c 3000000 /dev/zero > field.bin"), "max_case_mb": 1},
            "the case takes 3 MB, more than the 1 that it may",
        ),
        ({"has_diverged": lambda self, code: "its residual is too large"}, "its residual is too large"),
    ],
)
def test_what_diverges_ends_the_episode_and_is_kept(
    made: Make, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    env = made(**changes)
    info = failed(env)
    assert re.fullmatch(why, info["diverged"])
    case = Path(info["case"])
    assert case == tmp_path / "failed/env3_case_000001"
    assert (case / "control.txt").is_file()
    assert (case / "log.solver").is_file()
    env.reset()
    env.close()
    assert case.is_dir()


def test_the_newest_failed_cases_of_each_environment_are_kept(made: Make, tmp_path: Path) -> None:
    changes = {"command": ("false",), "keep_failed": 2}
    failed(made(env_index=4, **changes))
    env = made(**changes)
    for _ in range(4):
        assert Path(failed(env)["case"]).is_dir()
    assert kept_cases(tmp_path) == ["env3_case_000003", "env3_case_000004", "env4_case_000001"]
    assert Path(failed(made(**changes))["case"]).is_dir()  # an environment in its place begins to count anew
    assert kept_cases(tmp_path) == ["env3_case_000001", "env3_case_000004", "env4_case_000001"]


def test_no_failed_case_is_kept_if_none_is_wanted(made: Make, tmp_path: Path) -> None:
    assert failed(made(command=("false",), keep_failed=0))["case"] == ""
    assert kept_cases(tmp_path) == []


def test_a_place_that_nothing_fills_is_an_error(made: Make) -> None:
    env = made(inputs=CaseEnv.inputs)
    env.reset()
    with pytest.raises(EnvError, match=r"control\.txt\.template has the place @force@, .* it fills action0"):
        env.step(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"template": "nowhere"}, "Changed.template: there is no folder nowhere"),
        ({"command": ("no_such_solver", "-v")}, "Changed.command: there is no program 'no_such_solver -v' here"),
        ({"command": ()}, "Changed.command: there is no program '' here"),
    ],
)
def test_what_cannot_run_is_refused(made: Make, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        made(**changes)


def test_another_environment_goes_on_from_the_files_of_a_case(made: Make) -> None:
    def restore(env: Any, state: dict[str, Any]) -> None:
        env.time = state["time"]
        env.restore_case_files(state["files"])

    methods = {"get_state": lambda env: {"time": env.time, "files": env.case_files()}, "set_state": restore}
    one, other = made(**methods), made(env_index=4, **methods)
    action = np.array([0.3], np.float32)
    for env, seed in ((one, 1), (other, 2)):
        env.reset(seed=seed)
        env.step(action)
    one.step(action)
    (one.case / "more").mkdir()
    (one.case / "more/notes.txt").write_text("new")
    (one.case / "control.txt.template").unlink()
    state = one.get_state()
    assert state["files"]["control.txt.template"] is None
    assert "burgers" not in state["files"], "what is as in the template is not kept"
    other.reset(seed=3)
    (other.case / "stray.txt").write_text("of another episode")
    other.set_state(state)
    assert (other.case / "more/notes.txt").read_text() == "new"
    assert not (other.case / "stray.txt").exists()
    assert not (other.case / "control.txt.template").exists()
    for _ in range(2):
        (mine, *rest), (theirs, *others) = one.step(action), other.step(action)
        np.testing.assert_array_equal(mine, theirs)
        assert rest == others
    assert one.time == other.time == 4
    with pytest.raises(EnvError, match="outside of its folder"):
        other.restore_case_files({"../stray.txt": b""})


@pytest.mark.slow
def test_ppo_learns_to_bring_the_flow_of_the_page_to_rest(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/cases.md").read_text()
    [snippet, methods] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(example / "template", tmp_path / "template")
    (tmp_path / "flow.py").write_text(f"{snippet}\n{methods}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "flow", raising=False)
    config = {
        "env": "flow.py:Burgers",
        "env_isolation": "process",  # so that solvers run on all cores
        "num_envs_per_worker": 4,
        "train_batch_size": 400,
        "lr": 3e-3,
        "gamma": 0.9,
        "seed": 1,
    }
    trainer = shoal.PPO(config)
    try:
        returns = [trainer.train()["episode_reward_mean"] for _ in range(4)]
        assert len(trainer.get_state().values["worker0"]["env_states"]) == 4
    finally:
        trainer.stop()
    assert returns[0] < -2  # random forces
    assert returns[-1] > -1.2  # means over all episodes, those of the first iterations included
    assert not (tmp_path / "failed_cases").exists()
