"""N Python environments as one: what they give, and that nothing an environment does harms another."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from shoal.data.streams import reset_seed
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import MOST_FAILURES_IN_A_ROW, PythonVector, Steps, describe
from shoal.errors import EnvError

ACTION = np.array([[1]])


class Probe(gym.Env):
    """Counts its steps in its observation, always the same array; `faults[step]` is what a step gives instead."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, row=0, ends_after=1000, faults=None, reset_fault=None) -> None:
        self.row, self.ends_after, self.faults, self.reset_fault = row, ends_after, faults or {}, reset_fault
        self.obs = np.zeros(2, np.float32)
        self.seeds: list[int] = []
        self.actions: list[int] = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.actions.clear()
        if self.reset_fault is not None:
            raise self.reset_fault
        self.obs[:] = 0, self.row
        return self.obs, {}

    def step(self, action):
        self.actions.append(action)
        self.obs[0] += 1
        step = len(self.actions)
        result = (self.obs, float(step), step >= self.ends_after, False, {"drag": 0.5 * step, "note": "text"})
        fault = self.faults.get(step)
        if isinstance(fault, Exception):
            raise fault
        return fault(*result) if fault else result

    def close(self) -> None:
        self.closed = True


FAULTS = {
    "raises": RuntimeError("diverged\nsecond line"),
    "nan observation": lambda o, r, d, t, i: (np.array([np.nan, 0]), r, d, t, i),
    "infinite observation": lambda o, r, d, t, i: (np.array([0, np.inf]), r, d, t, i),
    "long observation": lambda o, r, d, t, i: (np.zeros(3), r, d, t, i),
    "scalar observation": lambda o, r, d, t, i: (1.0, r, d, t, i),
    "no observation": lambda o, r, d, t, i: (None, r, d, t, i),
    "text observation": lambda o, r, d, t, i: ("ab", r, d, t, i),
    "no reward": lambda o, r, d, t, i: (o, None, d, t, i),
    "nan reward": lambda o, r, d, t, i: (o, float("nan"), d, t, i),
    "infinite reward": lambda o, r, d, t, i: (o, np.inf, d, t, i),
    "reward beyond single precision": lambda o, r, d, t, i: (o, 1e300, d, t, i),
    "array reward": lambda o, r, d, t, i: (o, np.array([1.0, 2.0]), d, t, i),
    "array of one reward": lambda o, r, d, t, i: (o, np.array([1.0]), d, t, i),
    "four values": lambda o, r, d, t, i: (o, r, d, i),
    "nothing": lambda o, r, d, t, i: None,
    "array of flags": lambda o, r, d, t, i: (o, r, np.array([True, False]), t, i),
}
CAUSES = {
    "raises": "RuntimeError: diverged",
    "nan observation": "ValueError: observation is not finite: [nan 0.]",
    "long observation": "ValueError: observation has shape (3,), its space says (2,)",
    "no reward": "ValueError: reward is None, but must be one number",
    "nan reward": "ValueError: reward is nan, but must be a finite number",
    "array reward": "ValueError: reward is an array of shape (2,), but must be one number",
}


class Bench:
    """A vector of probes, and the arrays that its steps are written to."""

    def __init__(
        self, num_envs=3, limit=None, probes=None, seed=7, first_index=0, max_failures=None, cls=Probe, observer=None
    ) -> None:
        self.made: list[Probe] = []
        self.probes = probes or {}

        def make(row):
            options = self.probes.get(row, {})
            options = options(sum(p.row == row for p in self.made)) if callable(options) else options
            self.made.append(cls(row, **options))
            return self.made[-1], limit

        self.obs_spec, self.action_spec = ObsSpec(cls.observation_space), ActionSpec(cls.action_space)
        self.num_envs = num_envs
        self.vector = PythonVector(
            make, num_envs, self.obs_spec, self.action_spec,
            seed=seed, first_index=first_index, worker_index=4, max_failures=max_failures, observer=observer,
        )  # fmt: skip
        self.obs = self.obs_spec.allocate(num_envs)
        self.vector.reset(self.obs)

    def step(self, active=None, actions=None) -> Steps:
        n = self.num_envs
        steps = Steps(
            self.obs_spec.allocate(n), np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), np.ones(n, bool)
        )
        actions = np.repeat(ACTION, n, axis=0) if actions is None else actions
        self.vector.step(actions, active, steps)
        return steps


def test_rows_hold_what_their_environment_gave() -> None:
    bench = Bench()
    assert bench.obs[0].tolist() == [[0, 0], [0, 1], [0, 2]]
    steps = bench.step(actions=np.array([[0], [1], [2]]))
    assert steps.obs[0].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert steps.rewards.tolist() == [1, 1, 1]
    assert steps.valid.all()
    assert not (steps.terminated | steps.truncated).any()
    assert [probe.actions for probe in bench.made] == [[0], [1], [2]]


def test_an_observation_array_that_is_used_again_does_not_change_what_was_stored() -> None:
    bench = Bench()
    stored = [bench.step().obs[0] for _ in range(3)]
    assert [rows[0, 0] for rows in stored] == [1, 2, 3]


def test_termination_is_no_truncation_and_resets_in_the_same_step() -> None:
    bench = Bench(probes={1: {"ends_after": 2}})
    bench.step()
    steps = bench.step()
    assert steps.terminated.tolist() == [False, True, False]
    assert not steps.truncated.any()
    assert steps.finals == []
    assert steps.obs[0][:, 0].tolist() == [2, 0, 2]
    (episode,) = bench.vector.episodes
    assert (episode.env_index, episode.reward, episode.length) == (1, 3.0, 2)
    assert episode.metrics == {"drag": 1.0}


def test_a_time_limit_truncates_and_hands_over_the_true_last_observation() -> None:
    bench = Bench(limit=2)
    bench.step()
    steps = bench.step()
    assert steps.truncated.all()
    assert not steps.terminated.any()
    assert [(row, parts[0].tolist()) for row, parts in steps.finals] == [(0, [2, 0]), (1, [2, 1]), (2, [2, 2])]
    assert (steps.obs[0][:, 0] == 0).all()
    assert [e.length for e in bench.vector.episodes] == [2, 2, 2]
    assert bench.step().obs[0][0, 0] == 1
    assert steps.finals[0][1][0].tolist() == [2, 0]


def test_an_end_at_the_limit_is_a_termination() -> None:
    bench = Bench(num_envs=1, limit=2, probes={0: {"ends_after": 2}})
    bench.step()
    steps = bench.step()
    assert steps.terminated[0]
    assert not steps.truncated[0]
    assert steps.finals == []


def test_an_environment_may_truncate_by_itself() -> None:
    bench = Bench(num_envs=1, probes={0: {"faults": {1: lambda o, r, d, t, i: (o, r, d, True, i)}}})
    steps = bench.step()
    assert steps.truncated[0]
    assert steps.finals[0][1][0].tolist() == [1, 0]


def test_an_environment_is_seeded_at_first_and_at_the_first_reset_after_every_hundred_steps() -> None:
    bench = Bench(first_index=10, seed=3, limit=40)
    seeded = {t: steps.seeded for t in range(1, 250) if (steps := bench.step()).seeded}
    seeds = [[seed for seed in probe.seeds if seed is not None] for probe in bench.made]
    assert seeds == [[reset_seed(3, 10 + row, count) for count in (1, 2, 3)] for row in range(3)]
    assert len({seed for row in seeds for seed in row}) == 9
    assert seeded == {120: [0, 1, 2], 240: [0, 1, 2]}


def test_reset_seeds_do_not_collide_and_fit_everywhere() -> None:
    seeds = [reset_seed(s, e, k) for s in range(10) for e in range(30) for k in range(30)]
    assert len(set(seeds)) > len(seeds) - 20, "of 9000 out of 2^31, 0.02 are expected to meet"
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert 0 <= reset_seed(2**63 - 1, 10**6, 10**9) < 2**31


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_failing_environment_is_rebuilt_alone(fault, num_envs) -> None:
    row = num_envs // 2
    bench = Bench(
        num_envs, first_index=20, probes={row: lambda made: {"faults": {2: FAULTS[fault]} if made == 0 else {}}}
    )
    first = bench.step()
    assert not first.failed
    steps = bench.step()
    assert steps.failed == [row]
    assert [bool(v) for v in steps.valid] == [k != row for k in range(num_envs)]
    assert steps.terminated.tolist() == [k == row for k in range(num_envs)]
    assert not steps.truncated.any()
    assert steps.rewards.tolist() == [0.0 if k == row else 2.0 for k in range(num_envs)]
    assert steps.obs[0][:, 0].tolist() == [0.0 if k == row else 2.0 for k in range(num_envs)]
    assert bench.vector.episodes == []

    (incident,) = bench.vector.incidents
    assert (incident.env_index, incident.worker_index, incident.step) == (20 + row, 4, 2)
    assert incident.seed == reset_seed(7, 20 + row, 1)
    assert incident.action == "1"
    assert "\n" not in incident.cause
    assert CAUSES.get(fault, "Error") in incident.cause
    assert "Traceback" in incident.traceback
    sentence = describe(incident)
    for word in (str(20 + row), "step 2", str(incident.seed), incident.cause):
        assert word in sentence

    assert len(bench.made) == num_envs + 1
    assert [probe.closed for probe in bench.made] == [k == row for k in range(num_envs)] + [False]
    after = bench.step()
    assert not after.failed
    assert after.obs[0][:, 0].tolist() == [1.0 if k == row else 3.0 for k in range(num_envs)]


def test_two_may_fail_in_one_step() -> None:
    fail_once = lambda fault: lambda made: {"faults": {1: FAULTS[fault]} if made == 0 else {}}  # noqa: E731
    bench = Bench(4, probes={0: fail_once("raises"), 2: fail_once("nan reward")})
    steps = bench.step()
    assert sorted(steps.failed) == [0, 2]
    assert steps.obs[0][:, 0].tolist() == [0, 1, 0, 1]
    assert sorted(i.env_index for i in bench.vector.incidents) == [0, 2]


def test_a_failure_in_reset_is_forgiven_and_the_next_episode_has_another_seed() -> None:
    bench = Bench(2, probes={1: lambda made: {"reset_fault": OSError("no license") if made < 3 else None}})
    assert [i.cause for i in bench.vector.incidents] == ["OSError: no license"] * 3
    assert [i.step for i in bench.vector.incidents] == [0, 0, 0]
    assert bench.vector.incidents[0].action == "none, in reset"
    assert [i.seed for i in bench.vector.incidents] == [reset_seed(7, 1, k) for k in (1, 2, 3)]
    assert bench.step().valid.all()


def test_failures_beyond_the_budget_end_the_run_with_the_cause() -> None:
    bench = Bench(2, probes={0: {"faults": {2: FAULTS["raises"]}}}, max_failures=2)
    for _ in range(5):
        bench.step()
    assert len(bench.vector.incidents) == 2
    with pytest.raises(EnvError) as caught:
        bench.step()
    assert "RuntimeError: diverged" in str(caught.value)
    assert "failure 3 and max_env_failures is 2" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_budget_of_none_forgives_no_failure() -> None:
    bench = Bench(1, probes={0: {"faults": {1: FAULTS["raises"]}}}, max_failures=0)
    with pytest.raises(EnvError, match="max_env_failures is 0"):
        bench.step()


@pytest.mark.parametrize("probe", [{"faults": {1: FAULTS["raises"]}}, {"reset_fault": RuntimeError("diverged")}])
def test_no_progress_at_all_ends_the_run(probe) -> None:
    def train() -> None:
        bench = Bench(2, probes={1: probe})
        for _ in range(100):
            bench.step()

    with pytest.raises(EnvError, match=f"failed {MOST_FAILURES_IN_A_ROW} times in a row") as caught:
        train()
    assert "diverged" in str(caught.value)


def test_failures_with_progress_between_them_do_not_add_up_to_ten() -> None:
    bench = Bench(1, probes={0: {"faults": {2: FAULTS["raises"]}}})
    for _ in range(60):
        bench.step()
    assert len(bench.vector.incidents) == 30


class Slippery(Probe):
    """Cannot be made again for a while, as a simulator whose port is still taken."""

    def __init__(self, row=0, broken=False, **options) -> None:
        if broken:
            raise OSError("port 5005 is taken")
        super().__init__(row, **options)


def test_a_constructor_that_fails_on_rebuilding_is_tried_again() -> None:
    attempts = []

    def options(made):
        attempts.append(made)
        return {"faults": {2: FAULTS["raises"]}, "broken": len(attempts) in (2, 3)}

    bench = Bench(2, probes={1: options}, cls=Slippery)
    bench.step()
    steps = bench.step()
    assert steps.failed == [1]
    assert [i.cause for i in bench.vector.incidents] == ["RuntimeError: diverged"] + ["OSError: port 5005 is taken"] * 2
    assert bench.step().valid.all()


def test_a_constructor_that_never_works_again_ends_the_run_with_its_words() -> None:
    attempts = []

    def options(made):
        attempts.append(made)
        return {"faults": {5: FAULTS["raises"]}, "broken": len(attempts) > 1}

    bench = Bench(1, probes={0: options}, cls=Slippery)
    for _ in range(4):
        bench.step()
    with pytest.raises(EnvError, match="port 5005 is taken"):
        bench.step()
    assert len(attempts) <= 1 + MOST_FAILURES_IN_A_ROW


def test_a_constructor_that_fails_at_the_start_raises_its_own_error() -> None:
    with pytest.raises(OSError, match="port 5005"):
        Bench(1, probes={0: {"broken": True}}, cls=Slippery)


ODD_NUMBERS = {"big": 10**400, "nan": np.nan, "many": np.zeros(1), "flag": True, 3: np.array(2)}


@pytest.mark.parametrize("info", [None, {}, ["a"], ODD_NUMBERS])
def test_odd_infos_do_no_harm(info) -> None:
    bench = Bench(1, probes={0: {"faults": {1: lambda o, r, d, t, i: (o, r, True, t, info)}}})
    bench.step()
    (episode,) = bench.vector.episodes
    assert episode.metrics in ({}, {"flag": 1.0, "3": 2.0})


def test_inactive_environments_are_not_stepped() -> None:
    bench = Bench(3, limit=3)
    active = np.array([True, False, True])
    steps = [bench.step(active) for _ in range(2)]
    assert len(bench.made[1].actions) == 0
    assert steps[0].valid.tolist() == [True, False, True]
    assert steps[0].terminated.tolist() == [False, True, False]
    assert steps[0].rewards.tolist() == [1, 0, 1]
    steps = bench.step()
    assert steps.truncated.tolist() == [True, False, True]
    assert [e.length for e in bench.vector.episodes] == [3, 3]


def test_replay_brings_an_environment_back() -> None:
    bench, again = Bench(2), Bench(2)
    actions = np.array([[1], [2], [0]])
    for action in actions:
        bench.step(actions=np.repeat(action[None], 2, axis=0))
    state = json.loads(json.dumps(bench.vector.get_state()))
    again.vector.set_state(state)
    assert again.vector.bring_back([None, None], [actions, None], again.obs) == [True, False]
    assert again.obs[0].tolist() == [[3, 0], [0, 1]]
    assert again.made[0].seeds[-1] == bench.made[0].seeds[-1]
    assert again.made[0].actions == [1, 2, 0]
    assert again.made[1].seeds[-1] == reset_seed(7, 1, 2)


@pytest.mark.parametrize("probe", [{"faults": {2: FAULTS["raises"]}}, {"faults": {3: FAULTS["nan observation"]}}])
def test_a_replay_that_goes_otherwise_begins_anew(probe) -> None:
    bench = Bench(1, probes={0: lambda made: probe if made == 0 else {}})
    assert bench.vector.bring_back([None], [np.ones((3, 1), np.int64)], bench.obs) == [False]
    assert bench.obs[0].tolist() == [[0, 0]]
    assert bench.made[0].closed
    assert bench.step().valid.all()


def test_a_replay_that_takes_too_long_begins_anew() -> None:
    bench = Bench(2)
    bench.vector.replay_limit_s = 0.0
    assert bench.vector.bring_back([None, None], [np.ones((3, 1), np.int64), None], bench.obs) == [False, False]
    assert bench.made[0].closed
    bench.vector.replay_limit_s = 60.0
    assert bench.vector.bring_back([None, None], [np.ones((3, 1), np.int64), None], bench.obs) == [True, False]


def test_a_long_replay_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("shoal.envs.replay_clock.TELL_EVERY_S", -1.0)
    caplog.set_level("INFO", "shoal.progress")
    bench = Bench(1)
    bench.vector.bring_back([None], [np.ones((3, 1), np.int64)], bench.obs)
    assert "replaying unfinished episodes: 2 of 3 steps" in caplog.text


def test_a_replay_goes_through_the_episodes_since_the_seed() -> None:
    bench = Bench(1, limit=2)
    assert bench.vector.bring_back([None], [np.ones((5, 1), np.int64)], bench.obs) == [True]
    assert len([seed for seed in bench.made[0].seeds if seed is None]) == 2
    steps = bench.step()
    assert steps.truncated[0]
    assert bench.vector.episodes[-1].length == 2


def test_the_return_goes_on_over_a_replay() -> None:
    bench = Bench(1, limit=4)
    bench.vector.bring_back([None], [np.ones((3, 1), np.int64)], bench.obs)
    bench.step()
    (episode,) = bench.vector.episodes
    assert (episode.reward, episode.length) == (1 + 2 + 3 + 4, 4)


def test_closing_never_raises() -> None:
    class Stubborn(Probe):
        def close(self) -> None:
            raise RuntimeError("no")

    Bench(2, cls=Stubborn).vector.close()
    bench = Bench(2)
    bench.vector.close()
    assert all(probe.closed for probe in bench.made)


def test_dict_observations_are_guarded_too() -> None:
    class Nested(gym.Env):
        observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
        action_space = spaces.Discrete(2)

        def __init__(self, row=0) -> None:
            self.row, self.steps = row, 0

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return {"a": np.zeros(2), "b": 0}, {}

        def step(self, action):
            self.steps += 1
            obs = {"a": np.full(2, 0.5), "b": 2}
            if self.row == 1 and self.steps == 2:
                del obs["b"]
            return obs, 0, False, False, {}

    bench = Bench(3, cls=Nested)
    bench.step()
    steps = bench.step()
    assert steps.failed == [1]
    assert bench.vector.incidents[0].cause == "ValueError: observation lacks 'b'"
    assert steps.obs[0].tolist() == [[0.5, 0.5, 2], [0, 0, 0], [0.5, 0.5, 2]]


class Observer:
    """Writes down what it is told."""

    def __init__(self, wants_every_step: bool) -> None:
        self.wants_every_step = wants_every_step
        self.told: list[tuple] = []

    def begin(self, env_index, env, obs, task, drawn) -> None:
        self.told.append(("begin", env_index, env.row, obs.tolist(), task, drawn.options))

    def step(self, env_index, action, obs, reward, info, length, total_reward) -> None:
        self.told.append(("step", env_index, action, obs.tolist(), reward, info["drag"], length, total_reward))

    def end(self, env_index) -> dict[str, float]:
        self.told.append(("end", env_index))
        return {"told": float(len(self.told))}


@pytest.mark.parametrize("wants_every_step", [True, False])
def test_an_observer_is_told_of_every_episode_in_order(wants_every_step) -> None:
    observer = Observer(wants_every_step)
    bench = Bench(num_envs=1, first_index=5, probes={0: {"ends_after": 2}}, observer=observer)
    bench.step()
    bench.step()
    begin = ("begin", 5, 0, [0.0, 0.0], None, {})
    steps = [("step", 5, 1, [1.0, 0.0], 1.0, 0.5, 1, 1.0), ("step", 5, 1, [2.0, 0.0], 2.0, 1.0, 2, 3.0)]
    seen = steps if wants_every_step else steps[1:]
    assert observer.told == [begin, *seen, ("end", 5), begin]
    assert bench.vector.episodes[0].metrics == {"drag": 1.0, "told": len(seen) + 2.0}


def test_an_observer_sees_no_step_that_failed_and_none_of_who_is_at_rest() -> None:
    observer = Observer(wants_every_step=True)
    bench = Bench(probes={1: lambda made: {} if made else {"faults": {1: FAULTS["raises"]}}}, observer=observer)
    observer.told.clear()
    bench.step(active=np.array([True, True, False]))
    assert [(name, index) for name, index, *_ in observer.told] == [("step", 0), ("begin", 1)]


def test_an_observer_is_told_again_of_what_is_replayed() -> None:
    observer = Observer(wants_every_step=True)
    bench = Bench(num_envs=1, probes={0: {"ends_after": 2}}, observer=observer)
    observer.told.clear()
    assert bench.vector.bring_back([None], [np.repeat(ACTION, 3, axis=0)], bench.obs) == [True]
    assert [name for name, *_ in observer.told] == ["begin", "step", "step", "begin", "step"]
