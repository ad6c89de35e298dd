"""Native vector environments: every way to reset gives the same transitions as our own vector."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from clock_env import Clock, Counted, N, Nested, empty_steps, specs, transitions
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.config.experiment import algorithm_config
from shoal.envs.making import env_maker
from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError, EnvError
from shoal.sampling.worker import Worker

MODES = list(AutoresetMode)


@pytest.mark.parametrize("kind", [Clock, Nested, Counted])
@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_reset_gives_the_same_transitions(mode, kind) -> None:
    obs_spec, action_spec = specs(kind(0))
    native = SyncVectorEnv([lambda k=k: kind(k) for k in range(N)], autoreset_mode=mode)
    mine = NativeVector(native, obs_spec, action_spec, seed=1)
    theirs = PythonVector(lambda row: (kind(row), None), N, obs_spec, action_spec, seed=1)
    got, wanted = transitions(mine, obs_spec), transitions(theirs, obs_spec)
    for row in range(N):
        count = min(len(got[row]), len(wanted[row]))
        assert count >= 25
        assert got[row][:count] == wanted[row][:count]
    for row in range(N):
        mine_ended = [(e.reward, e.length, e.metrics) for e in mine.episodes if e.env_index == row]
        wanted_ended = [(e.reward, e.length, e.metrics) for e in theirs.episodes if e.env_index == row]
        assert wanted_ended[0][2] == {"last": 2.0 + row}
        count = min(len(mine_ended), len(wanted_ended))
        assert count >= 5
        assert mine_ended[:count] == wanted_ended[:count]


def test_a_step_spent_on_a_reset_is_no_transition() -> None:
    obs_spec, action_spec = specs(Clock(0))
    native = SyncVectorEnv([lambda: Clock(0)], autoreset_mode=AutoresetMode.NEXT_STEP)
    vector = NativeVector(native, obs_spec, action_spec, seed=1)
    vector.reset(obs_spec.allocate(1))
    valid = []
    for _ in range(9):
        steps = empty_steps(obs_spec, 1)
        vector.step(np.zeros((1, 1), np.int64), None, steps)
        valid.append(bool(steps.valid[0]))
    assert valid == [True, True, False] * 3
    assert [e.length for e in vector.episodes] == [2, 2, 2]


def test_the_native_cart_pole_has_the_episodes_of_the_python_one() -> None:
    native = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    single = gym.make("CartPole-v1")
    obs_spec, action_spec = ObsSpec(native.single_observation_space), ActionSpec(native.single_action_space)
    vector = NativeVector(native, obs_spec, action_spec, seed=3, first_index=8)
    obs = obs_spec.allocate(4)
    vector.reset(obs)
    assert len({tuple(row) for row in obs[0].tolist()}) == 4
    for _ in range(300):
        steps = empty_steps(obs_spec, 4)
        vector.step(np.ones((4, 1), np.int64), None, steps)
        assert (steps.rewards == steps.valid).all()
    assert len(vector.episodes) > 60
    assert {e.env_index for e in vector.episodes} == {8, 9, 10, 11}
    for episode in vector.episodes:
        assert 8 <= episode.length <= 11, "always to the right, a pole falls within that"
        assert episode.reward == episode.length
    single.close()
    vector.close()


def test_seeds_belong_to_environments_and_not_to_positions() -> None:
    class Random(Clock):
        def look(self):
            return self.np_random.random(2).astype(np.float32)

    obs_spec, action_spec = specs(Random(0))

    def firsts(n, first_index):
        native = SyncVectorEnv([lambda k=k: Random(k) for k in range(n)])
        obs = obs_spec.allocate(n)
        NativeVector(native, obs_spec, action_spec, seed=5, first_index=first_index).reset(obs)
        return obs[0].tolist()

    assert firsts(4, 0) == firsts(2, 0) + firsts(2, 2)


class Faulty(Clock):
    def __init__(self, fault) -> None:
        super().__init__(40)
        self.fault = fault

    def step(self, action):
        if self.fault == "raises":
            raise RuntimeError("diverged")
        obs, reward, terminated, truncated, info = super().step(action)
        if self.fault == "nan observation":
            obs = obs * np.nan
        return obs, np.nan if self.fault == "nan reward" else reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raises", "failed in step: RuntimeError: diverged"),
        ("nan observation", "environment 11 of the vector, at step 1 of its episode: observation is not finite"),
        ("nan reward", "environment 11 of the vector gave the reward nan"),
    ],
)
def test_a_failure_ends_the_run_with_the_cause(fault, sentence) -> None:
    obs_spec, action_spec = specs(Clock(0))
    native = SyncVectorEnv([lambda: Faulty(None), lambda: Faulty(fault)])
    vector = NativeVector(native, obs_spec, action_spec, seed=1, first_index=10)
    vector.reset(obs_spec.allocate(2))
    with pytest.raises(EnvError, match=sentence):
        vector.step(np.zeros((2, 1), np.int64), None, empty_steps(obs_spec, 2))


def test_a_resumed_vector_begins_new_episodes_with_new_seeds() -> None:
    obs_spec, action_spec = specs(Clock(0))
    native = SyncVectorEnv([lambda k=k: Clock(k) for k in range(N)])
    vector = NativeVector(native, obs_spec, action_spec, seed=1)
    obs = obs_spec.allocate(N)
    vector.reset(obs)
    vector.set_state(vector.get_state())
    assert vector.bring_back([None] * N, [np.zeros((1, 1), np.int64)] * N, obs) == [False] * N
    assert obs[0][:, 1].tolist() == [0, 0, 0]
    assert vector.get_state() == {"resets": 2}


def test_single_environments_cannot_be_stopped() -> None:
    obs_spec, action_spec = specs(Clock(0))
    vector = NativeVector(SyncVectorEnv([lambda: Clock(0)]), obs_spec, action_spec, seed=1)
    vector.reset(obs_spec.allocate(1))
    with pytest.raises(EnvError, match="complete_episodes"):
        vector.step(np.zeros((1, 1), np.int64), np.ones(1, bool), empty_steps(obs_spec, 1))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(-2, 2, (2,)),
        spaces.MultiBinary(3),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (1,))),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
    ],
    ids=str,
)
def test_actions_arrive_as_their_space_has_them(space) -> None:
    class Strict(Clock):
        action_space = space

        def step(self, action):
            assert space.contains(action), action
            return super().step(0)

    obs_spec, action_spec = ObsSpec(Clock.observation_space), ActionSpec(space)
    vector = NativeVector(SyncVectorEnv([lambda k=k: Strict(k) for k in range(N)]), obs_spec, action_spec, seed=1)
    vector.reset(obs_spec.allocate(N))
    vector.step(np.ones((N, action_spec.size), action_spec.dtype), None, empty_steps(obs_spec))


def vector_of(count: int, closed: list[int] | None = None, indices: list[int] | None = None):
    """A function that makes a vector of so many, which notes when it is closed and which place it was given."""

    class Noted(SyncVectorEnv):
        def close_extras(self, **keywords):
            if closed is not None:
                closed.append(self.num_envs)

    def make(config):
        if indices is not None:
            indices.append(config.env_index)
        return Noted([lambda k=k: Clock(k) for k in range(count)])

    return make


def test_num_envs_per_worker_follows_the_vector() -> None:
    with shoal.PPO(env=vector_of(3), config={"train_batch_size": 60}) as trainer:
        assert (trainer.config.num_envs_per_worker, trainer.config.num_envs) == (3, 3)
        trainer.train()
        assert trainer.evaluate()["episodes_this_iter"] == 10
        state = trainer.get_state()
    with shoal.PPO(env=vector_of(3), config={"train_batch_size": 60, "num_envs_per_worker": 3}) as again:
        again.set_state(state)
        assert again.iteration == 1
    with shoal.PPO(env=lambda config: Clock(3), config={"train_batch_size": 80}) as trainer:
        assert trainer.config.num_envs_per_worker == 8, "of other environments there are as many as ever"


def test_a_worker_of_many_has_the_place_that_its_vector_gives_it() -> None:
    closed: list[int] = []
    indices: list[int] = []
    config = algorithm_config("PPO", {"env": "X-v0", "num_workers": 4})
    worker = Worker(config, env_maker(vector_of(5, closed, indices)), worker_index=3)
    worker.stop()
    assert (worker.config.num_envs_per_worker, indices) == (5, [16, 10])
    assert closed == [5, 5]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"num_envs_per_worker": 4},
            r"the vector environment has 3 environments \(got 4\); leave num_envs_per_worker out",
        ),
        ({"horizon": 5}, r"config\.horizon: a native vector environment"),
        ({"rollout_fragment_length": 4, "train_batch_size": 32}, r"4 steps of 3 environments make 12, which does not"),
    ],
)
def test_refused_vectors_are_closed(config, sentence) -> None:
    closed: list[int] = []
    with pytest.raises(ConfigError, match=sentence):
        shoal.PPO(env=vector_of(3, closed), config={"train_batch_size": 60, **config})
    assert closed == [3]


ASYNC = """
import gymnasium, os
from gymnasium.vector import AsyncVectorEnv

class Slow(gymnasium.Wrapper):
    def step(self, action):
        with open("stepped", "a") as file:
            file.write("x")
        os.read(os.open("gate", os.O_RDONLY), 1)
        return self.env.step(action)

def make(config):
    wrap = Slow if os.path.exists("gate") else gymnasium.Wrapper
    return AsyncVectorEnv([lambda: wrap(gymnasium.make("CartPole-v1")) for _ in range(3)])
"""


def train(folder, *words):
    command = [sys.executable, "-m", "shoal", "train", "vectors.py:make", "--results-dir", "runs", *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_the_processes_of_a_refused_vector_end_without_a_word(tmp_path) -> None:
    (tmp_path / "vectors.py").write_text(ASYNC)
    run = train(tmp_path, "--set", "config.num_envs_per_worker=5", "--quiet")
    output = run.communicate(timeout=120)[0]
    assert run.returncode == 2
    assert "has 3 environments (got 5)" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("steps", "number"), [(0, signal.SIGTERM), (2, signal.SIGINT)], ids=["the first look", "training"]
)
def test_a_signal_within_a_step_ends_the_processes_too(tmp_path, steps, number) -> None:
    (tmp_path / "vectors.py").write_text(ASYNC)
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    run = train(tmp_path, "--quiet")
    try:
        # As many environments as there are letters take a step for each word.
        os.write(gate, b"go!" * steps)
        deadline = time.monotonic() + 120
        stepped = tmp_path / "stepped"
        while not stepped.exists() or stepped.stat().st_size < 3 * (steps + 1):
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(run.pid, number)
        output = run.communicate(timeout=120)[0]
    finally:
        os.close(gate)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 128 + number, output
    assert "Traceback" not in output
