"""Costs that are measured: of real environments, policies and learners, in processes that may die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal.config.experiment import algorithm_config
from shoal.config.settings import AlgorithmConfig
from shoal.data.throughput import Costs
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker
from shoal.errors import ConfigError, EnvStartError
from shoal.parallel.group import Alone
from shoal.runs.auto_workers import with_recorded_count, with_worker_count
from shoal.runs.learners import make_learner
from shoal.runs.measuring import CallTimes, ProfileBudget, in_one_process, measure, spin
from shoal.runs.profiling import measured_costs
from shoal.runs.recorded_steps import RecordedVector, RecordedWorkers, Recording
from shoal.sampling.worker import Worker

SICK = str(Path(__file__).parents[1] / "envs" / "sick_envs.py")
SHORT = ProfileBudget(0.2, with_others=False)


def config(env: Any = "CartPole-v1", run: str = "PPO", **settings: Any) -> AlgorithmConfig:
    small: dict[str, Any] = {"train_batch_size": 256, "num_envs_per_worker": 2} if run != "DQN" else {}
    return algorithm_config(run, {"env": env, **small, **settings})


def measured_here(asked: AlgorithmConfig, with_others: bool = False) -> Costs:
    signs: list[int] = []
    maker = env_maker(asked.env, UserCode.at("."), asked.wrappers)
    costs = measure(asked, maker, ProfileBudget(0.2, with_others), lambda: signs.append(1))
    assert signs
    return costs


@pytest.mark.parametrize("run", ["PPO", "APPO", "TRPO", "DQN"])
def test_every_algorithm_has_costs(run: str) -> None:
    costs = measured_here(config(run=run))
    assert min(costs.step_s) > 0
    assert costs.resets_per_step > 0
    assert costs.learn_s
    assert min(costs.learn_s) > 0
    assert sum(costs.act_s) > 0
    assert costs.isolation is None
    assert costs.cpu_share >= 0


def test_processes_and_larger_minibatches_if_asked_for() -> None:
    costs = measured_here(config(), with_others=True)
    assert costs.isolation is not None
    # Below 0 where the processes act by themselves, but never by more than the acting that they take over.
    assert costs.isolation.handle_s >= -(sum(costs.act_s) + 0.001)
    assert costs.isolation.env_s >= 0
    assert costs.larger_minibatch is not None
    assert costs.larger_minibatch[0] == 256


def test_masks_are_measured_as_they_are_trained() -> None:
    assert measured_here(config(f"{SICK}:Masked")).learn_s


class OldGym:
    """An environment of old Gym that takes no attributes: its calls cannot be timed one by one."""

    __slots__ = ()
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), float(action), False, {}


def test_old_gym_and_what_cannot_be_timed_one_by_one() -> None:
    costs = measured_here(config(lambda _: OldGym()))
    assert costs.step_s
    assert min(costs.step_s) > 0
    assert costs.resets_per_step == 0


@pytest.mark.slow
def test_memory_is_measured_as_it_is_trained() -> None:
    pytest.importorskip("torch")
    assert measured_here(config(model={"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8})).learn_s


def test_a_native_vector_is_measured_as_one(tmp_path: Path) -> None:
    (tmp_path / "native.py").write_text(
        "import gymnasium as gym\n"
        "def many(config):\n"
        "    return gym.make_vec('CartPole-v1', num_envs=3, vectorization_mode='sync')\n"
    )
    costs = measured_here(config(f"{tmp_path}/native.py:many", num_envs_per_worker="auto"))
    assert costs.native_envs == 3
    assert costs.resets_per_step == 0


def test_the_share_that_computes() -> None:
    times = CallTimes(lambda: None)
    assert times.cpu_share(1.0) == 1.0
    times.counted += [(1.0, 1.0)] * 9 + [(91.0, 1.0)]
    assert times.cpu_share(1.0) == pytest.approx(0.1)  # it waits in one call of ten, and long
    assert times.cpu_share(0.3) == 1.0  # beside others, that one was probably cut off


def test_recorded_steps_come_again_in_turn() -> None:
    asked = in_one_process(config())
    worker = Worker(asked, env_maker(asked.env))
    batch = worker.sample(3).batch
    worker.stop()
    recording = Recording(worker.policy, batch, period=2)
    vector = RecordedVector(recording, 4)
    workers = RecordedWorkers(asked, recording)
    obs = worker.policy.obs_spec.allocate(4)
    vector.reset(obs)
    rows = batch.obs[0].reshape(6, -1)
    np.testing.assert_array_equal(obs[0], rows[:4])
    sample = workers.sample(8)
    assert sample.batch.terminated[:, 0].tolist() == [False, True] * 4
    step = make_learner(asked, worker.policy, Alone()).training_step(workers, 0)
    assert step.timesteps == 256
    assert workers.steps_sampled == 8 * 2 + 256


def test_cores_together() -> None:
    crowding = spin(2)
    assert crowding.cores == 2
    assert 0 < crowding.together <= crowding.alone <= 1
    assert crowding.others >= 0


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Segfault", "it ended the process that measures it (SIGSEGV)"),
        ("Exit", "exit code"),
        ("Hang", "did not answer within 1 s"),
        ("Raising", "the solver diverged"),
    ],
)
def test_a_simulator_that_dies_or_hangs_takes_nobody_with_it(env: str, words: str) -> None:
    asked = config(f"{SICK}:{env}", max_env_failures=0)
    with pytest.raises(EnvStartError) as refused:
        measured_costs(asked, env_maker(asked.env), SHORT, 1.0)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_class_of_a_program_is_measured_in_the_other_process() -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    class Mine(CartPoleEnv):
        pass

    def make(_: Any) -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(Mine(), 50)

    costs = measured_costs(config(make), env_maker(make), SHORT, 60.0)
    assert len(costs.step_s) > 10


def test_what_makes_no_sense_is_refused_as_in_training() -> None:
    asked = config("CartPole-v1", env_config={"nonsense": 1})
    with pytest.raises((ConfigError, EnvStartError), match="nonsense"):
        measured_costs(asked, env_maker(asked.env), SHORT, 60.0)


def test_a_resumed_run_keeps_its_number_if_it_fits() -> None:
    asked = config(num_workers="auto")
    assert with_recorded_count(asked, 1).num_workers == 1
    assert with_recorded_count(asked, 10_000).num_workers == "auto"
    assert with_recorded_count(config(num_workers=3), 1).num_workers == 3


def test_only_auto_is_measured() -> None:
    asked = config(num_workers=3)
    assert with_worker_count(asked, env_maker(asked.env)) is asked


def test_auto_is_what_the_profile_says(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("shoal.parallel.ray_session.cores", lambda: 2)
    asked = config(num_workers="auto")
    with caplog.at_level("INFO", "shoal.progress"):
        resolved = with_worker_count(asked, env_maker(asked.env))
    assert resolved.num_workers in (1, 2)
    assert f"num_workers: auto is {resolved.num_workers}: about " in caplog.text
    caplog.clear()
    asked = config(f"{SICK}:Segfault", num_workers="auto")
    with caplog.at_level("INFO", "shoal.progress"):
        assert with_worker_count(asked, env_maker(asked.env)).num_workers == 2
    assert "num_workers: auto is 2, as many as fit; it was not measured: env" in caplog.text
