"""What every algorithm of shoal's own keeps: exact resume, the spaces that it takes, masks, failures.

One small setting for each row of `BUILT_IN`; an algorithm that is added without one fails here. That workers change
nothing is in `test_workers.py` and `test_layouts.py` for PPO, TRPO, ES and CMAES, and beside what else is promised in
`tests/features` for DQN, SAC, BC and MARWIL. APPO's workers wait for nobody, so that time decides what it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from same_training import assert_restored_exactly

import shoal
from shoal.config.algorithms import ALGORITHMS, BUILT_IN
from shoal.envs.importing import INSTALLED
from shoal.errors import ConfigError

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 4
COMMON: dict[str, Any] = {"num_envs_per_worker": NUM_ENVS, "model": {"fcnet_hiddens": [8]}, "seed": 3}
ON_POLICY = {"train_batch_size": 96, "sgd_minibatch_size": 32, "num_sgd_iter": 2}
REPLAY = {"train_batch_size": 16, "training_intensity": 4, "learning_starts": 32, "timesteps_per_iteration": 96}
SEARCH = {"num_rollouts": 6}
RECORDED = {"train_batch_size": 96, "sgd_minibatch_size": 32}
SMALL: dict[str, dict[str, Any]] = {
    "PPO": ON_POLICY,
    "APPO": ON_POLICY,
    "TRPO": ON_POLICY,
    "DQN": REPLAY,
    "SAC": REPLAY,
    "ES": SEARCH,
    "ARS": SEARCH,
    "CEM": {**SEARCH, "elite_frac": 0.5},
    "CMAES": SEARCH,
    "BC": RECORDED,
    "MARWIL": RECORDED,
}
SAMPLING = [name for name in BUILT_IN if name not in ("BC", "MARWIL")]
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.float32([-2, 10]), np.float32([2, 14])),
    "box_unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "mixed": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (1,), np.float32)}),
}

Make = Callable[..., Any]


def test_every_algorithm_has_a_row() -> None:
    assert list(SMALL) == list(BUILT_IN)


def test_every_algorithm_has_a_lesson_beside_a_peer() -> None:
    lessons = INSTALLED.load_file(str(Path(__file__).parents[2] / "benchmarks" / "lessons.py")).LESSONS
    taught = {lesson.run for lesson in lessons if len(lesson.who) == 2}
    assert taught == set(BUILT_IN)
    for lesson in lessons:
        ALGORITHMS[lesson.run].model_validate({**lesson.config, **({"input": "steps"} if lesson.recorded else {})})
    assert len({lesson.key for lesson in lessons}) == len(lessons)


class Strict(gym.Env[Any, Any]):
    """Episodes of eight steps, in which an action outside its space is a failure."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        obs = self.seen()
        return obs, float(obs[0]), self.time == 8, False, {}

    def seen(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


@pytest.fixture
def begin(start_trainer: Make, tmp_path: Path) -> Make:
    """Starts a small trainer of any algorithm; those that learn from recorded steps get some of PPO's."""

    def make(run: str, env: Any, **changes: Any) -> shoal.Trainer:
        config = {**COMMON, **SMALL[run], **changes}
        if ALGORITHMS[run].learns_offline:
            config["input"] = str(recorded(env, tmp_path / "steps"))
        return start_trainer(run, env, config)

    return make


def recorded(env: Any, folder: Path) -> Path:
    """PPO's steps on an environment, written down once."""
    if not folder.exists():
        with shoal.PPO(env=env, config={**COMMON, **ON_POLICY, "output": str(folder)}) as trainer:
            for _ in range(2):
                trainer.train()
    return folder


@pytest.mark.parametrize("run", BUILT_IN)
def test_k_save_load_k_is_two_k_also_where_environments_fail(begin: Make, tmp_path: Path, run: str) -> None:
    started: list[shoal.Trainer] = []

    def make() -> shoal.Trainer:
        started.append(begin(run, f"{PROBES}:FailingNowAndThen"))
        return started[-1]

    assert_restored_exactly(make, tmp_path / "saved", 1)
    if run in SAMPLING:
        assert started[0].env_failures_total > 0
    assert np.isfinite(started[0].get_policy().network.params).all()


@pytest.mark.parametrize("run", BUILT_IN)
def test_what_a_mask_closes_is_never_chosen(begin: Make, run: str) -> None:
    trainer = begin(run, f"{PROBES}:Masked")
    result = trainer.train()
    assert result.get("env_failures_total", 0) == 0
    for explore in (False, True):
        assert trainer.evaluate(episodes=10, explore=explore)["env_failures"] == 0


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("run", BUILT_IN)
def test_a_space_is_taken_or_refused_with_what_takes_it(begin: Make, run: str, kind: str) -> None:
    env = partial(Strict, ACTIONS[kind])
    if run == "DQN" and kind != "discrete":
        with pytest.raises(ConfigError, match=r"run:? PPO"):
            begin(run, env)
        return
    trainer = begin(run, env)
    assert trainer.train()["env_failures_total"] == 0
    assert trainer.evaluate(episodes=2)["env_failures"] == 0
