"""Policies of Stable-Baselines3 as ordinary runs: they act as the originals, and nothing of their files is run."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.bridges.foreign_policy import import_policy
from shoal.bridges.sb3_models import read_sb3
from shoal.cli.main import main
from shoal.runs.loaded_policy import find_checkpoint

MODELS = Path(__file__).parents[2] / "foreign_models"
CASES = {
    "sb3_ppo_cartpole": ("CartPole-v1", "PPO"),
    "sb3_a2c_pendulum": ("Pendulum-v1", "PPO"),
    "sb3_dqn_cartpole": ("CartPole-v1", "DQN"),
    "sb3_sac_pendulum": ("Pendulum-v1", "SAC"),
}


def typed(*words: str) -> tuple[int, str]:
    """The exit code and the output of a command."""
    result = CliRunner().invoke(main, [*words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def imported(name: str, folder: Path) -> Path:
    env, _ = CASES[name]
    statistics = MODELS / f"{name}.pkl"
    policy = read_sb3(MODELS / f"{name}.zip", statistics if statistics.exists() else None)
    return import_policy(policy, env, {"source": name}, results_dir=str(folder))[0]


@pytest.mark.parametrize("name", CASES)
def test_the_policy_acts_as_the_original(name: str, tmp_path: Path) -> None:
    run = imported(name, tmp_path)
    kept = np.load(MODELS / f"{name}.npz")
    assert len(kept["obs"]) == 1000
    policy = shoal.Policy.load(run)
    actions = np.array(policy.compute_actions(kept["obs"], explore=False)).reshape(kept["actions"].shape)
    np.testing.assert_allclose(actions, kept["actions"], atol=1e-5)
    assert find_checkpoint(run).experiment_tree["run"] == CASES[name][1]


def test_values_critics_and_scales_come_along(tmp_path: Path) -> None:
    sac = read_sb3(MODELS / "sb3_sac_pendulum.zip")
    with shoal.SAC(env="Pendulum-v1", config=dict(sac.config) | {"model": {"fcnet_hiddens": [16, 16]}}) as trainer:
        trainer.restore(find_checkpoint(imported("sb3_sac_pendulum", tmp_path)).path)
        np.testing.assert_array_equal(
            trainer.learner.critics[1].named_params()["shared.hidden1.weight"], sac.critics[1][1].weight
        )
        np.testing.assert_array_equal(trainer.learner.targets[0].named_params()["policy.bias"], sac.targets[0][2].bias)
        assert trainer.learner.log_alphas[0] == np.float32(sac.log_alpha)
        assert sac.log_alpha != 0
    a2c = read_sb3(MODELS / "sb3_a2c_pendulum.zip", MODELS / "sb3_a2c_pendulum.pkl")
    assert a2c.reward_deviation is not None
    state = find_checkpoint(imported("sb3_a2c_pendulum", tmp_path)).state
    assert np.sqrt(state.values["learner"]["rewards"]["m2"]) == pytest.approx(a2c.reward_deviation)
    ppo = read_sb3(MODELS / "sb3_ppo_cartpole.zip")
    policy = shoal.Policy.load(imported("sb3_ppo_cartpole", tmp_path))
    assert ppo.value_output is not None
    np.testing.assert_array_equal(policy.get_weights()["value.hidden1.weight"], ppo.value_hidden[1].weight)
    np.testing.assert_array_equal(policy.get_weights()["value.weight"], ppo.value_output.weight)


def test_the_command_makes_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hashlib, "file_digest", raising=False)  # Python 3.10 has none
    source = MODELS / "sb3_ppo_cartpole.zip"
    code, output = typed("import", str(source), "--env", "CartPole-v1", "--results-dir", str(tmp_path), "--name", "old")
    assert code == 0, output
    (run,) = (tmp_path / "old").iterdir()
    assert f"shoal evaluate {run}" in output
    told = json.loads((run / "imported.json").read_text())
    assert (told["algorithm"], told["source"]) == ("PPO", str(source))
    assert told["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    code, output = typed("evaluate", str(run), "--episodes", "1")
    assert code == 0, output
    code, output = typed("export", str(run), "--format", "numpy", "-o", str(tmp_path / "policy.py"))
    assert code == 0, output
    assert "proved: 1000 observations" in output
    code, output = typed("resume", str(run), "--stop", "training_iteration=1")
    assert code == 0, output
    tree = json.loads((run / "experiment.json").read_text())
    warm = {"run": "PPO", "config": tree["config"], "restore": str(run), "stop": {"training_iteration": 1}}
    (result,) = shoal.run({**warm, "results_dir": str(tmp_path), "name": "warm"})
    assert result["training_iteration"] == 1


def test_without_an_environment_a_sentence_says_why_it_is_needed(tmp_path: Path) -> None:
    code, output = typed("import", str(MODELS / "sb3_ppo_cartpole.zip"))
    assert (code, "does not say on which environment" in output) == (2, True)
    code, output = typed("import", str(tmp_path / "none.zip"))
    assert (code, "no such file" in output) == (2, True)


class Spoken(gym.Env[Any, Any]):
    """Spaces that a test chooses."""

    def __init__(self, config: Any) -> None:
        self.observation_space, self.action_space = {**LIVE, **IMAGES_TO_NUMBERS}[config["spaces"]]
        self.observation_space.seed(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


LIVE = {
    "multi_discrete": (gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([3, 2])),
    "multi_binary": (gym.spaces.MultiBinary(4), gym.spaces.MultiBinary(3)),
    "matrix": (gym.spaces.Box(-2, 2, (2, 3), np.float32), gym.spaces.Box(-1, 4, (2,), np.float32)),
    "small_image": (gym.spaces.Box(0, 255, (36, 45, 1), np.uint8), gym.spaces.Discrete(4)),
    "image": (gym.spaces.Box(0, 255, (64, 72, 3), np.uint8), gym.spaces.Discrete(4)),
    "large_image": (gym.spaces.Box(0, 255, (150, 110, 3), np.uint8), gym.spaces.Discrete(4)),
}
IMAGES_TO_NUMBERS = {"image_to_numbers": (LIVE["image"][0], gym.spaces.Box(-1, 4, (2,), np.float32))}


@pytest.mark.repeats(4)
@pytest.mark.parametrize("name", LIVE)
def test_other_spaces_and_images(name: str, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    torch = pytest.importorskip("torch")
    spaces, is_image = LIVE[name], "image" in name
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 2}
    if is_image:
        settings["policy_kwargs"] = {"features_extractor_kwargs": {"features_dim": 24}}
    env = Spoken({"spaces": name})
    model = sb3.PPO("CnnPolicy" if is_image else "MlpPolicy", env, **settings)
    with torch.no_grad():
        for each in model.policy.action_net.parameters():
            each.mul_(100)  # which begin next to nothing
    model.save(tmp_path / "model.zip")
    policy = read_sb3(tmp_path / "model.zip")
    run, _ = import_policy(policy, Spoken, {}, [("config.env_config", {"spaces": name})], results_dir=str(tmp_path))
    seen = np.stack([spaces[0].sample() for _ in range(1000)])
    theirs, _ = model.predict(np.moveaxis(seen, 3, 1) if is_image else seen, deterministic=True)
    loaded = shoal.Policy.load(run)
    ours = np.array(loaded.compute_actions(list(seen), explore=False)).reshape(theirs.shape)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert len(np.unique(theirs)) > 1
    assert loaded.is_stochastic


@pytest.mark.repeats(0)
@pytest.mark.parametrize("algorithm", ["A2C", "DQN", "SAC"])
def test_networks_for_images_of_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    torch = pytest.importorskip("torch")
    name = "image" if algorithm != "SAC" else "image_to_numbers"
    settings = {} if algorithm == "A2C" else {"buffer_size": 10}
    widths = {"features_extractor_kwargs": {"features_dim": 24}}
    env = Spoken({"spaces": name})
    model = getattr(sb3, algorithm)("CnnPolicy", env, device="cpu", seed=2, policy_kwargs=widths, **settings)
    rng = np.random.default_rng(4)
    seen = rng.integers(0, 256, (1000, 8, 9, 3)).repeat(8, 1).repeat(8, 2).astype(np.uint8)
    channels_first = np.moveaxis(seen, 3, 1)
    with torch.no_grad():
        if algorithm == "DQN":  # whose values of actions begin further apart than images can move them
            values = model.q_net(torch.as_tensor(channels_first[:100].copy()))
            model.q_net.q_net[-1].bias -= values.mean(0)
        else:
            acting = model.policy.action_net if algorithm == "A2C" else model.actor.mu
            acting.weight.mul_(100)
    model.save(tmp_path / "model.zip")
    policy = read_sb3(tmp_path / "model.zip")
    run, _ = import_policy(policy, Spoken, {}, [("config.env_config", {"spaces": name})], results_dir=str(tmp_path))
    theirs, _ = model.predict(channels_first, deterministic=True)
    ours = np.array(shoal.Policy.load(run).compute_actions(list(seen), explore=False)).reshape(theirs.shape)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert len(np.unique(theirs)) > 1


def test_statistics_that_clip_elsewhere_do_so_wherever_the_policy_goes(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from shoal.models.row_actor import RowActor, weights_of

    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_obs=1.25)
    env.seed(1)
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=1)
    model.learn(64)
    model.policy.action_net.weight.data.mul_(100)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "statistics.pkl"))
    env.training = False
    seen = np.random.default_rng(1).normal(0, [1, 1, 6], (1000, 3)).astype(np.float32)
    theirs, _ = model.predict(env.normalize_obs(seen), deterministic=True)
    assert (np.abs(env.normalize_obs(seen)) == 1.25).mean() > 0.1
    run, _ = import_policy(
        read_sb3(tmp_path / "model.zip", tmp_path / "statistics.pkl"), "Pendulum-v1", {}, results_dir=str(tmp_path)
    )
    policy = shoal.Policy.load(run)
    ours = np.array(policy.compute_actions(seen, explore=False)).reshape(theirs.shape)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    for words in (["numpy", "-o", str(tmp_path / "policy.py")], ["hub", "-o", str(tmp_path / "hub")]):
        code, output = typed("export", str(run), "--format", *words)
        assert code == 0, output
    with shoal.PPO(env="Pendulum-v1", config={"observation_filter": "MeanStdFilter"}) as trainer:
        actor = RowActor.of(trainer.get_policy(), 1)
        assert actor is not None
        actor.sit_at(0)
        actor.take_weights(weights_of(policy))
        assert trainer.get_policy().filter.clip == np.float32(1.25)
    code, output = typed("resume", str(run), "--stop", "training_iteration=1", "--quiet")
    assert code == 0, output
    assert shoal.Policy.load(run).filter.clip == np.float32(1.25)


def changed(tmp_path: Path, **files: bytes | None) -> Path:
    """The model of PPO with some of its files replaced or left out."""
    path = tmp_path / f"changed{len(list(tmp_path.glob('changed*')))}.zip"
    with zipfile.ZipFile(MODELS / "sb3_ppo_cartpole.zip") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = files.get(name.replace(".pth", ""), old.read(name))
            if content is not None:
                new.writestr(name, content)
    return path


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


def test_pickles_inside_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = base64.b64encode(pickle.dumps(Evil(mark))).decode()
    with zipfile.ZipFile(MODELS / "sb3_ppo_cartpole.zip") as old:
        data = json.loads(old.read("data"))
        weights = old.read("policy.pth")
    for name in ("policy_kwargs", "observation_space", "policy_class"):
        data[name] = {":type:": "dict", ":serialized:": evil}
    policy = read_sb3(changed(tmp_path, data=json.dumps(data).encode()))
    assert policy.widths == [16, 16]  # which the tensors tell
    assert not mark.exists()

    torch_file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(weights)) as old, zipfile.ZipFile(torch_file, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.dumps(Evil(mark)) if name.endswith("data.pkl") else old.read(name))
    with pytest.raises(shoal.ConfigError, match="holds no state dict"):
        read_sb3(changed(tmp_path, policy=torch_file.getvalue()))
    (tmp_path / "vec.pkl").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(shoal.ConfigError, match=r"no file of VecNormalize\.save"):
        read_sb3(MODELS / "sb3_ppo_cartpole.zip", tmp_path / "vec.pkl")
    assert not mark.exists()


def test_files_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.zip"
    text.write_text("no zip")
    model = str(MODELS / "sb3_ppo_cartpole.zip")
    for words, sentence in (
        ((str(text), "--env", "CartPole-v1"), "is no zip file"),
        ((str(tmp_path / "none.zip"), "--env", "CartPole-v1"), "no such file or folder"),
        ((str(tmp_path), "--env", "CartPole-v1"), "checkpoint of RLlib"),
        ((model, "--env", "Pendulum-v1"), "are a Discrete|observations"),
        ((model, "--env", "Acrobot-v1"), "its observations are"),
        ((model, "--env", "CartPole-v1", "--vecnormalize", model), "is no file of VecNormalize.save"),
        ((model, "--env", "CartPole-v1", "--policy-id", "a"), "leave it out"),
        ((model, "--env", "CartPole-v1", "--set", "model.fcnet_hiddens=[8,8]"), "where it needs"),
        ((str(changed(tmp_path, policy=None)), "--env", "CartPole-v1"), "no model of Stable-Baselines3"),
        ((str(changed(tmp_path, data=b"[" * 100_000)), "--env", "CartPole-v1"), "no JSON"),
    ):
        code, output = typed("import", *words, "--results-dir", str(tmp_path / "runs"))
        assert code == 2, output
        assert re.search(sentence, output), output
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_is_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    whole = bytearray((MODELS / "sb3_ppo_cartpole.zip").read_bytes())
    for place in rng.integers(0, len(whole), 20):
        whole[place] = rng.integers(0, 256)
    path = tmp_path / "damaged.zip"
    path.write_bytes(whole[: int(rng.integers(1000, len(whole) + 1))] if seed % 3 == 0 else whole)
    try:
        assert read_sb3(path).widths
    except shoal.ConfigError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x80\x04]\x94r\xff\xff\xff\x7f.", "more memory than it can use"),
        (b"\x80\x04\x82\x01.", "opcode EXT1"),
        (b"\x80\x04U\x01aQ.", "outside of itself"),
        (b"\x80\x04" + b"]" * 400 + b"a" * 399 + b".", "too deeply"),
        (b"", "cannot be read"),
    ],
)
def test_hostile_pickles_are_refused(data: bytes, sentence: str) -> None:
    from shoal.bridges.inert_pickle import read_pickle

    with pytest.raises(shoal.ConfigError, match=sentence):
        read_pickle(data, "it")


def test_a_pickle_of_references_is_read_once() -> None:
    from shoal.bridges.inert_pickle import read_pickle

    bomb: Any = []
    for _ in range(40):
        bomb = [bomb, bomb]
    found = read_pickle(pickle.dumps(bomb), "it")
    assert found[0] is found[1]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_come_back_in_every_protocol(protocol: int) -> None:
    from shoal.bridges.inert_pickle import read_pickle

    arrays = {
        "floats": np.arange(6, dtype=np.float64).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        "big": np.arange(3, dtype=">f4"),
        "bools": np.array([True, False]),
        "number": np.float32(2.5),
    }
    found = read_pickle(pickle.dumps(arrays, protocol), "it")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(shoal.ConfigError, match=r"not of numbers|something else"):
        read_pickle(pickle.dumps(np.array([{}], dtype=object), protocol), "it")
