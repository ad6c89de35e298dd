"""Native vector environments: every way to reset gives the same transitions as our own vector."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import PythonVector, Steps
from shoal.errors import EnvError

MODES = list(AutoresetMode)
N = 3


class Clock(gym.Env):
    """Shows its number and its step; terminates (odd numbers) or truncates (even) after 2 + number steps."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int) -> None:
        self.number, self.steps = number, 0

    def look(self):
        return np.array([self.number, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= 2 + self.number
        odd = self.number % 2 == 1
        return self.look(), 10.0 * self.steps + action, over and odd, over and not odd, {}


class Nested(Clock):
    observation_space = spaces.Dict(seen=spaces.Box(-100, 100, (2,), np.float32), phase=spaces.Discrete(50))

    def look(self):
        return {"seen": super().look(), "phase": self.steps}


class Counted(Clock):
    observation_space = spaces.Discrete(50, start=5)

    def look(self):
        return 5 + self.steps


def specs(env):
    return ObsSpec(env.observation_space), ActionSpec(env.action_space)


def empty_steps(obs_spec, n=N) -> Steps:
    return Steps(obs_spec.allocate(n), np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), np.ones(n, bool))


def transitions(vector, obs_spec, count=40, n=N):
    """Of each environment, in order: what was seen, done, earned, and seen after that; resets are left out."""
    found = [[] for _ in range(n)]
    obs = obs_spec.allocate(n)
    vector.reset(obs)
    for _ in range(count):
        steps = empty_steps(obs_spec, n)
        actions = np.array([[len(found[row]) % 3] for row in range(n)])
        vector.step(actions, None, steps)
        finals = dict(steps.finals)
        assert set(finals) == set(np.flatnonzero(steps.truncated & steps.valid).tolist())
        for row in range(n):
            before = [part[row].tolist() for part in obs]
            if not steps.valid[row]:
                assert steps.terminated[row]
                assert not steps.truncated[row]
                assert steps.rewards[row] == 0
                continue
            after = [part.tolist() for part in finals[row]] if row in finals else [p[row].tolist() for p in steps.obs]
            terminated = bool(steps.terminated[row])
            found[row].append(
                (before, float(steps.rewards[row]), terminated, row in finals, None if terminated else after)
            )
        obs = tuple(part.copy() for part in steps.obs)
    return found


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
        mine_ended = [(e.reward, e.length) for e in mine.episodes if e.env_index == row]
        wanted_ended = [(e.reward, e.length) for e in theirs.episodes if e.env_index == row]
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
    assert vector.replay([np.zeros((1, 1), np.int64)] * N, obs) == [False] * N
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
