"""Environments in processes of their own, stepped as they are ready: the batch is that of lockstep, bit for bit."""

from __future__ import annotations

import os
import time
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.data.batch import Batch, Sample
from shoal.sampling.own_pace import OwnPaceFragment


class Uneven(gym.Env[Any, Any]):
    """A walk whose episodes and steps take as long as chance wills; now and then it fails."""

    observation_space: spaces.Space[Any] = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config: Any) -> None:
        self.fails = config.get("fails", False)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.walk = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.seen(), {}

    def step(self, action: int) -> Any:
        self.walk += np.float32(0.1 * (int(action) - 1)) + self.np_random.normal(0, 0.2, 3).astype(np.float32)
        chance = self.np_random.random()
        if chance < 0.1:
            time.sleep(0.003)
        if self.fails and chance > 0.98:
            raise ArithmeticError("diverged")
        return self.seen(), float(self.walk[0]), bool(chance < 0.05), bool(0.05 < chance < 0.1), {"chance": chance}

    def seen(self) -> Any:
        return self.walk.copy()


class Masked(Uneven):
    """The same, with actions that may not be taken."""

    observation_space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(3), "place": spaces.Box(-100, 100, (3,), np.float32)}
    )

    def seen(self) -> Any:
        mask = np.array([1, self.walk[0] > 0, self.walk[1] > 0], np.int8)
        return {"action_mask": mask, "place": self.walk.copy()}


def samples(kind: Any, isolation: str, steps: int = 40, **settings: Any) -> list[Sample]:
    run = settings.pop("run", "PPO")
    config = {"num_envs_per_worker": 5, "seed": 3, "env_isolation": isolation, **settings}
    with getattr(shoal, run)(env=kind, config=config) as trainer:
        found = []
        for _ in range(2):  # the second begins in the middle of episodes
            sample = trainer.workers.sample(steps)
            found.append(Sample(**{**vars(sample), "batch": copied(sample.batch)}))
        return found


def copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if hasattr(value, "__dataclass_fields__"):
        return type(value)(**{f.name: copied(getattr(value, f.name)) for f in fields(value)})
    return value


def check_same(mine: Sample, theirs: Sample) -> None:
    """Equal in all rows that are transitions, and in what follows from them."""
    valid = theirs.batch.valid
    np.testing.assert_array_equal(mine.batch.valid, valid)
    for name in ("actions", "rewards", "log_probs", "dist_inputs"):
        np.testing.assert_array_equal(getattr(mine.batch, name)[valid], getattr(theirs.batch, name)[valid], name)
    for name in ("terminated", "truncated", "final_at"):
        np.testing.assert_array_equal(getattr(mine.batch, name), getattr(theirs.batch, name), name)
    for part, other in zip(mine.batch.obs, theirs.batch.obs, strict=True):
        np.testing.assert_array_equal(part[valid], other[valid])
    for part, other in zip(mine.batch.final_obs, theirs.batch.final_obs, strict=True):
        np.testing.assert_array_equal(part, other)
    check_carried(mine.batch, theirs.batch)
    assert sorted(mine.episodes, key=repr) == sorted(theirs.episodes, key=repr)
    places = [[(i.env_index, i.seed, i.steps_since_seed, i.step, i.cause) for i in s.incidents] for s in (mine, theirs)]
    assert sorted(places[0]) == sorted(places[1])


def check_carried(mine: Batch, theirs: Batch) -> None:
    assert (mine.carried is None) == (theirs.carried is None)
    if mine.carried is not None and theirs.carried is not None:
        np.testing.assert_array_equal(mine.carried.previous, theirs.carried.previous)
        np.testing.assert_array_equal(mine.carried.states_at, theirs.carried.states_at)
        for part, other in zip(
            (*mine.carried.states, *mine.carried.final), (*theirs.carried.states, *theirs.carried.final), strict=True
        ):
            np.testing.assert_array_equal(part, other)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (Uneven, {}),
    "failing": (Uneven, {"env_config": {"fails": True}}),
    "masked": (Masked, {}),
    "complete episodes": (Uneven, {"batch_mode": "complete_episodes"}),
    "drawn anew": (Uneven, {"randomize": {"options": {"wind": {"uniform": [0, 1]}}}, "horizon": 12}),
    "a filter, no chance": (Uneven, {"observation_filter": "MeanStdFilter", "explore": False}),
    "with memory": (Uneven, {"model": {"use_lstm": True, "max_seq_len": 7, "lstm_use_prev_action": True}}),
    "by value": (Uneven, {"run": "DQN"}),
}


@pytest.mark.repeats(3)
@pytest.mark.parametrize("case", CASES)
def test_the_batch_is_that_of_lockstep(case: str) -> None:
    kind, settings = CASES[case]
    for mine, theirs in zip(samples(kind, "process", **settings), samples(kind, "none", **settings), strict=True):
        check_same(mine, theirs)


def test_training_and_resuming_are_exact(tmp_path: Any) -> None:
    settings = {"num_envs_per_worker": 3, "seed": 1, "train_batch_size": 120, "env_config": {"fails": True}}

    def weights(isolation: str, resumed: str | None) -> Any:
        with shoal.PPO(env=Uneven, config={**settings, "env_isolation": isolation}) as trainer:
            trainer.train()
            if resumed is None:
                trainer.train()
                return trainer.get_policy().network.params.copy()
            path = trainer.save(tmp_path / isolation)
        with shoal.PPO(env=Uneven, config={**settings, "env_isolation": resumed}) as trainer:
            trainer.restore(path)
            trainer.train()
            return trainer.get_policy().network.params.copy()

    straight = weights("none", None)
    np.testing.assert_array_equal(weights("process", "process"), straight)
    np.testing.assert_array_equal(weights("process", "none"), straight)


def test_functions_reach_environments_in_their_processes() -> None:
    with shoal.PPO(env=Uneven, config={"num_envs_per_worker": 2, "env_isolation": "process"}) as trainer:
        trainer.train()
        names = trainer.workers.foreach_env(lambda env: type(env.unwrapped).__name__)
    assert names == ["Uneven", "Uneven"]


class Steady(gym.Env[Any, Any]):
    """A walk in two dimensions whose steps take no time; one environment does something odd at one of them."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self, config: Any) -> None:
        self.odd, self.at = config.get("odd"), config.get("at", 0)
        self.is_odd = config.env_index == 1
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.walk = self.np_random.uniform(-1, 1, 2)
        return self.walk.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.is_odd and self.steps == self.at:
            if self.odd == "exit":
                os._exit(3)
            if self.odd == "hang":
                time.sleep(1000)
            raise ArithmeticError("diverged")
        self.walk += 0.1 * np.asarray(action, np.float64).sum() + self.np_random.normal(0, 0.1, 2)
        return self.walk.astype(np.float32), float(self.walk.sum()), bool(abs(self.walk[0]) > 2), False, {}


class Continuous(Steady):
    """The same, with three numbers for an action."""

    action_space = spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each environment has taken by itself before it answered, in the order of answers."""
    seen: list[int] = []
    add = OwnPaceFragment.add_stretch

    def noted(self: OwnPaceFragment, row: int, count: int, shared: Any) -> None:
        seen.append(count)
        add(self, row, count, shared)

    monkeypatch.setattr(OwnPaceFragment, "add_stretch", noted)
    return seen


@pytest.mark.repeats(2)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"observation_filter": "MeanStdFilter"},
        {"batch_mode": "complete_episodes", "horizon": 70},
        {"run": "DQN", "rollout_fragment_length": 40},
        {"kernel": "compiled"},
        {"randomize": {"options": {"wind": {"uniform": [0, 1]}}}},
    ],
    ids=["discrete", "filter", "complete episodes", "DQN", "compiled", "drawn values"],
)
def test_a_stretch_is_what_the_steps_one_by_one_are(settings: dict[str, Any], stretches: list[int]) -> None:
    mine = samples(Steady, "process", **settings)
    assert sum(stretches) > 200  # of 400 steps: nearly all were taken by the environments themselves
    for own, other in zip(mine, samples(Steady, "none", **settings), strict=True):
        check_same(own, other)
        assert own.episodes == other.episodes  # in the same order, too


def test_a_stretch_goes_on_over_the_ends_of_episodes_and_over_new_seeds(stretches: list[int]) -> None:
    mine = samples(Steady, "process", steps=240)
    longest = max(episode.length for sample in mine for episode in sample.episodes)
    assert max(stretches) > 100 > longest  # there is a new seed after every hundred steps
    for own, other in zip(mine, samples(Steady, "none", steps=240), strict=True):
        check_same(own, other)
        assert own.episodes == other.episodes


class Counting(Steady):
    """The same, as old simulators write it: rewards and flags of any type, observations as lists."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs.tolist(), 1, np.bool_(terminated), int(truncated), info


class SteadyMasked(Steady):
    """The same, with two vectors and a mask in one observation."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(3),
            "gear": spaces.Discrete(3),
            "place": spaces.Box(-100, 100, (2,), np.float32),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.seen(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> Any:
        assert self.mask[action]
        place, *others = super().step(action)
        return self.seen(place), *others

    def seen(self, place: Any) -> Any:
        self.mask = np.array([place[0] > 0, True, place[1] > 0], np.int8)
        return {"action_mask": self.mask, "gear": int(place[0] > 1), "place": place}


@pytest.mark.repeats(1)
@pytest.mark.parametrize("kernel", ["numpy", "compiled"])
def test_a_stretch_keeps_to_the_masks(kernel: str, stretches: list[int]) -> None:
    mine = samples(SteadyMasked, "process", kernel=kernel)
    assert sum(stretches) > 200
    for own, other in zip(mine, samples(SteadyMasked, "none", kernel=kernel), strict=True):
        check_same(own, other)


def test_a_stretch_goes_on_where_answers_are_of_odd_types(stretches: list[int]) -> None:
    mine = samples(Counting, "process")
    assert sum(stretches) > 200
    for own, other in zip(mine, samples(Counting, "none"), strict=True):
        check_same(own, other)


def test_weights_and_filter_reach_the_processes(stretches: list[int]) -> None:
    params = []
    for isolation in ("process", "none"):
        config = {
            "num_envs_per_worker": 3,
            "train_batch_size": 192,
            "env_isolation": isolation,
            "observation_filter": "MeanStdFilter",
        }
        with shoal.PPO(env=Continuous, config=config) as trainer:
            for _ in range(3):
                trainer.train()
            params.append(trainer.get_policy().network.params.copy())
            worker = trainer.workers.foreach_worker(lambda worker: worker)[0]
            params.append(worker.sampler.sample(64, explore=False).batch.actions.copy())
    assert np.array_equal(params[0], params[2])
    assert np.array_equal(params[1], params[3])
    assert sum(stretches) > 300


@pytest.mark.repeats(1)
@pytest.mark.parametrize(("odd", "at"), [("exit", 25), ("hang", 25), ("raise", 25), ("exit", 190), ("raise", 190)])
def test_what_happens_within_a_stretch_costs_one_step(odd: str, at: int, stretches: list[int]) -> None:
    config = {
        "num_envs_per_worker": 3,
        "seed": 3,
        "env_step_timeout_s": 1.0,
        "env_config": {"odd": odd, "at": at},
        "env_isolation": "process",
    }
    with shoal.PPO(env=Steady, config=config) as trainer:
        batch, (incident, *_) = (sample := trainer.workers.sample(at + 15)).batch, sample.incidents
    assert max(stretches) > 5
    assert incident.env_index == 1
    assert np.argwhere(~batch.valid).tolist() == [[at - 1, 1]]
    assert len(incident.actions) == incident.steps_since_seed
    assert np.array_equal(incident.actions[:, 0], batch.actions[at - len(incident.actions) : at, 1, 0])
    before = samples(Steady, "none", steps=at + 15, num_envs_per_worker=3)[0].batch
    assert np.array_equal(batch.obs[0][: at - 1], before.obs[0][: at - 1])
    assert np.array_equal(batch.rewards[: at - 1], before.rewards[: at - 1])


def test_the_incident_that_ends_a_run_has_its_actions(stretches: list[int]) -> None:
    config = {
        "num_envs_per_worker": 3,
        "env_config": {"odd": "exit", "at": 25},
        "env_isolation": "process",
        "max_env_failures": 0,
    }
    with shoal.PPO(env=Steady, config=config) as trainer:
        worker = trainer.workers.foreach_worker(lambda worker: worker)[0]
        with pytest.raises(shoal.EnvError, match="exit code 3"):
            trainer.workers.sample(40)
        (incident,) = worker.sampler.incidents_so_far()
    assert stretches
    assert len(incident.actions) == incident.steps_since_seed


def test_a_slow_environment_answers_after_each_step(stretches: list[int]) -> None:
    class Slow(Steady):
        def step(self, action: Any) -> Any:
            time.sleep(0.11)
            return super().step(action)

    samples(Slow, "process", steps=16, num_envs_per_worker=2)
    assert stretches == []
