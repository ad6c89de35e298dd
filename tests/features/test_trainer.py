"""What `shoal.PPO` promises a program: determinism, exact continuation, evaluation without side effects, refusals."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from same_training import assert_restored_exactly, assert_same_state, without_times

import shoal
from shoal.envs.native import NativeVector
from shoal.errors import CheckpointError, ConfigError, EnvError
from shoal.runs.checkpoints import read_checkpoint, write_checkpoint

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
CONFIG = {
    "num_envs_per_worker": 4,
    "train_batch_size": 100,
    "sgd_minibatch_size": 25,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Walk", run: str = "PPO", **changes) -> shoal.Trainer:
        env = name if "-v" in name else f"{PROBES}:{name}"
        return start_trainer(run, env, {**CONFIG, **changes})

    return make


def params(trainer) -> np.ndarray:
    return trainer.get_policy().network.params.copy()


def test_a_result_has_every_name(trainer_of) -> None:
    trainer = trainer_of()
    first, second = trainer.train(), trainer.train()
    assert (first["training_iteration"], second["training_iteration"]) == (1, 2)
    assert (first["timesteps_total"], second["timesteps_total"]) == (100, 200)
    assert second["timesteps_this_iter"] == 100
    assert second["episodes_total"] == first["episodes_this_iter"] + second["episodes_this_iter"]
    assert second["episode_reward_min"] <= second["episode_reward_mean"] <= second["episode_reward_max"]
    assert second["time_total_s"] == pytest.approx(first["time_this_iter_s"] + second["time_this_iter_s"])
    assert second["timesteps_per_s"] > 0
    assert set(second["timers"]) >= {"env_s", "policy_s", "learn_s"}
    assert second["env_failures_total"] == 0
    assert second["custom_metrics"].keys() == {"height_mean", "height_min", "height_max"}
    assert np.isfinite(list(second["learner"].values())).all()


@pytest.mark.parametrize("run", ["PPO", "TRPO"])
@pytest.mark.parametrize("name", ["Walk", "WalkInBox", "CartPole-v1"])
def test_the_same_seed_gives_the_same_run(trainer_of, name, run) -> None:
    changes = {"observation_filter": "MeanStdFilter", "run": run}
    one, two, other = trainer_of(name, **changes), trainer_of(name, **changes), trainer_of(name, **changes, seed=12)
    assert not np.array_equal(params(one), params(other))
    for _ in range(3):
        result = without_times(one.train())
        assert result == without_times(two.train())
        assert result != without_times(other.train())
    np.testing.assert_array_equal(params(one), params(two))


@pytest.mark.repeats(5, slow=5)
@pytest.mark.parametrize("name", ["Walk", "WalkInBox", "FailingNowAndThen", "CartPole-v1", "Masked", "Offers", "Crowd"])
@pytest.mark.parametrize(
    "changes",
    [
        {"observation_filter": "MeanStdFilter", "kl_coeff": 0.2},
        {"batch_mode": "complete_episodes"},
        {"run": "TRPO", "observation_filter": "MeanStdFilter"},
    ],
)
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, name, changes) -> None:
    assert_restored_exactly(lambda: trainer_of(name, **changes), tmp_path, 3)


@pytest.mark.parametrize("changes", [{}, {"env_isolation": "process"}], ids=["here", "in processes"])
def test_who_tells_its_state_is_brought_back_without_a_replay(trainer_of, tmp_path, changes) -> None:
    assert_restored_exactly(lambda: trainer_of("Opaque", **changes), tmp_path / "exact", 2)
    whole, loaded = trainer_of("Opaque", **changes), trainer_of("Opaque", **changes)
    whole.train()
    before = loaded.workers.foreach_env(lambda env: env.calls)
    loaded.restore(whole.save(tmp_path))
    assert loaded.workers.foreach_env(lambda env: env.calls) == before
    values = whole.get_state().values["worker0"]
    assert sorted(values["env_states"]) == ["0", "1", "2", "3"]
    assert "env_states" not in trainer_of("Walk").get_state().values["worker0"]


def test_a_state_goes_from_environments_here_to_those_in_processes(trainer_of, tmp_path) -> None:
    here, there = trainer_of("Opaque"), trainer_of("Opaque", env_isolation="process")
    here.train()
    there.restore(here.save(tmp_path))
    assert without_times(here.train()) == without_times(there.train())
    assert_same_state(here, there)


def test_a_process_that_dies_while_it_tells_its_state_costs_one_step(trainer_of, tmp_path) -> None:
    trainer = trainer_of("OpaqueWithCrash", env_isolation="process")
    trainer.train()
    trainer.save(tmp_path)
    assert trainer.train()["env_failures_total"] == 4
    assert "env_states" not in read_checkpoint(trainer.save(tmp_path)).state.values["worker0"]


def test_restore_episodes_false_begins_anew_though_it_could_go_on(trainer_of, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "shoal")
    whole, loaded = trainer_of("Opaque"), trainer_of("Opaque", restore_episodes=False)
    whole.train()
    loaded.restore(whole.save(tmp_path))
    assert "4 unfinished episodes" in caplog.text


@pytest.mark.parametrize("layout", [{"env_isolation": "process"}, {"num_workers": 1}])
def test_an_environment_that_cannot_be_sent_elsewhere_is_a_sentence(layout) -> None:
    lock = threading.Lock()

    def make(_config):
        with lock:
            return gym.make("CartPole-v1")

    with pytest.raises(EnvError, match=r"env: it cannot be sent to another process .*lock"):
        shoal.PPO(env=make, config=layout)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_replays_may_take_so_long(trainer_of, tmp_path, caplog, isolation) -> None:
    caplog.set_level(logging.INFO, "shoal")
    whole = trainer_of("CartPole-v1", env_isolation=isolation)
    whole.train()
    path = whole.save(tmp_path)
    trainer_of("CartPole-v1", env_isolation=isolation, restore_episodes="60s").restore(path)
    assert "steps of unfinished episodes" in caplog.text
    assert "could not be brought back" not in caplog.text
    trainer_of("CartPole-v1", env_isolation=isolation, restore_episodes="0s").restore(path)
    assert "4 unfinished episodes could not be brought back" in caplog.text


@pytest.mark.parametrize("value", [60, "soon", "60", None])
def test_a_limit_of_replays_has_a_unit(value) -> None:
    with pytest.raises(ConfigError, match=r"restore_episodes: must .*a length of time|must have a unit"):
        shoal.PPO(env="CartPole-v1", config={"restore_episodes": value})


@pytest.mark.slow
def test_a_game_goes_on_through_episodes_without_a_seed(trainer_of, tmp_path) -> None:
    """Atari games are seeded rarely, because a seed makes the emulator load the game anew."""
    pytest.importorskip("ale_py")
    changes = {"run": "TRPO", "env_config": {"obs_type": "ram"}, "horizon": 40, "num_envs_per_worker": 2}
    whole = trainer_of("ALE/Pong-v5", **changes, train_batch_size=240)
    whole.train()
    path = whole.save(tmp_path)
    loaded = trainer_of("ALE/Pong-v5", **changes, train_batch_size=240)
    loaded.restore(path)
    assert without_times(whole.train()) == without_times(loaded.train())
    assert_same_state(whole, loaded)
    assert whole.get_state().values["worker0"]["vector"]["seedings"] == [1, 1]
    assert whole.get_state().values["worker0"]["history_lengths"] == [240, 240]


def test_saving_changes_nothing(trainer_of, tmp_path) -> None:
    saved, plain = trainer_of(), trainer_of()
    for _ in range(2):
        saved.save(tmp_path)
        assert without_times(saved.train()) == without_times(plain.train())


@pytest.mark.parametrize("changes", [{}, {"observation_filter": "MeanStdFilter"}], ids=["no filter", "filter"])
def test_evaluation_leaves_training_untouched(trainer_of, changes) -> None:
    watched, plain = trainer_of(**changes), trainer_of(**changes)
    for _ in range(3):
        before = params(watched)
        watched.evaluate(episodes=5)
        watched.evaluate(episodes=3, explore=True)
        np.testing.assert_array_equal(params(watched), before)
        assert without_times(watched.train()) == without_times(plain.train())
    assert_same_state(watched, plain)


def test_an_evaluation_can_be_had_again(trainer_of) -> None:
    trainer = trainer_of()
    trainer.train()
    one, two = trainer.evaluate(episodes=6, explore=True), trainer.evaluate(episodes=6, explore=True)
    assert one == two
    assert one["episodes_this_iter"] == len(one["episode_rewards"]) == 6
    assert one["episode_reward_mean"] == pytest.approx(np.mean(one["episode_rewards"]))
    assert one["timesteps_this_iter"] == sum(one["episode_lengths"])


def test_evaluating_a_checkpoint_uses_its_weights(trainer_of, tmp_path) -> None:
    trainer = trainer_of("CartPole-v1", observation_filter="MeanStdFilter")
    trainer.train()
    path = trainer.save(tmp_path)
    then = trainer.evaluate(episodes=4)
    weights = trainer.get_policy().get_weights()
    trainer.get_policy().set_weights({name: -3 * value for name, value in weights.items()})
    for _ in range(3):
        trainer.train()
    now, kept = trainer.evaluate(episodes=4), trainer.get_state()
    assert now["episode_rewards"] != then["episode_rewards"]
    assert trainer.evaluate(path, episodes=4) == then
    after = trainer.get_state()
    assert after.values == kept.values
    for name, array in kept.arrays.items():
        np.testing.assert_array_equal(array, after.arrays[name])
    assert trainer.evaluate(episodes=4) == now


def test_evaluation_episodes_are_shared_out_evenly(trainer_of) -> None:
    seen = trainer_of(num_envs_per_worker=3, train_batch_size=99).evaluate(episodes=7)
    assert seen["episodes_this_iter"] == 7
    with pytest.raises(CheckpointError):
        trainer_of().evaluate("no/such/checkpoint")


def test_a_native_vector_environment_trains_and_is_evaluated(trainer_of) -> None:
    trainer = trainer_of("vector")
    assert isinstance(trainer.workers.vector, NativeVector)
    result = trainer.train()
    assert 0 < result["timesteps_this_iter"] <= 100
    for episodes in (1, 4, 9):
        assert trainer.evaluate(episodes=episodes)["episodes_this_iter"] == episodes
    with pytest.raises(ConfigError, match=r"has 4 environments \(got 5\); leave num_envs_per_worker out"):
        trainer_of("vector", num_envs_per_worker=5)
    with pytest.raises(ConfigError, match="complete_episodes"):
        trainer_of("vector", batch_mode="complete_episodes")


REFUSED = {
    "another environment": ("CartPole-v1", {}, "other observations"),
    "other actions": ("WalkAmongFour", {}, "other actions"),
    "another environment with as many parameters": ("Squares", {}, "other observations"),
    "another model": ("Walk", {"model": {"fcnet_hiddens": [9]}}, "parameters"),
    "the same sizes in another library": ("Walk", {"framework": "torch"}, "other layers.* framework"),
    "another filter": ("Walk", {"observation_filter": "MeanStdFilter"}, "observation_filter"),
}


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED.values(), ids=REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_changes(
    trainer_of, tmp_path, name, changes, words
) -> None:
    saved = trainer_of()
    saved.train()
    path = saved.save(tmp_path)
    trainer, untouched = trainer_of(name, **changes), trainer_of(name, **changes)
    for each in (trainer, untouched):
        each.train()
    with pytest.raises(CheckpointError, match=words):
        trainer.restore(path)
    with pytest.raises(CheckpointError, match=words):
        trainer.evaluate(path, episodes=1)
    assert_same_state(trainer, untouched)
    assert without_times(trainer.train()) == without_times(untouched.train())


def test_a_checkpoint_that_does_not_tell_its_layers_is_known_by_its_settings(trainer_of, tmp_path) -> None:
    saved = trainer_of()
    saved.train()
    now = read_checkpoint(saved.save(tmp_path))
    del now.state.values["policy"]["layers"]  # as older versions wrote it
    path = write_checkpoint(tmp_path / "older", now.state, now.experiment_tree, now.summary)
    same, other = trainer_of(), trainer_of(framework="torch")
    same.restore(path)
    np.testing.assert_array_equal(params(same), params(saved))
    before = params(other)
    with pytest.raises(CheckpointError, match="network of numpy, this trainer has one of torch"):
        other.restore(path)
    np.testing.assert_array_equal(params(other), before)
    unknown = write_checkpoint(tmp_path / "unknown", now.state, {}, now.summary)
    other.restore(unknown)
    np.testing.assert_array_equal(params(other), params(saved))


def test_another_number_of_environments_begins_new_episodes_and_says_so(trainer_of, tmp_path, caplog) -> None:
    saved = trainer_of()
    saved.train()
    path = saved.save(tmp_path)
    trainer = trainer_of(num_envs_per_worker=2)
    with caplog.at_level(logging.WARNING, logger="shoal"):
        trainer.restore(path)
    assert "4 environments in 1 workers, this trainer 2 in 1" in caplog.text
    np.testing.assert_array_equal(params(trainer), params(saved))
    assert trainer.train()["timesteps_total"] == 200


def test_actions_for_observations(trainer_of) -> None:
    trainer = trainer_of()
    trainer.train()
    obs = np.array([1, 2, 3], np.float32)
    action = trainer.compute_single_action(obs, explore=False)
    assert type(action) is int
    assert all(trainer.compute_single_action(obs, explore=False) == action for _ in range(5))
    assert {trainer.compute_single_action(obs) for _ in range(100)} == {0, 1, 2}
    several = trainer.compute_actions({"a": obs, "b": -obs, "c": obs}, explore=False)
    assert set(several) == {"a", "b", "c"}
    assert several["a"] == several["c"] == action
    assert trainer.compute_actions({}) == {}
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        trainer.compute_single_action(np.zeros(4))
    with pytest.raises(ValueError, match=r"type obs, info = env\.reset\(\), and give obs"):
        trainer.compute_single_action((obs, {}))
    with pytest.raises(ValueError, match="type compute_single_action, or give a list"):
        trainer.compute_actions(obs)
    with pytest.raises(shoal.ConfigError, match=r"episodes: must be at least 1 \(got 0\)"):
        trainer.evaluate(episodes=0)


def test_acting_does_not_disturb_training(trainer_of) -> None:
    busy, plain = trainer_of(), trainer_of()
    for _ in range(2):
        for _ in range(5):
            busy.compute_single_action(np.zeros(3, np.float32))
        assert without_times(busy.train()) == without_times(plain.train())


def test_weights_can_be_read_and_written(trainer_of) -> None:
    one, two = trainer_of(), trainer_of(seed=99)
    weights = one.get_policy().get_weights()
    two.get_policy().set_weights(weights)
    np.testing.assert_array_equal(params(one), params(two))
    weights["policy.bias"][:] = 7
    assert not (one.get_policy().get_weights()["policy.bias"] == 7).any(), "what is given away is a copy"
    before = params(two)
    with pytest.raises(ValueError, match=r"policy\.bais"):
        two.get_policy().set_weights({"policy.bias": np.ones(3), "policy.bais": np.ones(3)})
    with pytest.raises(ValueError, match="shape"):
        two.get_policy().set_weights({"policy.bias": np.ones(4)})
    np.testing.assert_array_equal(params(two), before)


def test_the_model_prints_its_layers_once_and_gives_them_as_text(trainer_of, capsys) -> None:
    text = trainer_of().get_policy().model.base_model.summary()
    assert "policy.hidden0.weight" in text
    assert capsys.readouterr().out == f"{text}\n"
    assert repr(text) == f"<summary of {text.count(chr(10)) + 1} lines>", "a prompt does not show it once more"


@pytest.mark.parametrize("given", [["CartPole-v1"], [gym.spec("CartPole-v1")], [{"env": "CartPole-v1"}]], ids=repr)
def test_the_environment_or_the_configuration_comes_first(given) -> None:
    with shoal.PPO(*given) as trainer:
        assert trainer.config.env == "CartPole-v1"


def test_the_environment_first_takes_its_configuration_second() -> None:
    with shoal.PPO("CartPole-v1", {"lr": 0.5}) as trainer, shoal.PPO(Line, config=CONFIG) as other:
        assert trainer.config.lr == 0.5
        assert other.config.env is Line
        assert repr(trainer) == "<PPO on CartPole-v1, iteration 0>"
        other.train()
        assert repr(other) == "<PPO on Line, iteration 1>"
    assert repr(other) == "<PPO on Line, iteration 1, stopped>"


class Line(gym.Env):
    """A class of one's own."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: ("CartPole-v1", "Acrobot-v1"), "env: given twice, as 'Acrobot-v1' and as 'CartPole-v1'"),
        (lambda: ({"lr": 1e-3}, {"lr": 1e-4}), "config: given twice"),
        (lambda: ("CartPole-v1", {"env": "Acrobot-v1"}), "env: given twice"),
        (lambda: (gym.make("CartPole-v1"),), "that is already made, but several are needed; write env='CartPole-v1'"),
        (lambda: (Line(),), r"give the class, env=Line, or a function that makes one, env=lambda config: Line\(...\)"),
        (
            lambda: (gym.wrappers.FlattenObservation(gym.make("CartPole-v1")),),
            r"env=lambda config: FlattenObservation\(gymnasium.make\('CartPole-v1'\)\)",
        ),
        (
            lambda: (gym.make("CartPole-v1", sutton_barto_reward=True).spec,),
            "write env='CartPole-v1' and env_config={'sutton_barto_reward': True}",
        ),
        (lambda: (3,), "config.env: must be an environment's id"),
    ],
)
def test_what_cannot_be_an_environment_is_refused_with_the_line_to_write(given, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        shoal.PPO(*given())
    with pytest.raises(ConfigError, match=r"config: must be a mapping of keys \(got 'CartPole-v1'\)"):
        shoal.PPO(config="CartPole-v1")


def test_a_copy_of_the_default_configuration_is_taken_whole() -> None:
    config = shoal.ppo.DEFAULT_CONFIG.copy()
    config["train_batch_size"] = 48
    with shoal.ppo.PPOTrainer(config=config, env="CartPole-v1") as trainer:
        assert trainer.config.sgd_minibatch_size == 48
        assert trainer.train()["timesteps_total"] >= 48


def test_the_resolved_configuration(trainer_of) -> None:
    config = trainer_of(lr=0.002).get_config()
    assert config["lr"] == 0.002
    assert config["gamma"] == 0.99
    assert config["model"]["fcnet_hiddens"] == [8]
    assert config["env"].endswith("probe_env.py:Walk")


def test_a_config_object_of_ones_own_stays_as_it_was() -> None:
    config = {**CONFIG, "env": f"{PROBES}:Walk"}
    kept = dict(config)
    with shoal.PPO(config=config) as trainer:
        trainer.train()
    assert config == kept


def test_the_context_closes_the_environments(tmp_path) -> None:
    config = {**CONFIG, "env_config": {"closing_note": f"{tmp_path}/closed"}}
    with shoal.PPO(env=f"{PROBES}:Walk", config=config) as trainer:
        trainer.train()
    assert len(list(tmp_path.iterdir())) == 4
    trainer.stop()


def test_a_trainer_that_was_stopped_says_so(trainer_of) -> None:
    trainer = trainer_of()
    trainer.stop()
    for call in (trainer.train, trainer.evaluate):
        with pytest.raises(shoal.ShoalError, match="this trainer was stopped; make another"):
            call()
    trainer.compute_single_action(np.zeros(3, np.float32))


def test_evaluation_closes_its_own_environments(tmp_path) -> None:
    config = {**CONFIG, "env_config": {"closing_note": f"{tmp_path}/closed"}}
    with shoal.PPO(env=f"{PROBES}:Walk", config=config) as trainer:
        trainer.evaluate(episodes=2)
        assert len(list(tmp_path.iterdir())) == 2


def test_failures_are_counted_and_the_first_ones_shown(trainer_of, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="shoal"):
        trainer = trainer_of("FailingNowAndThen")
        result = trainer.train()
    assert result["env_failures_total"] > 5
    assert result["timesteps_this_iter"] == 100 - result["env_failures_total"]
    assert caplog.text.count("RuntimeError: diverged; it was rebuilt") == 5
    assert "only counted" in caplog.text
    assert trainer.train()["env_failures_total"] > result["env_failures_total"]


@pytest.mark.parametrize("size", [8, 100])
def test_an_environment_that_never_steps_ends_with_its_cause(trainer_of, size) -> None:
    trainer = trainer_of("Hopeless", train_batch_size=size, sgd_minibatch_size=4)
    with pytest.raises(EnvError, match="diverged at once"):
        trainer.train()


def test_there_must_be_one_environment() -> None:
    with pytest.raises(ConfigError, match="env: is missing"):
        shoal.PPO()
    with pytest.raises(ConfigError, match="given twice"):
        shoal.PPO(env="CartPole-v1", config={"env": "Acrobot-v1"})


class Ratio(gym.Env):
    """Classes of a running program work without a file or a registration."""

    observation_space = spaces.MultiDiscrete([5, 5])
    action_space = spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return self.np_random.integers(0, 5, 2), {}

    def step(self, action):
        self.left -= 1
        return self.np_random.integers(0, 5, 2), float(action == 3), self.left == 0, False, {}


@pytest.mark.parametrize("env", [Ratio, lambda config: Ratio()], ids=["class", "function"])
def test_classes_and_functions_train(env) -> None:
    with shoal.PPO(env=env, config={**CONFIG, "train_batch_size": 200, "lr": 0.02}) as trainer:
        first = trainer.train()
        for _ in range(14):
            last = trainer.train()
    assert last["episode_reward_mean"] > 2 * first["episode_reward_mean"]
    assert last["episode_len_mean"] == 4


def test_a_mask_that_allows_nothing_is_told_with_environment_and_step(trainer_of, caplog) -> None:
    trainer = trainer_of("Stuck", train_batch_size=60)
    with caplog.at_level(logging.WARNING, "shoal"):
        result = trainer.train()
    assert result["env_failures_total"] > 0
    told = [record.getMessage() for record in caplog.records]
    assert any("environment 0 failed at step 7 of its episode" in line for line in told)
    assert "action_mask allows no action: all its flags are 0" in told[0]
    with pytest.raises(EnvError, match=r"failed at step 7 .*action_mask allows no action"):
        trainer_of("Stuck", train_batch_size=60, max_env_failures=0).train()
