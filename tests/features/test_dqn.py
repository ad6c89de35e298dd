"""What `shoal.DQN` promises a program: exact continuation with replay, states that outlive an iteration, any layout."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from same_training import assert_restored_exactly, without_times

import shoal
from shoal.errors import ConfigError

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
CONFIG = {
    "num_envs_per_worker": 4,
    "train_batch_size": 16,
    "timesteps_per_iteration": 96,
    "learning_starts": 100,
    "target_network_update_freq": 50,
    "exploration_config": {"epsilon_timesteps": 300},
    "replay_buffer_config": {"capacity": 200},
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}
VARIANTS = {
    "defaults": {},
    "priorities and filter": {
        "replay_buffer_config": {"capacity": 200, "prioritized_replay": True},
        "observation_filter": "MeanStdFilter",
    },
    "one step, own epsilons": {"n_step": 1, "exploration_config": {"type": "PerWorkerEpsilonGreedy"}},
}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Walk", **changes) -> shoal.DQN:
        env = name if "-v" in name else f"{PROBES}:{name}"
        return start_trainer("DQN", env, {**CONFIG, **changes})

    return make


def params(trainer) -> np.ndarray:
    return trainer.get_policy().network.params.copy()


def test_a_result_has_every_name(trainer_of) -> None:
    trainer = trainer_of()
    first, second = trainer.train(), trainer.train()
    assert first["timesteps_this_iter"] == 96
    assert second["timesteps_total"] == 192
    assert second["learner"]["num_updates"] == 48
    assert second["learner"]["replay_size"] == 192
    assert second["learner"].keys() >= {"total_loss", "mean_q", "mean_td_error", "grad_gnorm", "cur_lr", "cur_epsilon"}
    assert "total_loss" not in first["learner"]
    assert set(second["timers"]) >= {"env_s", "policy_s", "learn_s"}
    assert second["custom_metrics"].keys() == {"height_mean", "height_min", "height_max"}


@pytest.mark.repeats(3, slow=3)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", ["Walk", "FailingNowAndThen", "Masked", "Crowd"])
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, name, changes) -> None:
    assert_restored_exactly(lambda: trainer_of(name, **changes), tmp_path, 4)


def test_a_state_can_be_saved_while_the_next_iteration_trains(trainer_of) -> None:
    trainer = trainer_of(**VARIANTS["priorities and filter"])
    for _ in range(5):
        trainer.train()
        state = trainer.get_state()
        values, arrays = json.dumps(state.values), {name: array.copy() for name, array in state.arrays.items()}
        trainer.train()
        assert json.dumps(state.values) == values
        for name, array in arrays.items():
            np.testing.assert_array_equal(state.arrays[name], array, err_msg=name)


def test_only_the_filled_part_of_replay_is_saved(trainer_of, tmp_path) -> None:
    trainer = trainer_of(replay_buffer_config={"capacity": 1_000_000})
    trainer.train()
    file = Path(trainer.save(tmp_path)) / "arrays.safetensors"
    assert file.stat().st_size < 96 * 36 + 20_000


def test_evaluation_and_acting_leave_training_untouched(trainer_of) -> None:
    watched, plain = trainer_of(), trainer_of()
    for _ in range(3):
        watched.evaluate(episodes=5)
        watched.evaluate(episodes=3, explore=True)
        watched.compute_single_action(np.zeros(3, np.float32))
        assert without_times(watched.train()) == without_times(plain.train())


def test_acting_with_and_without_chance(trainer_of) -> None:
    trainer = trainer_of(exploration_config={"epsilon_timesteps": 1_000_000})
    trainer.train()
    obs = np.array([1, 2, 3], np.float32)
    best = trainer.compute_single_action(obs, explore=False)
    assert type(best) is int
    assert {trainer.compute_single_action(obs, explore=False) for _ in range(20)} == {best}
    assert {trainer.compute_single_action(obs) for _ in range(100)} == {0, 1, 2}
    greedy = trainer_of(explore=False, n_step=1)
    assert {greedy.compute_single_action(obs) for _ in range(20)} == {greedy.compute_single_action(obs)}


def test_a_run_saves_and_goes_on(tmp_path) -> None:
    experiment = {"env": f"{PROBES}:Walk", "run": "DQN", "results_dir": str(tmp_path), "config": CONFIG}
    whole = list(shoal.run({**experiment, "name": "whole", "stop": {"training_iteration": 6}}))
    list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 3}}))
    rest = list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 6}}))
    assert [without_times(result) for result in rest] == [without_times(result) for result in whole[3:]]


def test_box_actions_are_refused_with_a_way_out(trainer_of) -> None:
    with pytest.raises(ConfigError, match="set run: PPO"):
        trainer_of("WalkInBox")


def test_a_native_vector_environment_trains(trainer_of) -> None:
    trainer = trainer_of("vector")
    for _ in range(3):
        result = trainer.train()
    assert 0 < result["timesteps_this_iter"] <= 96
    assert result["learner"]["num_updates"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "name", ["Walk", pytest.param("Masked", marks=pytest.mark.slow), pytest.param("Offers", marks=pytest.mark.slow)]
)
def test_two_workers_sample_and_learn_the_same(trainer_of, name) -> None:
    changes = {**VARIANTS["priorities and filter"], "exploration_config": {"type": "PerWorkerEpsilonGreedy"}}
    alone, shared = trainer_of(name, **changes), trainer_of(name, **changes, num_workers=2, num_envs_per_worker=2)
    for _ in range(4):
        one, two = without_times(alone.train()), without_times(shared.train())
        assert one["episode_reward_mean"] == two["episode_reward_mean"]
        assert one["learner"] == pytest.approx(two["learner"], rel=1e-4)
    np.testing.assert_allclose(params(alone), params(shared), rtol=1e-4, atol=1e-6)
    mine, theirs = (trainer.learner.replay.get_state().arrays for trainer in (alone, shared))
    for name in mine:
        if not name.startswith("priorities"):
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


class Ratio(gym.Env):
    """The right action among seven is always the same one."""

    observation_space = gym.spaces.MultiDiscrete([5, 5])
    action_space = gym.spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return self.np_random.integers(0, 5, 2), {}

    def step(self, action):
        self.left -= 1
        return self.np_random.integers(0, 5, 2), float(action == 3), self.left == 0, False, {}


def test_discrete_observations_learn() -> None:
    with shoal.DQN(env=Ratio, config={"exploration_config": {"epsilon_timesteps": 2000}}) as trainer:
        for _ in range(4):
            trainer.train()
        assert trainer.evaluate(episodes=10)["episode_reward_mean"] == 4


class Lamp(Ratio):
    """What is seen is an image."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((8, 8, 1), np.uint8), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.full((8, 8, 1), 255, np.uint8), *rest


def test_images_need_no_configuration() -> None:
    pytest.importorskip("torch")
    with shoal.DQN(env=Lamp, config={"timesteps_per_iteration": 100, "learning_starts": 50}) as trainer:
        assert trainer.train()["learner"]["num_updates"] > 0
