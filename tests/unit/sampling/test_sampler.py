"""What the sampler writes, against the same environments stepped by hand with the same actions."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from shoal.config.ppo import PPOConfig
from shoal.data.state import State
from shoal.data.streams import reset_seed
from shoal.envs.native import NativeVector
from shoal.envs.vector import PythonVector
from shoal.models.build import build_policy
from shoal.sampling.sampler import Sampler

SEED = 5


class Walk(gym.Env):
    """A random walk pushed by the action; its episodes end by falling off or by their own time limit."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)
    falls_at = 4.0
    own_limit: int | None = 9

    def __init__(self) -> None:
        self.obs = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs[:] = self.np_random.standard_normal(3)
        return self.obs, {}

    def push(self, action) -> float:
        return float(action) - 1

    def step(self, action):
        self.steps += 1
        self.obs += self.push(action) + self.np_random.standard_normal(3).astype(np.float32)
        fallen = bool(abs(self.obs[0]) > self.falls_at)
        late = self.own_limit is not None and self.steps >= self.own_limit
        return self.obs, float(self.obs[1]), fallen, late and not fallen, {}


class WalkInBox(Walk):
    action_space = spaces.Box(np.array([-0.3, 0.1], np.float32), np.array([0.7, 1.9], np.float32))

    def push(self, action) -> float:
        return float(action.sum())


class WalkInTuple(Walk):
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-0.3, 0.7, (2,), np.float32)])

    def push(self, action) -> float:
        return float(action[0] + action[1].sum())


class Failing(Walk):
    """Fails at the third step of every second episode."""

    def step(self, action):
        result = super().step(action)
        self.life = getattr(self, "life", 0) + 1
        if self.life % 7 == 3:
            raise RuntimeError("diverged")
        return result


def policy_for(kind=Walk, **config):
    policy = build_policy(kind.observation_space, kind.action_space, PPOConfig(seed=SEED, **config))
    # A fresh policy is near uniform: make it one whose actions depend on what it sees.
    rng = np.random.default_rng(1)
    policy.network.params[:] += 0.3 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    policy.network.sync()
    return policy


def sampler_for(kind=Walk, num_envs=4, first_index=0, limit=None, policy=None, make=None, max_failures=None) -> Sampler:
    policy = policy or policy_for(kind)
    vector = PythonVector(
        make or (lambda row: (kind(), limit)),
        num_envs,
        policy.obs_spec,
        policy.action_spec,
        seed=SEED,
        first_index=first_index,
        max_failures=max_failures,
    )
    return Sampler(policy, vector, SEED, first_index)


def kept(batch):
    """A copy of a batch, for it is valid only until the next one."""
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs", "final_at")
    arrays = {name: np.array(getattr(batch, name)) for name in names}
    arrays |= {f"obs{k}": part.copy() for k, part in enumerate(batch.obs)}
    return arrays | {f"final_obs{k}": part.copy() for k, part in enumerate(batch.final_obs)}


def assert_same(mine, theirs, but=()) -> None:
    assert set(mine) == set(theirs)
    for name in set(mine) - set(but):
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("kind", [Walk, WalkInBox, WalkInTuple])
def test_a_batch_is_what_the_environments_gave(kind) -> None:
    sampler = sampler_for(kind, limit=6)
    policy = sampler.policy
    envs, seedings, since_seed, returns = [kind() for _ in range(4)], [1] * 4, [0] * 4, []
    current = [env.reset(seed=reset_seed(SEED, row, 1))[0].copy() for row, env in enumerate(envs)]
    totals, lengths = [0.0] * 4, [0] * 4
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(16):
        sample = sampler.sample(7)
        batch = sample.batch
        finals = {(t, n): batch.final_obs[0][k] for k, (t, n) in enumerate(batch.final_at.tolist())}
        assert len(finals) == len(batch.final_at)
        assert batch.valid.all()
        seen_ends = []
        for t in range(7):
            decoded = policy.action_spec.decode(batch.actions[t])
            for n, env in enumerate(envs):
                np.testing.assert_array_equal(batch.obs[0][t, n], current[n])
                obs, reward, terminated, truncated, _ = env.step(decoded[n])
                totals[n], lengths[n] = totals[n] + np.float32(reward), lengths[n] + 1
                since_seed[n] += 1
                truncated = not terminated and (truncated or lengths[n] >= 6)
                assert batch.rewards[t, n] == np.float32(reward)
                assert batch.terminated[t, n] == terminated
                assert batch.truncated[t, n] == truncated
                assert ((t, n) in finals) == (truncated or (t == 6 and not terminated))
                if (t, n) in finals:
                    np.testing.assert_array_equal(finals[t, n], obs)
                current[n] = obs.copy()
                if terminated or truncated:
                    ends["terminated" if terminated else "truncated"] += 1
                    seen_ends.append((n, pytest.approx(totals[n]), lengths[n]))
                    totals[n], lengths[n] = 0.0, 0
                    seed = None
                    if since_seed[n] >= 100:
                        seedings[n], since_seed[n] = seedings[n] + 1, 0
                        seed = reset_seed(SEED, n, seedings[n])
                    current[n] = env.reset(seed=seed)[0].copy()
        assert [(e.env_index, e.reward, e.length) for e in sample.episodes] == seen_ends
        returns += seen_ends
        rows = batch.actions.reshape(28, -1), batch.dist_inputs.reshape(28, -1)
        outputs, _, _ = policy.network.forward(policy.encoder((batch.obs[0].reshape(28, 3),)))
        np.testing.assert_allclose(rows[1], outputs, rtol=1e-4, atol=1e-5)
        evaluation = policy.distribution.evaluate(rows[1], rows[0])
        np.testing.assert_allclose(batch.log_probs.reshape(-1), evaluation.log_prob, rtol=1e-5)
    assert min(ends.values()) > 0, "both kinds of end must have happened"


def test_without_exploration_the_likeliest_actions_are_taken() -> None:
    sampler = sampler_for()
    batch = sampler.sample(5, explore=False).batch
    np.testing.assert_array_equal(batch.actions[..., 0], batch.dist_inputs.argmax(axis=2))


@pytest.mark.parametrize("kind", [Walk, WalkInTuple, Failing])
@pytest.mark.parametrize("complete", [False, True])
def test_the_layout_over_samplers_does_not_matter(kind, complete) -> None:
    whole = sampler_for(kind)
    halves = [sampler_for(kind, num_envs=2, first_index=first) for first in (0, 2)]
    for _ in range(4):
        one = whole.sample(5, complete_episodes=complete)
        two = [half.sample(5, complete_episodes=complete) for half in halves]
        for k, half in enumerate(two):
            steps = len(half.batch.rewards)
            columns = slice(2 * k, 2 * k + 2)
            assert not one.batch.valid[steps:, columns].any()
            for name in ("actions", "rewards", "terminated", "truncated", "valid", "log_probs"):
                mine = getattr(one.batch, name)[:steps, columns]
                where = half.batch.valid
                # A matrix product over other rows rounds otherwise, in the last bits.
                theirs = getattr(half.batch, name)
                np.testing.assert_allclose(mine[where], theirs[where], rtol=1e-4, atol=1e-4, err_msg=name)
            mine, theirs = one.batch.obs[0][:steps, columns][where], half.batch.obs[0][where]
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
        mine = sorted(((e.env_index, e.length, e.reward) for e in one.episodes), key=lambda e: e[0])
        theirs = sorted(((e.env_index, e.length, e.reward) for s in two for e in s.episodes), key=lambda e: e[0])
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def fails_at(when: dict[int, int]):
    """Walks whose row fails once, at a given step of its first life."""
    made: dict[int, int] = {}

    def make(row):
        made[row] = made.get(row, 0) + 1

        class Once(Walk):
            falls_at, own_limit = 1e9, None

            def step(self, action):
                result = super().step(action)
                if made[row] == 1 and self.steps == when.get(row):
                    raise RuntimeError("diverged")
                return result

        return Once(), None

    return make


def test_a_failure_masks_its_step_and_cuts_the_one_before() -> None:
    sampler = sampler_for(num_envs=3, make=fails_at({1: 4}))
    sample = sampler.sample(8)
    batch = sample.batch
    assert batch.valid[:, 1].tolist() == [True] * 3 + [False] + [True] * 4
    assert batch.truncated[:, 1].tolist() == [False, False, True] + [False] * 5
    assert batch.terminated[:, 1].tolist() == [False] * 3 + [True] + [False] * 4
    assert batch.rewards[3, 1] == 0
    assert batch.num_steps == 23
    for row in (0, 2):
        assert batch.valid[:, row].all()
        assert not (batch.terminated | batch.truncated)[:, row].any()
    finals = {tuple(at): batch.final_obs[0][k] for k, at in enumerate(batch.final_at.tolist())}
    assert set(finals) == {(2, 1), (7, 0), (7, 1), (7, 2)}
    np.testing.assert_array_equal(finals[2, 1], batch.obs[0][3, 1])
    assert [i.step for i in sample.incidents] == [4]
    assert sample.episodes == []
    assert sampler.sample(2).incidents == []


def test_a_failure_in_the_first_step_of_a_fragment_leaves_the_fragment_before_as_it_was() -> None:
    sampler = sampler_for(num_envs=2, make=fails_at({0: 5}))
    first = kept(sampler.sample(4).batch)
    batch = sampler.sample(4).batch
    assert first["final_at"].tolist() == [[3, 0], [3, 1]]
    assert batch.valid[:, 0].tolist() == [False, True, True, True]
    assert batch.terminated[0, 0]
    assert not batch.truncated.any()


def test_complete_episodes_ends_every_environment_with_an_episode() -> None:
    sampler = sampler_for(Walk, num_envs=5)
    for _ in range(4):
        sample = sampler.sample(3, complete_episodes=True)
        batch = sample.batch
        for n in range(5):
            last = int(np.flatnonzero(batch.valid[:, n])[-1])
            assert batch.valid[: last + 1, n].all()
            assert last >= 2
            assert batch.terminated[last, n] or batch.truncated[last, n]
            assert batch.terminated[last + 1 :, n].all()
            assert not batch.rewards[last + 1 :, n].any()
        assert set(map(tuple, batch.final_at.tolist())) == set(
            zip(*map(list, np.nonzero(batch.truncated)), strict=True)
        )
        assert sum(e.length for e in sample.episodes) == batch.num_steps
        assert batch.valid[-1].any(), "no step is taken when all have ended"


def test_complete_episodes_are_followed_through_a_failure() -> None:
    sampler = sampler_for(Failing, num_envs=4)
    for _ in range(4):
        batch = sampler.sample(3, complete_episodes=True).batch
        for n in range(4):
            last = int(np.flatnonzero(batch.valid[:, n])[-1])
            assert batch.terminated[last, n] or batch.truncated[last, n]


def restored(state: State, sampler: Sampler) -> tuple[Sampler, int]:
    values = json.loads(json.dumps(state.values))
    return sampler, sampler.set_state(State(values, {name: array.copy() for name, array in state.arrays.items()}))


@pytest.mark.parametrize("kind", [Walk, WalkInBox, WalkInTuple])
@pytest.mark.parametrize("fragments", [0, 1, 3])
def test_a_saved_sampler_goes_on_exactly_where_it_was(kind, fragments) -> None:
    policy = policy_for(kind)
    first = sampler_for(kind, policy=policy, limit=8)
    for _ in range(fragments):
        first.sample(5)
    second, lost = restored(first.get_state(), sampler_for(kind, policy=policy, limit=8))
    assert lost == 0
    for _ in range(4):
        one, two = first.sample(5), second.sample(5)
        assert_same(kept(one.batch), kept(two.batch))
        assert one.episodes == two.episodes


def test_an_unfinished_episode_is_remembered_over_fragments() -> None:
    class Long(Walk):
        falls_at, own_limit = 1e9, None

    policy = policy_for(Long)
    sampler = sampler_for(Long, num_envs=2, policy=policy)
    actions = [sampler.sample(4).batch.actions.copy() for _ in range(3)]
    state = sampler.get_state()
    assert state.values["history_lengths"] == [12, 12]
    np.testing.assert_array_equal(state.arrays["history"], np.concatenate(actions).transpose(1, 0, 2).reshape(24, 1))
    second, lost = restored(state, sampler_for(Long, num_envs=2, policy=policy))
    assert lost == 0
    again, lost = restored(second.get_state(), sampler_for(Long, num_envs=2, policy=policy))
    assert lost == 0, "a state of a restored sampler is as good"
    assert_same(kept(sampler.sample(4).batch), kept(again.sample(4).batch))


def test_a_state_does_not_move_with_its_sampler() -> None:
    policy = policy_for()
    first = sampler_for(policy=policy)
    first.sample(5)
    state = first.get_state()
    frozen = State(json.loads(json.dumps(state.values)), {k: v.copy() for k, v in state.arrays.items()})
    first.sample(5)
    for name, array in state.arrays.items():
        np.testing.assert_array_equal(array, frozen.arrays[name])
    assert json.loads(json.dumps(state.values)) == frozen.values


def test_episodes_that_do_not_come_back_the_same_are_counted() -> None:
    class Unseeded(Walk):
        falls_at, own_limit = 1e9, None
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Unseeded.made += 1
            self.number = Unseeded.made

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=self.number)

    policy = policy_for(Unseeded)
    first = sampler_for(Unseeded, num_envs=3, policy=policy)
    first.sample(4)
    second, lost = restored(first.get_state(), sampler_for(Unseeded, num_envs=3, policy=policy))
    assert lost == 3
    assert second.sample(4).batch.valid.all()


def test_without_replay_every_unfinished_episode_begins_anew() -> None:
    policy = policy_for()
    first = sampler_for(policy=policy)
    first.sample(4)
    second = sampler_for(policy=policy)
    assert second.set_state(first.get_state(), replay=False) == 4
    assert second.sample(1).batch.valid.all()


def test_restoring_the_very_beginning_begins() -> None:
    policy = policy_for()
    fresh, used = sampler_for(policy=policy), sampler_for(policy=policy)
    state = fresh.get_state()
    used.sample(6)
    assert used.set_state(state) == 0
    assert_same(kept(used.sample(6).batch), kept(sampler_for(policy=policy).sample(6).batch))


def test_a_native_vector_marks_the_steps_of_its_resets() -> None:
    policy = policy_for()
    native = SyncVectorEnv([Walk for _ in range(4)])
    sampler = Sampler(policy, NativeVector(native, policy.obs_spec, policy.action_spec, SEED), SEED)
    lengths = []
    for _ in range(3):
        sample = sampler.sample(20)
        batch = sample.batch
        lengths += [e.length for e in sample.episodes]
        invalid = ~batch.valid
        assert invalid.any()
        before = (batch.terminated | batch.truncated)[:-1] & batch.valid[:-1]
        np.testing.assert_array_equal(invalid[1:], before)
        assert batch.terminated[invalid].all()
        finals = {tuple(at) for at in batch.final_at.tolist()}
        truncated = set(zip(*(axis.tolist() for axis in np.nonzero(batch.truncated)), strict=True))
        assert truncated <= finals
    assert max(lengths) <= 9


def test_every_step_is_timed() -> None:
    sample = sampler_for().sample(50)
    assert sample.env_time_s > 0
    assert sample.policy_time_s > 0


def test_noise_streams_belong_to_environments() -> None:
    whole = sampler_for(num_envs=4)
    alone = sampler_for(num_envs=1, first_index=3)
    for _ in range(3):
        four, one = whole.sample(6).batch, alone.sample(6).batch
        np.testing.assert_array_equal(four.actions[:, 3:], one.actions)
