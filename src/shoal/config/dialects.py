"""How files of other libraries speak: which words are whose, what changes with them, and what is left to defaults.

What a foreign word is called here has one home, `FOREIGN` in `vocabulary`; this module says whose word it is, and what
is different beside the name. `shoal migrate` and the pages on moving read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shoal.config.vocabulary import ELSEWHERE, FOREIGN

DIALECTS: Mapping[str, str] = MappingProxyType(
    {"rllib1": "RLlib 1.x", "rllib2": "RLlib 2.x", "sb3": "Stable-Baselines3 and its zoo"}
)
"""The libraries whose files are read, as `--from` names them."""

MOVED: Mapping[str, str] = MappingProxyType(
    {
        "prioritized_replay": "config.replay_buffer_config.prioritized_replay",
        "prioritized_replay_alpha": "config.replay_buffer_config.prioritized_replay_alpha",
        "prioritized_replay_beta": "config.replay_buffer_config.prioritized_replay_beta",
        "prioritized_replay_eps": "config.replay_buffer_config.prioritized_replay_eps",
        "capacity": "config.replay_buffer_config.capacity",
        "vf_share_layers": "config.model.vf_share_layers",
        "log_std_init": "config.model.log_std_init",
    }
)
"""Words that are ours too, but stand elsewhere."""

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rllib1": (
            "lambda",
            "monitor",
            "evaluation_num_episodes",
            "num_rollout_workers",
            "min_sample_timesteps_per_iteration",
            "buffer_size",
            "prioritized_replay",
            "prioritized_replay_alpha",
            "prioritized_replay_beta",
            "prioritized_replay_eps",
            "final_prioritized_replay_beta",
            "prioritized_replay_beta_annealing_timesteps",
            "adam_epsilon",
            "hiddens",
            "noisy",
            "num_atoms",
            "optimization",
            "policy_model",
            "q_model",
            "policy_model_config",
            "lstm_use_prev_action_reward",
            "custom_options",
            "grayscale",
            "zero_mean",
            "dim",
            "framestack",
            "policy_mapping_fn",
            "use_pytorch",
            "eager_tracing",
            "num_gpus_per_worker",
            "num_cpus_for_driver",
            "custom_resources_per_worker",
            "simple_optimizer",
            "compress_observations",
            "remote_worker_envs",
            "min_iter_time_s",
            "min_time_s_per_iteration",
            "metrics_smoothing_episodes",
            "log_sys_usage",
            "soft_horizon",
            "no_done_at_end",
            "synchronize_filters",
            "local_dir",
            "upload_dir",
            "max_failures",
            "resources_per_trial",
        ),
        "rllib2": (
            "env_runners",
            "num_env_runners",
            "num_envs_per_env_runner",
            "num_cpus_per_env_runner",
            "num_gpus_per_env_runner",
            "num_gpus_per_learner",
            "train_batch_size_per_learner",
            "minibatch_size",
            "num_epochs",
            "lambda",
            "use_kl_loss",
            "grad_clip_by",
            "actor_lr",
            "critic_lr",
            "alpha_lr",
            "num_steps_sampled_before_learning_starts",
            "min_sample_timesteps_per_iteration",
            "environment",
            "model_config",
            "rl_module",
            "head_fcnet_hiddens",
            "log_std_clip_param",
            "multi_agent",
            "policy_mapping_fn",
            "restart_failed_env_runners",
            "ignore_env_runner_failures",
            "evaluation_num_env_runners",
            "callbacks_class",
            "checkpoint_config",
            "checkpoint_frequency",
            "num_to_keep",
            "checkpoint_score_attribute",
            "storage_path",
            "tune_config",
            "run_config",
            "param_space",
        ),
        "sb3": (
            "n_timesteps",
            "total_timesteps",
            "learning_rate",
            "n_envs",
            "n_steps",
            "batch_size",
            "n_epochs",
            "gae_lambda",
            "ent_coef",
            "vf_coef",
            "clip_range",
            "clip_range_vf",
            "max_grad_norm",
            "normalize_advantage",
            "normalize",
            "policy_kwargs",
            "net_arch",
            "activation_fn",
            "log_std_init",
            "ortho_init",
            "optimizer_class",
            "features_extractor_class",
            "share_features_extractor",
            "lstm_hidden_size",
            "n_lstm_layers",
            "enable_critic_lstm",
            "frame_stack",
            "env_wrapper",
            "use_sde",
            "sde_sample_freq",
            "buffer_size",
            "train_freq",
            "gradient_steps",
            "target_update_interval",
            "exploration_fraction",
            "exploration_initial_eps",
            "exploration_final_eps",
            "replay_buffer_class",
            "noise_type",
            "n_critics",
            "n_delta",
            "n_top",
            "delta_std",
            "cg_max_steps",
            "line_search_max_iter",
            "line_search_shrinking_factor",
            "sub_sampling_factor",
            "n_critic_updates",
            "device",
            "verbose",
            "tensorboard_log",
        ),
    }
)
"""The words of each library that are not ours, in the order in which people meet them."""

CHANGED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "rllib1": {
            "framework": "TensorFlow is not supported; PyTorch is used where it is needed, else NumPy",
            "rollout_fragment_length": "fragments must make up train_batch_size exactly; if they do not, it is auto",
            "grad_clip": "the gradients of policy and value function are clipped apart",
            "vf_clip_param": "with normalize_rewards, values are in units of the returns' spread",
            "initial_alpha": "it is in units of normalised rewards, unless normalize_rewards is false",
            "observation_filter": "the learner owns the one filter; ConcurrentMeanStdFilter is MeanStdFilter",
            "num_rollouts": "ARS counts rollouts here, and directions there: two rollouts each",
            "rollouts_used": "ARS counts rollouts here, and directions there: two rollouts each",
            "hiddens": "layers after the model's own are written at the end of model.fcnet_hiddens",
            "env": "ids that Gymnasium no longer has are written as their successors",
        },
        "rllib2": {
            "framework": "PyTorch is used where it is needed, else NumPy, which is faster",
            "train_batch_size_per_learner": "train_batch_size is that of all learners: this times num_learners",
            "num_gpus_per_learner": "num_gpus is that of all learners: this times num_learners",
            "num_learners": "0 is 1 here: the learner of the driver's own process",
            "lr": "a list of [step, value] is lr_schedule",
            "entropy_coeff": "a list of [step, value] is entropy_coeff_schedule",
            "epsilon": "it is exploration_config.epsilon_schedule",
            "use_kl_loss": "false is kl_coeff: 0",
            "rollout_fragment_length": "fragments must make up train_batch_size exactly; if they do not, it is auto",
            "grad_clip": "the gradients of policy and value function are clipped apart",
            "vf_clip_param": "with normalize_rewards, values are in units of the returns' spread",
            "initial_alpha": "it is in units of normalised rewards, unless normalize_rewards is false",
            "actor_lr": "policy, critics and temperature have one lr: the policy's",
        },
        "sb3": {
            "n_steps": "train_batch_size, of all environments together, is n_steps times n_envs",
            "n_envs": "the environments of this process; num_workers spreads them over processes",
            "learning_rate": "lin_0.001 is lr_schedule: [[0, 0.001], [n_timesteps, 0]]",
            "clip_range": "lin_0.2 is clip_param_schedule: [[0, 0.2], [n_timesteps, 0]]",
            "clip_range_vf": "SB3 limits how far values move, and vf_clip_param large errors; it is left out",
            "batch_size": "DQN and SAC: train_batch_size",
            "ent_coef": "SAC: initial_alpha, which is adjusted on the way; auto is the default",
            "normalize": "observations by observation_filter, rewards by normalize_rewards",
            "net_arch": "PPO's policy and value function have layers of the same widths",
            "train_freq": "rollout_fragment_length, and with gradient_steps and batch_size training_intensity",
            "gradient_steps": "training_intensity is gradient_steps * batch_size / (train_freq * n_envs)",
            "exploration_fraction": "epsilon_timesteps is exploration_fraction * n_timesteps",
            "target_kl": "TRPO: max_kl, the divergence itself; sb3-contrib's is a mean over the numbers of an action",
            "n_delta": "num_rollouts counts both sides of a direction: two rollouts each",
            "n_top": "rollouts_used counts both sides of a direction: two rollouts each",
            "frame_stack": "Atari games have their last 4 frames already; elsewhere it is a wrapper",
            "policy": "the network follows from the observations; MlpLstmPolicy is model.use_lstm",
            "env": "ids that Gymnasium no longer has are written as their successors",
        },
    }
)
"""What changes beside the name: the value, or what it means."""

NEW_MEANING = ("grad_clip", "vf_clip_param", "initial_alpha", "target_kl")
"""Words whose note in `CHANGED` is true of every value; those of the others are about a value that is written anew."""

ALGORITHMS_THERE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "A2C": ("PPO", "A2C is PPO with one pass over each batch; PPO learns more from the same steps"),
        "A3C": ("PPO", "A3C's workers learn apart; PPO learns more from the same steps"),
        "PG": ("PPO", "PPO is a policy gradient that may use each batch several times"),
        "DDPPO": ("PPO", "several learners are num_learners"),
        "IMPALA": ("APPO", "APPO corrects old experience by V-trace as IMPALA does; rllib:IMPALA is RLlib's own"),
        "SIMPLEQ": ("DQN", "it is DQN without double_q and dueling"),
        "QRDQN": ("DQN", "action values are single numbers, without a distribution"),
        "APEX": ("DQN", "workers fill one replay buffer; set sample_async: true for learning meanwhile"),
        "R2D2": ("DQN", "DQN has no memory here; PPO has (model.use_lstm)"),
        "RAINBOW": ("DQN", "double_q, dueling, n_step and prioritised replay are there, noisy nets are not"),
        "DDPG": ("SAC", "SAC learns the same kind of critics, and its own noise"),
        "APEX_DDPG": ("SAC", "SAC learns the same kind of critics, and its own noise"),
        "TD3": ("SAC", "SAC has the same twin critics, and learns its own noise"),
        "TQC": ("SAC", "SAC without quantiles; rllib:TQC is RLlib's own"),
        "CROSSQ": ("SAC", "SAC with target networks; high_update_ratio makes many updates safe"),
        "PPO_LSTM": ("PPO", "memory is model.use_lstm"),
        "RECURRENTPPO": ("PPO", "memory is model.use_lstm"),
        "CQL": ("rllib:CQL", "RLlib's own, by the extra rllib"),
        "DREAMERV3": ("rllib:DreamerV3", "RLlib's own, by the extra rllib"),
    }
)
"""Algorithms that are not shoal's own: what comes closest, and in which way it differs."""

ENV_IDS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Pendulum-v0": ("Pendulum-v1", {}),
        "LunarLander-v2": ("LunarLander-v3", {}),
        "LunarLanderContinuous-v2": ("LunarLander-v3", {"continuous": True}),
        "BipedalWalker-v2": ("BipedalWalker-v3", {}),
        "CarRacing-v0": ("CarRacing-v3", {}),
        **{
            f"{name}-v{version}": (f"{name}-v5", {})
            for name in (
                *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum"),
                *("InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d"),
            )
            for version in (1, 2, 3)
        },
    }
)
"""Ids that Gymnasium no longer makes, their successors, and what these must be told."""

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {"swish": "silu", "none": "linear", "leakyrelu": "leaky_relu", "identity": "linear"}
)
"""Activations that have another name here; others are only written in small letters."""

_RLLIB_PPO = {
    "lr": 5e-5,
    "train_batch_size": 4000,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 30,
    "lambda_": 1.0,
    "kl_coeff": 0.2,
    "vf_loss_coeff": 1.0,
    "clip_param": 0.3,
    "vf_clip_param": 10.0,
    "grad_clip": None,
    "num_workers": 2,
    "num_envs_per_worker": 1,
    "normalize_rewards": False,
    "clip_actions": False,
    "optimizer.eps": 1e-8,
    "model.fcnet_hiddens": [256, 256],
    "model.free_log_std": False,
}
_RLLIB_DQN = {
    "lr": 5e-4,
    "n_step": 1,
    "num_envs_per_worker": 1,
    "td_error_loss_fn": "huber",
    "grad_clip": 40.0,
    "normalize_rewards": False,
    "replay_buffer_config.prioritized_replay": True,
    "model.fcnet_hiddens": [256, 256, 256],
    "model.fcnet_activation": "tanh",
}
_RLLIB_SAC = {
    "initial_alpha": 1.0,
    "learning_starts": 1500,
    "num_envs_per_worker": 1,
    "normalize_rewards": False,
    "replay_buffer_config.capacity": 1_000_000,
}
DEFAULTS_THERE: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType(
    {
        ("rllib1", "PPO"): _RLLIB_PPO,
        ("rllib2", "PPO"): _RLLIB_PPO,
        ("rllib1", "DQN"): _RLLIB_DQN,
        ("rllib2", "DQN"): {**_RLLIB_DQN, "exploration_config.final_epsilon": 0.05},
        ("rllib1", "SAC"): _RLLIB_SAC,
        ("rllib2", "SAC"): {**_RLLIB_SAC, "lr": 3e-5},
        ("sb3", "PPO"): {
            "lr": 3e-4,
            "train_batch_size": 2048,
            "num_envs_per_worker": 1,
            "normalize_rewards": False,
        },
        ("sb3", "DQN"): {
            "lr": 1e-4,
            "learning_starts": 100,
            "num_envs_per_worker": 1,
            "target_network_update_freq": 10_000,
            "n_step": 1,
            "double_q": False,
            "dueling": False,
            "td_error_loss_fn": "huber",
            "normalize_rewards": False,
            "replay_buffer_config.capacity": 1_000_000,
            "exploration_config.final_epsilon": 0.05,
        },
        ("sb3", "SAC"): {
            "initial_alpha": 1.0,
            "learning_starts": 100,
            "num_envs_per_worker": 1,
            "normalize_rewards": False,
            "replay_buffer_config.capacity": 1_000_000,
        },
    }
)
"""Defaults of other libraries that differ from ours, by our names: `shoal migrate --keep-defaults` writes them."""


def here(word: str, known: frozenset[str]) -> str | None:
    """What a foreign word is called here: a path, a sentence (with spaces) about what is gone, or None if unknown.

    `known` are the paths of the algorithm in question, which may have another word for it than others.
    """
    plain = word.strip().lower()
    found = [table[plain] for table in (MOVED, FOREIGN, ELSEWHERE) if plain in table]
    fitting = [each for each in found if each in known or (not each.startswith("config.") and " " not in each)]
    if fitting:
        return fitting[0]
    return next((each for each in found if " " in each), None)
