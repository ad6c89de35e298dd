"""Files of RLlib and of Stable-Baselines3 in our words: every line is accounted for, and the loader takes them."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.config.algorithms import ALGORITHMS
from shoal.config.dialects import ALGORITHMS_THERE, CHANGED, DEFAULTS_THERE, MOVED, WORDS
from shoal.config.experiment import Experiment, experiment_from, experiments_from_file
from shoal.config.migration import Migration, migrate
from shoal.config.migration_draft import MovedSetting, Wishes
from shoal.config.settings import key_paths
from shoal.config.sweep import sweeps_from_file
from shoal.config.vocabulary import FOREIGN
from shoal.config.yaml_files import load_text
from shoal.errors import ConfigError

SEED = """\
custom_env:
    env: custom_env.CustomEnv
    run: DQN
    checkpoint_freq: 1
    stop:
        timesteps_total: 10000
"""
REPEAT = """\
repeat-after-me-ppo-w-lstm:
    env: repeat_after_me.RepeatAfterMeEnv
    run: PPO
    stop:
        episode_reward_mean: 50
        timesteps_total: 100000
    config:
        framework: torch
        # Make env partially observable.
        env_config:
          config:
            repeat_delay: 2
        gamma: 0.9
        lr: 0.0003
        num_workers: 0
        num_envs_per_worker: 20
        num_sgd_iter: 5
        entropy_coeff: 0.00001
        model:
            use_lstm: true
            lstm_cell_size: 64
            max_seq_len: 20
            fcnet_hiddens: [64]
            vf_share_layers: true
"""
RAINBOW = """\
pong-rainbow:
    env: PongDeterministic-v4
    run: DQN
    stop: {sampler_results/episode_reward_mean: 20}
    local_dir: /scratch/results
    num_samples: 1
    max_failures: 3
    config:
        num_atoms: 51
        noisy: false
        lr: .0001
        adam_epsilon: .00015
        hiddens: [512]
        buffer_size: 50000
        prioritized_replay: True
        prioritized_replay_alpha: 0.5
        final_prioritized_replay_beta: 1.0
        exploration_config: {epsilon_timesteps: 200000, final_epsilon: 0.01}
        model: {dim: 42, grayscale: true}
        num_gpus: 1
        _fake_gpus: true
"""
NEW_STACK = {
    "env": "CartPole-v1",
    "num_env_runners": 2,
    "num_envs_per_env_runner": 4,
    "num_learners": 2,
    "num_gpus_per_learner": 0.5,
    "train_batch_size_per_learner": 1000,
    "train_batch_size": 32,
    "minibatch_size": 128,
    "num_epochs": 6,
    "lr": [[0, 0.001], [100000, 0.0001]],
    "lambda": 0.95,
    "vf_clip_param": float("inf"),
    "grad_clip": None,
    "use_kl_loss": False,
    "enable_rl_module_and_learner": True,
    "sample_timeout_s": 60.0,
    "callbacks_class": "<class 'ray.rllib.callbacks.callbacks.RLlibCallback'>",
    "policies": {"default_policy": [None, None, None, None]},
    "_model_config": {"fcnet_hiddens": [64], "fcnet_activation": "Swish"},
    "model": {"fcnet_hiddens": [256, 256], "lstm_cell_size": 256},
}
GROUPED = """\
environment: {env: CartPole-v1, env_config: {gravity: 9.0}}
env_runners: {num_env_runners: 3, rollout_fragment_length: auto}
training: {train_batch_size_per_learner: 512, minibatch_size: 64, num_epochs: 4, entropy_coeff: 0.01, clip_param: 0.3}
rl_module: {model_config: {fcnet_hiddens: [32, 32], vf_share_layers: true}}
evaluation: {evaluation_interval: 2, evaluation_duration: 5, evaluation_num_env_runners: 1}
debugging: {seed: 7}
"""
ZOO = """\
CartPole-v1: &defaults
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  learning_rate: lin_0.001
  clip_range: lin_0.2
LunarLanderContinuous-v2:
  <<: *defaults
  normalize: "{'norm_obs': True, 'norm_reward': False}"
  clip_range: 0.1
  clip_range_vf: 0.2
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU,
                       net_arch=dict(pi=[256, 128], vf=[256, 128]))"
"""
ZOO_SAC = """\
Pendulum-v1:
  n_timesteps: 20000
  policy: 'MlpPolicy'
  learning_rate: !!float 1e-3
  buffer_size: 50000
  batch_size: 512
  ent_coef: 'auto_0.1'
  train_freq: 8
  gradient_steps: 16
  tau: 0.01
  learning_starts: 0
  policy_kwargs: "dict(net_arch=dict(pi=[64], qf=[400, 300]), n_critics=1)"
"""


def moved(text: str, source: str = "old.yml", **wishes: Any) -> tuple[Experiment, dict[str, MovedSetting], Migration]:
    """The first experiment as our loader reads it, and what became of each setting of the old one."""
    found = migrate(text, source, Wishes(**wishes))
    draft = found.drafts[0]
    tree = load_text(found.text(), "new.yml").tree[draft.name]
    return experiment_from({"name": draft.name, **tree}), {one.there: one for one in draft.moved_settings}, found


def test_the_file_of_the_notes_stays_as_it_is() -> None:
    experiment, said, found = moved(SEED, "custom.yml")
    assert found.dialect == "rllib1"
    assert {one.kind for one in said.values()} == {"same"}
    assert {there: one.line for there, one in said.items()}["stop.timesteps_total"] == 6
    assert (experiment.name, experiment.run, experiment.checkpoint_freq) == ("custom_env", "DQN", 1)
    assert experiment.stop == {"timesteps_total": 10000}
    assert experiment.config.env == "custom_env.CustomEnv"


def test_a_tuned_example_with_memory() -> None:
    experiment, said, _ = moved(REPEAT)
    config = experiment.config
    assert config.env_config == {"config": {"repeat_delay": 2}}
    assert (config.model.memory, config.model.fcnet_hiddens, config.num_envs) == ("use_lstm", (64,), 20)
    assert said["config.framework"].kind == "changed"
    assert said["config.lr"].kind == "same"


def test_what_classic_rllib_says_elsewhere_or_in_vain() -> None:
    experiment, said, _ = moved(RAINBOW)
    config: Any = experiment.config
    assert config.replay_buffer_config.capacity == 50000
    assert config.replay_buffer_config.prioritized_replay is True
    assert config.optimizer.eps == 0.00015
    assert config.model.post_fcnet_hiddens == (512,)
    assert config.exploration_config.epsilon_timesteps == 200000
    assert experiment.stop == {"episode_reward_mean": 20}
    assert experiment.results_dir == "/scratch/results"
    gone = {there for there, one in said.items() if one.kind == "gone"}
    assert gone == {
        "max_failures",
        "config.num_atoms",
        "config.final_prioritized_replay_beta",
        "config.model.dim",
        "config.model.grayscale",
    }
    assert {"num_samples", "config.noisy", "config._fake_gpus"} <= {t for t, one in said.items() if one.kind == "idle"}
    assert all(said[there].why for there in gone)


def test_params_of_a_trial_in_the_new_words() -> None:
    experiment, said, found = moved(json.dumps(NEW_STACK), "PPO_CartPole-v1_0/params.json")
    config: Any = experiment.config
    assert (found.dialect, experiment.run, experiment.name) == ("rllib2", "PPO", "CartPole-v1-PPO")
    assert (config.num_workers, config.num_envs_per_worker, config.num_learners, config.num_gpus) == (2, 4, 2, 1.0)
    assert (config.train_batch_size, config.sgd_minibatch_size, config.num_sgd_iter) == (2000, 128, 6)
    assert (config.lambda_, config.kl_coeff, config.vf_clip_param, config.grad_clip) == (0.95, 0, None, None)
    assert config.lr_schedule == ((0, 0.001), (100000, 0.0001))
    assert (config.model.fcnet_hiddens, config.model.fcnet_activation) == ((64,), "silu")
    assert said["train_batch_size_per_learner"].kind == "changed"
    assert "num_learners" in said["train_batch_size_per_learner"].why
    assert not [one for one in said.values() if one.kind == "gone"]


def test_settings_by_the_methods_of_rllibs_configurations() -> None:
    experiment, said, found = moved(GROUPED, "grouped.yml")
    config: Any = experiment.config
    assert (found.dialect, experiment.run) == ("rllib2", "PPO")
    assert (config.num_workers, config.train_batch_size, config.entropy_coeff, config.seed) == (3, 512, 0.01, 7)
    assert (config.model.fcnet_hiddens, config.model.vf_share_layers) == ((32, 32), True)
    assert (config.evaluation_interval, config.evaluation_num_workers) == (2, 1)
    assert config.env_config == {"gravity": 9.0}
    assert {one.kind for one in said.values()} == {"same", "renamed"}
    assert said["training.clip_param"].line == 3


def test_several_samples_of_nothing_and_learners_by_an_older_name() -> None:
    text = """
a:
  env: CartPole-v1
  run: APPO
  num_samples: 4
  config: {num_learner_workers: 0, num_gpus_per_learner_worker: 1, num_gpus: 0, vtrace: true, grad_clip_by: value}
"""
    experiment, said, _ = moved(text)
    assert {there for there, one in said.items() if one.kind == "gone"} == {"num_samples", "config.grad_clip_by"}
    assert (experiment.config.num_learners, experiment.config.num_gpus) == (1, 1)
    assert said["config.vtrace"].kind == "idle"


def test_what_only_rllib_has_stays_rllibs() -> None:
    text = "c: {env: Pendulum-v1, run: CQL, config: {input: [/data/pendulum], bc_iters: 100, num_workers: 2}}"
    experiment, _, _ = moved(text)
    config: Any = experiment.config
    assert experiment.run == "rllib:CQL"
    assert config.rllib_config == {"input_": ["/data/pendulum"], "bc_iters": 100}
    assert config.num_workers == 2


def test_a_grid_stays_one(tmp_path: Path) -> None:
    text = (
        "g: {env: CartPole-v0, num_samples: 2, stop: {training_iteration: 2}, config: {lambda: {grid_search: [0, 1]}}}"
    )
    found = migrate(text, "grid.yaml", Wishes(run="PPO"))
    assert found.is_sweep
    (tmp_path / "new.yml").write_text(found.text())
    (sweep,) = sweeps_from_file(tmp_path / "new.yml")
    assert [setting.path for setting in sweep.settings] == ["config.lambda_"]


def test_hyperparameters_of_the_zoo() -> None:
    experiment, said, found = moved(ZOO, "hyperparams/ppo.yml")
    config: Any = experiment.config
    assert (found.dialect, experiment.run) == ("sb3", "PPO")
    assert (config.train_batch_size, config.sgd_minibatch_size, config.num_envs) == (256, 256, 8)
    assert config.lr_schedule == ((0, 0.001), (100000, 0.0))
    assert config.clip_param_schedule == ((0, 0.2), (100000, 0.0))
    assert experiment.stop == {"timesteps_total": 100000}
    assert said["n_steps"].line == 5
    second, said, _ = moved(ZOO, "ppo.yml", only=("LunarLanderContinuous-v2",))
    config = second.config
    assert (config.env, config.env_config) == ("LunarLander-v3", {"continuous": True})
    assert (config.observation_filter, config.normalize_rewards, config.clip_param) == ("MeanStdFilter", False, 0.1)
    assert (config.model.fcnet_hiddens, config.model.fcnet_activation) == ((256, 128), "relu")
    assert config.model.log_std_init == -2
    assert {there for there, one in said.items() if one.kind == "gone"} == {"use_sde", "clip_range_vf"}


def test_replay_of_the_zoo_learns_as_often_as_there() -> None:
    experiment, said, _ = moved(ZOO_SAC, "sac.yml")
    config: Any = experiment.config
    assert (config.training_intensity, config.fragment_length) == (16 * 512 / 8, 8)
    assert (config.initial_alpha, config.twin_q, config.tau) == (0.1, False, 0.01)
    assert (config.model.fcnet_hiddens, config.critic_model.fcnet_hiddens) == ((64,), (400, 300))
    assert said["ent_coef"].kind == "changed"


def test_the_trust_region_of_sb3_contrib_is_a_mean_over_the_numbers_of_an_action() -> None:
    text = "HalfCheetah-v4: {n_timesteps: 1e6, n_steps: 1024, target_kl: 0.01, cg_damping: 0.1}"
    experiment, said, _ = moved(text, "trpo.yml")
    config: Any = experiment.config
    assert (config.max_kl, config.cg_damping) == ("auto", "auto")
    assert said["target_kl"].why == "auto is 0.01 for each number of an action"
    assert said["cg_damping"].why == "auto is 0.1 for each number of an action"
    text = text.replace("target_kl: 0.01", "target_kl: 0.04").replace("cg_damping: 0.1", "cg_damping: 0.2")
    experiment, said, _ = moved(text, "trpo.yml")
    config = experiment.config
    assert (config.max_kl, config.cg_damping) == (0.04, 0.2)
    assert all("multiply by how many there are" in said[word].why for word in ("target_kl", "cg_damping"))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch pwned')",
        "dict(net_arch=[open('pwned', 'w')])",
        "dict(**{'net_arch': [3]})",
        "[x for x in [1]]",
        "dict(" * 500,
        "dict(net_arch='abc', activation_fn=3)",
    ],
)
def test_python_in_a_file_is_never_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, said, _ = moved(f"X-v0: {{n_timesteps: 100, n_steps: 8, policy_kwargs: {json.dumps(text)}}}", "ppo.yml")
    assert all(one.kind in ("gone", "changed") for there, one in said.items() if there.startswith("policy_kwargs"))
    assert list(tmp_path.iterdir()) == []


def test_other_defaults_are_told_and_written_on_request() -> None:
    text = "a: {env: CartPole-v1, run: PPO, config: {lr: 0.001}}"
    found = migrate(text, "a.yml").drafts[0]
    assert found.defaults["config.clip_param"] == (0.3, 0.2)
    assert "config.lr" not in found.defaults
    experiment, _, _ = moved(text, keep_defaults=True)
    config: Any = experiment.config
    assert (config.lr, config.clip_param, config.lambda_, config.train_batch_size) == (0.001, 0.3, 1.0, 4000)
    assert (config.normalize_rewards, config.grad_clip, config.num_envs) == (False, None, 2)


@pytest.mark.parametrize(("key", "defaults"), DEFAULTS_THERE.items(), ids=str)
def test_defaults_of_others_are_ours_to_set(key: tuple[str, str], defaults: dict[str, Any]) -> None:
    text = json.dumps({"env": "CartPole-v1", "lr": 0.5, "gamma": 0.5})
    dialect, run = key
    experiment, _, _ = moved(text, dialect=dialect, run=run, keep_defaults=True)
    for path, value in defaults.items():
        found: Any = experiment.config
        for part in path.split("."):
            found = getattr(found, part)
        assert found == (0.5 if path == "lr" else tuple(value) if isinstance(value, list) else value), path


@pytest.mark.parametrize(
    ("text", "wishes", "problem"),
    [
        ("", {}, "is no experiment file"),
        ("[1]", {}, "is no experiment file"),
        ("a: 1", {}, "neither RLlib's words nor Stable-Baselines3's"),
        ("x: {lr: 1, gamma: 0.9}", {}, "which algorithm"),
        ("x: {run: PPO, config: {lr: 1}}", {}, "the experiment x does not say which environment"),
        ("x: {run: GPT, env: A-v0}", {}, "there is no algorithm like 'GPT'"),
        ("x: {run: [PPO], env: A-v0}", {}, "must be one name"),
        ("x: {run: PPO, env: A-v0, config: 3}", {}, "config must be a mapping"),
        ("x: {run: PPO, env: A-v0}", {"only": ("xx",)}, "there is no experiment 'xx'; did you mean x?"),
        ("{run: PPO, stop: {training_iteration: 1}, env: \"<class '__main__.E'>\"}", {}, "--env FILE.py:E"),
        ("x: !!python/object:os.system {}", {}, "the tag !!python/object:os.system is not allowed"),
        ("atari: {n_steps: 3, policy: CnnPolicy}", {"run": "PPO"}, "is for many environments"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, wishes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")) as caught:
        migrate(text, "old.yml", Wishes(**wishes))
    assert len(caught.value.problems) == 1


def test_mutated_files_end_in_an_experiment_or_a_sentence() -> None:
    draw, ended_well = random.Random(0), 0
    values = [
        "null",
        "true",
        "-1",
        "0",
        "1e9",
        '"x"',
        '"lin_"',
        "[]",
        "[[1]]",
        "{}",
        '{"a": {}}',
        '{"grid_search": [1]}',
    ]
    trees = [load_text(text, "t").tree for text in (REPEAT, RAINBOW, GROUPED)] + [NEW_STACK]
    zoo = [load_text(text.replace("!!float ", ""), "t").tree for text in (ZOO, ZOO_SAC)]
    for _ in range(120):
        is_zoo = draw.random() < 0.4
        tree = json.loads(json.dumps(draw.choice(zoo if is_zoo else trees)))
        for _ in range(3):
            place = draw.choice(_mappings(tree))
            if place:
                place[draw.choice(list(place))] = json.loads(draw.choice(values))
        with suppress(ConfigError):
            found = migrate(json.dumps(tree), "old.yml", Wishes(run=draw.choice(["PPO", "DQN", "SAC"])))
            ended_well += all(draft.tree["env"] for draft in found.drafts)
    assert ended_well > 20


def _mappings(tree: Any) -> list[dict[str, Any]]:
    inner = [found for value in tree.values() for found in _mappings(value)] if isinstance(tree, dict) else []
    return [tree, *inner] if isinstance(tree, dict) else []


def test_every_word_is_in_the_one_table() -> None:
    keys = {path for kind in ALGORITHMS.values() for path in key_paths(kind)}
    for words in WORDS.values():
        assert not [word for word in words if word not in FOREIGN and word not in MOVED]
    assert set(MOVED.values()) <= keys
    for dialect, notes in CHANGED.items():
        ours = {path.rpartition(".")[2] for path in keys} | {"env", "policy", "epsilon"}
        assert not [word for word in notes if word not in WORDS[dialect] and word not in ours], dialect
    assert all(run in ALGORITHMS for run, _ in ALGORITHMS_THERE.values())


def test_the_new_file_is_what_the_loader_reads(tmp_path: Path) -> None:
    (tmp_path / "new.yml").write_text(migrate(ZOO, "ppo.yml").text())
    names = [experiment.name for experiment in experiments_from_file(tmp_path / "new.yml")]
    assert names == ["CartPole-v1", "LunarLanderContinuous-v2"]
