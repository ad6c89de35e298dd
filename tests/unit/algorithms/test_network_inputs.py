"""What learning sees of a batch with memory is what acting saw, however the episodes end and wherever fragments do."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from shoal.algorithms.minibatches import Minibatches
from shoal.algorithms.network_inputs import batch_inputs, final_inputs
from shoal.algorithms.on_policy import outputs_of, values_and_advantages, values_of
from shoal.algorithms.ppo import PPOLearner
from shoal.algorithms.trpo import TRPOLearner
from shoal.config.ppo import PPOConfig
from shoal.config.trpo import TRPOConfig
from shoal.data.batch import Batch, concatenate
from shoal.envs.native import NativeVector
from shoal.envs.vector import PythonVector
from shoal.models.build import build_policy
from shoal.parallel.group import Alone
from shoal.sampling.sampler import Sampler

pytest.importorskip("torch")
T, N, WINDOW = 17, 4, 6
LSTM = {"use_lstm": True, "lstm_cell_size": 6, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
ATTENTION = {
    "use_attention": True,
    "attention_memory_inference": 3,
    "attention_dim": 8,
    "attention_num_transformer_units": 2,
    "attention_use_n_prev_actions": 1,
}
MEMORIES = {
    "lstm": LSTM,
    "shared": {"use_lstm": True, "lstm_cell_size": 6, "vf_share_layers": True},
    "gru": {"use_gru": True, "lstm_cell_size": 6, "lstm_use_prev_reward": True},
    "attention": ATTENTION,
}


class Walk(gym.Env):
    """Falls, or is cut after some steps; every environment in its own time."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space: spaces.Space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-0.2, 0.8, (2,), np.float32)])
    fails = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs = self.np_random.standard_normal(3).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        self.steps += 1
        if self.fails and self.np_random.random() < 0.1:
            raise RuntimeError("diverged")
        self.obs = (0.8 * self.obs + self.np_random.standard_normal(3)).astype(np.float32)
        return self.obs, float(self.obs[0] + action[0]), bool(abs(self.obs[1]) > 3), self.steps >= 8, {}


class Failing(Walk):
    fails = True


def policy_and_sampler(memory: str, kind=Walk, config=PPOConfig, first=0, count=N, **changes):
    standard = {"train_batch_size": T * N, "sgd_minibatch_size": 24, "num_envs_per_worker": N, "seed": 3}
    model = {"fcnet_hiddens": [8], "max_seq_len": WINDOW, **MEMORIES[memory]}
    made = config(**{**standard, "model": model, **changes})
    policy = build_policy(kind.observation_space, kind.action_space, made)
    rng = np.random.default_rng(0)
    policy.network.params[:] += 0.3 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    vector = PythonVector(
        lambda _: (kind(), None), count, policy.obs_spec, policy.action_spec, seed=3, first_index=first
    )
    return made, policy, Sampler(policy, vector, 3, first)


def by_hand(policy, batch: Batch, state):
    """Outputs and values of each step and final observation, one environment and one step at a time."""
    recurrence = policy.recurrence
    steps, num_envs = batch.valid.shape
    outputs = np.zeros((steps, num_envs, policy.network.num_outputs), np.float32)
    values, finals = np.zeros((steps, num_envs), np.float32), {}
    wanted = {tuple(at): k for k, at in enumerate(batch.final_at.tolist())}
    ones = np.ones(1, np.int64)
    for n in range(num_envs):
        now = tuple(part[n : n + 1] for part in state)
        for t in range(steps):
            seen = (*policy.encoder(tuple(part[t, n : n + 1] for part in batch.obs)), now[0])
            values[t, n] = policy.network.values((*seen, *now[1:], ones))[0]
            outputs[t, n], after = recurrence.step(seen, now[1:])
            now = (recurrence.previous(batch.actions[t, n : n + 1], batch.rewards[t, n : n + 1]), *after)
            if (t, n) in wanted:
                k = wanted[t, n]
                last = policy.encoder(tuple(part[k : k + 1] for part in batch.final_obs))
                finals[k] = policy.network.values((*last, *now, ones))[0]
            if batch.terminated[t, n] or batch.truncated[t, n]:
                now = recurrence.begin(1)
        for part, mine in zip(state, now, strict=True):
            part[n] = mine[0]
    return outputs, values, [finals[k] for k in range(len(wanted))]


@pytest.mark.parametrize("kind", [Walk, Failing])
@pytest.mark.parametrize("memory", MEMORIES)
def test_sequences_give_what_acting_gave_step_by_step(memory, kind) -> None:
    _, policy, sampler = policy_and_sampler(memory, kind)
    state = policy.recurrence.begin(N)
    for complete in (False, False, True):  # the second fragment begins inside episodes
        batch = sampler.sample(T, complete_episodes=complete).batch
        outputs, values, finals = by_hand(policy, batch, state)
        seen = batch_inputs(policy, batch)
        assert (np.arange(len(batch.valid))[:, None] - seen.starts < WINDOW)[batch.valid].all()
        valid = batch.valid.reshape(-1)
        assert sorted(seen.order.tolist()) == np.flatnonzero(valid).tolist()
        flat = outputs.reshape(-1, outputs.shape[2])[seen.order]
        recorded = batch.dist_inputs.reshape(-1, flat.shape[1])[seen.order]
        np.testing.assert_allclose(recorded, flat, atol=1e-5)
        for rows in (1, 10, 1024):
            np.testing.assert_allclose(outputs_of(policy, seen.chunks(rows)), flat, atol=1e-5)
        np.testing.assert_allclose(values_of(policy, seen.chunks()), values.reshape(-1)[seen.order], atol=1e-5)
        np.testing.assert_allclose(values_of(policy, final_inputs(policy, batch).chunks()), finals, atol=1e-5)
    assert (batch.truncated.any(), batch.terminated.any()) == (True, True)
    assert batch.valid.all() == (kind is Walk and not complete)


def test_a_native_vector_begins_anew_after_its_resets() -> None:
    _, policy, _ = policy_and_sampler("lstm")
    vector = NativeVector(SyncVectorEnv([Walk] * N), policy.obs_spec, policy.action_spec, 3, 0)
    sampler, state = Sampler(policy, vector, 3), policy.recurrence.begin(N)
    for _ in range(2):
        batch = sampler.sample(T).batch
        assert not batch.valid.all()
        outputs, _, finals = by_hand(policy, batch, state)
        seen = batch_inputs(policy, batch)
        flat = outputs.reshape(-1, outputs.shape[2])[seen.order]
        np.testing.assert_allclose(outputs_of(policy, seen.chunks()), flat, atol=1e-5)
        np.testing.assert_allclose(values_of(policy, final_inputs(policy, batch).chunks()), finals, atol=1e-5)


def test_fragments_of_several_workers_are_joined() -> None:
    config, policy, whole = policy_and_sampler("lstm")
    halves = [policy_and_sampler("lstm", first=first, count=2)[2] for first in (0, 2)]
    for complete in (False, True):
        expected = whole.sample(T, complete_episodes=complete).batch
        joined = concatenate([half.sample(T, complete_episodes=complete).batch for half in halves])
        np.testing.assert_allclose(joined.carried.previous, expected.carried.previous, atol=1e-5)
        for mine, theirs in zip(
            joined.carried.states + joined.carried.final, expected.carried.states + expected.carried.final, strict=True
        ):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        advantages = [
            values_and_advantages(policy, b, b.rewards, batch_inputs(policy, b), config) for b in (joined, expected)
        ]
        np.testing.assert_allclose(*[found[1] for found in advantages], atol=1e-4)


@pytest.mark.parametrize("columns", [[3, 5], [8, 0], [1, 2, 5]])
@pytest.mark.parametrize("holes", [False, True])
def test_minibatches_are_whole_sequences_and_their_union_is_that_of_one_learner(in_threads, columns, holes) -> None:
    rng = np.random.default_rng(1)
    valid = rng.random((T, 8)) < 0.8 if holes else np.ones((T, 8), bool)
    begins = rng.random((T, 8)) < 0.2
    begins[0] = True
    starts = np.maximum.accumulate(np.where(begins, np.arange(T)[:, None], 0), axis=0)
    cuts = np.cumsum([0, *columns]).tolist()

    def work(group, share):
        first, end = share
        found = []
        made = Minibatches(5, 16, window=WINDOW).epochs(
            valid[:, first:end], group, np.arange(first, end), starts[:, first:end]
        )
        for epoch in islice(made, 3):
            for part, size in epoch:
                times, envs = np.divmod(epoch.rows[part], max(end - first, 1))
                found.append((list(zip(times.tolist(), (envs + first).tolist(), strict=True)), size))
        return found

    [whole] = in_threads(work, [(0, 8)])
    parts = in_threads(work, list(pairwise(cuts)))
    for k, (steps, size) in enumerate(whole):
        assert sorted(step for found in parts for step in found[k][0]) == sorted(steps)
        assert {found[k][1] for found in parts} == {size} == {len(steps)}
        sequences = list(dict.fromkeys((int(starts[t, n]), n) for t, n in steps))
        assert steps == [
            (t, n) for start, n in sequences for t in range(start, T) if starts[t, n] == start and valid[t, n]
        ]
    every = [step for steps, _ in whole for step in steps]
    assert len(every) == 3 * len(set(every)) == 3 * np.count_nonzero(valid)
    sizes = [size for _, size in whole]
    assert max(sizes) < 3 * 16
    assert len({tuple(steps) for steps, _ in whole}) == len(whole)


def share_of(batch: Batch, begin: int, end: int) -> Batch:
    """Some of the environments, as a learner gets them."""
    mine = (begin <= batch.final_at[:, 1]) & (batch.final_at[:, 1] < end)
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
    assert batch.carried is not None
    known = (begin <= batch.carried.states_at[:, 1]) & (batch.carried.states_at[:, 1] < end)
    return replace(
        batch,
        obs=tuple(part[:, begin:end] for part in batch.obs),
        final_obs=tuple(part[mine] for part in batch.final_obs),
        final_at=batch.final_at[mine] - np.array([0, begin]),
        columns=np.arange(begin, end),
        carried=replace(
            batch.carried,
            previous=batch.carried.previous[:, begin:end],
            states=tuple(part[known] for part in batch.carried.states),
            states_at=batch.carried.states_at[known] - np.array([0, begin]),
            final=tuple(part[mine] for part in batch.carried.final),
        ),
        **{name: getattr(batch, name)[:, begin:end] for name in names},
    )


@pytest.mark.parametrize("memory", ["lstm", "attention"])
def test_learners_that_share_a_batch_learn_what_one_learns(in_threads, memory) -> None:
    """PPO alone: torch's forward derivatives, which TRPO takes, are one thread's at a time."""
    _, _, sampler = policy_and_sampler(memory, Failing)
    batch = sampler.sample(T).batch

    def learned(shares):
        made = [policy_and_sampler(memory, Failing, num_sgd_iter=2)[:2] for _ in shares]  # torch's seed is for all

        def work(group, share):
            batch, (config, policy) = share
            before = policy.network.params.copy()
            stats = PPOLearner(config, policy, group).update(batch, 0)
            return policy.network.params - before, stats

        return in_threads(work, list(zip(shares, made, strict=True)))

    [(alone, told)] = learned([replace(batch, columns=np.arange(N))])
    assert np.abs(alone).max() > 1e-3
    for cut in (1, 4):
        for moved, stats in learned([share_of(batch, 0, cut), share_of(batch, cut, N)]):
            np.testing.assert_allclose(moved, alone, atol=2e-4)
            assert stats == pytest.approx(told, rel=1e-3, abs=1e-4)


def test_the_ratio_is_one_on_the_first_minibatch() -> None:
    made, policy, sampler = policy_and_sampler("lstm", Failing, num_sgd_iter=1, sgd_minibatch_size=T * N)
    sampler.sample(T)
    stats = PPOLearner(made, policy, Alone()).update(sampler.sample(T).batch, 0)
    assert stats["kl"] == pytest.approx(0, abs=1e-6)
    assert stats["clip_fraction"] == 0


def test_a_thinned_fisher_matrix_is_that_of_every_nth_sequence() -> None:
    made, policy, sampler = policy_and_sampler("lstm", config=TRPOConfig, fisher_subsample=2)
    batch = sampler.sample(T).batch
    seen = batch_inputs(policy, batch)
    windows = seen.starts // WINDOW
    thinned = seen.only((windows % 2 == 0).reshape(-1))
    assert set(windows.reshape(-1)[thinned.order].tolist()) == {0, 2}
    whole = outputs_of(policy, seen.chunks())
    kept = np.isin(seen.order, thinned.order)
    np.testing.assert_allclose(outputs_of(policy, thinned.chunks()), whole[kept], atol=1e-5)
    stats = TRPOLearner(made, policy).update(batch, 0)
    assert 0 < stats["kl"] <= stats["max_kl"]
