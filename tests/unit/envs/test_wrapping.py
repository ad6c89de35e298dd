"""Wrappers around environments: by name, with arguments, in order, the same for every environment of a run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformReward

import shoal
from shoal.cli.main import main
from shoal.config.yaml_files import load_text
from shoal.envs.checking import check_first_steps
from shoal.envs.context import EnvContext
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.making import env_maker, strip
from shoal.envs.observations import ObsSpec
from shoal.envs.wrapping import REFUSED, wrapper_names
from shoal.errors import ConfigError, EnvError

SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "model": {"fcnet_hiddens": [8]}}


class Maze(gymnasium.Env):
    """Sees as MiniGrid does: a picture, a direction, and a mission in words."""

    observation_space = spaces.Dict(
        direction=spaces.Discrete(4), image=spaces.Box(0, 255, (3, 3, 3), np.uint8), mission=spaces.Text(20)
    )
    action_space = spaces.Discrete(3)

    def look(self) -> dict[str, Any]:
        return {"direction": 1, "image": np.full((3, 3, 3), self.steps, np.uint8), "mission": "get to the goal"}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), 1.0, self.steps == 10, False, {}


class OldStep(Maze):
    """Only its first step tells that it is of old Gym."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)

    def look(self):
        return np.array([self.steps], np.float32)

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, factor=2.0, *, shift=0.0):
        super().__init__(env)
        self.factor, self.shift = factor, shift

    def reward(self, reward):
        return self.factor * reward + self.shift


def made(env: Any, *wrappers: Any, folder: Path | None = None, **env_config: Any) -> Any:
    return env_maker(env, UserCode.at(folder) if folder else INSTALLED, wrappers).make(EnvContext(env_config))


def rewards_of(env: Any, count: int = 3) -> list[float]:
    env.reset(seed=1)
    return [float(env.step(env.action_space.sample())[1]) for _ in range(count)]


def test_the_mission_is_dropped_and_frames_are_stacked_in_order() -> None:
    env = made(
        Maze,
        {"FilterObservation": {"filter_keys": ["image", "direction"]}},
        "FlattenObservation",
        {"FrameStackObservation": {"stack_size": 4}},
    )
    assert env.observation_space.shape == (4, 31)
    with pytest.raises(EnvError, match=r"config\.wrappers\[1\]: FilterObservation cannot wrap the environment: "):
        made(Maze, "FlattenObservation", {"FilterObservation": {"filter_keys": ["image"]}})


def test_ones_own_by_name_by_file_and_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "own_wraps.py").write_text(
        "import gymnasium\n\nclass Tripled(gymnasium.RewardWrapper):\n    def __init__(self, env, plus=0):\n"
        "        super().__init__(env)\n        self.plus = plus\n\n    def reward(self, r):\n"
        "        return 3 * r + self.plus\n"
    )
    for source in ("own_wraps:Tripled", "own_wraps.Tripled", "own_wraps.py:Tripled"):
        maker = env_maker("CartPole-v1", UserCode.at(tmp_path), [{source: {"plus": 1}}])
        for again in (maker, pickle.loads(pickle.dumps(maker))):
            assert rewards_of(again.make(EnvContext())) == [4.0] * 3
    assert rewards_of(made(Maze, {Doubled: {"shift": 1}})) == [3.0] * 3
    assert rewards_of(made(Maze, lambda env: TransformReward(env, lambda r: 7 * r))) == [7.0] * 3
    assert rewards_of(made("CartPole-v1", {"TransformReward": {"func": "math.cos"}})) == [np.cos(1)] * 3


def test_lists_become_what_the_wrapper_asks_for() -> None:
    env = made("Pendulum-v1", {"RescaleObservation": {"min_obs": [-1, -1, -1], "max_obs": [1, 1, 1]}})
    assert env.observation_space == spaces.Box(-1, 1, (3,), np.float32)
    assert made("Pendulum-v1", {"DiscretizeObservation": {"bins": [2, 3, 4]}}).observation_space == spaces.Discrete(24)


def test_a_time_limit_costs_nothing_and_the_environments_own_stays() -> None:
    _, limit = strip(made("CartPole-v1", {"TimeLimit": {"max_episode_steps": 9}}))
    assert limit == 9
    assert rewards_of(made("CartPole-v1", "TimeAwareObservation"))
    short = made("CartPole-v1", Doubled, max_episode_steps=2)
    short.reset(seed=1)
    assert [short.step(0)[3] for _ in range(2)] == [False, True]


def test_what_only_a_first_step_reveals_is_hidden_from_wrappers() -> None:
    maker = env_maker(OldStep, INSTALLED, [{"TimeLimit": {"max_episode_steps": 5}}, Doubled])
    report = check_first_steps(lambda: maker.make(EnvContext()))
    assert not report.legacy
    assert not report.warnings
    assert rewards_of(report.env) == [2.0] * 3


@pytest.mark.parametrize(
    ("wrapper", "sentence"),
    [
        ("FrameStack", r"Gymnasium has no wrapper 'FrameStack'; did you mean FrameStackObservation\?"),
        ("FlatenObservation", r"did you mean FlattenObservation"),
        ("zzz", r"your own is named my_module:MyWrapper or my_file\.py:MyWrapper"),
        (
            "FrameStackObservation",
            r"stack_size is missing; FrameStackObservation takes stack_size, padding_type='reset'",
        ),
        ({"FrameStackObservation": {"n": 4}}, r"no argument n; FrameStackObservation takes stack_size, padding_type="),
        ({"FlattenObservation": {"n": 4}}, r"no argument n; FlattenObservation takes no arguments"),
        ({Doubled: {"facter": 4}}, r"no argument facter; Doubled takes factor=2\.0, shift=0\.0"),
        ("nothing_here:Wrap", r"config\.wrappers\[0\] 'nothing_here:Wrap': no module 'nothing_here'"),
        ("os:sep", r"os:sep is of type str; name a wrapper class"),
        ("gymnasium.wrappers:Autoreset", r"cannot be used here: shoal starts the next episode itself"),
        ("gymnasium.wrappers.vector:FlattenObservation", r"it is for a batch of environments"),
        *((name, rf"{name} cannot be used here: ") for name in REFUSED),
    ],
)
def test_words_that_name_no_wrapper(wrapper: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        made("CartPole-v1", wrapper)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        made("CartPole-v1", "zzz", "FlattenObservation", "Autoreset")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "config.wrappers[0]",
        "config.wrappers[2]",
    ]
    assert "TimeLimit" in wrapper_names()


def test_what_a_wrapper_may_give_and_wrap() -> None:
    with pytest.raises(EnvError, match=r"must return a gymnasium\.Env \(got int\)"):
        made("CartPole-v1", lambda env: 3)
    closed = []

    class Vector(SyncVectorEnv):
        def close_extras(self, **keywords):
            closed.append(True)

    with pytest.raises(ConfigError, match="is a batch of environments, which shoal does not wrap"):
        made(lambda config: Vector([Maze]), Doubled)
    assert closed


def test_words_in_an_observation_come_with_the_line_that_drops_them() -> None:
    line = r"--wrap 'FilterObservation:filter_keys=\[direction,image\]'"
    with pytest.raises(ConfigError, match=rf"'mission': Text spaces cannot be learned from; leave it out with {line}"):
        ObsSpec(Maze.observation_space)
    with pytest.raises(ConfigError, match=r"filter_keys=\[1\]'"):
        ObsSpec(spaces.Tuple([spaces.Text(3), spaces.Discrete(2)]))
    with pytest.raises(ConfigError, match="observation_space: Text spaces cannot be learned from; encode it"):
        ObsSpec(spaces.Text(3))


def test_a_run_is_trained_evaluated_and_written_down_in_its_wrappers(tmp_path: Path) -> None:
    wrappers = [{"FilterObservation": {"filter_keys": ["direction"]}}, {Doubled: {"factor": 10}}]
    with shoal.PPO(env=Maze, config={**SMALL, "wrappers": wrappers}) as trainer:
        assert trainer.train()["episode_reward_mean"] == 100
        assert trainer.evaluate()["episode_reward_mean"] == 100
        assert trainer.workers.foreach_env(lambda env: env.factor) == [10, 10]
        saved = Path(trainer.save(tmp_path))
    tree = json.loads((saved / "experiment.json").read_bytes())
    own = f"{__name__}:Doubled"
    assert tree["config"]["wrappers"] == [{"FilterObservation": {"filter_keys": ["direction"]}}, {own: {"factor": 10}}]


def test_wrap_on_the_command_line_takes_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_text("a: {env: CartPole-v1, config: {wrappers: [FlattenObservation]}}\n")
    words = ["train", "-f", str(file), "--dry-run", "--wrap", "TimeAwareObservation"]
    result = CliRunner().invoke(main, [*words, "--wrap", "FrameStackObservation:stack_size=2"])
    assert result.exit_code == 0, result.output
    wrappers = load_text(result.output, "output").tree["a"]["config"]["wrappers"]
    assert wrappers == ["TimeAwareObservation", {"FrameStackObservation": {"stack_size": 2}}]
    result = CliRunner().invoke(main, [*words, "--wrap", "FrameStack"])
    assert result.exit_code != 0
    assert "did you mean FrameStackObservation?" in str(result.exception) + result.output


def test_other_wrappers_are_another_run(tmp_path: Path) -> None:
    words = ["train", "CartPole-v1", "--results-dir", str(tmp_path), "--stop", "training_iteration=1", "--quiet"]
    words += ["--set", "config.train_batch_size=64", "--set", "config.num_envs_per_worker=2"]
    runner = CliRunner()
    assert runner.invoke(main, words).exit_code == 0
    assert runner.invoke(main, [*words, "--wrap", "TimeAwareObservation"]).exit_code == 0
    runs = sorted(path.parent for path in tmp_path.glob("*/*/experiment.json"))
    assert len(runs) == 2
    assert runner.invoke(main, [*words, "--wrap", "TimeAwareObservation"]).exit_code == 0
    assert len(list(tmp_path.glob("*/*/experiment.json"))) == 2
    for run in runs:
        result = runner.invoke(main, ["evaluate", str(run), "--episodes", "1"])
        assert result.exit_code == 0, result.output
