"""Every kind of wrong configuration, with the part of the message that tells the user what to type."""

from __future__ import annotations

from typing import Any

import pytest
from any_algorithm import ANY_ALGORITHM

from shoal.config.experiment import ALGORITHMS, algorithm_config, experiment_from
from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError

WEIGHTS = (
    "grad_clip",
    "clip_param",
    "entropy_coeff",
    "vf_loss_coeff",
    "kl_coeff",
    "kl_target",
    "target_kl",
    "max_kl",
    "cg_damping",
    "initial_alpha",
    "target_entropy",
    "beta",
    "vf_coeff",
    "moving_average_sqd_adv_norm_start",
    "noise_stdev",
    "l2_coeff",
    "extra_std",
)
"""Numbers that multiply a loss or a step, or limit one; each must stay within single precision."""

CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"lrr": 1}, "config.lrr: unknown key; did you mean config.lr?"),
    ({"gama": 0.9}, "config.gama: unknown key; did you mean config.gamma?"),
    ({"num-workers": 2}, "config.num-workers: unknown key; did you mean config.num_workers?"),
    ({"Num_Workers": 2}, "did you mean config.num_workers?"),
    ({"fcnet_hiddens": [64]}, "config.fcnet_hiddens: unknown key; did you mean config.model.fcnet_hiddens?"),
    ({"checkpoint_freq": 1}, "config.checkpoint_freq: unknown key; did you mean checkpoint_freq?"),
    ({"xyzzy": 1}, "config.xyzzy: unknown key"),
    ({"lr": "1e-4"}, "config.lr: must be a number (got '1e-4'); leave out the quotes: 1e-4"),
    ({"lr": float("nan")}, "config.lr: must be a finite number (got nan)"),
    ({"lr": float("inf")}, "config.lr: must be a finite number (got inf)"),
    ({"lr": -1}, "config.lr: must be more than 0 (got -1)"),
    ({"lr": 0}, "config.lr: must be more than 0 (got 0)"),
    ({"lr": True}, "config.lr: must be a number (got true)"),
    ({"lr": None}, "config.lr: must be a number (got null)"),
    ({"lr": 10**400}, "config.lr: is too large (got a number of very many digits)"),
    ({"gamma": 2}, "config.gamma: must be at most 1 (got 2)"),
    ({"gamma": -0.1}, "config.gamma: must be at least 0 (got -0.1)"),
    ({"num_workers": -3}, "config.num_workers: must be a whole number of processes, 0 or more, or auto (got -3)"),
    ({"num_workers": 2.5}, "config.num_workers: must be a whole number (got 2.5)"),
    ({"num_workers": "2"}, "config.num_workers: must be a whole number of processes, 0 or more, or auto (got '2')"),
    ({"num_workers": True}, "config.num_workers: must be a whole number of processes, 0 or more, or auto (got true)"),
    ({"num_workers": [2]}, "config.num_workers: must be a whole number of processes, 0 or more, or auto (got [2])"),
    ({"train_batch_size": 10**400}, "config.train_batch_size: is too large"),
    ({"train_batch_size": 0}, "config.train_batch_size: must be at least 1 (got 0)"),
    ({"num_envs_per_worker": 0}, "config.num_envs_per_worker: must be a whole number of environments, at least 1"),
    ({"seed": -1}, "config.seed: must be at least 0"),
    ({"explore": "no"}, "config.explore: must be true or false (got 'no')"),
    ({"explore": 1}, "config.explore: must be true or false (got 1)"),
    ({"batch_mode": "complete"}, "did you mean complete_episodes?"),
    ({"batch_mode": 3}, "config.batch_mode: must be truncate_episodes or complete_episodes (got 3)"),
    ({"observation_filter": "MeanStd"}, "did you mean MeanStdFilter?"),
    ({"log_level": "WARNING"}, "must be DEBUG, INFO, WARN or ERROR (got 'WARNING'); did you mean WARN?"),
    (
        {"framework": "tf"},
        "config.framework: TensorFlow is not supported; leave framework out, or use torch (got 'tf')",
    ),
    ({"framework": "tf2"}, "TensorFlow is not supported"),
    ({"framework": "pytorch"}, "must be auto, numpy or torch (got 'pytorch'); did you mean torch?"),
    ({"framework": "numpy", "num_gpus": 1}, "config.framework: numpy cannot do num_gpus above 0; use torch"),
    ({"framework": "numpy", "model": {"custom_model": "mine"}}, "numpy cannot do a custom_model"),
    ({"framework": "numpy", "model": {"conv_filters": [[16, 3, 1]]}}, "numpy cannot do conv_filters"),
    ({"exploration_config": {"type": "EpsilonGreedy"}}, "explores by sampling from its own action distribution"),
    ({"exploration_config": {"epsilon": 1}}, "config.exploration_config.epsilon: unknown key"),
    ({"exploration_config": "StochasticSampling"}, "config.exploration_config: must be a mapping of keys"),
    ({"optimizer": {"type": "sgd"}}, "config.optimizer.type: must be adam (got 'sgd')"),
    ({"optimizer": {"eps": 0}}, "config.optimizer.eps: must be more than 0"),
    ({"optimizer": {"betas": [0.9]}}, "config.optimizer.betas[1]: is missing"),
    ({"optimizer": {"betas": [0.9, 1.0]}}, "config.optimizer.betas[1]: must be less than 1"),
    ({"optimizer": {"lr": 1e-3}}, "config.optimizer.lr: unknown key; did you mean config.lr?"),
    ({"lr_schedule": [[10, 1e-3]]}, "config.lr_schedule: its steps must start at 0 and ascend"),
    ({"lr_schedule": [[0, 1e-3], [0, 1e-4]]}, "its steps must start at 0 and ascend"),
    ({"lr_schedule": []}, "its steps must start at 0 and ascend"),
    ({"lr_schedule": [[0, -1]]}, "its values must be at least 0"),
    ({"lr_schedule": 1e-3}, "must be a list of [step, value] pairs"),
    ({"lr": [[0, 1e-3]]}, "config.lr: must be a number (got [[0, 0.001]]); a schedule is config.lr_schedule"),
    ({"entropy_coeff": {"type": "cosine"}}, "; a schedule is config.entropy_coeff_schedule"),
    ({"lr_schedule": [[0, "x"]]}, "must be a list of [step, value] pairs"),
    ({"lr_schedule": [[0, float("nan")]]}, "must be a list of [step, value] pairs"),
    ({"lr": 1e-2, "lr_schedule": [[0, 1e-3]]}, "config.lr: lr_schedule replaces it and starts at 0.001; leave lr out"),
    (
        {"entropy_coeff": 0.1, "entropy_coeff_schedule": [[0, 0.01]]},
        "config.entropy_coeff: entropy_coeff_schedule replaces it",
    ),
    (
        {"sgd_minibatch_size": 4096},
        "config.sgd_minibatch_size: 4096 is more than train_batch_size 2048; make it at most that",
    ),
    (
        {"rollout_fragment_length": 100},
        "100 steps of 8 environments make 800, which does not divide train_batch_size 2048; "
        "use auto, or train_batch_size: 2400",
    ),
    ({"rollout_fragment_length": "all"}, "config.rollout_fragment_length: must be a whole number of steps"),
    ({"rollout_fragment_length": 0}, "config.rollout_fragment_length: must be a whole number of steps, at least 1"),
    ({"use_critic": False}, "config.use_gae: needs the value function; set use_critic: true, or use_gae: false"),
    ({"clip_rewards": -1}, "config.clip_rewards: must be null (off), true (the reward's sign) or a number above 0"),
    ({"clip_rewards": "sign"}, "config.clip_rewards: must be null (off), true"),
    ({"grad_clip": 0}, "config.grad_clip: must be more than 0"),
    ({"horizon": 0}, "config.horizon: must be at least 1"),
    ({"env": 3}, "config.env: must be an environment's id (CartPole-v1)"),
    ({"env": ""}, "config.env: must not be empty (got '')"),
    ({"env_config": [1]}, "config.env_config: must be a mapping of names to values (got [1])"),
    ({"env_config": {"mesh": {"dx": float("nan")}}}, "config.env_config: 'mesh.dx' must be a finite number"),
    ({"env_config": {"levels": {1: 2}}}, "config.env_config: its keys must be text; put 1 in quotes"),
    (
        {"model": {"fcnet_hidens": [64]}},
        "config.model.fcnet_hidens: unknown key; did you mean config.model.fcnet_hiddens?",
    ),
    ({"model": {"fcnet_hiddens": [64, 0]}}, "config.model.fcnet_hiddens[1]: must be at least 1 (got 0)"),
    ({"model": {"fcnet_hiddens": 64}}, "config.model.fcnet_hiddens: must be a list (got 64)"),
    ({"model": {"fcnet_hiddens": "64,64"}}, "config.model.fcnet_hiddens: must be a list (got '64,64')"),
    ({"model": {"fcnet_hiddens": [1] * 101}}, "config.model.fcnet_hiddens: must have at most 100 values"),
    ({"model": {"fcnet_activation": "ReLU"}}, "did you mean relu?"),
    ({"model": {"conv_filters": [[16, 8]]}}, "must be a list of [filters, kernel, stride]"),
    ({"model": {"conv_filters": [[16, 8, 4, "full"]]}}, "same or valid may follow"),
    ({"model": {"conv_filters": [[16, [8, 4], 4]]}}, "must be a list of [filters, kernel, stride]"),
    ({"model": {"custom_model": 3}}, "config.model.custom_model: must be the name of a registered model"),
    ({"model": {"custom_model_config": {"width": 3}}}, "it has no effect; set custom_model, or leave it out"),
    ({"model": {"max_seq_len": 0}}, "config.model.max_seq_len: must be at least 1 (got 0)"),
    ({"model": {"max_seq_len": 5}}, "config.model.max_seq_len: it has no effect; set use_lstm: true, or leave it out"),
    (
        {"model": {"use_lstm": True, "use_attention": True}},
        "config.model.use_attention: a model has one kind of memory; use use_lstm or use_attention, not both",
    ),
    ({"model": {"use_lstm": True, "use_gru": True}}, "use use_lstm or use_gru, not both"),
    ({"model": {"lstm_cell_size": 8}}, "config.model.lstm_cell_size: it has no effect; set use_lstm: true"),
    (
        {"model": {"use_attention": True, "lstm_use_prev_action": True}},
        "config.model.lstm_use_prev_action: it has no effect",
    ),
    (
        {"model": {"use_gru": True, "attention_dim": 8}},
        "config.model.attention_dim: it has no effect; set use_attention",
    ),
    ({"model": {"use_attention": True, "attention_use_n_prev_actions": 2}}, "must be at most 1 (got 2)"),
    ({"model": {"use_attention": True, "attention_memory_training": 9}}, "learning looks back as far as acting does"),
    ({"model": {"custom_model": "mine", "use_lstm": True}}, "give your own model a state with get_initial_state"),
    ({"framework": "numpy", "model": {"use_gru": True}}, "config.framework: numpy cannot do use_gru; use torch"),
    ({"model": 3}, "config.model: must be a mapping of keys (got 3)"),
    ({"model": {3: 4}}, "config.model"),
    ({"evaluation_config": {"lr": 1}}, "config.evaluation_config.lr: unknown key"),
    ({"evaluation_interval": 0}, "config.evaluation_interval: must be at least 1"),
    ({"sample_async": True}, "config.sample_async: there are no workers to sample meanwhile; set num_workers above 0"),
    ({"num_learners": 0}, "config.num_learners: must be at least 1 (got 0)"),
    ({"num_workers": 2, "num_learners": 3}, "config.num_learners: each of 3 learners needs a worker"),
    ({"num_gpus": 2}, "one learner uses one GPU at most; for 2 GPUs set num_learners: 2"),
    (
        {"evaluation_parallel_to_training": True, "evaluation_interval": 1},
        "config.evaluation_parallel_to_training: nothing is evaluated meanwhile; set evaluation_num_workers too",
    ),
    (
        {"evaluation_parallel_to_training": True, "evaluation_num_workers": 1},
        "config.evaluation_parallel_to_training: nothing is evaluated meanwhile; set evaluation_interval too",
    ),
    ({"record_env": 3}, "config.record_env: must be true, false, or a folder for the videos (got 3)"),
    ({"record_env": ""}, "config.record_env: must not be empty"),
    ({"record_env": "no"}, "for the videos; write false, or ./no for a folder of that name (got 'no')"),
    ({"record_env": " Off"}, "write false, or ./Off for a folder of that name (got ' Off')"),
    ({"record_env": "true"}, "write true, or ./true for a folder of that name (got 'true')"),
    ({"lr": 1e10}, "config.lr: must be at most 1000 (got 10000000000)"),
    ({"lr_schedule": [[0, 1e-3], [9, 1e10]]}, "config.lr_schedule: its values must be at most 1000 (got 1e+10)"),
    ({"entropy_coeff": 1e308}, "config.entropy_coeff: must be at most 1e+06 (got 1e+308)"),
    ({"entropy_coeff_schedule": [[0, 1e308]]}, "config.entropy_coeff_schedule: its values must be at most 1e+06 (got"),
    ({"clip_param_schedule": [[0, 1e308]]}, "config.clip_param_schedule: its values must be at most 1e+10 (got"),
    ({"vf_loss_coeff": 1e308}, "config.vf_loss_coeff: must be at most 1e+06 (got 1e+308)"),
    ({"kl_coeff": 1e308}, "config.kl_coeff: must be at most 1e+06 (got 1e+308)"),
    ({"kl_coeff": 0.2, "kl_target": 1e308}, "config.kl_target: must be at most 1e+10 (got 1e+308)"),
    ({"target_kl": 1e308}, "config.target_kl: must be at most 1e+10 (got 1e+308)"),
    ({"optimizer": {"eps": 1e308}}, "config.optimizer.eps: must be at most 1e+10 (got 1e+308)"),
    ({"model": {"log_std_init": 1e308}}, "config.model.log_std_init: must be at most 1e+10 (got 1e+308)"),
    ({"model": {"log_std_init": -1e308}}, "config.model.log_std_init: must be at least -1e+10 (got -1e+308)"),
    (
        {"exploration_config": {"type": "GaussianNoise", "stddev": 1e308}},
        "config.exploration_config.stddev: must be at most 1e+10 (got 1e+308)",
    ),
    (
        {"exploration_config": {"type": "GaussianNoise", "stddev_schedule": [[0, 1e308]]}},
        "config.exploration_config.stddev_schedule: its values must be at most 1e+10 (got 1e+308)",
    ),
    ({"grad_clip": 1e308}, "config.grad_clip: must be at most 1e+10 (got 1e+308)"),
    ({"clip_param": 1e308}, "config.clip_param: must be at most 1e+10 (got 1e+308)"),
    ({"vf_clip_param": 1e308}, "config.vf_clip_param: must be at most 1e+10 (got 1e+308)"),
    ({"clip_rewards": 1e308}, "config.clip_rewards: must be null (off), true (the reward's sign) or a number above 0"),
    ({"env_step_timeout_s": 1e308}, "config.env_step_timeout_s: must be at most 1e+07 (got 1e+308)"),
    ({"env_reset_timeout_s": 1e18}, "config.env_reset_timeout_s: must be at most 1e+07 (got 1e+18)"),
    ({"env_restart_delay_s": 1e308}, "config.env_restart_delay_s: must be at most 1e+07 (got 1e+308)"),
    ({"env_resets_per_s": 1e-300}, "config.env_resets_per_s: must be at least 1e-06 (got 1e-300)"),
    ({"restore_episodes": "999999999d"}, "config.restore_episodes: must be at most 11574d (got '999999999d')"),
    ({"num_sgd_iter": 2**31 - 1}, "config.num_sgd_iter: must be at most 10000 (got 2147483647)"),
    (
        {"evaluation_interval": 1, "evaluation_duration": 2**31 - 1},
        "config.evaluation_duration: must be at most 1e+07 (got 2147483647)",
    ),
    ({"num_workers": 2**31 - 1}, "config.num_workers: must be at most 1000000 (got 2147483647)"),
    ({"num_workers": 2, "num_learners": 2**31 - 1}, "config.num_learners: must be at most 1e+06 (got 2147483647)"),
    ({"evaluation_num_workers": 2**31 - 1}, "config.evaluation_num_workers: must be at most 1e+06 (got 21474836"),
    ({"num_workers": 1, "num_cpus_per_worker": 1e-12}, "must be 0, or at least 0.0001, Ray's smallest share (got"),
    ({"num_learners": 2, "num_workers": 2, "num_cpus_per_learner": 1e-12}, "num_cpus_per_learner: must be 0, or at l"),
    ({"num_workers": 1, "num_cpus_per_worker": 1e12}, "config.num_cpus_per_worker: must be at most 1e+06 (got 1000000"),
    ({"render_env": "yes"}, "config.render_env: must be true or false"),
    ({"exploration_config": {"type": "SoftQ"}}, "chooses by the values of actions, and this algorithm explores by"),
    ({"exploration_config": {"type": "Gaussian"}}, "(got 'Gaussian'); did you mean GaussianNoise?"),
    (
        {"exploration_config": {"stddev": 0.1}},
        "config.exploration_config.stddev: it has no effect; set type: GaussianNoise, or leave it out",
    ),
    ({"exploration_config": {"stddev_schedule": [[0, 1]]}}, "stddev_schedule: it has no effect; set type: Gaussian"),
    (
        {"exploration_config": {"epsilon_timesteps": 9}},
        "config.exploration_config.epsilon_timesteps: is a key of DQN, not of PPO; leave it out, or",
    ),
    ({"exploration_config": {"ou_sigma": 0.2}}, "ou_sigma: unknown key; the spread of actions is the policy's own"),
    ({"exploration_config": {"initial_scale": 1}}, "initial_scale: unknown key; write type: GaussianNoise"),
    ({"exploration_config": {"ou_theta": 0.5}}, "ou_theta: it has no effect; set type: OrnsteinUhlenbeckNoise"),
    ({"exploration_config": {"type": "OrnsteinUhlenbeckNoise", "ou_theta": 0}}, "ou_theta: must be more than 0"),
    (
        {"exploration_config": {"type": "GaussianNoise", "stddev": 0.1, "stddev_schedule": [[0, 1]]}},
        "config.exploration_config.stddev: stddev_schedule replaces it and starts at 1",
    ),
    (
        {"exploration_config": {"type": "GaussianNoise", "stddev_schedule": [[0, 1], [5, 0]]}},
        "config.exploration_config.stddev_schedule: a standard deviation must be above 0 (got 0)",
    ),
    (
        {"exploration_config": {"type": "GaussianNoise"}, "model": {"free_log_std": False}},
        "config.exploration_config.type: GaussianNoise sets the spread that this model computes itself",
    ),
    (
        {"exploration_config": {"type": "GaussianNoise"}, "model": {"custom_model": "mine"}},
        "set free_log_std: true without a custom_model, or StochasticSampling",
    ),
    (
        {"exploration_config": {"type": "OrnsteinUhlenbeckNoise"}, "model": {"custom_action_dist": "mine"}},
        "config.exploration_config.type: it has no effect, because custom_action_dist samples; leave it out",
    ),
    (
        {"clip_param": 0.1, "clip_param_schedule": [[0, 0.3], [9, 0.1]]},
        "config.clip_param: clip_param_schedule replaces it and starts at 0.3; leave clip_param out (got 0.1)",
    ),
    ({"evaluation_duration_unit": "steps"}, "must be episodes or timesteps (got 'steps')"),
    ({"env_task_fn": 3}, "config.env_task_fn: must be a function, module.function or file.py:function (got 3)"),
    ({"callbacks": 3}, "config.callbacks: must be a class, module.Class or file.py:Class (got 3)"),
    ({"curriculum": {"stages": 3}}, "config.curriculum.stages: must be a list such as [{task: 1, until: {"),
    ({"curriculum": {"stages": [3]}}, "config.curriculum.stages[0]: must be a mapping such as {task: 1, until:"),
    ({"curriculum": {"stages": [{}]}}, "config.curriculum.stages[0].task: a task is a number, text, true or false"),
    ({"curriculum": {"stages": [{"task": {1: 2}}]}}, "config.curriculum.stages[0].task: its keys must be text"),
    ({"curriculum": {"stages": [{"task": float("nan")}]}}, "stages[0].task: must be a finite number"),
    ({"curriculum": {"stages": [{"task": 1, "til": 3}]}}, "stages[0].til: unknown key; a stage has task and until"),
    ({"curriculum": {"stages": [{"task": 1, "until": 3}]}}, "stages[0].until: must be a mapping such as {episode_"),
    (
        {"curriculum": {"stages": [{"task": 1}, {"task": 2}]}},
        "config.curriculum.stages[0].until: is missing, so stage 2 is never reached",
    ),
    (
        {"curriculum": {"stages": [{"task": 1, "until": {"episode_reward": 3}}]}},
        "config.curriculum.stages[0].until.episode_reward: no result has this name; did you mean episode_reward_m",
    ),
    (
        {"curriculum": {"stages": [{"task": 1, "until": {"episode_reward_mean": "<= much"}}]}},
        "config.curriculum.stages[0].until.episode_reward_mean: must be a number (got '<= much')",
    ),
    (
        {"curriculum": {"stages": [{"task": 1, "until": {"evaluation/episode_reward_mean": 3}}]}},
        "until.evaluation/episode_reward_mean: there is no evaluation; set evaluation_interval too",
    ),
    ({"curriculum": {"steps": 3}}, "config.curriculum.steps: unknown key"),
    (
        {"randomize": {"wind": {"uniform": [0, 1]}}},
        "wind: unknown key; config.randomize has options, env_config, cases",
    ),
    (
        {"curriculum": {"stages": [{"task": 1}]}, "env_task_fn": "a.b"},
        "config.env_task_fn: curriculum.stages choose the task already; leave one of them out",
    ),
    ({"evaluation_config": {"task": (1,)}}, "config.evaluation_config.task: a task is a number"),
    ({"randomize": {"options": 3}}, "config.randomize.options: must be a mapping of names to samplers"),
    (
        {"randomize": {"options": {"wind": 3}}},
        "config.randomize.options.wind: must be {uniform: [low, high]} or {loguniform: [low, high]}",
    ),
    ({"randomize": {"options": {"wind": {"uniform": [0]}}}}, "options.wind: must be {uniform: [low, high]} (got"),
    ({"randomize": {"options": {"wind": {"uniform": [1, 0]}}}}, "options.wind: its first number must be the lower"),
    ({"randomize": {"options": {"wind": {"uniform": ["a", 0]}}}}, "options.wind: must be a number"),
    ({"randomize": {"env_config": {"m": {"loguniform": [0, 1]}}}}, "env_config.m: its numbers must be more than 0"),
    ({"randomize": {"env_config": {"m": {"normal": [0, -1]}}}}, "env_config.m: its standard deviation must be at le"),
    ({"randomize": {"env_config": {"m": {"choice": []}}}}, "env_config.m: must be {choice: [a, b, c]}"),
    ({"randomize": {"env_config": {"m": {"choice": [1], "normal": [0, 1]}}}}, "env_config.m: must be {uniform"),
    ({"randomize": {"cases": 3}}, "config.randomize.cases: must be text (got 3)"),
    ({3: 4}, "config: keys must be text (got 3)"),
    ({"l\nr": 4}, "config.l\\nr: unknown key"),
    ({"\x1b[31m": 4}, "config.\\x1b[31m: unknown key"),
]

DQN_CONFIGS: list[tuple[dict[str, Any], str]] = [
    (
        {"replay_buffer_config": {"prioritized_replay": True, "prioritized_replay_alpha": 1e308}},
        "prioritized_replay_alpha: must be at most 10 (got 1e+308)",
    ),
    (
        {"replay_buffer_config": {"prioritized_replay": True, "prioritized_replay_eps": 1e308}},
        "prioritized_replay_eps: must be at most 1e+10 (got 1e+308)",
    ),
    (
        {"exploration_config": {"type": "SoftQ", "temperature": 1e308}},
        "temperature: must be at most 1e+10 (got 1e+308)",
    ),
    ({"lambda_": 0.9}, "config.lambda_: is a key of PPO, APPO and TRPO, not of DQN"),
    ({"replay_buffer_config": {"size": 3}}, "config.replay_buffer_config.size: unknown key"),
    ({"capacity": 3}, "config.capacity: unknown key; did you mean config.replay_buffer_config.capacity?"),
    ({"initial_epsilon": 1}, "did you mean config.exploration_config.initial_epsilon?"),
    ({"replay_buffer_config": {"capacity": 0}}, "config.replay_buffer_config.capacity: must be at least 1 (got 0)"),
    (
        {"replay_buffer_config": {"capacity": 10}},
        "config.replay_buffer_config.capacity: 10 is less than train_batch_size 32",
    ),
    (
        {"replay_buffer_config": {"prioritized_replay_beta": 0.5}},
        "config.replay_buffer_config.prioritized_replay_beta: it has no effect; set prioritized_replay: true",
    ),
    ({"replay_buffer_config": {"prioritized_replay": 1}}, "prioritized_replay: must be true or false (got 1)"),
    (
        {"replay_buffer_config": {"prioritized_replay": True, "prioritized_replay_beta": 2}},
        "prioritized_replay_beta: must be at most 1",
    ),
    ({"exploration_config": {"type": "Boltzmann"}}, "must be EpsilonGreedy, PerWorkerEpsilonGreedy or SoftQ (got"),
    ({"exploration_config": {"type": "StochasticSampling"}}, "use SoftQ, which samples by these values"),
    ({"exploration_config": {"type": "GaussianNoise"}}, "is noise on continuous actions, and DQN chooses among"),
    ({"exploration_config": {"type": "OrnsteinUhlenbeckNoise"}}, "use EpsilonGreedy or SoftQ"),
    (
        {"exploration_config": {"temperature": 2}},
        "temperature: it has no effect, because EpsilonGreedy has no temperature",
    ),
    ({"exploration_config": {"type": "SoftQ", "temperature": 0}}, "temperature: must be more than 0"),
    (
        {"exploration_config": {"type": "SoftQ", "final_epsilon": 0.1}},
        "config.exploration_config.final_epsilon: it has no effect, because SoftQ has no epsilon",
    ),
    (
        {"exploration_config": {"epsilon_timesteps": 9, "epsilon_schedule": [[0, 1]]}},
        "config.exploration_config.epsilon_timesteps: it has no effect, because epsilon_schedule replaces it",
    ),
    ({"exploration_config": {"epsilon_schedule": [[0, 2]]}}, "epsilon_schedule: its values are shares of all actions"),
    ({"exploration_config": {"initial_epsilon": 2}}, "initial_epsilon: must be at most 1 (got 2)"),
    ({"exploration_config": {"epsilon_timesteps": 0}}, "epsilon_timesteps: must be at least 1"),
    (
        {"exploration_config": {"initial_epsilon": 0.01}},
        "config.exploration_config.final_epsilon: 0.02 is more than initial_epsilon 0.01",
    ),
    (
        {"exploration_config": {"type": "PerWorkerEpsilonGreedy", "final_epsilon": 0.1}},
        "config.exploration_config.final_epsilon: it has no effect, because PerWorkerEpsilonGreedy has its own",
    ),
    (
        {"n_step": 5, "rollout_fragment_length": 4},
        "config.rollout_fragment_length: 4 steps are fewer than n_step 5; use auto, or at least 5",
    ),
    ({"n_step": 0}, "config.n_step: must be at least 1"),
    ({"n_step": 2**31 - 1}, "config.n_step: must be at most 10000 (got 2147483647)"),
    ({"lr": 1e10}, "config.lr: must be at most 1000 (got 10000000000)"),
    ({"grad_clip": 1e308}, "config.grad_clip: must be at most 1e+10 (got 1e+308)"),
    ({"batch_mode": "complete_episodes"}, "config.batch_mode: DQN learns from single transitions"),
    ({"squash_actions": True}, "config.squash_actions: it has no effect, because DQN acts only in discrete spaces"),
    ({"training_intensity": 1e308}, "config.training_intensity: must be at most 1e+06 (got 1e+308)"),
    ({"training_intensity": 0}, "config.training_intensity: must be more than 0"),
    ({"target_network_update_freq": 0}, "config.target_network_update_freq: must be at least 1"),
    ({"timesteps_per_iteration": 0}, "config.timesteps_per_iteration: must be at least 1"),
    ({"learning_starts": -1}, "config.learning_starts: must be at least 0"),
    ({"double_q": "yes"}, "config.double_q: must be true or false (got 'yes')"),
]

EXPERIMENTS: list[tuple[Any, str]] = [
    ({}, "env: is missing; write env: with an id such as CartPole-v1"),
    (None, "the experiment must be a mapping with env, run, stop and config (got null)"),
    ({"env": "X-v0", "run": "ppo"}, f"run: must be {ANY_ALGORITHM} (got 'ppo'); did you mean PPO?"),
    ({"env": "X-v0", "run": "A3C"}, f"run: must be {ANY_ALGORITHM} (got 'A3C'); the nearest is PPO: A3C's workers"),
    ({"env": "X-v0", "run": "td3"}, "(got 'td3'); the nearest is SAC: SAC has the same twin critics"),
    ({"env": "X-v0", "run": "CQL"}, "(got 'CQL'); the nearest is rllib:CQL: RLlib's own"),
    ({"env": "X-v0", "run": None}, f"run: must be {ANY_ALGORITHM} (got null)"),
    ({"env": "X-v0", "run": ["PPO"]}, f"run: must be {ANY_ALGORITHM} (got ['PPO'])"),
    ({"env": "X-v0", "lr": 1e-3}, "lr: unknown key; did you mean config.lr?"),
    ({"env": "X-v0", "num_workers": 3}, "num_workers: unknown key; did you mean config.num_workers?"),
    ({"env": "X-v0", "checkpoint_frq": 3}, "checkpoint_frq: unknown key; did you mean checkpoint_freq?"),
    ({"env": "X-v0", "checkpoint_freq": -1}, "checkpoint_freq: must be at least 0"),
    ({"env": "X-v0", "checkpoint_at_end": "yes"}, "checkpoint_at_end: must be true or false (got 'yes')"),
    ({"env": "X-v0", "keep_checkpoints_num": 0}, "keep_checkpoints_num: must be at least 1"),
    ({"env": "X-v0", "checkpoint_score_attr": "reward"}, "no result has this name; did you mean episode_reward_mean?"),
    ({"env": "X-v0", "checkpoint_score_attr": "max-kl"}, "checkpoint_score_attr: no result has this name"),
    ({"env": "X-v0", "checkpoint_score_attr": 3}, "checkpoint_score_attr: no result has this name"),
    (
        {"env": "X-v0", "checkpoint_score_attr": "episode_reward_mean", "checkpoint_freq": 0},
        "checkpoint_score_attr: there is nothing to choose from; set checkpoint_freq above 0",
    ),
    (
        {"env": "X-v0", "checkpoint_score_attr": "evaluation/episode_reward_mean"},
        "checkpoint_score_attr: there is no evaluation; set config.evaluation_interval too",
    ),
    (
        {
            "env": "X-v0",
            "checkpoint_score_attr": "min-evaluation/episode_len_mean",
            "config": {"evaluation_interval": 3},
        },
        "every 3, so that not every checkpoint has one; set checkpoint_freq: 3, or a multiple",
    ),
    (
        {
            "env": "X-v0",
            "checkpoint_score_attr": "evaluation/episode_reward_mean",
            "config": {
                "evaluation_interval": 5,
                "evaluation_num_workers": 1,
                "evaluation_parallel_to_training": True,
            },
        },
        "with evaluation_parallel_to_training an evaluation is of the iteration before the checkpoint",
    ),
    ({"env": "X-v0", "results_dir": 3}, "results_dir: must be text (got 3)"),
    ({"env": "X-v0", "config": [1]}, "config: must be a mapping of keys (got [1])"),
    ({"env": "X-v0", "config": {"env": "Y-v0"}}, "env: is set both in the experiment and in config, and they differ"),
    ({"env": "X-v0", "name": "a/b"}, "name: becomes the name of a folder: use no slash"),
    ({"env": "X-v0", "name": "../up"}, "name: becomes the name of a folder"),
    ({"env": "X-v0", "name": "a\nb"}, "name: must be one line of printable text"),
    ({"env": "X-v0", "stop": 3}, "stop: must be a mapping such as {timesteps_total: 100000} (got 3)"),
    ({"env": "X-v0", "stop": {"timestep_total": 3}}, "stop.timestep_total: no result has this name; did you mean"),
    ({"env": "X-v0", "stop": {"timesteps_total": "many"}}, "stop.timesteps_total: must be a number (got 'many')"),
    ({"env": "X-v0", "stop": {"timesteps_total": float("nan")}}, "stop.timesteps_total: must be a finite number"),
    ({"env": "X-v0", "stop": {"timesteps_total": True}}, "stop.timesteps_total: must be a number (got true)"),
    ({"env": "X-v0", "stop": {"time_total_s": "90"}}, "stop.time_total_s: must have a unit"),
    ({"env": "X-v0", "stop": {"time_total_s": "02:30"}}, "stop.time_total_s: must be a length of time such as"),
    ({"env": "X-v0", "stop": {"kl": 3}}, "stop.kl: no result has this name"),
    ({"env": "X-v0", "stop": {"custom_metrics/": 3}}, "stop.custom_metrics/: no result has this name"),
    ({"env": "X-v0", "stop": {"xyzzy": 3}}, "`shoal config show stop` lists their names"),
    ({"env": "X-v0", "stop": {3: 3}}, "stop.3: no result has this name"),
    (
        {"env": "X-v0", "stop": {"evaluation/episode_reward_mean": 3}},
        "stop.evaluation/episode_reward_mean: there is no evaluation; set config.evaluation_interval too",
    ),
    (
        {"env": "X-v0", "stop": {"stages_passed": 3}},
        "stop.stages_passed: there is no curriculum; set",
    ),
    ({"env": "X-v0", "stop": {"task": 3}}, "stop.task: there is no curriculum; set config.curriculum too"),
    ({"env": "X-v0", 3: 4}, "3: keys must be text; put it in quotes"),
]


@pytest.mark.parametrize(("config", "fragment"), CONFIGS, ids=[str(i) for i in range(len(CONFIGS))])
def test_config_is_refused_with_a_sentence(config: dict[str, Any], fragment: str) -> None:
    tree = {"config": config} if "env" in config else {"env": "X-v0", "config": config}
    with pytest.raises(ConfigError) as caught:
        experiment_from(tree)
    assert fragment in "\n".join(caught.value.problems)
    assert "".join(caught.value.problems).isprintable()


@pytest.mark.parametrize(("config", "fragment"), DQN_CONFIGS, ids=[str(i) for i in range(len(DQN_CONFIGS))])
def test_config_of_dqn_is_refused_with_a_sentence(config: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({"env": "X-v0", "run": "DQN", "config": config})
    assert fragment in "\n".join(caught.value.problems)


def test_a_folder_may_be_called_no() -> None:
    assert PPOConfig(record_env="./no").record_env == "./no"


@pytest.mark.parametrize("run", ["PPO", "APPO", "TRPO", "DQN", "SAC", "ES", "ARS", "CEM", "CMAES", "BC", "MARWIL"])
def test_every_algorithm_bounds_what_it_has(run: str) -> None:
    most = {"lr": 1e10, "num_sgd_iter": 2**31 - 1, "n_step": 2**31 - 1, **dict.fromkeys(WEIGHTS, 1e308)}
    for key, value in most.items():
        if key in ALGORITHMS[run].model_fields:
            with pytest.raises(ConfigError) as caught:
                algorithm_config(run, {"env": "X-v0", key: value})
            # Some algorithms have no use for a key that they inherit, and say that.
            assert any(f"config.{key}:" in problem for problem in caught.value.problems)


@pytest.mark.parametrize(("tree", "fragment"), EXPERIMENTS, ids=[str(i) for i in range(len(EXPERIMENTS))])
def test_experiment_is_refused_with_a_sentence(tree: Any, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from(tree)
    assert any(problem.startswith(fragment) or fragment in problem for problem in caught.value.problems)


def test_all_problems_are_reported_at_once() -> None:
    tree = {
        "run": "PPO",
        "local_dir": "x",
        "stop": {"steps": 1, "time_total_s": "1"},
        "config": {"lr": "x", "gama": 1, "model": {"fcnet_hiddens": [0]}},
    }
    with pytest.raises(ConfigError) as caught:
        experiment_from(tree, [("lrr", 1)])
    starts = [problem.split(":")[0] for problem in caught.value.problems]
    assert sorted(starts) == sorted(
        [
            "lrr",
            "env",
            "config.lr",
            "config.gama",
            "config.model.fcnet_hiddens[0]",
            "stop.steps",
            "stop.time_total_s",
            "local_dir",
        ]
    )
    assert caught.value.exit_code == 2


def test_the_class_itself_refuses_in_the_same_words() -> None:
    with pytest.raises(ConfigError, match=r"config\.lr: must be more than 0"):
        PPOConfig(lr=-1)


def test_a_circular_config_is_refused() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    with pytest.raises(ConfigError, match="levels deep"):
        experiment_from({"env": "X-v0", "config": {"env_config": circle}})
