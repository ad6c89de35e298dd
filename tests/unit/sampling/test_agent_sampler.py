"""Agents as rows: whose step a reward belongs to, who takes part, and what a fragment keeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from agent_envs import Cards, Corridor

from shoal.algorithms.rewards import LearnedRewards
from shoal.config.ppo import PPOConfig
from shoal.data.replay import transitions_of
from shoal.data.returns import gae
from shoal.envs.making import env_maker
from shoal.sampling.worker import Worker


def worker_of(env, **settings):
    config = PPOConfig.model_validate({"env": env, "num_envs_per_worker": 1, "seed": 3, **settings})
    return Worker(config, env_maker(env))


def steps_of(batch, row):
    """The row's transitions: observation, action, reward, terminated, truncated."""
    kept = np.flatnonzero(batch.valid[:, row])
    assert kept.tolist() == list(range(len(kept)))  # what is no transition stands at the end
    return [
        (
            batch.obs[0][t, row].tolist(),
            int(batch.actions[t, row, 0]),
            float(batch.rewards[t, row]),
            bool(batch.terminated[t, row]),
            bool(batch.truncated[t, row]),
        )
        for t in kept
    ]


def test_a_reward_in_another_players_turn_belongs_to_ones_own_last_action():
    worker = worker_of(Cards)
    batch = worker.sample(2).batch  # one whole game: each player has two cards
    laid = [[step[1] + 1 for step in steps_of(batch, row)] for row in range(3)]
    rewards = [[step[2] for step in steps_of(batch, row)] for row in range(3)]
    # Player 1 loses what player 0 lays: the first time before its own first card, which is no action's reward.
    assert rewards[0] == [-laid[2][0], -laid[2][1] + 100]
    assert rewards[1] == [-laid[0][1], 100]
    assert rewards[2] == [-laid[1][1], 100]
    assert batch.terminated.tolist() == [[False] * 3, [True] * 3]
    assert batch.valid.all()
    # Each player's own time: the observation after its first card is that of its second turn.
    assert batch.obs[0][:, :, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    masks = batch.obs[-1]
    assert masks[0, 0].all()
    assert (masks.sum(axis=2).reshape(-1)[1:] == 2).all()
    worker.stop()


def test_advantages_are_those_of_each_players_own_steps():
    worker = worker_of(Cards)
    batch = worker.sample(2).batch
    values = np.zeros((2, 3), np.float32)
    found = gae(batch.rewards, values, values, batch.terminated, batch.truncated, 0.5, 1.0)
    laid = batch.actions[:, :, 0] + 1
    expected = [-laid[0, 2] + 0.5 * (100 - laid[1, 2]), -laid[1, 0] + 50, -laid[1, 1] + 50]
    np.testing.assert_allclose(found[0], expected)
    worker.stop()


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_steps_that_go_on_are_the_first_of_the_next_fragment(steps):
    whole, cut = worker_of(Cards, explore=False), worker_of(Cards, explore=False)
    wanted = [steps_of(whole.sample(15).batch, row) for row in range(3)]
    found = [[] for _ in range(3)]
    while min(map(len, found)) < 15:
        sample = cut.sample(steps)
        for row in range(3):
            # What a fragment cuts is marked truncated there; the episode goes on.
            found[row] += [(*step[:4], False) for step in steps_of(sample.batch, row)]
    for row in range(3):
        assert found[row][: len(wanted[row])] == [(*step[:4], False) for step in wanted[row]]
    whole.stop()
    cut.stop()


def test_agents_come_and_go():
    worker = worker_of(Corridor)
    batch = worker.sample(40).batch
    first, late = steps_of(batch, 0), steps_of(batch, 2)
    places = [step[0][0] for step in first]
    assert {step[3] for step in first} == {True, False}
    for here, after in pairwise(first):
        assert after[0][0] == (0 if here[3] else here[0][0] + here[1])
        assert here[2] == (10 if here[3] else -1)
    assert max(places) == 2
    # The late one takes at most two steps of each episode, from its step 2 on, and is truncated with its observation.
    ends = [k for k, step in enumerate(late) if step[3] or step[4]]
    assert ends
    assert all(step[0][1] in (2, 3) for step in late)
    finals = {(t, row): obs.tolist() for (t, row), obs in zip(batch.final_at.tolist(), batch.final_obs[0], strict=True)}
    cut = [t for t, step in enumerate(late) if step[4] and step[0][1] == 3]
    assert cut
    assert all(finals[t, 2][1] == 4 for t in cut)
    assert not batch.valid.all()
    worker.stop()


def test_an_episode_has_the_return_of_all_agents_and_each_policy_the_returns_of_its_own():
    worker = worker_of(Corridor)
    sample = worker.sample(50)
    episode = sample.episodes[0]
    agents = episode.policy_rewards["default_policy"]
    assert episode.reward == pytest.approx(sum(agents))
    assert len(agents) in (2, 3)
    assert episode.metrics == {"time": episode.length}
    assert sample.num_steps == np.count_nonzero(sample.batch.valid)
    worker.stop()


def test_an_environment_that_fails_is_rebuilt_and_its_steps_are_no_transitions():
    worker = worker_of(lambda: Corridor(fails_at=5), max_env_failures=100)
    sample = worker.sample(20)
    assert sample.incidents
    assert "the solver diverged" in sample.incidents[0].cause
    assert sample.incidents[0].env_index == 0
    batch = sample.batch
    assert not batch.valid.all()
    assert batch.terminated[~batch.valid].all()
    failed = np.flatnonzero(~batch.valid[:, 0])[0]
    if failed and not batch.terminated[failed - 1, 0]:
        assert batch.truncated[failed - 1, 0]
    worker.stop()


def test_replay_gets_the_transitions_of_each_agents_own_time():
    worker = worker_of(Cards)
    batch = worker.sample(2).batch
    config = PPOConfig(normalize_rewards=False)
    new = transitions_of(batch, LearnedRewards(config).unscaled(batch), 0.9, 1)
    turns, after = new.obs[0][:, 0], new.next_obs[0][:, 0]
    goes_on = new.discounts > 0
    assert (after[goes_on] - turns[goes_on] == 3).all()
    assert goes_on.sum() == 3
    worker.stop()


def test_a_horizon_truncates_all_agents():
    worker = worker_of(Corridor, horizon=1)
    sample = worker.sample(4)
    assert {episode.length for episode in sample.episodes} == {1}
    assert sample.batch.truncated[:, :2].all()
    worker.stop()
