"""The words of other libraries, and what a mistyped or misplaced key most likely means.

There is one vocabulary and there are no aliases: a foreign word is refused, and the message has the right one. The same
table serves files and, through `cli/options.py`, the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

MOST_SIBLINGS = 8  # that are listed for who names none of them

EXPERIMENT_KEYS = (
    "run",
    "stop",
    "checkpoint_freq",
    "checkpoint_at_end",
    "keep_checkpoints_num",
    "checkpoint_score_attr",
    "preset",
    "results_dir",
    "restore",
    "report",
    "loggers",
    "config",
)
"""The keys that stand beside `config` in an experiment, and `config` itself."""

SWEEP_KEYS = ("num_samples", "metric", "mode", "scheduler", "search_alg", "max_concurrent_trials", "seeds")
"""The keys that stand beside `config` in a sweep, besides those of an experiment."""

FOREIGN: Mapping[str, str] = MappingProxyType(
    {
        # RLlib's new API stack
        "num_env_runners": "config.num_workers",
        "num_rollout_workers": "config.num_workers",
        "num_envs_per_env_runner": "config.num_envs_per_worker",
        "num_cpus_per_env_runner": "config.num_cpus_per_worker",
        "num_gpus_per_learner": "config.num_gpus",
        "train_batch_size_per_learner": "config.train_batch_size",
        "minibatch_size": "config.sgd_minibatch_size",
        "num_epochs": "config.num_sgd_iter",
        "env_runners": "its keys belong directly in config: num_workers, num_envs_per_worker, rollout_fragment_length",
        "rollouts": "its keys belong directly in config: num_workers, num_envs_per_worker, rollout_fragment_length",
        "resources": "its keys belong directly in config: num_gpus, num_cpus_per_worker",
        "training": "its keys belong directly in config: lr, gamma, train_batch_size",
        "evaluation": "its keys belong directly in config: evaluation_interval, evaluation_duration",
        "multi_agent": "config.multiagent",
        "policy_mapping_fn": "config.multiagent.policy_mapping",
        "environment": "config.env",
        "env_name": "config.env",
        "env_id": "config.env",
        "model_config": "config.model",
        "rl_module": "config.model",
        "restart_failed_env_runners": "config.recreate_failed_workers",
        "ignore_env_runner_failures": "config.ignore_worker_failures",
        "evaluation_num_env_runners": "config.evaluation_num_workers",
        "evaluation_num_episodes": "config.evaluation_duration",
        "evaluation_parallel": "config.evaluation_parallel_to_training",
        "clip_schedule": "config.clip_param_schedule",
        "entropy_schedule": "config.entropy_coeff_schedule",
        "learning_rate_schedule": "config.lr_schedule",
        "exploration": "config.exploration_config",
        "render": "config.render_env",
        "monitor": "config.record_env",
        "ray_address": "give it to shoal train as --ray-address, or set the variable RAY_ADDRESS",
        "head_fcnet_hiddens": "config.model.post_fcnet_hiddens",
        "storage_path": "results_dir",
        "local_dir": "results_dir",
        "logdir": "results_dir",
        "log_dir": "results_dir",
        "checkpoint_frequency": "checkpoint_freq",
        "checkpoint_config": "its keys belong in the experiment: checkpoint_freq, keep_checkpoints_num",
        "num_to_keep": "keep_checkpoints_num",
        "checkpoint_score_attribute": "checkpoint_score_attr",
        "checkpoint_score_order": "write min- before the name in checkpoint_score_attr, or leave it out",
        "stopping_criteria": "stop",
        "stopping_criterion": "stop",
        # Stable-Baselines3
        "learning_rate": "config.lr",
        "n_steps": "config.rollout_fragment_length",
        "n_envs": "config.num_envs_per_worker",
        "num_envs": "config.num_envs_per_worker",
        "batch_size": "config.sgd_minibatch_size",
        "n_epochs": "config.num_sgd_iter",
        "gae_lambda": "config.lambda_",
        "lambda": "config.lambda_",
        "lam": "config.lambda_",
        "ent_coef": "config.entropy_coeff",
        "vf_coef": "config.vf_loss_coeff",
        "clip_range": "config.clip_param",
        "clip_range_vf": "config.vf_clip_param",
        "max_grad_norm": "config.grad_clip",
        "total_timesteps": "stop.timesteps_total",
        "policy_kwargs": "config.model",
        "net_arch": "config.model.fcnet_hiddens",
        "activation_fn": "config.model.fcnet_activation",
        "optimizer_class": "config.optimizer",
        "normalize_advantage": "advantages are always normalised; leave it out",
        "normalize_obs": "write observation_filter: MeanStdFilter in config",
        "normalize_reward": "config.normalize_rewards",
        "norm_reward": "config.normalize_rewards",
        "norm_obs": "write observation_filter: MeanStdFilter in config",
        "reward_scaling": "config.normalize_rewards",
        "clip_reward": "config.clip_rewards",
        "device": "write num_gpus: 1 in config for a GPU, or leave it out",
        "cuda": "write num_gpus: 1 in config for a GPU, or leave it out",
        "gpu": "write num_gpus: 1 in config for a GPU, or leave it out",
        "verbose": "write log_level: DEBUG in config, or --quiet on the command line",
        "tensorboard_log": "results_dir",
        "save_path": "results_dir",
        "save_dir": "results_dir",
        "output_dir": "results_dir",
        "save_freq": "checkpoint_freq",
        "load": "restore",
        "load_path": "restore",
        "pretrained": "restore",
        "checkpoint": "restore",
        "checkpoint_path": "restore",
        "restore_path": "restore",
        "restore_policy": "restore",
        "warm_start": "restore",
        "max_episode_steps": "config.horizon",
        "max_steps": "config.horizon",
        "callback": "config.callbacks",
        "callbacks_class": "config.callbacks",
        "curriculum_fn": "config.env_task_fn",
        "task_fn": "config.env_task_fn",
        "domain_randomization": "config.randomize",
        # TRPO in modular_rl, Spinning Up, Baselines and sb3-contrib
        "timesteps_per_batch": "config.train_batch_size",
        "steps_per_epoch": "config.train_batch_size",
        "hid_sizes": "config.model.fcnet_hiddens",
        "filter": "write observation_filter: MeanStdFilter in config",
        "n_iter": "stop.training_iteration",
        "n_rollouts": "config.num_workers",
        "remote": "write num_workers: auto in config",
        "video": "write record_env: true in config, and evaluation_interval: 10",
        "timestep_limit": "config.horizon",
        "snapshot_every": "checkpoint_freq",
        "outfile": "results_dir",
        "delta": "config.max_kl",
        "cg_max_steps": "config.cg_iters",
        "damping_coeff": "config.cg_damping",
        "backtrack_iters": "config.line_search_steps",
        "line_search_max_iter": "config.line_search_steps",
        "line_search_shrinking_factor": "the line search always shrinks by 0.8; leave it out, or set line_search_steps",
        "backtrack_coeff": "the line search always shrinks by 0.8; leave it out, or set line_search_steps",
        "sub_sampling_factor": "config.fisher_subsample",
        "n_critic_updates": "config.num_sgd_iter",
        "train_v_iters": "config.num_sgd_iter",
        "vf_iters": "config.num_sgd_iter",
        "vf_stepsize": "config.lr",
        "vf_lr": "config.lr",
        # Evolution, in classic RLlib and modular_rl
        "stepsize": "config.lr",
        "sgd_stepsize": "config.lr",
        "episodes_per_batch": "config.num_rollouts",
        "num_perturbations": "config.num_rollouts",
        "popsize": "config.num_rollouts",
        "population_size": "config.num_rollouts",
        "sigma0": "config.noise_stdev",
        "noise_std": "config.noise_stdev",
        "eval_prob": "set evaluation_interval: an evaluation takes the centre of the search",
        # Memory, here and there
        "lstm_hidden_size": "config.model.lstm_cell_size",
        "lstm_size": "config.model.lstm_cell_size",
        "n_lstm_layers": "there is one layer of memory; leave it out, or set lstm_cell_size",
        "shared_lstm": "config.model.vf_share_layers",
        "enable_critic_lstm": "config.model.vf_share_layers",
        "seq_len": "config.model.max_seq_len",
        "attention_memory_training": "learning looks back as far as acting does: attention_memory_inference",
        "attention_init_gru_gate_bias": "the transformer units have no gates; leave it out",
        # Q-learning, here and there
        "buffer_size": "config.replay_buffer_config.capacity",
        "exploration_initial_eps": "config.exploration_config.initial_epsilon",
        "exploration_final_eps": "config.exploration_config.final_epsilon",
        "exploration_fraction": "config.exploration_config.epsilon_timesteps",
        "target_update_interval": "config.target_network_update_freq",
        "train_freq": "config.rollout_fragment_length",
        "gradient_steps": "config.training_intensity",
        "num_steps_sampled_before_learning_starts": "config.learning_starts",
        "min_sample_timesteps_per_iteration": "config.timesteps_per_iteration",
        "ou_sigma": "the spread of actions is the policy's own, and learned; leave it out",
        "ou_base_scale": "the spread of actions is the policy's own, and learned; leave it out",
        "initial_scale": "write type: GaussianNoise and stddev_schedule: [[0, 1.0], [10000, 0.1]]",
        "final_scale": "write type: GaussianNoise and stddev_schedule: [[0, 1.0], [10000, 0.1]]",
        "scale_timesteps": "write type: GaussianNoise and stddev_schedule: [[0, 1.0], [10000, 0.1]]",
        "random_timesteps": "actions are random from the first step on; leave it out",
        "noisy": "write exploration_config: {type: EpsilonGreedy} in config, or leave it out",
        "num_atoms": "action values are single numbers, without a distribution; leave it out",
        # Soft actor-critic, here and there
        "policy_model_config": "config.model",
        "policy_model": "config.model",
        "q_model": "config.q_model_config",
        "actor_learning_rate": "config.lr",
        "critic_learning_rate": "config.lr",
        "entropy_learning_rate": "config.lr",
        "optimization": "write lr in config, which is that of policy, critics and temperature",
        "store_buffer_in_checkpoints": "a checkpoint always has the replay buffer; leave it out",
        "polyak": "config.tau",
        # Classic RLlib
        "adam_epsilon": "config.optimizer.eps",
        "custom_options": "config.model.custom_model_config",
        "custom_resources_per_worker": "workers ask Ray for num_cpus_per_worker and nothing else; leave it out",
        "num_cpus_for_driver": "the driver has one core; leave it out, or set num_cpus_per_worker",
        "num_gpus_per_worker": "workers act on CPUs, and GPUs are for learning; set num_gpus",
        "num_gpus_per_env_runner": "workers act on CPUs, and GPUs are for learning; set num_gpus",
        "placement_strategy": "Ray fills the hosts in their order; leave it out",
        "simple_optimizer": "there is one optimiser; leave it out",
        "compress_observations": "observations go through shared memory as they are; leave it out",
        "remote_worker_envs": "write env_isolation: process in config, for environments in processes of their own",
        "remote_env_batch_wait_ms": "environments step as they are ready with env_isolation: process; leave it out",
        "min_iter_time_s": "an iteration lasts as long as its batch; leave it out, or set train_batch_size",
        "min_time_s_per_iteration": "an iteration lasts as long as its batch; leave it out, or set train_batch_size",
        "min_train_timesteps_per_iteration": "an iteration is one batch; leave it out, or set train_batch_size",
        "metrics_smoothing_episodes": "statistics are over the last 100 episodes; leave it out",
        "metrics_num_episodes_for_smoothing": "statistics are over the last 100 episodes; leave it out",
        "log_sys_usage": "`shoal report` has times and processes of a run; leave it out",
        "soft_horizon": "an episode that reaches horizon is truncated and starts again; leave it out",
        "no_done_at_end": "what horizon truncates never counts as a terminal state; leave it out",
        "synchronize_filters": "the learner owns the observation filter; leave it out",
        "eager_tracing": "TensorFlow is not supported; leave it out",
        "tf_session_args": "TensorFlow is not supported; leave it out",
        "local_tf_session_args": "TensorFlow is not supported; leave it out",
        "use_pytorch": "PyTorch is used where it is needed; leave it out, or write framework: torch in config",
        "grayscale": "frames of Atari games are grey already; leave it out, or set wrappers",
        "zero_mean": "pixels are scaled to 0..1; leave it out",
        "framestack": "Atari games have their last 4 frames; elsewhere write wrappers: [{FrameStackObservation: ...}]",
        "dim": "frames of Atari games are 84 x 84; leave it out, or set wrappers: [{ResizeObservation: ...}]",
        "final_prioritized_replay_beta": "prioritized_replay_beta does not change over time; leave it out",
        "prioritized_replay_beta_annealing_timesteps": "prioritized_replay_beta does not change; leave it out",
        "schedule_max_timesteps": "write epsilon_timesteps in exploration_config",
        "worker_side_prioritization": "priorities are the learner's; leave it out",
        "vtrace": "APPO always corrects old experience by V-trace; leave it out",
        "max_failures": "a failed environment or worker is replaced, and `shoal resume` continues a run; leave it out",
        "resources_per_trial": "a trial takes the cores of its workers; leave it out, or set num_workers",
        "upload_dir": "write results_dir, and copy folders with your own tools",
        "grad_clip_by": "gradients are clipped by their norm; leave it out",
        "use_kl_loss": "write kl_coeff: 0.2 in config for a KL penalty; 0 is none",
        "count_steps_by": "steps are those of environments; leave it out",
        "log_std_clip_param": "the spread of actions is not clipped; leave it out",
        "lstm_use_prev_action_reward": "write lstm_use_prev_action and lstm_use_prev_reward in model",
        "actor_hiddens": "config.model.fcnet_hiddens",
        "critic_hiddens": "config.q_model_config.fcnet_hiddens",
        "actor_hidden_activation": "config.model.fcnet_activation",
        "critic_hidden_activation": "config.q_model_config.fcnet_activation",
        "min_size_for_sampling": "config.learning_starts",
        "num_learner_workers": "config.num_learners",
        "num_gpus_per_learner_worker": "config.num_gpus",
        "num_cpus_per_learner_worker": "config.num_cpus_per_learner",
        "num_cpus_for_local_worker": "the driver has one core; leave it out, or set num_cpus_per_worker",
        "actor_lr": "config.lr",
        "critic_lr": "config.lr",
        "alpha_lr": "config.lr",
        # Stable-Baselines3's zoo
        "n_timesteps": "stop.timesteps_total",
        "normalize": "write observation_filter: MeanStdFilter in config; normalize_rewards is on already",
        "frame_stack": "write wrappers: [{FrameStackObservation: {stack_size: 4}}]; Atari games have it already",
        "env_wrapper": "config.wrappers",
        "use_sde": "actions are sampled at every step; PPO has exploration_config: {type: OrnsteinUhlenbeckNoise}",
        "sde_sample_freq": "actions are sampled anew at every step; leave it out",
        "use_sde_at_warmup": "actions are sampled anew at every step; leave it out",
        "ortho_init": "layers always begin orthogonal; leave it out",
        "features_extractor_class": "config.model.custom_model",
        "features_extractor_kwargs": "config.model.custom_model_config",
        "share_features_extractor": "config.model.vf_share_layers",
        "replay_buffer_class": "there is one kind of replay buffer, without HER; leave it out",
        "replay_buffer_kwargs": "config.replay_buffer_config",
        "optimize_memory_usage": "replay keeps each frame of images once in any case; leave it out",
        "noise_type": "SAC learns how much noise is worth; leave it out",
        "policy_delay": "SAC updates its policy with every update; leave it out",
        "n_critics": "config.twin_q",
        "n_quantiles": "action values are single numbers, without a distribution; leave it out",
        "top_quantiles_to_drop_per_net": "action values are single numbers, without a distribution; leave it out",
        "rms_prop_eps": "the optimiser is Adam; leave it out, or set optimizer: {eps: 1e-5}",
        "delta_std": "config.noise_stdev",
        "n_delta": "config.num_rollouts",
        "n_top": "config.rollouts_used",
        "alive_bonus_offset": "rewards are the environment's own; write a wrapper: wrappers: [file.py:Class]",
        "use_rms_prop": "the optimiser is Adam; leave it out",
        # Sweeps
        "tune_config": "its keys belong in the experiment: num_samples, metric, mode, scheduler, search_alg",
        "run_config": "its keys belong in the experiment: name, stop, results_dir",
        "search": "search_alg",
        "searcher": "search_alg",
        "search_algorithm": "search_alg",
        "max_concurrent": "max_concurrent_trials",
        "num_seeds": "seeds",
        "repeat": "seeds",
        "num_trials": "num_samples",
        "n_trials": "num_samples",
        "time_budget_s": "stop.time_total_s",
        "time_budget": "stop.time_total_s",
        "param_space": "config",
        # Other common spellings
        "workers": "config.num_workers",
        "n_workers": "config.num_workers",
        "discount": "config.gamma",
        "discount_factor": "config.gamma",
        "entropy_coef": "config.entropy_coeff",
        "value_loss_coef": "config.vf_loss_coeff",
        "hidden_sizes": "config.model.fcnet_hiddens",
        "hiddens": "config.model.fcnet_hiddens",
        "activation": "config.model.fcnet_activation",
        "algo": "run",
        "algorithm": "run",
        "agent": "run",
        "random_seed": "config.seed",
        "gpus": "config.num_gpus",
        "n_gpus": "config.num_gpus",
        "name_env": "config.env",
        "redis_password": "Ray has a token now, which workers find by themselves; leave it out",
    }
)

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "ent_coef": "config.initial_alpha",
        "batch_size": "config.train_batch_size",
        "minibatch_size": "config.train_batch_size",
        "sgd_minibatch_size": "config.train_batch_size",
        "target_kl": (
            "TRPO's word is max_kl, the KL divergence itself; sb3-contrib takes its mean over the action dimensions, "
            "so multiply its target_kl by their number"
        ),
    }
)
"""What a word means to the algorithms that do not have the key it stands for in FOREIGN."""

FOREIGN_RESULTS: Mapping[str, str] = MappingProxyType(
    {
        "total_timesteps": "timesteps_total",
        "num_timesteps": "timesteps_total",
        "num_env_steps_sampled_lifetime": "timesteps_total",
        "num_env_steps_sampled": "timesteps_total",
        "agent_timesteps_total": "timesteps_total",
        "timesteps": "timesteps_total",
        "steps": "timesteps_total",
        "env_runners/episode_return_mean": "episode_reward_mean",
        "env_runners/episode_reward_mean": "episode_reward_mean",
        "env_runners/episode_len_mean": "episode_len_mean",
        "episode_return_mean": "episode_reward_mean",
        "sampler_results/episode_reward_mean": "episode_reward_mean",
        "rollout/ep_rew_mean": "episode_reward_mean",
        "ep_rew_mean": "episode_reward_mean",
        "mean_reward": "episode_reward_mean",
        "reward": "episode_reward_mean",
        "iterations": "training_iteration",
        "num_iterations": "training_iteration",
        "training_iterations": "training_iteration",
        "num_episodes": "episodes_total",
        "episodes": "episodes_total",
        "time_since_restore": "time_total_s",
        "time": "time_total_s",
        "walltime": "time_total_s",
    }
)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that `word` most likely means, whatever its case, dashes or spaces."""
    by_plain = {_plain(name): name for name in known}
    matches = get_close_matches(_plain(word), by_plain, n=1, cutoff=cutoff)
    return by_plain[matches[0]] if matches else None


def key_hint(path: str, known: Iterable[str]) -> str:
    """What to type instead of the unknown key at the dotted `path`, as the end of a sentence; empty if nobody knows."""
    parent, _, key = path.rpartition(".")
    places = list(known)
    meant = [table[_plain(key)] for table in (FOREIGN, ELSEWHERE) if _plain(key) in table]
    for foreign in meant:
        if " " in foreign:
            return f"; {foreign}"
        if foreign in places or not foreign.startswith("config."):
            return f"; did you mean {foreign}?"
    if meant:
        return f"; another algorithm has {meant[0]}"
    siblings = {place.rpartition(".")[2]: place for place in places if place.rpartition(".")[0] == parent}
    elsewhere = {place.rpartition(".")[2]: place for place in reversed(places)}
    for names, cutoff in ((siblings, 0.75), (elsewhere, 0.85), (siblings, 0.6)):
        name = nearest(key, names, cutoff)
        if name is not None:
            return f"; did you mean {names[name]}?"
    if parent.startswith("config.") and len(siblings) <= MOST_SIBLINGS:
        return f"; {parent} has {', '.join(siblings)}"
    return ""


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "_").replace(" ", "_")
