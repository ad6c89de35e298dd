"""Policies with memory: the same in any layout, after a resume, in evaluation, and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shoal

pytest.importorskip("torch")
MODELS = Path(__file__).parents[1] / "shared" / "memory_models.py"
NUM_ENVS = 4
MEMORIES = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 8, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    "gru": {"use_gru": True, "lstm_cell_size": 8, "vf_share_layers": True},
    "attention": {"use_attention": True, "attention_memory_inference": 3, "attention_dim": 8},
    "masked": {"use_lstm": True, "lstm_cell_size": 8, "lstm_use_prev_action": True},
    "custom": {"custom_model": "memory_models.Averaging"},
}
ENVS = {"masked": "MaskedRecall"}


def trainer_with(memory: str = "lstm", run: str = "PPO", num_workers: int = 0, num_learners: int = 1, **changes):
    config = {
        "num_workers": num_workers,
        "num_learners": num_learners,
        "num_envs_per_worker": NUM_ENVS // max(num_workers, 1),
        "train_batch_size": 25 * NUM_ENVS,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 3,
        "observation_filter": "MeanStdFilter",
        "model": {"fcnet_hiddens": [8], "max_seq_len": 7, **MEMORIES[memory]},
        "seed": 4,
        **changes,
    }
    env = f"{MODELS}:{ENVS.get(memory, 'Recall')}"
    return getattr(shoal, run)(env=env, config=config, search_path=[MODELS.parent])


def trained(iterations: int, **layout) -> tuple[list, np.ndarray]:
    """The trajectories of some iterations, and the weights after them."""
    with trainer_with(**layout) as trainer:
        seen = []
        if layout.get("num_learners", 1) == 1:
            sample = trainer.workers.sample

            def watched(steps):
                found = sample(steps)
                carried = found.batch.carried
                seen.append(
                    [np.array(x) for x in (found.batch.actions, carried.previous, *carried.states, carried.states_at)]
                )
                return found

            trainer.workers.sample = watched
        for _ in range(iterations):
            trainer.train()
        return seen, trainer.get_policy().network.params.copy()


@pytest.mark.repeats(0, slow=2)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("memory", "run", "layouts"),
    [
        pytest.param("lstm", "PPO", [(2, 1), (2, 2)], marks=pytest.mark.slow),
        pytest.param("lstm", "TRPO", [(2, 2)], marks=pytest.mark.slow),
        pytest.param("lstm", "PPO", [(1, 1)], marks=pytest.mark.slow),
        pytest.param("attention", "PPO", [(2, 2)], marks=pytest.mark.slow),
        pytest.param("custom", "PPO", [(2, 1)], marks=pytest.mark.slow),
        pytest.param("masked", "PPO", [(2, 2)], marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_and_learners_learns_the_same(memory, run, layouts) -> None:
    trajectories, weights = trained(3, memory=memory, run=run)
    for num_workers, num_learners in layouts:
        layout = {"num_workers": num_workers, "num_learners": num_learners, "num_cpus_per_worker": 0.5}
        if num_learners > 1:
            layout["num_cpus_per_learner"] = 0.5
        others, other_weights = trained(3, memory=memory, run=run, **layout)
        for mine, theirs in zip(trajectories, others, strict=num_learners == 1):
            for wanted, found in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(other_weights, weights, rtol=0, atol=1e-4)


@pytest.mark.repeats(2, slow=3)
@pytest.mark.parametrize("run", ["PPO", "TRPO"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_resumed_run_goes_on_bit_for_bit(memory, run, tmp_path) -> None:
    with trainer_with(memory, run) as trainer:
        trainer.train()
        saved = trainer.save(tmp_path)
        straight = [trainer.train() for _ in range(2)]
        weights = trainer.get_policy().network.params.copy()
    with trainer_with(memory, run) as resumed:
        resumed.restore(saved)
        again = [resumed.train() for _ in range(2)]
        np.testing.assert_array_equal(resumed.get_policy().network.params, weights)
    for one, two in zip(straight, again, strict=True):
        assert one["learner"] == two["learner"]
        assert one["episode_reward_mean"] == two["episode_reward_mean"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_agent_by_hand_does_what_evaluation_does(memory) -> None:
    with trainer_with(memory, num_envs_per_worker=1, explore=False) as trainer:
        trainer.train()
        batch = trainer.workers.sample(1).batch  # no learning after this, so weights stay
        batch = trainer.workers.sample(40).batch
        begin = int(np.flatnonzero(batch.terminated[:, 0] | batch.truncated[:, 0])[0]) + 1
        policy = trainer.get_policy()
        sees = policy.recurrence.previous
        state, action, reward = policy.get_initial_state(), None, None
        for t in range(begin, 40):
            before = {"prev_action": action} if sees.with_action else {}
            before |= {"prev_reward": reward} if sees.with_reward else {}
            obs = policy.obs_spec.get(batch.obs, (t, 0))
            action, state, details = trainer.compute_single_action(obs, state, **before)
            assert action == batch.actions[t, 0, 0]
            np.testing.assert_allclose(details["action_dist_inputs"], batch.dist_inputs[t, 0], atol=1e-5)
            reward = float(batch.rewards[t, 0])
            if batch.terminated[t, 0] or batch.truncated[t, 0]:
                state, action, reward = policy.get_initial_state(), None, None
        result = trainer.evaluate(episodes=3)
        assert result["episodes_this_iter"] == 3
        assert result["env_failures"] == trainer.env_failures_total == 0


def test_several_agents_by_hand() -> None:
    obs = {"a": np.ones(3, np.float32), "b": -np.ones(3, np.float32)}
    with trainer_with("gru") as trainer:
        first = trainer.get_policy().get_initial_state()
        actions, states, details = trainer.compute_actions(obs, {"a": first, "b": first}, explore=False)
        for key in obs:
            action, state, alone = trainer.compute_single_action(obs[key], first, explore=False)
            assert action == actions[key]
            np.testing.assert_allclose(state[0], states[key][0], atol=1e-6)
            np.testing.assert_allclose(alone["action_dist_inputs"], details[key]["action_dist_inputs"], atol=1e-6)


def test_what_does_not_fit_the_memory_is_refused() -> None:
    obs = np.zeros(3, np.float32)
    with trainer_with("gru") as trainer:
        state = trainer.get_policy().get_initial_state()
        for wrong, words in (
            (lambda: trainer.compute_single_action(obs), "this policy has memory: pass the state"),
            (lambda: trainer.compute_actions({0: obs}), "this policy has memory: pass the state"),
            (lambda: trainer.compute_single_action(obs, [np.zeros(3)]), r"state: must be arrays of shapes \[\(8,\)\]"),
            (lambda: trainer.compute_single_action(obs, 5), r"state: must be arrays .* \(got 5\)"),
            (lambda: trainer.compute_actions([obs], 5), r"state: must be a list of one for each of 1 .*\(got 5\)"),
            (
                lambda: trainer.compute_actions([obs] * 2, [state]),
                r"state: must be a list of one for each of 2 .*got 1",
            ),
            (lambda: trainer.compute_actions({0: obs}, [state]), "state: must be a dict with the keys of the obs"),
            (
                lambda: trainer.compute_single_action(obs, state, prev_action=1),
                "prev_action: this policy does not use",
            ),
        ):
            with pytest.raises(ValueError, match=words):
                wrong()
    with trainer_with("lstm") as trainer:
        state = trainer.get_policy().get_initial_state()
        for action in (7, 1.5):
            with pytest.raises(ValueError, match=f"{action} is not an action"):
                trainer.compute_single_action(obs, state, prev_action=action)
        with pytest.raises(ValueError, match=r"prev_reward: must be a number \(got 'much'\)"):
            trainer.compute_single_action(obs, state, prev_reward="much")
        for bad in (np.nan, -np.inf, 1e39):
            with pytest.raises(ValueError, match=r"prev_reward: must be a finite number \(got "):
                trainer.compute_single_action(obs, state, prev_reward=bad)
        with pytest.raises(ValueError, match="prev_action: must be a list of one for each of 2"):
            trainer.compute_actions([obs] * 2, [state] * 2, prev_action=[1])
        before = {"prev_action": np.array([0, 1]), "prev_reward": np.array([0.0, 1.0])}
        assert len(trainer.compute_actions([obs] * 2, [state] * 2, **before)[0]) == 2
    with shoal.PPO(env=f"{MODELS}:Recall") as trainer:
        with pytest.raises(ValueError, match="state: this policy has no memory"):
            trainer.compute_single_action(obs, state)
        with pytest.raises(ValueError, match="prev_reward: this policy has no memory"):
            trainer.compute_single_action(obs, prev_reward=1.0)
        assert trainer.compute_single_action(obs, trainer.get_policy().get_initial_state()) in (0, 1, 2)
        assert trainer.compute_actions({"a": obs}, [])["a"] in (0, 1, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_registered_model_with_memory_reaches_the_workers() -> None:
    from torch import nn

    class OfTheProgram(shoal.RecurrentNetwork):
        """The classic example of a custom recurrent network, in a program that no worker can import."""

        def __init__(self, obs_space, action_space, num_outputs, model_config, name):
            shoal.RecurrentNetwork.__init__(self, obs_space, action_space, num_outputs, model_config, name)
            self.rnn = nn.GRU(obs_space.shape[0], 8, batch_first=True)
            self.policy, self.value = nn.Linear(8, num_outputs), nn.Linear(8, 1)

        def get_initial_state(self):
            return [self.policy.weight.new_zeros(8)]

        def forward_rnn(self, inputs, state, seq_lens):
            self.seen, after = self.rnn(inputs, state[0].unsqueeze(0))
            return self.policy(self.seen), [after.squeeze(0)]

        def value_function(self):
            return self.value(self.seen).reshape(-1)

    shoal.register_custom_model("of_the_program", OfTheProgram)
    with trainer_with("lstm", num_workers=2, model={"custom_model": "of_the_program"}) as trainer:
        assert trainer.train()["timesteps_total"] == 25 * NUM_ENVS


def test_a_model_with_memory_but_without_values_is_named_before_the_first_iteration() -> None:
    with pytest.raises(shoal.ConfigError, match=r"custom model Valueless: write value_function"):
        trainer_with("lstm", model={"custom_model": f"{MODELS}:Valueless"})


def test_a_model_without_memory_sees_nothing_of_what_was_before() -> None:
    model = {"custom_model": shoal.FullyConnectedNetwork, "lstm_use_prev_action": True}
    with pytest.raises(shoal.ConfigError, match="are for models with memory, and your model has none"):
        trainer_with(model=model)


def test_dqn_refuses_memory() -> None:
    env = f"{MODELS}:Recall"
    with pytest.raises(shoal.ConfigError, match=r"config.model.use_lstm: DQN learns policies without memory"):
        shoal.DQN(env=env, config={"model": {"use_lstm": True}})
    with pytest.raises(shoal.ConfigError, match=r"config.model.custom_model: DQN learns policies without memory"):
        shoal.DQN(env=env, config={"model": {"custom_model": f"{MODELS}:Averaging"}})
