"""Learning from images: values that come with the actions, Atari frames from training to a loaded policy."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from same_training import arrays_of, assert_restored_exactly, assert_same_state, without_times

import shoal
from shoal.config.experiment import experiment_from
from shoal.data import frames
from shoal.envs.importing import INSTALLED
from shoal.errors import ConfigError
from shoal.runs import row_segments
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.resuming import experiment_of, tree_of
from shoal.runs.run import Run, checked

torch = pytest.importorskip("torch")

SMALL = {"conv_filters": [[4, 4, 2], [8, 4, 2]], "post_fcnet_hiddens": [16]}
SHORT = {
    "num_envs_per_worker": 4,
    "train_batch_size": 128,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 2,
    "model": SMALL,
    "seed": 5,
}
FRAMES = {
    **SHORT,
    "env": "ALE/Breakout-v5",
    "env_config": {"noop_max": 2},
    "num_envs_per_worker": 2,
    "train_batch_size": 40,
    "sgd_minibatch_size": 20,
    "horizon": 15,
    "model": {**SMALL, "conv_filters": [[4, 8, 8], [8, 4, 4]]},
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Threads that wait for each other on a busy machine take a hundred times as long."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


class BrightSide(gym.Env):
    """One half of the image is bright; the action that names it is rewarded."""

    observation_space = gym.spaces.Box(0, 255, (1, 16, 16), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._seen(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.left -= 1
        return self._seen(), reward, self.left == 0, False, {}

    def _seen(self):
        self.side = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 100, (1, 16, 16), np.uint8)
        image[:, :, 8 * self.side : 8 * self.side + 8] += 150
        return image


HERE = f"{Path(__file__)}:BrightSide"


def test_values_come_with_the_actions_and_are_those_of_the_network() -> None:
    with shoal.PPO(env=HERE, config=SHORT) as trainer:
        policy = trainer.get_policy()
        batch = trainer.workers.sample(16).batch
        rows = batch.valid.size
        seen = policy.encoder(tuple(part.reshape(rows, *part.shape[2:]) for part in batch.obs))
        assert batch.values is not None
        np.testing.assert_allclose(batch.values.reshape(-1), policy.network.values(seen), atol=1e-5)
        assert np.ptp(batch.values) > 0


@pytest.mark.parametrize("config", [{"framework": "numpy", "model": {}}, {"env": "CartPole-v1", "model": {}}])
def test_elsewhere_the_learner_computes_them(config) -> None:
    with shoal.PPO(config={"env": HERE, **SHORT, **config}) as trainer:
        assert trainer.workers.sample(16).batch.values is None


def test_a_side_that_is_bright_is_learned() -> None:
    config = {**SHORT, "num_envs_per_worker": 8, "train_batch_size": 512, "num_sgd_iter": 4, "lr": 3e-3}
    with shoal.PPO(env=HERE, config=config) as trainer:
        for _ in range(6):
            trainer.train()
        assert trainer.evaluate(episodes=10)["episode_reward_mean"] > 9


@pytest.mark.slow
def test_processes_of_their_own_change_nothing() -> None:
    weights = []
    for isolation in ("none", "process"):
        with shoal.PPO(env=HERE, config={**SHORT, "env_isolation": isolation}) as trainer:
            trainer.train()
            weights.append(trainer.get_policy().network.params.copy())
    assert np.array_equal(*weights)


def test_the_same_seed_gives_the_same_weights() -> None:
    with shoal.PPO(env=HERE, config=SHORT) as one, shoal.PPO(env=HERE, config=SHORT) as two:
        one.train()
        two.train()
        assert_same_state(one, two)


@pytest.mark.slow
def test_a_game_seen_through_frames_is_restored_exactly(tmp_path, start_trainer) -> None:
    pytest.importorskip("ale_py")
    assert_restored_exactly(lambda: start_trainer("PPO", FRAMES["env"], FRAMES), tmp_path, 2)


def test_a_game_is_trained_evaluated_and_loaded_with_the_same_frames(tmp_path, caplog) -> None:
    pytest.importorskip("ale_py")
    with shoal.DQN(
        config={
            **{key: value for key, value in FRAMES.items() if not key.startswith(("sgd", "num_sgd"))},
            "env_config": {"noop_max": 0, "terminal_on_life_loss": True},
            "train_batch_size": 8,
            "timesteps_per_iteration": 16,
            "learning_starts": 8,
            "replay_buffer_config": {"capacity": 50},
        }
    ) as trainer:
        assert trainer.get_policy().obs_spec.space.shape == (84, 84, 4)
        assert trainer.train()["learner"]["num_updates"] > 0
        assert trainer.evaluate(episodes=1)["episode_len_mean"] <= 15
        path = trainer.save(tmp_path)
    loaded = shoal.Policy.load(path)
    assert loaded.compute_single_action(np.zeros((84, 84, 4), np.uint8), explore=False) in range(4)


def test_frames_as_the_game_gives_them() -> None:
    pytest.importorskip("ale_py")
    with shoal.PPO(config={**FRAMES, "env_config": {}, "preprocessor_pref": None}) as trainer:
        assert trainer.get_policy().obs_spec.space.shape == (210, 160, 3)


def test_a_run_says_what_it_sees() -> None:
    pytest.importorskip("ale_py")
    tree = {"name": "a", "run": "PPO", "stop": {"training_iteration": 1}}
    for config, told in (
        ({}, True),
        ({"preprocessor_pref": None}, False),
        ({"env_config": {"obs_type": "ram"}}, False),
    ):
        experiment = experiment_from({**tree, "config": {"env": "ALE/Pong-v5", **config}})
        _, notes = checked(experiment)
        assert [note.startswith("Atari frames are 84 x 84") for note in notes] == [True] * told


def test_a_run_of_before_sees_the_games_own_frames() -> None:
    pytest.importorskip("ale_py")
    tree = tree_of(experiment_from({"name": "a", "run": "PPO", "config": {"env": "ALE/Pong-v5"}}), INSTALLED)
    assert experiment_of(tree)[0].config.preprocessor_pref == "deepmind"
    del tree["config"]["preprocessor_pref"]
    assert experiment_of(tree)[0].config.preprocessor_pref is None


DOT = f"{Path(__file__).parents[1] / 'shared' / 'probe_env.py'}:Dot"
REMEMBERED = {
    "env": DOT,
    "num_envs_per_worker": 2,
    "train_batch_size": 8,
    "timesteps_per_iteration": 48,
    "learning_starts": 40,
    "replay_buffer_config": {"capacity": 100},
    "model": {"conv_filters": [[2, 8, 6]], "post_fcnet_hiddens": [4]},
    "seed": 11,
}
PRIORITIES = {"replay_buffer_config": {"capacity": 100, "prioritized_replay": True}}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("DQN", {}), ("DQN", PRIORITIES), ("SAC", {"env": f"{DOT}InBox", "training_intensity": 4})],
    ids=["DQN", "priorities", "SAC"],
)
def test_a_replay_of_frames_is_restored_exactly(algorithm, changes, tmp_path, start_trainer) -> None:
    config = {**REMEMBERED, **changes}
    assert_restored_exactly(lambda: start_trainer(algorithm, config["env"], config), tmp_path, 3)


def test_a_run_of_images_saves_what_is_new_and_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 1 << 15)
    experiment = {"run": "DQN", "results_dir": str(tmp_path), "checkpoint_freq": 1, "config": REMEMBERED}
    whole = list(shoal.run({**experiment, "name": "whole", "stop": {"training_iteration": 6}}))
    list(shoal.run({**experiment, "name": "parts", "stop": {"training_iteration": 3}}))
    opened = Run.open(experiment_from({**experiment, "name": "parts", "stop": {"training_iteration": 6}}))
    rest = []
    for result in opened.results():
        rest.append(result)
        replay = opened.trainer.learner.replay
        ids = np.concatenate([replay._obs[0], replay._next_obs[0]])
        assert len(replay._images[0].store) == len(np.unique(ids[ids >= 0])), "what was read goes as it is overwritten"
    assert [without_times(result) for result in rest] == [without_times(result) for result in whole[3:]]
    for name in ("whole", "parts"):
        files = {}
        for path in checkpoints_of(next((tmp_path / name).iterdir())):
            for file in (path / "replay").iterdir():
                files.setdefault(file.name, set()).add(file.stat().st_ino)
        assert any(file.startswith("0-000000000112-") for file in files)
        assert all(len(inodes) == 1 for inodes in files.values()), "each is written once"
    one, two = (read_checkpoint(next((tmp_path / name).iterdir())).state for name in ("whole", "parts"))
    mine, theirs = arrays_of(one), arrays_of(two)
    for name in mine:
        if name.startswith(("policy/", "learner/")):
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_a_replay_that_outgrows_the_memory_ends_with_a_sentence_and_is_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1 << 16)
    experiment = {"name": "a", "run": "DQN", "results_dir": str(tmp_path), "config": REMEMBERED}
    results = shoal.run(experiment)
    next(results), next(results)
    monkeypatch.setattr(frames, "available_memory", lambda: 0)
    with pytest.raises(ConfigError, match=r"capacity: the images of \d+ transitions take .* or use at most"):
        list(results)
    monkeypatch.undo()
    newest = checkpoints_of(next((tmp_path / "a").iterdir()))[0]
    assert newest.name == "checkpoint_000002"
    assert sum(len(a) for n, a in read_checkpoint(newest).state.arrays.items() if "replay.actions" in n) == 96


def test_what_frames_take_is_told_about(caplog) -> None:
    caplog.set_level("INFO", "shoal")
    with shoal.DQN(config=REMEMBERED):
        pass
    assert "(100 + 48 of one iteration) x about 1,484 bytes = 220 kB of " in caplog.text
    config = {**REMEMBERED, "replay_buffer_config": {"capacity": 10**9}}
    with pytest.raises(ConfigError, match=r"x about 1,484 bytes = 1,484 GB, and .* are available; use at most"):
        shoal.DQN(config=config)
