"""What `shoal.APPO` promises a program: PPO without workers, exact continuation there, and no waiting with them."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from same_training import assert_restored_exactly, without_times

import shoal

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
CONFIG = {
    "num_envs_per_worker": 4,
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": [8]},
    "seed": 11,
}
ASYNC = {"num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.5}


@pytest.fixture
def trainer_of(start_trainer):
    def make(name: str = "Walk", run: str = "APPO", **changes) -> shoal.APPO:
        return start_trainer(run, f"{PROBES}:{name}", {**CONFIG, **changes})

    return make


@pytest.mark.parametrize("name", ["Walk", "WalkInBox", "FailingNowAndThen", "Masked"])
def test_k_save_load_k_is_two_k(trainer_of, tmp_path, name) -> None:
    assert_restored_exactly(lambda: trainer_of(name), tmp_path, 3)


def test_a_run_saves_and_goes_on(tmp_path) -> None:
    experiment = {"env": f"{PROBES}:WalkInBox", "run": "APPO", "results_dir": str(tmp_path), "config": CONFIG}
    whole = list(shoal.run({**experiment, "name": "whole", "stop": {"training_iteration": 4}}))
    list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 2}}))
    rest = list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 4}}))
    assert [without_times(result) for result in rest] == [without_times(result) for result in whole[2:]]


class Mixed(gym.Env):
    """A number and a choice at once; any will do."""

    observation_space = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (2,), np.float32), "kind": gym.spaces.Discrete(3)})
    action_space = gym.spaces.Dict({"push": gym.spaces.Box(-2, 2, (2,), np.float32), "mode": gym.spaces.Discrete(2)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.seen(), {}

    def seen(self):
        return {"at": self.np_random.uniform(-1, 1, 2).astype(np.float32), "kind": int(self.np_random.integers(3))}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.seen(), float(action["mode"]), self.left == 0, False, {}


@pytest.mark.parametrize("name", ["Walk", "WalkInBox", "Masked", "Offers", "Crowd", "Mixed"])
def test_without_workers_it_is_ppo(start_trainer, name) -> None:
    env = Mixed if name == "Mixed" else f"{PROBES}:{name}"
    one, two = (start_trainer(run, env, CONFIG) for run in ("APPO", "PPO"))
    for _ in range(2):
        told, told_by_ppo = one.train(), two.train()
    assert {*told["learner"]} - {*told_by_ppo["learner"]} == {"staleness_mean", "mean_rho"}
    np.testing.assert_allclose(one.get_policy().network.params, two.get_policy().network.params, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", [{"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}, {"fcnet_hiddens": [8]}])
def test_torch_networks_and_memory_learn_as_with_ppo(trainer_of, model) -> None:
    pytest.importorskip("torch")
    settings = {"framework": "torch", "model": model}
    one, two = trainer_of(**settings), trainer_of(run="PPO", **settings)
    for _ in range(2):
        one.train()
        two.train()
    np.testing.assert_allclose(one.get_policy().network.params, two.get_policy().network.params, rtol=1e-3, atol=1e-4)


@pytest.mark.repeats(1)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("name", ["Masked", "FailingNowAndThen"])
def test_two_workers_sample_without_waiting(trainer_of, caplog, name) -> None:
    trainer = trainer_of(name, **ASYNC)
    results = [trainer.train() for _ in range(6)]
    assert "neither repeated nor resumed exactly" in caplog.text
    assert results[0]["staleness"] == 0
    assert all(0 <= result["staleness"] <= 16 for result in results)
    assert all(result["learner"]["staleness_mean"] <= result["staleness"] for result in results)
    assert all(0 < result["learner"]["mean_rho"] <= 1 for result in results)
    assert all(result["timesteps_this_iter"] >= 64 - 8 for result in results)
    assert results[-1]["timesteps_total"] == sum(result["timesteps_this_iter"] for result in results)
    assert 0 <= results[-1]["timers"]["wait_s"] <= results[-1]["time_this_iter_s"]
    assert np.isfinite(trainer.get_policy().network.params).all()
    filter_state = trainer.get_policy().filter.get_state()
    assert filter_state.values["count"] >= results[-1]["timesteps_total"]


@pytest.mark.usefixtures("ray_session")
def test_a_checkpoint_of_a_run_with_workers_goes_on(trainer_of, tmp_path) -> None:
    trainer = trainer_of(**ASYNC)
    for _ in range(3):
        trainer.train()
    path = trainer.save(tmp_path)
    saved = trainer.get_policy().network.params.copy()
    trainer.train()
    trainer.restore(path)
    np.testing.assert_array_equal(trainer.get_policy().network.params, saved)
    result = trainer.train()
    assert result["training_iteration"] == 4
    assert result["staleness"] == 0, "what was sampled before with other weights is not taken over"


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("layout", [{}, ASYNC], ids=["local", "ray"])
def test_what_is_sampled_is_written_down_by_episodes(trainer_of, tmp_path, layout) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    trainer = trainer_of(output=str(tmp_path), **layout)
    for _ in range(4):
        result = trainer.train()
    trainer.stop()
    table = parquet.read_table(tmp_path).to_pydict()
    assert len(table["reward"]) >= result["timesteps_total"]
    ended = sum(end or cut for end, cut in zip(table["terminated"], table["truncated"], strict=True))
    assert ended >= result["episodes_total"], "each is whole, though fragments of several workers came in any order"
    lengths = [
        t + 1 for t, end, cut in zip(table["t"], table["terminated"], table["truncated"], strict=True) if end or cut
    ]
    assert np.mean(lengths) == pytest.approx(result["episode_len_mean"], rel=0.3)
