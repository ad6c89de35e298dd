"""A quorum of steps ends a fragment without those that are late: ragged data, learned from as if it were whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.algorithms.network_inputs import batch_inputs
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch, Sample, concatenate
from shoal.data.replay import transitions_of
from shoal.data.returns import gae, successor_values
from shoal.data.reward_scale import RewardScale
from shoal.errors import ConfigError

DEADLINE_S = 60
STEPS, ENVS, LATE_AT = 12, 4, 6
QUORUM = (LATE_AT + 3 * STEPS) / (4 * STEPS)  # what is there when all others have taken their steps


class Gated(gym.Env[Any, Any]):
    """Counts its steps; the first environment waits in its sixth until a file is there. Episodes have ten steps."""

    observation_space = gym.spaces.Box(-1000, 1000, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.gate = config["gate"] if config.env_index == 0 else None
        self.fails = config.get("fails", False)
        self.index, self.count, self.taken = config.env_index, 0, 0
        self.actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.start = float(self.np_random.uniform())
        return np.array([self.start, 0], np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        self.taken += 1
        self.actions.append(int(action))
        if self.gate and self.taken == LATE_AT + 1:  # the first look has taken one step of a process of its own
            until = monotonic() + DEADLINE_S
            while not os.path.exists(self.gate) and monotonic() < until:
                sleep(0.005)
            if self.fails:
                raise ArithmeticError("diverged")
        reward = float(self.np_random.normal())
        return np.array([self.start, self.count], np.float32), reward, self.count == 10, False, {}


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    config = {"num_envs_per_worker": ENVS, "seed": 3, "env_isolation": "process", "straggler_quorum": QUORUM}
    return {**config, "env_config": {"gate": str(tmp_path / "gate"), **more.pop("env_config", {})}, **more}


def copied(batch: Batch) -> Batch:
    """A batch that outlives the next."""
    return concatenate([replace(batch, obs=tuple(p.copy() for p in batch.obs)), empty_like(batch)])


def empty_like(batch: Batch) -> Batch:
    from shoal.parallel.ray_learners import _empty

    return _empty(batch)


def two_samples(trainer: shoal.Trainer, tmp_path: Path) -> list[Sample]:
    """One before the gate is opened, one after."""
    first = trainer.workers.sample(STEPS)
    first = Sample(**{**vars(first), "batch": copied(first.batch)})
    (tmp_path / "gate").touch()
    return [first, trainer.workers.sample(STEPS)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sample, Sample, list[int]]:
    """Two samples, and what the late environment itself says that it was told to do."""
    tmp_path = tmp_path_factory.mktemp("gated")
    with shoal.PPO(env=Gated, config=settings(tmp_path)) as trainer:
        first, second = two_samples(trainer, tmp_path)
        return first, second, trainer.workers.foreach_env(lambda env: env.actions)[0]


def test_who_is_late_gives_what_it_has_and_goes_on_in_the_next_batch(played: tuple[Sample, Sample, list[int]]) -> None:
    first, second, told = played
    taken = first.batch.valid.sum(axis=0)
    assert taken.tolist() == [LATE_AT, STEPS, STEPS, STEPS]
    assert first.num_steps == LATE_AT + 3 * STEPS
    assert first.batch.cut is not None
    assert first.batch.cut.tolist() == [True, False, False, False]
    # The successor of its last step is where it stood, and its episode goes on after the step that nobody has seen.
    place = first.batch.final_at.tolist().index([LATE_AT - 1, 0])
    assert first.batch.final_obs[0][place].tolist() == [first.batch.obs[0][0, 0, 0], LATE_AT]
    start, count = second.batch.obs[0][0, 0].tolist()
    assert (start, count) == (first.batch.obs[0][0, 0, 0], LATE_AT + 1)
    assert [e.length for e in second.episodes if e.env_index == 0] == [10]
    own = second.batch.actions[second.batch.valid[:, 0], 0, 0].tolist()
    assert told[:LATE_AT] == first.batch.actions[:LATE_AT, 0, 0].tolist()
    assert told[LATE_AT + 1 : LATE_AT + 1 + len(own)] == own


def test_advantages_are_those_of_the_ragged_data(played: tuple[Sample, Sample, list[int]]) -> None:
    batch = played[0].batch
    rng = np.random.default_rng(0)
    values = rng.normal(size=batch.valid.shape).astype(np.float32)
    final_values = rng.normal(size=len(batch.final_at)).astype(np.float32)
    following = successor_values(values, final_values, batch.final_at)
    found = gae(batch.rewards, values, following, batch.terminated, batch.truncated, 0.9, 0.8)
    finals = {tuple(at): value for at, value in zip(batch.final_at.tolist(), final_values, strict=True)}
    ahead = transitions_of(batch, batch.rewards, 0.9, 3)
    order = np.flatnonzero(batch.valid.reshape(-1)).tolist()
    for n in range(ENVS):
        steps = int(batch.valid[:, n].sum())
        deltas = []
        for t in range(steps):
            after = finals[t, n] if (t, n) in finals else values[t + 1, n] if not batch.terminated[t, n] else 0.0
            deltas.append(batch.rewards[t, n] + 0.9 * after * (not batch.terminated[t, n]) - values[t, n])
        for t in range(steps):
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                total += weight * deltas[k]
                weight *= 0.9 * 0.8
                if batch.terminated[k, n]:
                    break
            assert found[t, n] == pytest.approx(total, abs=1e-5)
            last = next(k for k in range(t, t + 3) if k == steps - 1 or k == t + 2 or batch.terminated[k, n])
            row = order.index(t * ENVS + n)
            expected = sum(0.9**k * batch.rewards[t + k, n] for k in range(last - t + 1))
            assert ahead.returns[row] == pytest.approx(expected, abs=1e-5)
            assert ahead.discounts[row] == pytest.approx(0.0 if batch.terminated[last, n] else 0.9 ** (last - t + 1))
            if not batch.terminated[last, n]:
                start, count = batch.obs[0][last, n]
                assert ahead.next_obs[0][row].tolist() == [start, count + 1]


def test_the_scale_of_rewards_goes_on_over_the_cut(played: tuple[Sample, Sample, list[int]]) -> None:
    batch = played[0].batch
    scale = RewardScale(0.9)
    scale.update(batch, batch.rewards)
    expected = 0.0
    for reward in batch.rewards[:LATE_AT, 0]:
        expected = 0.9 * expected + float(reward)
    assert scale.unfinished[0] == pytest.approx(expected)
    assert scale.count == batch.num_steps


def test_a_policy_with_memory_carries_its_state_over_the_cut(tmp_path: Path) -> None:
    model = {"use_lstm": True, "max_seq_len": 5, "lstm_use_prev_action": True, "lstm_cell_size": 8}
    with shoal.PPO(env=Gated, config=settings(tmp_path, model=model)) as trainer:
        policy = trainer.get_policy()
        for sample in two_samples(trainer, tmp_path):
            inputs, valid = batch_inputs(policy, sample.batch), sample.batch.valid.reshape(-1)
            outputs = np.concatenate([policy.network.forward(chunk)[0] for chunk in inputs.chunks()])
            recorded = sample.batch.dist_inputs.reshape(len(valid), -1)[inputs.order]
            np.testing.assert_allclose(outputs, recorded, atol=1e-5)
            assert sample.batch.carried is not None
            assert all(len(part) == len(sample.batch.final_at) for part in sample.batch.carried.final)


@pytest.mark.repeats(1)
@pytest.mark.parametrize("run", ["PPO", "TRPO", "DQN"])
def test_it_trains_and_resumes_with_a_step_in_the_middle(run: str, tmp_path: Path) -> None:
    config = settings(tmp_path, train_batch_size=48)
    if run == "DQN":
        config |= {"train_batch_size": 16, "learning_starts": 16, "timesteps_per_iteration": 48}
        config |= {"rollout_fragment_length": STEPS}
    with getattr(shoal, run)(env=Gated, config=config) as trainer:
        result = trainer.train()
        path = trainer.save(tmp_path / "saved")
        assert result["timesteps_this_iter"] == 48 * QUORUM
        (tmp_path / "gate").touch()
        trainer.train()
    if run == "TRPO":  # samples as PPO does
        return
    with getattr(shoal, run)(env=Gated, config=config) as trainer:
        trainer.restore(path)
        state = trainer.workers.get_state()[0]
        assert state.values["history_lengths"][0] == LATE_AT  # the step that was not finished is taken again
        assert state.arrays["current0"][0, 1] == LATE_AT
        trainer.train()


def test_a_late_step_that_fails_is_written_down_with_its_actions(tmp_path: Path) -> None:
    with shoal.PPO(env=Gated, config=settings(tmp_path, env_config={"fails": True})) as trainer:
        first, second = two_samples(trainer, tmp_path)
    assert not first.incidents
    incident = second.incidents[0]
    assert incident.steps_since_seed == LATE_AT + 1
    assert incident.actions is not None
    assert incident.actions[:LATE_AT].tolist() == first.batch.actions[:LATE_AT, 0].tolist()
    assert len(incident.actions) == LATE_AT + 1


def test_without_anybody_late_the_batch_is_whole(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    with shoal.PPO(env=Gated, config=settings(tmp_path, straggler_quorum=1.0)) as trainer:
        sample = trainer.workers.sample(STEPS)
    assert sample.batch.valid.all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"straggler_quorum": 0.9}, "config.straggler_quorum: .* set env_isolation: process"),
        ({"straggler_quorum": 0.9, "env_step_timeout_s": 3, "batch_mode": "complete_episodes"}, "waits for every"),
        ({"straggler_quorum": 0, "env_step_timeout_s": 3}, "config.straggler_quorum"),
        ({"straggler_quorum": 0.9, "env_ranks": 2}, "waits for its only environment; set num_envs_per_worker: 2"),
    ],
)
def test_what_cannot_be_had_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPOConfig(**given)
