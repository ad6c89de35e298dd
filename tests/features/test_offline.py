"""Steps that are written down, and what BC and MARWIL make of them: files, resume, layouts, refusals, warm starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from same_training import assert_restored_exactly, without_times_and_layout

import shoal
from shoal.cli.main import main
from shoal.config.offline import NEEDLESS, SCALERS
from shoal.envs.importing import UserCode
from shoal.errors import ConfigError

PROBES = Path(__file__).parents[1] / "shared" / "probe_env.py"
NUM_ENVS = 4
SAMPLING = {"num_envs_per_worker": NUM_ENVS, "train_batch_size": 128, "model": {"fcnet_hiddens": [8]}, "seed": 5}
LEARNING = {"train_batch_size": 300, "sgd_minibatch_size": 64, "model": {"fcnet_hiddens": [8]}, "seed": 5}
ONE_ITERATION: dict[str, Any] = {"stop": {"training_iteration": 1}}


def record(folder: Path, env: str = "Walk", iterations: int = 3, **changes: Any) -> Path:
    """Let PPO write some steps down."""
    config = {**SAMPLING, "output": str(folder), **changes}
    with shoal.PPO(env=f"{PROBES}:{env}", config=config) as trainer:
        for _ in range(iterations):
            trainer.train()
    return folder


def steps_in(folder: Path) -> pd.DataFrame:
    """All steps of a folder, in the order of its files; of lists of numbers the array."""
    files = sorted(folder.glob("*.parquet"))
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    for name in ("obs", "final_obs"):
        frame[name] = [None if value is None else tuple(np.asarray(value).tolist()) for value in frame[name]]
    return frame


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("walks"))


def test_episodes_are_whole_and_follow_from_each_other(walks: Path) -> None:
    steps = steps_in(walks)
    assert len(steps) == 3 * 128
    for _, episode in steps.groupby("episode_id", sort=False):
        assert episode.t.tolist() == list(range(len(episode)))
        assert not (episode.terminated | episode.truncated)[:-1].any()
        assert episode.final_obs[:-1].isna().all()
        last = episode.iloc[-1]
        assert (last.final_obs is None) == bool(last.terminated)
        assert last.truncated == (len(episode) == 20 and not last.terminated)
    assert steps.episode_id.is_monotonic_increasing
    unfinished = steps.groupby("episode_id").tail(1).query("not terminated and not truncated")
    assert len(unfinished) <= NUM_ENVS


@pytest.mark.repeats(1)
@pytest.mark.parametrize("env", ["Walk", "FailingNowAndThen"])
def test_a_resumed_run_writes_neither_gaps_nor_duplicates(tmp_path: Path, env: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.runs.experience_output.FILE_BYTES", 3000)  # several files
    experiment = {"env": f"{PROBES}:{env}", "run": "PPO", "results_dir": str(tmp_path / "runs"), "checkpoint_freq": 2}

    def train(name: str, iterations: int) -> None:
        config = {**SAMPLING, "output": str(tmp_path / name)}
        list(shoal.run({**experiment, "name": name, "stop": {"training_iteration": iterations}, "config": config}))

    train("whole", 6)
    train("parts", 1)
    train("parts", 3)
    late = next((tmp_path / "runs" / "parts").iterdir())
    train("parts", 6)
    assert len(list((tmp_path / "runs" / "parts").iterdir())) == 1
    assert late.is_dir()
    whole, parts = steps_in(tmp_path / "whole"), steps_in(tmp_path / "parts")
    assert len(list((tmp_path / "whole").glob("*.parquet"))) > 2
    pd.testing.assert_frame_equal(whole, parts)


def test_killed_between_files_nothing_is_lost_or_twice(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.runs.experience_output.FILE_BYTES", 3000)
    whole = record(tmp_path / "whole", iterations=6)
    config = {**SAMPLING, "output": str(tmp_path / "parts")}
    killed = shoal.PPO(env=f"{PROBES}:Walk", config=config)
    for _ in range(2):
        killed.train()
    saved = killed.save(tmp_path / "saved")
    for _ in range(2):
        killed.train()  # beyond the checkpoint, and never closed
    again = shoal.PPO(env=f"{PROBES}:Walk", config=config)
    again.restore(saved)
    for _ in range(4):
        again.train()
    again.stop()
    killed._closing.pop_all()
    pd.testing.assert_frame_equal(steps_in(whole), steps_in(tmp_path / "parts"))


def test_who_begins_to_write_in_the_middle_begins_with_whole_episodes(tmp_path: Path) -> None:
    with shoal.PPO(env=f"{PROBES}:Walk", config=SAMPLING) as trainer:
        trainer.train()
        saved = trainer.save(tmp_path / "saved")
    with shoal.PPO(env=f"{PROBES}:Walk", config={**SAMPLING, "output": str(tmp_path / "late")}) as trainer:
        trainer.restore(saved)
        trainer.train()
    late = steps_in(tmp_path / "late")
    whole = steps_in(record(tmp_path / "whole", iterations=2))
    known = set(whole.obs)
    assert 0 < len(late) < 128
    assert all(obs in known for obs in late.obs)
    assert (late.groupby("episode_id").t.min() == 0).all()


@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TRPO", "APPO", "ES"])
def test_every_algorithm_writes_what_it_samples(tmp_path: Path, algorithm: str) -> None:
    config = {"num_envs_per_worker": NUM_ENVS, "output": str(tmp_path), "model": {"fcnet_hiddens": [8]}}
    config |= {"timesteps_per_iteration": 64} if algorithm in ("DQN", "SAC") else {}
    config |= {"train_batch_size": 64} if algorithm in ("TRPO", "APPO") else {}
    with getattr(shoal, algorithm)(env=f"{PROBES}:Walk", config=config) as trainer:
        sampled = trainer.train()["timesteps_total"]
    assert len(steps_in(tmp_path)) == sampled >= 64


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize(
    "changes",
    [{}, {"preprocessors": ["MinMaxScaler"]}, {"preprocessors": [{"RobustScaler": {"quantile_range": [0.1, 0.8]}}]}],
    ids=["plain", "scaled", "robust"],
)
def test_k_save_load_k_is_two_k(start_trainer: Any, walks: Path, tmp_path: Path, beta: float, changes: Any) -> None:
    config = {**LEARNING, "input": str(walks), "beta": beta, **changes}
    assert_restored_exactly(lambda: start_trainer("MARWIL", f"{PROBES}:Walk", config), tmp_path, 3)


def test_beta_0_is_behaviour_cloning(start_trainer: Any, walks: Path) -> None:
    config = {**LEARNING, "input": f"{walks}/*.parquet"}
    cloned = start_trainer("BC", f"{PROBES}:Walk", config)
    weighted = start_trainer("MARWIL", f"{PROBES}:Walk", {**config, "beta": 0})
    other = start_trainer("MARWIL", f"{PROBES}:Walk", config)
    for trainer in (cloned, weighted, other):
        for _ in range(3):
            result = trainer.train()
        assert result["timesteps_total"] == 3 * 320  # minibatches of 64, at least 300 steps each time
        assert result["learner"]["dataset_steps"] == 384
    first, second, third = (trainer.get_policy().network.params for trainer in (cloned, weighted, other))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - third).max() > 1e-3


@pytest.mark.parametrize("beta", [0.0, 1.0], ids=["BC", "MARWIL"])
def test_what_was_cloned_is_exported(walks: Path, tmp_path: Path, beta: float) -> None:
    run = "MARWIL" if beta else "BC"
    config = {**LEARNING, "input": str(walks), "preprocessors": ["RobustScaler"]}
    for _ in shoal.run({"run": run, "results_dir": str(tmp_path), "name": "clone", "config": config, **ONE_ITERATION}):
        pass
    words = ["export", str(tmp_path / "clone"), "--format", "numpy", "-o", str(tmp_path / "clone.py")]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert "proved: 1000 observations" in done.output
    policy = shoal.Policy.load(tmp_path / "clone")
    exported = UserCode.at(tmp_path).load_module("clone").Policy()
    rng = np.random.default_rng(1)
    for obs in rng.normal(0, 3, (200, 3)).astype(np.float32):
        assert exported.act(obs) == policy.compute_single_action(obs, explore=False)


def test_every_preprocessor_of_ray_data_is_taken_or_refused_with_its_reason() -> None:
    preprocessors = pytest.importorskip("ray.data.preprocessors")
    assert set(preprocessors.__all__) == {*SCALERS, *NEEDLESS}


def test_without_an_environment_the_files_tell_the_spaces(walks: Path, tmp_path: Path) -> None:
    scaler = {"RobustScaler": {"quantile_range": [0.1, 0.9]}}
    config = {**LEARNING, "input": str(walks), "preprocessors": [scaler]}
    tree = {"run": "BC", "name": "alone", "results_dir": str(tmp_path), "config": config}
    results = [result for count in (1, 2) for result in shoal.run({**tree, "stop": {"training_iteration": count}})]
    assert [result["training_iteration"] for result in results] == [1, 2]  # the second continues the first
    assert len(list((tmp_path / "alone").iterdir())) == 1
    assert results[-1]["learner"]["policy_loss"] < results[0]["learner"]["policy_loss"]
    policy = shoal.Policy.load(tmp_path / "alone")
    assert policy.compute_single_action(np.zeros(3, np.float32)) in (0, 1, 2)
    command = ["evaluate", str(tmp_path / "alone"), "--episodes", "2"]
    alone = CliRunner().invoke(main, command)
    assert alone.exit_code == 2
    assert "learned from recorded steps alone; add --env" in alone.output
    other = CliRunner().invoke(main, [*command, "--env", "CartPole-v1"])
    assert (other.exit_code, "other observations" in other.output) == (2, True)
    played = CliRunner().invoke(main, [*command, "--env", f"{PROBES}:Walk"])
    assert played.exit_code == 0, played.output


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("PPO", {}),
        ("SAC", {"squash_actions": True, "learning_starts": 1000, "timesteps_per_iteration": 64}),
    ],
)
def test_what_was_cloned_starts_other_algorithms(tmp_path: Path, algorithm: str, changes: dict[str, Any]) -> None:
    data = record(tmp_path / "data", "WalkInBox")
    # SAC has one network beside its critics, whose spread follows from what is seen.
    is_sac = algorithm == "SAC"
    model = {"fcnet_hiddens": [8], "vf_share_layers": is_sac, "fcnet_activation": "relu", "free_log_std": not is_sac}
    shared = {"model": model, "squash_actions": algorithm == "SAC", "observation_filter": "MeanStdFilter"}
    tree = {"env": f"{PROBES}:WalkInBox", "results_dir": str(tmp_path), "stop": {"training_iteration": 1}}
    cloned = {**LEARNING, **shared, "input": str(data)}
    list(shoal.run({**tree, "run": "BC", "name": "cloned", "config": cloned}))
    config = {**SAMPLING, **changes, **shared, "lr": 1e-12}
    warm = {**tree, "run": algorithm, "name": "warm", "restore": str(tmp_path / "cloned"), "config": config}
    list(shoal.run(warm))
    source, taken = (shoal.Policy.load(tmp_path / name) for name in ("cloned", "warm"))
    obs = np.array([1.0, -2.0, 0.5], np.float32)
    theirs, own = (policy.network.params for policy in (source, taken))
    np.testing.assert_allclose(theirs, own, atol=1e-6)
    actions = [policy.compute_single_action(obs, explore=False) for policy in (source, taken)]
    np.testing.assert_allclose(*actions, atol=0.1)  # PPO's filter has seen more


def test_who_starts_sac_with_a_clone_of_another_form_is_told_what_works(tmp_path: Path) -> None:
    data = record(tmp_path / "data", "WalkInBox")
    small = [f"{PROBES}:WalkInBox", "--results-dir", str(tmp_path), "--stop", "training_iteration=1"]
    clone = ["train", *small, "--run", "BC", "--set", f"input={data}", "--set", "model.fcnet_hiddens=[8]"]
    warm = ["train", *small, "--run", "SAC", "--set", "timesteps_per_iteration=64", "--name", "warm"]
    assert CliRunner().invoke(main, [*clone, "--name", "cloned"]).exit_code == 0
    refused = CliRunner().invoke(main, [*warm, "--restore", "cloned"])
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    again, here = told.partition("SAC takes no other: train BC again with ")[2].split("; here add ")
    assert again == "--set config.model.vf_share_layers=true --set config.squash_actions=true"
    fitting = CliRunner().invoke(main, [*clone, "--name", "fitting", *shlex.split(again)])
    assert fitting.exit_code == 0, fitting.output
    done = CliRunner().invoke(main, [*warm, "--restore", "fitting", *shlex.split(here)])
    assert done.exit_code == 0, done.output


def test_minari_there_and_back(tmp_path: Path, walks: Path, monkeypatch: Any) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name = "walk/some-v0"
    config = {**SAMPLING, "output": f"minari:{name}"}
    tree = {"env": f"{PROBES}:Walk", "run": "PPO", "name": "minari", "results_dir": str(tmp_path / "runs")}
    for iterations in (2, 3):  # resumed, the dataset is made anew
        list(shoal.run({**tree, "config": config, "stop": {"training_iteration": iterations}}))
    dataset = minari.load_dataset(name)
    steps = steps_in(walks)
    assert dataset.total_steps == len(steps) == 384
    first = dataset[0]
    length = len(first.rewards)
    assert len(first.observations) == length + 1
    np.testing.assert_array_equal(first.observations[:-1], np.array(steps.obs[:length].tolist(), np.float32))
    np.testing.assert_array_equal(first.actions, steps.action[:length])
    with pytest.raises(ConfigError, match="name another version"):
        list(shoal.run({**tree, "name": "other", "config": config, "stop": {"training_iteration": 1}}))
    assert not list((tmp_path / "runs").glob("other/*"))
    assert minari.load_dataset(name).total_steps == 384
    from_files, from_minari = ({**LEARNING, "input": source} for source in (str(walks), f"minari:{name}"))
    params = []
    for learning in (from_files, from_minari):
        with shoal.BC(learning) as trainer:
            trainer.train()
            params.append(trainer.get_policy().network.params.copy())
    np.testing.assert_array_equal(*params)


def test_minari_names(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no Minari dataset walk/none-v0 on this machine"):
        shoal.BC({"input": "minari:walk/none-v0"})
    with pytest.raises(ConfigError, match=r"minari:a b is no name of a Minari dataset"):
        shoal.BC({"input": "minari:a b"})
    with pytest.raises(ConfigError, match="which dataset"):
        shoal.PPO(env="CartPole-v1", config={"output": "minari:"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_workers": "auto"}, "config.num_workers: auto measures how fast environments are sampled"),
        ({"preprocessors": ["Tokenizer"]}, "Tokenizer: observations are numbers here; leave it out, or use Standard"),
        ({"preprocessors": ["Normalizer"]}, "divide by the norm in a wrapper around the environment"),
        ({"preprocessors": ["RobustScalar"]}, r"has no preprocessor RobustScalar; did you mean RobustScaler\?"),
        ({"preprocessors": [{"RobustScaler": {"quantile_range": [0.7, 0.3]}}]}, "two numbers from 0 to 1"),
        ({"preprocessors": [{"MinMaxScaler": {"quantile_range": [0.3, 0.7]}}]}, "takes columns and nothing else"),
        ({"preprocessors": [{"StandardScaler": {"columns": ["reward"]}}]}, r"columns must be \[obs\]"),
        ({"preprocessors": ["StandardScaler", "MaxAbsScaler"]}, "leave all but one out"),
        ({"preprocessors": ["StandardScaler"], "observation_filter": "NoFilter"}, "config.observation_filter"),
        ({"output": "somewhere"}, "config.output: it has no effect, because nothing is sampled"),
        ({"evaluation_interval": 1}, "there is no environment to evaluate on; set env too"),
        ({"model": {"use_lstm": True}}, "without memory; so do all that learn from recorded steps; leave it out"),
        ({"num_learners": 2}, "the num_workers processes of Ray Train; leave it at 1, and set num_workers"),
        ({"exploration_config": {"type": "EpsilonGreedy"}}, "config.exploration_config: it has no effect"),
        ({"input": 3}, 'config.input: must be "folder/'),
    ],
)
def test_settings_that_make_no_sense(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        shoal.BC({"input": "nowhere", **config})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("CartPole-v1", "--run", "BC"), "config.input: is missing"),
        (("--run", "MARWIL", "--set", "input=nowhere/*.parquet"), "nowhere/*.parquet: there is no such file"),
        (("CartPole-v1", "--run", "BC", "--set", "input={walks}"), "has other observations: Box(3) there, Box(4) here"),
        (("--run", "BC", "--set", "input={half}"), "half.parquet is not a whole Parquet file"),
        (("CartPole-v1", "--set", "restore_policy=x"), "restore_policy: unknown key; did you mean restore?"),
        (("CartPole-v1", "--set", "output=/proc/none"), "config.output: /proc/none cannot be written"),
    ],
)
def test_the_command_line_ends_with_2_and_a_sentence(
    arguments: tuple[str, ...], words: str, walks: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half.parquet"
    half.write_bytes(next(walks.glob("*.parquet")).read_bytes()[:-50])
    typed = [word.format(walks=walks, half=half) for word in arguments]
    result = CliRunner().invoke(main, ["train", *typed, "--results-dir", str(tmp_path / "runs")])
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("runs/*/*"))


def test_several_agents_are_not_written_down(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    from agent_envs import Corridor

    with pytest.raises(ConfigError, match="the steps of several agents are not written yet"):
        shoal.PPO(env=Corridor, config={"output": str(tmp_path / "steps"), "train_batch_size": 64})
    assert not (tmp_path / "steps").exists()


@pytest.fixture(scope="module")
def _ray(ray_session: None) -> Iterator[None]:
    return ray_session


@pytest.mark.usefixtures("_ray")
class TestWithWorkers:
    """With processes of their own; in one module's Ray."""

    @pytest.mark.slow
    def test_the_number_of_workers_does_not_change_the_files(self, tmp_path: Path, walks: Path) -> None:
        split = {"num_workers": 2, "num_envs_per_worker": NUM_ENVS // 2, "num_cpus_per_worker": 0.5}
        many = steps_in(record(tmp_path / "many", **split))
        alone = steps_in(walks)
        for name in ("episode_id", "t", "action", "reward", "terminated", "truncated", "obs", "final_obs"):
            pd.testing.assert_series_equal(many[name], alone[name])

    @pytest.mark.slow
    @pytest.mark.parametrize("scaler", ["StandardScaler", {"RobustScaler": {"quantile_range": [0.1, 0.8]}}])
    def test_ray_train_learns_what_one_process_does(self, walks: Path, tmp_path: Path, scaler: Any) -> None:
        config = {**LEARNING, "input": str(walks), "preprocessors": [scaler]}
        results, params = [], []
        for num_workers in (0, 1, 2):
            own = {"num_workers": num_workers, "num_cpus_per_worker": 0.5}
            with shoal.MARWIL({**config, **own}, env=f"{PROBES}:Walk") as trainer:
                trainer.train()
                saved = trainer.save(tmp_path / str(num_workers))
                trainer.train()
                trainer.restore(saved)  # what has learned since is taken back
                results.append(without_times_and_layout(trainer.train()))
                params.append(trainer.get_policy().network.params.copy())
                assert results[-1]["timesteps_total"] == 2 * 320
        for others, result in zip(params[1:], results[1:], strict=True):
            np.testing.assert_allclose(others, params[0], atol=2e-6)
            for name, value in results[0]["learner"].items():
                assert result["learner"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name

    def test_more_processes_than_episodes(self, walks: Path) -> None:
        with pytest.raises(ConfigError, match=r"config\.num_workers: each needs an episode of its own"):
            shoal.BC({"input": str(walks), "num_workers": 1000, "num_cpus_per_worker": 0})
