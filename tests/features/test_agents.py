"""Several agents: one shared policy in training, resume, workers, evaluation and commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agent_envs import Cards, Corridor, Match
from same_training import assert_restored_exactly, without_times_and_layout

import shoal
from shoal.errors import ConfigError, ShoalError

ENVS = Path(__file__).parents[1] / "shared" / "agent_envs.py"
PPO = {"num_envs_per_worker": 2, "train_batch_size": 96, "sgd_minibatch_size": 48, "num_sgd_iter": 2}
DQN = {
    "num_envs_per_worker": 2,
    "timesteps_per_iteration": 96,
    "learning_starts": 48,
    "replay_buffer_config": {"capacity": 1000},
}


@pytest.mark.parametrize(("kind", "settings"), [(shoal.PPO, PPO), (shoal.DQN, DQN)], ids=["PPO", "DQN"])
@pytest.mark.parametrize("env", [Corridor, Cards])
def test_a_resumed_training_is_the_same_training(kind, settings, env, tmp_path):
    made = []

    def make():
        made.append(kind(env=env, config=settings))
        return made[-1]

    assert_restored_exactly(make, tmp_path, 3)
    for trainer in made:
        trainer.stop()


@pytest.mark.parametrize(("kind", "settings"), [(shoal.PPO, PPO), (shoal.DQN, DQN)], ids=["PPO", "DQN"])
def test_the_number_of_workers_does_not_change_the_result(kind, settings, ray_session):
    results, weights = [], []
    for layout in ({"num_envs_per_worker": 4}, {"num_envs_per_worker": 2, "num_workers": 2}):
        layout["num_cpus_per_worker"] = 0.5
        with kind(env=f"{ENVS}:Corridor", config={**settings, **layout}) as trainer:
            results.append([without_times_and_layout(trainer.train()) for _ in range(2)])
            weights.append(trainer.get_policy().network.params.copy())
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-6)
    for one, two in zip(*results, strict=True):
        assert one["timesteps_total"] == two["timesteps_total"]
        assert one["episode_reward_mean"] == two["episode_reward_mean"]
        assert one["policy_reward_mean"] == two["policy_reward_mean"]


def test_results_have_the_returns_of_the_policys_agents_and_evaluation_counts_environments():
    with shoal.PPO(env=Corridor, config=PPO) as trainer:
        result = trainer.train()
        assert set(result["policy_reward_mean"]) == {"default_policy"}
        assert result["policy_reward_min"]["default_policy"] <= result["policy_reward_mean"]["default_policy"]
        assert trainer.config.multiagent.num_agents == 3
        assert trainer.config.num_envs_per_worker == 2
        evaluation = trainer.evaluate(episodes=5)
        assert evaluation["episodes_this_iter"] == 5
        assert "default_policy" in evaluation["policy_reward_mean"]
        assert trainer.compute_single_action(np.zeros(3, np.float32)) in (0, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_mode": "complete_episodes"}, "config.batch_mode"),
        ({"model": {"use_lstm": True}}, "config.model.use_lstm"),
        ({"env_step_timeout_s": 5}, "several agents"),
        ({"wrappers": ["ClipReward"]}, "PettingZoo"),
        ({"multiagent": {"num_agents": 5}}, "has 3 agents"),
    ],
)
def test_what_several_agents_cannot_have_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        shoal.PPO(env=Corridor, config={**PPO, **settings})


def test_other_algorithms_and_other_spaces_are_refused():
    with pytest.raises(ConfigError, match="run: ES trains one agent"):
        shoal.ES(env=Corridor)
    with pytest.raises(ShoalError, match="speaker_0 and listener_0 have different observations"):
        shoal.PPO(env=Match, config={"env_config": {"differs": True}})


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(shoal.PPO, {"train_batch_size": 768, "sgd_minibatch_size": 128}), (shoal.DQN, {"timesteps_per_iteration": 768})],
)
def test_agents_learn_to_walk_straight_on(kind, settings):
    with kind(env=Corridor, config={"seed": 1, "num_envs_per_worker": 8, "lr": 3e-3, **settings}) as trainer:
        for _ in range(12):
            trainer.train()
        # Two arrive at their third step, and the one that comes late pays for two steps.
        assert trainer.evaluate(episodes=10)["episode_reward_mean"] == 2 * 8 - 2
