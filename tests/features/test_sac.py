"""What `shoal.SAC` promises a program: exact continuation with replay, any layout, every kind of action."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from safetensors.numpy import load_file
from same_training import assert_restored_exactly, without_times

import shoal
from shoal.errors import ConfigError

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
CONFIG = {
    "num_envs_per_worker": 4,
    "train_batch_size": 16,
    "training_intensity": 8.0,
    "timesteps_per_iteration": 48,
    "learning_starts": 60,
    "replay_buffer_config": {"capacity": 100},
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}
PRIORITIES = {
    "replay_buffer_config": {"capacity": 100, "prioritized_replay": True},
    "observation_filter": "MeanStdFilter",
    "n_step": 2,
}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "WalkInBox", **changes) -> shoal.SAC:
        return start_trainer("SAC", f"{PROBES}:{name}", {**CONFIG, **changes})

    return make


def test_a_result_has_every_name(trainer_of) -> None:
    trainer = trainer_of()
    first, second = trainer.train(), trainer.train()
    assert first["timesteps_this_iter"] == 48
    assert second["learner"]["num_updates"] == 20  # from the 60th step on: 40 steps of 8 transitions, in 16s
    assert second["learner"]["replay_size"] == 96
    assert second["learner"].keys() >= {"critic_loss", "policy_loss", "mean_q", "entropy", "cur_alpha", "critic_gnorm"}
    assert "critic_loss" not in first["learner"]


@pytest.mark.repeats(2, slow=2)
@pytest.mark.parametrize("changes", [{}, PRIORITIES], ids=["defaults", "priorities, filter, two steps"])
@pytest.mark.parametrize("name", ["WalkInBox", "Walk", "FailingNowAndThen", "Masked"])
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, name, changes) -> None:
    assert_restored_exactly(lambda: trainer_of(name, **changes), tmp_path, 3)


def test_a_run_saves_and_goes_on(tmp_path) -> None:
    experiment = {"env": f"{PROBES}:WalkInBox", "run": "SAC", "results_dir": str(tmp_path), "config": CONFIG}
    whole = list(shoal.run({**experiment, "name": "whole", "stop": {"training_iteration": 4}}))
    list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 2}}))
    rest = list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 4}}))
    assert [without_times(result) for result in rest] == [without_times(result) for result in whole[2:]]


@pytest.mark.repeats(1)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("name", ["WalkInBox", "Masked"])
def test_two_workers_sample_and_learn_the_same(trainer_of, name) -> None:
    alone, shared = trainer_of(name, **PRIORITIES), trainer_of(name, **PRIORITIES, num_workers=2, num_envs_per_worker=2)
    for _ in range(4):
        one, two = without_times(alone.train()), without_times(shared.train())
        assert one["episode_reward_mean"] == pytest.approx(two["episode_reward_mean"], rel=1e-4)
        assert one["learner"] == pytest.approx(two["learner"], rel=1e-3)
    mine, theirs = (trainer.get_policy().network.params for trainer in (alone, shared))
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_run_begins_with_the_policy_of_another(tmp_path) -> None:
    experiment = {"env": f"{PROBES}:WalkInBox", "run": "SAC", "results_dir": str(tmp_path), "config": CONFIG}
    list(shoal.run({**experiment, "name": "first", "stop": {"training_iteration": 2}}))
    (checkpoint,) = (tmp_path / "first").glob("*/checkpoint_000002")
    still = {"config": {**CONFIG, "learning_starts": 1000}, "restore": str(checkpoint), "name": "second"}
    list(shoal.run({**experiment, **still, "stop": {"training_iteration": 1}}))
    (second,) = (tmp_path / "second").glob("*/checkpoint_000001")
    one, two = (load_file(path / "arrays.safetensors") for path in (checkpoint, second))
    shared = [name for name in one if name.endswith(("policy.params", "policy/params", "critic0", "target1"))]
    assert len(shared) == 3
    for name in shared:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


class Aim(gym.Env):
    """Two numbers and a choice between two bins: the reward is higher the nearer, and in the right bin."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Dict({"at": gym.spaces.Box(-2, 2, (2,), np.float32), "bin": gym.spaces.Discrete(2)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.seen(), {}

    def seen(self):
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.goal

    def step(self, action):
        reward = float(action["bin"] == (self.goal[0] > 0)) - float(np.abs(action["at"] - self.goal).mean())
        self.left -= 1
        return self.seen(), reward, self.left == 0, False, {}


def test_numbers_and_choices_are_learned_together() -> None:
    config = {"seed": 1, "lr": 3e-3, "learning_starts": 300, "model": {"fcnet_hiddens": [32, 32]}, "gamma": 0.5}
    config |= {"train_batch_size": 64, "training_intensity": 32.0}
    with shoal.SAC(env=Aim, config=config) as trainer:
        while trainer.timesteps_total < 2000:
            result = trainer.train()
        assert result["learner"]["cur_alpha_choices"] > 0
        assert trainer.evaluate(episodes=20)["episode_reward_mean"] > 4  # of 5; at random -5.5


def test_images_are_seen_by_policy_and_critics() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads wait for each other at every layer

    class Lamp(Aim):
        observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)

        def seen(self):
            super().seen()
            return np.full((8, 8, 1), 128 + 100 * self.goal[0], np.uint8)

    config = {"timesteps_per_iteration": 16, "learning_starts": 16, "train_batch_size": 8, "training_intensity": 2.0}
    config["model"] = {"conv_filters": [[4, 4, 2]], "post_fcnet_hiddens": [8]}
    try:
        with shoal.SAC(env=Lamp, config=config) as trainer:
            before = trainer.get_policy().network.params.copy()
            trainer.train()
            assert trainer.train()["learner"]["num_updates"] > 0
            assert not np.array_equal(trainer.get_policy().network.params, before)
    finally:
        torch.set_num_threads(threads)


def test_more_choices_than_it_has_values_for_are_refused_with_a_way_out() -> None:
    class Many(Aim):
        action_space = gym.spaces.MultiDiscrete([4] * 8)

    with pytest.raises(ConfigError, match="set run: PPO"):
        shoal.SAC(env=Many)
