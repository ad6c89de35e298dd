"""RLlib's algorithms as configurations: which words are passed on and how, and what is refused. RLlib is not needed."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.algorithms import ALGORITHMS, BUILT_IN, RLLIB, name_of, rllib_algorithms
from shoal.config.experiment import algorithm_config, algorithm_name, as_tree, config_tree, experiment_from
from shoal.config.layout import layout_of
from shoal.config.rllib import (
    FIXED,
    INSTEAD,
    MODEL_PASSED_ON,
    OURS,
    PASSED_ON,
    READ_HERE,
    WITHOUT_COUNTERPART,
    RLlibConfig,
    in_rllibs_words,
    network_in_rllibs_words,
)
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError


def impala(**keys: Any) -> RLlibConfig:
    config = algorithm_config("rllib:IMPALA", {"env": "CartPole-v1", **keys})
    assert isinstance(config, RLlibConfig)
    return config


def problems(run: str, **keys: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        algorithm_config(run, {"env": "CartPole-v1", **keys})
    return caught.value.problems


@pytest.mark.parametrize("name", RLLIB)
def test_every_algorithm_has_a_configuration_that_knows_its_name(name: str) -> None:
    kind = ALGORITHMS[name]
    assert issubclass(kind, RLlibConfig)
    assert f"rllib:{kind.rllib_name}" == name == name_of(kind)
    assert name not in BUILT_IN
    assert algorithm_name(name.upper()) == name


def test_tables_name_keys_that_there_are() -> None:
    keys = AlgorithmConfig.model_fields.keys()
    assert {*PASSED_ON, *READ_HERE, *INSTEAD} <= keys
    assert {*INSTEAD} <= {*WITHOUT_COUNTERPART}
    assert not {*PASSED_ON} & {*READ_HERE}
    assert {*OURS.values()} <= keys
    assert {*MODEL_PASSED_ON} <= type(AlgorithmConfig().model).model_fields.keys()
    assert not {*PASSED_ON} & {*WITHOUT_COUNTERPART}
    assert not {*OURS} & {*FIXED}


def test_what_is_set_is_passed_on_under_rllibs_names_and_what_is_not_is_left_to_it() -> None:
    words = in_rllibs_words(impala(num_workers=3, lr=1e-4, train_batch_size=600, num_learners=2, num_gpus=1))
    assert words == {
        "num_env_runners": 3,
        "num_envs_per_env_runner": 1,
        "num_cpus_per_env_runner": 1,
        "num_learners": 2,
        "num_cpus_per_learner": 1,
        "num_gpus_per_learner": 0.5,
        "restart_failed_env_runners": True,
        "ignore_env_runner_failures": False,
        "max_num_env_runner_restarts": 1000,
        "train_batch_size_per_learner": 300,
        "lr": 1e-4,
        "seed": 0,
    }
    assert in_rllibs_words(impala())["num_learners"] == 0, "RLlib counts the driver's own as none"
    assert in_rllibs_words(impala(num_envs_per_worker=4))["num_envs_per_env_runner"] == 4
    assert in_rllibs_words(impala(num_envs_per_worker=2, env_ranks=3))["num_cpus_per_env_runner"] == 6


def test_rllibs_own_keys_come_last() -> None:
    words = in_rllibs_words(impala(lr=1e-3, rllib_config={"lr": [[0, 1e-3], [1000, 1e-4]], "entropy_coeff": 0.01}))
    assert words["lr"] == [[0, 1e-3], [1000, 1e-4]]
    assert words["entropy_coeff"] == 0.01


def test_recorded_episodes_are_learned_from_as_often_as_rllib_has_to_be_told() -> None:
    for run, updates in (("rllib:BC", 1), ("rllib:MARWIL", 1), ("rllib:IQL", 1), ("rllib:CQL", 2)):
        for said in ({}, {"dataset_num_iters_per_learner": 7}):
            config = algorithm_config(run, {"env": "Pendulum-v1", "rllib_config": {"input_": ["data"], **said}})
            assert isinstance(config, RLlibConfig)
            wanted = said.get("dataset_num_iters_per_learner", updates)
            assert in_rllibs_words(config)["dataset_num_iters_per_learner"] == wanted
    assert "dataset_num_iters_per_learner" not in in_rllibs_words(impala())


def test_one_learning_rate_is_all_of_those_that_rllib_has_several_of() -> None:
    config = algorithm_config("rllib:SAC", {"env": "Pendulum-v1", "lr": 1e-4})
    assert isinstance(config, RLlibConfig)
    words = in_rllibs_words(config)
    assert words["lr"] is None
    assert words["actor_lr"] == words["critic_lr"] == words["alpha_lr"] == 1e-4
    usual = algorithm_config("rllib:CQL", {"env": "Pendulum-v1", "rllib_config": {"input_": ["data"]}})
    assert isinstance(usual, RLlibConfig)
    assert in_rllibs_words(usual)["lr"] is None, "RLlib's own default for it is one that RLlib refuses"
    assert "actor_lr" not in in_rllibs_words(usual)


def test_only_the_networks_keys_that_were_set_are_passed_on() -> None:
    assert network_in_rllibs_words(impala()) == {}
    assert network_in_rllibs_words(impala(model={"fcnet_hiddens": [32, 32]})) == {"fcnet_hiddens": [32, 32]}


def test_the_resolved_configuration_freezes_no_default_of_ours() -> None:
    tree = config_tree(impala(gamma=0.9, model={"fcnet_hiddens": [8]}))
    assert tree["gamma"] == 0.9
    assert tree["model"] == {"fcnet_hiddens": [8]}
    assert not {"lr", "train_batch_size", "grad_clip", "curriculum", "optimizer"} & tree.keys()
    again = algorithm_config("rllib:IMPALA", tree)
    assert config_tree(again) == tree
    assert isinstance(again, RLlibConfig)
    assert in_rllibs_words(again) == in_rllibs_words(impala(gamma=0.9, model={"fcnet_hiddens": [8]}))


def test_an_experiment_comes_back_from_its_tree_and_from_another_process() -> None:
    experiment = experiment_from({"name": "a", "env": "CartPole-v1", "run": "rllib:IMPALA"})
    assert as_tree(experiment_from(as_tree(experiment))) == as_tree(experiment)
    assert pickle.loads(pickle.dumps(experiment.config)) == experiment.config


SETTINGS = {
    "curriculum": {"stages": [{"task": 1}]},
    "callbacks": "my_module.MyCallbacks",
    "normalize_rewards": True,
    "observation_filter": "MeanStdFilter",
    "sample_async": True,
    "squash_actions": True,
    "lr_schedule": [[0, 1e-3], [1000, 1e-4]],
    "clip_rewards": True,
    "restore_episodes": True,
    "optimizer": {"eps": 1e-3},
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_key_without_a_counterpart_is_refused_by_name(key: str) -> None:
    workers = {"num_workers": 1} if key == "sample_async" else {}
    (problem,) = problems("rllib:IMPALA", **{key: SETTINGS[key]}, **workers)
    assert problem.startswith(f"config.{key}: RLlib has no counterpart of it; leave it out")


def test_what_is_off_is_no_wish() -> None:
    impala(normalize_rewards=False, restore_episodes=False, clip_rewards=False, sample_async=False, callbacks=None)


def test_other_keys_that_cannot_be_are_refused() -> None:
    assert "RLlib's default networks do not have it" in problems("rllib:PPO", model={"use_lstm": True})[0]
    assert "config.framework" in problems("rllib:PPO", framework="numpy")[0]
    assert "give rllib: runs a number" in problems("rllib:PPO", num_workers="auto")[0]
    assert problems("rllib:PPO", rllib_config={"num_env_runners": 3}) == [
        "config.rllib_config.num_env_runners: has a key of ours; write config.num_workers"
    ]
    assert "present API stack" in problems("rllib:PPO", rllib_config={"enable_rl_module_and_learner": False})[0]
    assert 'input: "folder/*.parquet"' in problems("rllib:BC")[0]
    both = {"input": "steps", "rllib_config": {"input_read_episodes": True}}
    assert "leave one of them out" in problems("rllib:BC", **both)[0]
    assert "not of rllib:PPO; leave it out" in problems("rllib:PPO", input="steps")[0]
    assert "unknown key" in problems("rllib:PPO", entropy=1)[0]
    assert "has a memory" in problems("rllib:DreamerV3", evaluation_interval=1)[0]


def test_an_algorithm_that_rllib_has_not_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"RLlib's algorithms are rllib:PPO, .*; did you mean rllib:IMPALA"):
        algorithm_config("rllib:IMPALLA", {})


def test_its_processes_are_counted_like_ours() -> None:
    layout = layout_of(impala(num_workers=3, num_cpus_per_worker=2, num_learners=2))
    assert layout.cpus == 8


def test_algorithms_are_listed_without_importing_ray() -> None:
    if not rllib_algorithms():
        pytest.skip("Ray is not installed")
    before = "ray" in sys.modules
    listed = CliRunner().invoke(main, ["algorithms"]).output
    assert "rllib:IMPALA" in listed
    assert "RLlib's asynchronous actor-critic with V-trace" in listed
    assert ("ray" in sys.modules) == before


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from shoal.bridges import rllib

    monkeypatch.setattr(rllib, "find_spec", lambda name: None)
    words = ["train", "CartPole-v1", "--run", "rllib:impala", "--results-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 2
    assert "pip install 'shoal-rl[rllib]'" in done.output
    assert not list(tmp_path.glob("runs/*/*")), "a run that never began leaves nothing"
