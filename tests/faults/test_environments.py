"""Environments that fail in every way we know: training goes on, the others notice nothing, and the cause is told."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.config.changing import unchecked
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Episode, Incident, Sample
from shoal.envs.importing import INSTALLED

fault_env = INSTALLED.load_file(str(Path(__file__).with_name("fault_env.py")))
FATAL, HARMLESS = fault_env.FATAL, fault_env.HARMLESS
NUM_ENVS = 4
FAULTY = 1
SETTINGS: dict[str, Any] = {
    "num_envs_per_worker": NUM_ENVS,
    "train_batch_size": 400,
    "num_sgd_iter": 2,
    "seed": 5,
    "max_env_failures": 10_000,
}


def trainer_for(mode: str | None, settings: dict[str, Any] | None = None, **env_config: Any) -> shoal.Trainer:
    config = {**SETTINGS, **(settings or {}), "env_config": {"mode": mode, **env_config}}
    return shoal.PPO(env=fault_env.FaultEnv, config=config)


def sampled(mode: str | None, steps: int = 100) -> Sample:
    """A fragment sampled with the first weights."""
    with trainer_for(mode) as trainer:
        return trainer.workers.sample(steps)


def of_others(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if e.env_index != FAULTY]


@pytest.fixture(scope="module")
def clean() -> Sample:
    return sampled(None)


@pytest.mark.parametrize("mode", FATAL)
def test_training_goes_on(mode: str) -> None:
    with trainer_for(mode) as trainer:
        for _ in range(3):
            result = trainer.train()
            assert result["timesteps_this_iter"] >= 400 - 20
            assert result["learner"]["refused_minibatches"] == 0
        assert result["env_failures_total"] >= 3
        assert result["timesteps_total"] == 1200 - result["env_failures_total"] or "reset" in mode
        assert np.isfinite(trainer.get_policy().network.params).all()


@pytest.mark.parametrize("mode", FATAL)
def test_the_other_environments_notice_nothing(mode: str, clean: Sample) -> None:
    sample = sampled(mode)
    assert {i.env_index for i in sample.incidents} == {FAULTY}
    assert of_others(sample.episodes) == of_others(clean.episodes)
    assert len(of_others(clean.episodes)) == (NUM_ENVS - 1) * 100 // fault_env.EPISODE
    others = [n for n in range(NUM_ENVS) if n != FAULTY]
    for name in ("actions", "rewards", "terminated", "truncated", "valid", "log_probs"):
        mine, theirs = getattr(sample.batch, name), getattr(clean.batch, name)
        np.testing.assert_array_equal(mine[:, others], theirs[:, others])
    np.testing.assert_array_equal(sample.batch.obs[0][:, others], clean.batch.obs[0][:, others])


@pytest.mark.parametrize("mode", [mode for mode in FATAL if "reset" not in mode])
def test_what_was_sound_stays_as_a_truncated_episode(mode: str, clean: Sample) -> None:
    batch = sampled(mode).batch
    assert list(np.flatnonzero(~batch.valid[:, FAULTY])) == [29, 59, 89]
    for t in (29, 59, 89):
        assert batch.terminated[t, FAULTY]
        assert batch.rewards[t, FAULTY] == 0
        assert batch.truncated[t - 1, FAULTY]
        row = batch.final_at.tolist().index([t - 1, FAULTY])
        np.testing.assert_array_equal(batch.final_obs[0][row], batch.obs[0][t, FAULTY])
    np.testing.assert_array_equal(batch.obs[0][:29, FAULTY], clean.batch.obs[0][:29, FAULTY])
    assert np.isfinite(batch.obs[0]).all()
    assert np.isfinite(batch.rewards).all()


@pytest.mark.parametrize("mode", HARMLESS)
def test_what_is_unusual_but_sound_changes_nothing(mode: str, clean: Sample) -> None:
    sample = sampled(mode)
    assert sample.incidents == []
    assert sample.episodes == clean.episodes
    np.testing.assert_array_equal(sample.batch.obs[0], clean.batch.obs[0])
    np.testing.assert_array_equal(sample.batch.rewards, clean.batch.rewards)


@pytest.mark.parametrize("mode", ["raise", "raise_in_reset"])
def test_an_incident_names_what_is_needed_to_see_it_again(mode: str) -> None:
    sample = sampled(mode)
    told = [i for i in sample.incidents if "seed" in i.cause]
    assert len(told) >= 3
    for incident in told:
        place = f"seed {incident.seed} + {incident.steps_since_seed}, step {incident.step}"
        assert incident.cause.endswith(place)
        assert "fault_env.py" in incident.traceback
        assert incident.action in ("0", "1", "2") or incident.action == "none, in reset"
        assert (incident.step == 0) == (incident.action == "none, in reset")


def test_the_first_failures_are_shown_and_the_rest_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "shoal")
    with trainer_for("raise", {"train_batch_size": 1200}) as trainer:
        result = trainer.train()
    shown = [m for m in caplog.messages if "failed at step" in m]
    assert result["env_failures_total"] == 10
    assert len(shown) == 5
    assert re.match(
        r"environment 1 failed at step \d+ of its episode \(seed \d+ set \d+ steps before, action [012]\): "
        r"ArithmeticError: diverged at seed",
        shown[0],
    )
    assert "only counted" in caplog.messages[-1]


def test_too_many_failures_end_the_run_with_the_cause() -> None:
    with trainer_for("nan_reward", {"max_env_failures": 4}) as trainer:
        results = [trainer.train()]
        with pytest.raises(shoal.EnvError, match=r"environment 1 failed .* reward is nan") as caught:
            results.append(trainer.train())
    assert [r["env_failures_total"] for r in results] == [3]
    assert "max_env_failures is 4" in str(caught.value)
    assert caught.value.exit_code == 1


def test_no_failure_may_be_allowed() -> None:
    with trainer_for("raise", {"max_env_failures": 0}) as trainer, pytest.raises(shoal.EnvError, match="diverged"):
        trainer.train()


def test_an_environment_that_never_takes_a_good_step_is_not_rebuilt_for_ever() -> None:
    with trainer_for("nan_obs", every=1) as trainer, pytest.raises(shoal.EnvError, match="10 times in a row"):
        trainer.train()


def test_a_constructor_that_fails_ends_the_start_in_its_own_words() -> None:
    with pytest.raises(shoal.EnvError, match="RuntimeError: no licence for the solver") as caught:
        trainer_for("raise_in_constructor")
    assert caught.value.exit_code == 2


def test_failures_survive_whole_episodes() -> None:
    with trainer_for("nan_obs", {"batch_mode": "complete_episodes"}) as trainer:
        results = [trainer.train() for _ in range(3)]
        assert np.isfinite(trainer.get_policy().network.params).all()
    assert all(r["timesteps_this_iter"] >= 380 for r in results)
    assert results[-1]["env_failures_total"] > 0


def test_evaluation_survives_failures() -> None:
    with trainer_for("raise", faulty=list(range(100))) as trainer:
        evaluation = trainer.evaluate(episodes=20)
    assert evaluation["episodes_this_iter"] == 20
    assert evaluation["env_failures"] > 0


@pytest.mark.slow
def test_a_thousand_failures_of_every_kind_cost_no_iteration() -> None:
    settings = {"num_envs_per_worker": 16, "train_batch_size": 8000, "sgd_minibatch_size": 1000}
    seen: list[Incident] = []
    with trainer_for("any", settings, every=150, faulty=list(range(16))) as trainer:
        sample = trainer.workers.sample
        trainer.workers.sample = lambda steps: _noted(sample(steps), seen)  # type: ignore[method-assign]
        for _ in range(25):
            result = trainer.train()
            assert result["timesteps_this_iter"] > 7800
            assert result["learner"]["refused_minibatches"] == 0
        assert np.isfinite(trainer.get_policy().network.params).all()
    assert result["timesteps_total"] > 195_000
    assert result["env_failures_total"] == len(seen) > 1000
    assert len({i.cause.split(" at seed")[0] for i in seen}) > 12


def _noted(sample: Sample, seen: list[Incident]) -> Sample:
    seen += sample.incidents
    return sample


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_explode_do_not_crash_training(env: str) -> None:
    sane = PPOConfig(env=env, train_batch_size=256, grad_clip=None)
    with shoal.PPO(config=unchecked(sane, lr=1e38)) as trainer:
        results = [trainer.train() for _ in range(3)]
    assert all(r["timesteps_this_iter"] == 256 for r in results)
    assert results[-1]["learner"]["refused_minibatches"] > 0


class Climber(gymnasium.Env[Any, Any]):
    """Leaves its space at its fifth step, and is then where nobody has said that it would be."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.height = 0.0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.height += 0.25
        return np.array([0, self.height], np.float32), 1.0, self.height >= 2, False, {}


def test_observations_outside_of_their_space_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"num_envs_per_worker": 2, "train_batch_size": 64, "num_sgd_iter": 1, "sgd_minibatch_size": 32}
    with shoal.PPO(env=Climber, config=settings) as trainer:
        for _ in range(3):
            trainer.train()
    told = [record.getMessage() for record in caplog.records if "its space is" in record.getMessage()]
    assert told == [
        "observation[1] was 1.75, and its space is from -1 to 1; training uses it as it is: widen the space, or scale "
        "the observation"
    ]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_rounding_is_not_outside_of_a_space(env: str) -> None:
    with shoal.PPO(env=env, config={"num_envs_per_worker": 2}) as trainer:
        assert trainer.workers.sample(300).notes == ()


def test_what_is_not_five_things_is_told_as_that() -> None:
    config = {"num_envs_per_worker": 1, "env_config": {"kinds": ["none"], "every": 10}}
    with shoal.PPO(env="shoal.envs:FaultEnv", config=config) as trainer:
        incident = trainer.workers.sample(60).incidents[0]
    assert incident.cause.startswith("ValueError: step() must return obs, reward, terminated, truncated and info")
