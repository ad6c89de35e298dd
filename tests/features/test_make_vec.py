"""Our environments in actors of Ray, for programs that bring their own algorithm: Gymnasium's way and that of SB3."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal

pytestmark = pytest.mark.usefixtures("ray_session")


class Counter(gym.Env[Any, Any]):
    """Counts its steps, and tells who it is; ends after nine."""

    observation_space = gym.spaces.Box(-99, 99, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.place = config.env_index
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self.taken += 1
        return self._seen(), float(action), self.taken == 9, False, {"depth": 2 * self.taken}

    def process_id(self) -> int:
        return os.getpid()

    def parent_id(self) -> int:
        return os.getppid()

    def _seen(self) -> Any:
        return np.array([self.place, self.taken, self.np_random.random()], np.float32)


@pytest.fixture(scope="module")
def workers(ray_session: None) -> Iterator[Any]:
    with closing(shoal.make_vec(Counter, num_envs=4, num_workers=2)) as env:
        yield env


def test_workers_give_what_one_process_gives(workers: Any) -> None:
    with closing(shoal.make_vec(Counter, num_envs=4)) as alone:
        np.testing.assert_array_equal(workers.reset(seed=5)[0], alone.reset(seed=5)[0])
        seeds = [*range(workers.num_envs)]
        np.testing.assert_array_equal(workers.reset(seed=seeds)[0], alone.reset(seed=seeds)[0])
        np.testing.assert_array_equal(workers.reset(seed=5)[0], alone.reset(seed=5)[0])
        for step in range(20):
            actions = np.array([0, 1, step % 2, 1])
            ours, theirs = workers.step(actions), alone.step(actions)
            for left, right in zip(ours[:4], theirs[:4], strict=True):
                np.testing.assert_array_equal(left, right)
            assert ours[4].keys() == theirs[4].keys()
            if "final_obs" in ours[4]:
                np.testing.assert_array_equal(np.stack(ours[4]["final_obs"]), np.stack(theirs[4]["final_obs"]))
                np.testing.assert_array_equal(ours[4]["final_info"]["depth"], [18, 18, 18, 18])
        np.testing.assert_array_equal(ours[0][:, 0], [0, 1, 2, 3])
    assert len(set(workers.call("process_id"))) == 2


def test_a_worker_that_is_killed_costs_its_rows_one_step(workers: Any) -> None:
    workers.reset(seed=5)
    before, *_ = workers.step([1, 1, 1, 1])
    os.kill(workers.call("process_id")[3], signal.SIGKILL)
    obs, rewards, terminated, truncated, infos = workers.step([1, 1, 1, 1])
    np.testing.assert_array_equal(truncated, [False, False, True, True])
    np.testing.assert_array_equal(rewards, [1, 1, 0, 0])
    assert not terminated.any()
    np.testing.assert_array_equal(obs[:, :2], [[0, 2], [1, 2], [2, 0], [3, 0]])
    np.testing.assert_array_equal(np.stack(infos["final_obs"][2:]), before[2:])
    assert "was lost" in infos["incident"][2]
    assert workers.num_incidents == 2
    obs, *_ = workers.step([1, 1, 1, 1])
    np.testing.assert_array_equal(obs[:, :2], [[0, 3], [1, 3], [2, 1], [3, 1]])


def test_an_error_in_one_worker_leaves_no_answer_of_the_others_behind(workers: Any) -> None:
    def place(env: Any) -> int:
        return int(env.unwrapped.place)

    def fail(env: Any) -> None:
        raise ValueError(f"not in {place(env)}")

    for _ in range(2):
        with pytest.raises(shoal.ShoalError, match="not in 0"):
            workers.call_each({0: fail, 3: place})
        assert workers.call_each({0: place, 3: place}) == {0: 0, 3: 3}
    assert workers.reset(seed=5)[0].shape == (4, 3)


class Hanging(Counter):
    """The last of four environments never comes back from its third step."""

    def step(self, action: int) -> Any:
        if (self.place, self.taken) == (3, 2):
            Event().wait()
        return super().step(action)


@pytest.mark.slow
def test_an_environment_that_hangs_below_workers_is_restarted_alone() -> None:
    limits = {"env_step_timeout_s": 0.5, "num_cpus_per_worker": 0.5}
    with closing(shoal.make_vec(Hanging, num_envs=4, num_workers=2, **limits)) as env:
        env.reset(seed=5)
        workers = env.call("parent_id")
        for _ in range(2):
            before, *_, infos = env.step([1, 1, 1, 1])
            assert not infos
        obs, rewards, terminated, truncated, infos = env.step([1, 1, 1, 1])
        np.testing.assert_array_equal(truncated, [False, False, False, True])
        np.testing.assert_array_equal(rewards, [1, 1, 1, 0])
        assert not terminated.any()
        np.testing.assert_array_equal(obs[:, :2], [[0, 3], [1, 3], [2, 3], [3, 0]])
        np.testing.assert_array_equal(infos["final_obs"][3], before[3])
        assert "env_step_timeout_s" in infos["incident"][3]
        assert [(each.env_index, each.worker_index) for each in env.incidents] == [(3, 2)]
        obs, *_, infos = env.step([1, 1, 1, 1])
        np.testing.assert_array_equal(obs[:, 1], [4, 4, 4, 1])
        assert not infos
        assert env.call("parent_id") == workers, "its worker and the others' have not been replaced"


def test_errors_cross_from_workers_in_their_own_words() -> None:
    with pytest.raises(shoal.ShoalError, match="Nowhere"):
        shoal.make_vec("os:Nowhere", num_envs=2, num_workers=2)


class Failing(gym.Env[Any, Any]):
    """The second environment raises at its third step."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.is_sick = config.env_index == 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.taken += 1
        if self.is_sick and self.taken == 3:
            raise RuntimeError("no convergence")
        return np.full(1, self.taken, np.float32), 1.0, False, False, {}


class TestStableBaselines:
    """`shoal.sb3.RayVecEnv` held against SB3's own DummyVecEnv, and in a training."""

    def test_gives_what_a_dummy_vec_env_gives(self) -> None:
        sb3 = pytest.importorskip("stable_baselines3")
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

        from shoal.data.streams import reset_seed
        from shoal.sb3 import RayVecEnv

        limit = {"max_episode_steps": 13}
        theirs = DummyVecEnv([lambda: gym.make("CartPole-v1", **limit)] * 2)
        with closing(RayVecEnv("CartPole-v1", num_envs=2, env_config=limit)) as ours:
            ours.seed(7)
            theirs._seeds = [reset_seed(0, row, (7 << 32) + 1) for row in range(2)]
            np.testing.assert_array_equal(ours.reset(), theirs.reset())
            seen = set()
            for step in range(60):
                actions = np.array([step % 2, 1 if step % 5 else 0])
                mine, other = ours.step(actions), theirs.step(actions)
                for left, right in zip(mine[:3], other[:3], strict=True):
                    assert left.dtype == right.dtype
                    np.testing.assert_array_equal(left, right)
                for left, right in zip(mine[3], other[3], strict=True):
                    assert left["TimeLimit.truncated"] == right["TimeLimit.truncated"]
                    assert ("terminal_observation" in left) == ("terminal_observation" in right)
                    if "terminal_observation" in right:
                        seen.add(right["TimeLimit.truncated"])
                        np.testing.assert_array_equal(left["terminal_observation"], right["terminal_observation"])
            assert seen == {True, False}
            assert ours.get_attr("gravity", indices=[1]) == [9.8]
            ours.set_attr("gravity", 5.0, indices=0)
            assert ours.get_attr("gravity") == [5.0, 9.8]
            assert ours.env_is_wrapped(Monitor) == [False, False]
            assert len(ours.env_method("close", indices=1)) == 1
            assert VecMonitor(ours).reset().shape == (2, 4)
            assert sb3.__version__

    def test_a_failure_is_told_as_make_vec_tells_it(self) -> None:
        pytest.importorskip("stable_baselines3")
        from shoal.sb3 import RayVecEnv

        with closing(RayVecEnv(Failing, num_envs=2)) as env:
            env.reset()
            for _ in range(2):
                env.step(np.zeros(2, np.int64))
            _, _, done, infos = env.step(np.zeros(2, np.int64))
            assert done.tolist() == [False, True]
            assert infos[1]["episode"] == {"r": 2.0, "l": 2}
            assert infos[1]["failed"]
            assert "no convergence" in infos[1]["incident"]
            assert (env.num_incidents, [incident.env_index for incident in env.incidents]) == (1, [1])

    @pytest.mark.slow
    def test_trains_on_workers(self) -> None:
        pytest.importorskip("stable_baselines3")
        from stable_baselines3 import PPO
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import VecNormalize

        from shoal.sb3 import RayVecEnv

        with closing(VecNormalize(RayVecEnv("CartPole-v1", num_workers=2, num_envs=4))) as env:
            model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=1, device="cpu")
            before = [each.detach().clone() for each in model.policy.parameters()]
            model.learn(256)
            assert any(not one.equal(other) for one, other in zip(before, model.policy.parameters(), strict=True))
            assert model.num_timesteps == 256
            assert len(model.ep_info_buffer) > 3  # of infos' `episode`, which only a Monitor has otherwise
            mean, _ = evaluate_policy(model, env, n_eval_episodes=2, warn=False)
            assert mean > 0


def test_without_stable_baselines_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, "shoal.sb3", raising=False)
    with pytest.raises(shoal.ConfigError, match="pip install 'shoal-rl\\[sb3\\]'"):
        __import__("shoal.sb3")
