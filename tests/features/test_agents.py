"""Several agents: one shared policy in training, resume, workers, evaluation and commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agent_envs import Cards, Corridor, Match
from click.testing import CliRunner
from same_training import assert_restored_exactly, without_times_and_layout

import shoal
from shoal.cli.main import main
from shoal.errors import ConfigError, ShoalError

ENVS = Path(__file__).parents[1] / "shared" / "agent_envs.py"
PPO = {"num_envs_per_worker": 2, "train_batch_size": 96, "sgd_minibatch_size": 48, "num_sgd_iter": 2}
DQN = {
    "num_envs_per_worker": 2,
    "timesteps_per_iteration": 96,
    "learning_starts": 48,
    "replay_buffer_config": {"capacity": 1000},
}
TRPO = {"num_envs_per_worker": 2, "train_batch_size": 96, "sgd_minibatch_size": 48}
SAC = {**DQN, "train_batch_size": 32, "training_intensity": 4, "model": {"fcnet_hiddens": [16]}}
EVERY = pytest.mark.parametrize(
    ("kind", "settings"),
    [(shoal.PPO, PPO), (shoal.TRPO, TRPO), (shoal.DQN, DQN), (shoal.SAC, SAC)],
    ids=["PPO", "TRPO", "DQN", "SAC"],
)


@EVERY
@pytest.mark.parametrize("env", [Corridor, Cards])
def test_a_resumed_training_is_the_same_training(kind, settings, env, tmp_path):
    made = []

    def make():
        made.append(kind(env=env, config=settings))
        return made[-1]

    assert_restored_exactly(make, tmp_path, 3)
    for trainer in made:
        trainer.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(shoal.PPO, PPO, id="PPO"),
        pytest.param(shoal.TRPO, TRPO, id="TRPO"),
        pytest.param(shoal.DQN, DQN, id="DQN"),
        pytest.param(shoal.SAC, SAC, id="SAC"),
    ],
)
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
    with pytest.raises(ConfigError) as caught:
        shoal.ES(env=Corridor)
    assert caught.value.problems == ["run: ES trains one agent; for several set run: PPO, TRPO, DQN or SAC"]
    policies = {"policies": {"a": {}, "b": {}}, "policy_mapping": {"*": "a"}}
    with pytest.raises(ConfigError, match="the environment has one agent; leave b out"):
        shoal.PPO(env="CartPole-v1", config={"multiagent": policies})
    with pytest.raises(ShoalError, match="speaker_0 and listener_0 have different observations"):
        shoal.PPO(env=Match, config={"env_config": {"differs": True}})


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (shoal.PPO, {"train_batch_size": 768, "sgd_minibatch_size": 128}),
        (shoal.TRPO, {"train_batch_size": 768, "max_kl": 0.05}),
        (shoal.DQN, {"timesteps_per_iteration": 768}),
        (shoal.SAC, {**SAC, "timesteps_per_iteration": 768, "training_intensity": 16}),
    ],
    ids=["PPO", "TRPO", "DQN", "SAC"],
)
def test_agents_learn_to_walk_straight_on(kind, settings):
    with kind(env=Corridor, config={"seed": 1, "num_envs_per_worker": 8, "lr": 3e-3, **settings}) as trainer:
        for _ in range(12):
            trainer.train()
        # Two arrive at their third step, and the one that comes late pays for two steps.
        assert trainer.evaluate(episodes=10)["episode_reward_mean"] == 2 * 8 - 2


TWO = {"multiagent": {"policies": {"speaker": {"lr": 3e-3}, "listener": {}}}}


@EVERY
def test_several_policies_resume_exactly(kind, settings, tmp_path):
    made = []
    own = {**settings, "env_config": {"differs": True}, "observation_filter": "MeanStdFilter", **TWO}

    def make():
        made.append(kind(env=Match, config=own))
        return made[-1]

    assert_restored_exactly(make, tmp_path, 2)
    trainer = made[0]
    assert trainer.get_policy("listener").action_spec.space.n == 3
    listener = shoal.Policy.load(tmp_path, policy_id="listener")
    np.testing.assert_array_equal(listener.network.params.shape, trainer.get_policy("listener").network.params.shape)
    assert listener.compute_single_action(np.zeros(3, np.float32), explore=False) in range(3)
    assert shoal.Policy.load(tmp_path).action_spec.space.n == 2
    with pytest.raises(ConfigError, match="no policy 'nobody'; use speaker or listener"):
        shoal.Policy.load(tmp_path, policy_id="nobody")
    for each in made:
        each.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(shoal.PPO, PPO, id="PPO"),
        pytest.param(shoal.TRPO, TRPO, id="TRPO"),
        pytest.param(shoal.DQN, DQN, id="DQN"),
        pytest.param(shoal.SAC, SAC, id="SAC"),
    ],
)
def test_several_policies_are_the_same_with_workers(kind, settings, ray_session):
    weights = []
    for layout in ({"num_envs_per_worker": 4}, {"num_envs_per_worker": 2, "num_workers": 2}):
        own = {**settings, **layout, **TWO, "num_cpus_per_worker": 0.5, "env_config": {"differs": True}}
        with kind(env=f"{ENVS}:Match", config=own) as trainer:
            for _ in range(2):
                trainer.train()
            policies = (trainer.get_policy(name) for name in ("speaker", "listener"))
            weights.append(np.concatenate([policy.network.params for policy in policies]))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-6)


def test_each_policy_learns_its_own_part_and_reports_it():
    config = {"num_envs_per_worker": 8, "train_batch_size": 1024, "sgd_minibatch_size": 128, "lr": 3e-3, **TWO}
    with shoal.PPO(env=Match, config=config) as trainer:
        for _ in range(10):
            result = trainer.train()
        evaluation = trainer.evaluate(episodes=8)
        assert evaluation["policy_reward_mean"] == {"listener": 8.0, "speaker": 8.0}
        # One says its bit and the other its opposite: one policy for both could not do both.
        assert trainer.compute_single_action([1.0, 0.0], explore=False, policy_id="speaker") == 0
        assert trainer.compute_single_action([1.0, 0.0], explore=False, policy_id="listener") == 1
        assert result["learner"]["speaker/cur_lr"] == 3e-3
        assert set(result["policy_reward_mean"]) == {"speaker", "listener"}


@EVERY
def test_policies_that_are_not_trained_stay_as_they_are(kind, settings):
    own = {"multiagent": {**TWO["multiagent"], "policies_to_train": ["listener"]}}
    with kind(env=Match, config={**settings, **own}) as trainer:
        before = {name: trainer.get_policy(name).network.params.copy() for name in ("speaker", "listener")}
        trainer.train()
        result = trainer.train()
        after = {name: trainer.get_policy(name).network.params for name in ("speaker", "listener")}
    assert np.array_equal(before["speaker"], after["speaker"])
    assert not np.array_equal(before["listener"], after["listener"])
    assert not any(name.startswith("speaker/") for name in result["learner"])


def test_self_play_draws_past_selves_and_resumes_exactly(tmp_path):
    play = {"learner": "main", "opponent": "past", "snapshot_interval": 1, "pool_size": 3, "latest_probability": 0.3}
    own = {
        "policies": ["main", "past"],
        "policy_mapping": {"speaker_0": "main", "*": "past"},
        "policies_to_train": ["main"],
        "rotate_agents": True,
        "self_play": play,
    }
    made = []

    def make():
        made.append(shoal.PPO(env=Match, config={**PPO, "multiagent": own}))
        return made[-1]

    assert_restored_exactly(make, tmp_path, 3)
    pool = made[0].learner.pool
    assert len(pool.selves) == 3
    known = [state.arrays["params"] for state in pool.selves]
    seen = set()
    for _ in range(6):
        learner = made[0].get_policy("main").network.params.copy()
        made[0].train()
        opponent = made[0].get_policy("past").network.params
        known += [state.arrays["params"] for state in pool.selves]
        is_self = np.array_equal(opponent, learner)
        assert is_self or any(np.array_equal(opponent, past) for past in known)
        seen.add(is_self)
    assert seen == {True, False}
    for each in made:
        each.stop()


@pytest.mark.parametrize(
    ("multiagent", "words"),
    [
        ({"policies": ["a", "b"]}, "no policy for agent speaker_0"),
        ({"policies": ["a", "b"], "policy_mapping": {"*": "a"}}, "b acts for none of the agents"),
        ({"policies": ["a"], "policy_mapping": {"*": "c"}}, "has the policy 'c', and there is none"),
        ({"policies": ["speaker", "listener"], "policies_to_train": ["x"]}, "there is no policy 'x'"),
        ({"policies": ["speaker", "listener"], "policies_to_train": []}, "nothing is trained"),
        ({"policies": {"speaker": {"num_workers": 3}, "listener": {}}}, "policies.speaker.num_workers: all policies"),
        ({"policies": {"speaker": {"lr": -1}, "listener": {}}}, "policies.speaker.lr"),
        ({"policies": ["speaker", "listener"], "self_play": {"learner": "speaker"}}, "name both"),
        (
            {"policies": ["speaker", "listener"], "self_play": {"learner": "speaker", "opponent": "listener"}},
            "not one of policies_to_train",
        ),
        ({"policies": ["a b"]}, "letters, digits"),
    ],
)
def test_policies_that_cannot_be_are_refused(multiagent, words):
    with pytest.raises(ConfigError, match=words):
        shoal.PPO(env=Match, config={**PPO, "multiagent": multiagent})


def test_what_several_policies_and_agents_cannot_have_yet_is_refused(tmp_path):
    two = {"env": f"{ENVS}:Match", "run": "PPO", "config": {**PPO, **TWO}, "stop": {"training_iteration": 1}}
    for _ in shoal.run({**two, "name": "two", "results_dir": str(tmp_path)}):
        pass
    with pytest.raises(ConfigError, match="only where all agents share one"):
        for _ in shoal.run({**two, "name": "three", "results_dir": str(tmp_path), "restore": "two"}):
            pass
    found = CliRunner().invoke(main, ["profile", f"{ENVS}:Match"], prog_name="shoal")
    assert found.exit_code == 2
    assert "has several agents, and only environments of one are measured" in found.output


def test_a_function_maps_agents_to_policies_and_is_written_as_what_it_gave(tmp_path):
    def chosen(agent: str) -> str:
        return "one" if agent.startswith("speaker") else "two"

    own = {"policies": ["one", "two"], "policy_mapping": chosen}
    with shoal.PPO(env=Match, config={**PPO, "multiagent": own}) as trainer:
        trainer.train()
        assert trainer.config.multiagent.policy_mapping == {"speaker_0": "one", "listener_0": "two"}
        path = trainer.save(tmp_path)
        assert set(trainer.evaluate(episodes=4)["policy_reward_mean"]) == {"one", "two"}
    assert set(shoal.Policy.load(path).others) == {"two"}  # for who evaluates all of them
