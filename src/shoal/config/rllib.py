"""The keys of RLlib's own algorithms (`run: rllib:IMPALA`): which of ours they have, under which name RLlib knows them.

Nothing here imports RLlib. A key that is not set is left to RLlib's own default, so the resolved configuration of such
a run has only what was said, and what our environment layer and our runs read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shoal.config.fields import FreeMapping
from shoal.config.layout import cpus_per_worker
from shoal.config.offline import InputSource
from shoal.config.settings import AlgorithmConfig

PASSED_ON = {
    "num_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_learners": "num_learners",
    "num_cpus_per_learner": "num_cpus_per_learner",
    "num_gpus": "num_gpus_per_learner",
    "recreate_failed_workers": "restart_failed_env_runners",
    "ignore_worker_failures": "ignore_env_runner_failures",
    "max_worker_restarts": "max_num_env_runner_restarts",
    "rollout_fragment_length": "rollout_fragment_length",
    "batch_mode": "batch_mode",
    "train_batch_size": "train_batch_size_per_learner",
    "gamma": "gamma",
    "lr": "lr",
    "grad_clip": "grad_clip",
    "explore": "explore",
    "seed": "seed",
}
"""Our keys that RLlib has too, with its names for them."""

MODEL_PASSED_ON = ("fcnet_hiddens", "fcnet_activation", "conv_filters", "conv_activation", "vf_share_layers")
"""The keys of `model` that RLlib's default networks have, under the same names."""

ONLY_IF_SET = (
    "rollout_fragment_length",
    "batch_mode",
    "train_batch_size",
    "gamma",
    "lr",
    "grad_clip",
    "explore",
    "model",
)
"""Keys of learning whose default is RLlib's own, not ours."""

READ_HERE = (
    "env",
    "env_ranks",
    "max_concurrent_envs",
    "env_resets_per_s",
    "env_config",
    "wrappers",
    "preprocessor_pref",
    "max_env_failures",
    "env_isolation",
    "env_step_timeout_s",
    "env_reset_timeout_s",
    "env_memory_limit_mb",
    "env_scratch_limit_mb",
    "env_restart_delay_s",
    "horizon",
    "randomize",
    "normalize_actions",
    "clip_actions",
    "framework",
    "evaluation_interval",
    "evaluation_duration",
    "evaluation_duration_unit",
    "evaluation_config",
    "record_env",
    "log_level",
)
"""Our keys that shoal itself reads: of environments, of evaluation and of the run."""

WITHOUT_COUNTERPART = tuple(key for key in AlgorithmConfig.model_fields if key not in {*PASSED_ON, *READ_HERE, "model"})
"""Our keys that RLlib has nothing for: all others, so that a new one is refused until somebody passes it on."""

INSTEAD = {
    "sample_async": "IMPALA and APPO sample meanwhile anyway",
    "clip_rewards": "wrap the environment: wrappers: [ClipReward]",
    "normalize_rewards": "wrap the environment: wrappers: [NormalizeReward]",
    "observation_filter": "wrap the environment: wrappers: [NormalizeObservation]",
    "lr_schedule": "RLlib's own is rllib_config: {lr: [[0, 1e-3], [100000, 1e-4]]}",
    "exploration_config": "RLlib's own are keys of rllib_config, such as epsilon of DQN",
    "evaluation_num_workers": "evaluation runs in the driver's process",
    "kernel": "RLlib's networks are of PyTorch",
    "restore_episodes": "a resumed run begins new episodes",
}
"""What to do in place of some of them."""

OURS = {theirs: ours for ours, theirs in PASSED_ON.items() if ours != theirs} | {
    "env": "env",
    "env_config": "env_config",
    "num_workers": "num_workers",
    "num_rollout_workers": "num_workers",
    "num_envs_per_worker": "num_envs_per_worker",
    "train_batch_size": "train_batch_size",
    "observation_space": "env",
    "action_space": "env",
    "normalize_actions": "normalize_actions",
    "clip_actions": "clip_actions",
    "evaluation_interval": "evaluation_interval",
    "evaluation_duration": "evaluation_duration",
    "evaluation_duration_unit": "evaluation_duration_unit",
    "evaluation_num_env_runners": "evaluation_interval",
    "evaluation_config": "evaluation_config",
    "log_level": "log_level",
    "model": "model",
    "_model_config": "model",
}
"""What RLlib calls keys that are ours to set: in `rllib_config` they are refused with our name."""

FIXED = {
    "enable_rl_module_and_learner": "only RLlib's present API stack is used",
    "enable_env_runner_and_connector_v2": "only RLlib's present API stack is used",
    "framework_str": "RLlib's networks are of PyTorch",
    "create_env_on_local_worker": "the environments are made by shoal",
    "gym_env_vectorize_mode": "the environments are made by shoal",
    "policies": "one policy is trained; several agents are not handed on to RLlib",
    "policy_mapping_fn": "one policy is trained; several agents are not handed on to RLlib",
}
"""Keys of RLlib that nobody may set, with the reason."""


UPDATES = "dataset_num_iters_per_learner"
"""RLlib's key for the number of updates in an iteration on recorded episodes."""


class RLlibConfig(AlgorithmConfig):
    """The keys of an algorithm of RLlib."""

    trainer = "shoal.bridges.rllib:RLlibTrainer"
    policy = "shoal.bridges.rllib:policy_of"
    results: ClassVar[Mapping[str, str]] = {}
    mutable: ClassVar[tuple[str, ...]] = ()
    clips_reported_norm = False
    more_exploration = "its own keys in config.rllib_config"

    rllib_name: ClassVar[str] = ""
    actions: ClassVar[tuple[str, ...]] = ()  # kinds of action spaces that it takes; empty: all
    has_memory: ClassVar[bool] = False  # its policy carries a state from step to step, which our evaluation cannot
    lr_keys: ClassVar[tuple[str, ...]] = ()  # its learning rates, where RLlib refuses a common one

    rllib_config: FreeMapping = {}
    """RLlib's own keys, by its names, set last: {entropy_coeff: 0.01, min_time_s_per_iteration: 2}.

    What has a key of ours is refused here, and so is what the installed RLlib does not have."""

    @property
    def envs_per_worker(self) -> int:
        """Environments of each worker; `auto` is RLlib's own 1, which the rates of its updates are made for."""
        return 1 if self.num_envs_per_worker == "auto" else self.num_envs_per_worker

    @property
    def steps_per_iteration(self) -> int:
        """Unknown before: RLlib ends an iteration by time or by its own counters."""
        return 0

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """What was said, and what shoal itself reads: a default of RLlib's must not be frozen as one of ours."""
        tree = super().model_dump(**options)
        for key in (*ONLY_IF_SET, *WITHOUT_COUNTERPART):
            if key in tree and (key in WITHOUT_COUNTERPART or key not in self.model_fields_set):
                del tree[key]
        if "model" in tree:
            tree["model"] = {key: tree["model"][key] for key in MODEL_PASSED_ON if key in self.model.model_fields_set}
        return tree

    def conflicts(self) -> list[str]:
        """Keys that RLlib has nothing for, and keys that are right by themselves but not together."""
        found = super().conflicts()
        for key in WITHOUT_COUNTERPART:
            if key in self.model_fields_set and self._asks_for(key):
                more = f"; {INSTEAD[key]}" if key in INSTEAD else ""
                found.append(f"config.{key}: RLlib has no counterpart of it; leave it out{more}")
        for key in sorted(self.model.model_fields_set - {*MODEL_PASSED_ON, "sequence_max_len"}):
            if getattr(self.model, key) != type(self.model).model_fields[key].default:
                found.append(f"config.model.{key}: RLlib's default networks do not have it here; leave it out")
        if self.framework == "numpy":
            found.append("config.framework: RLlib's networks are of PyTorch; leave it out")
        if self.has_memory and self.evaluation_interval is not None:
            found.append(
                f"config.evaluation_interval: the policy of rllib:{self.rllib_name} has a memory, which shoal's "
                "evaluation cannot carry; leave it out"
            )
        if self.num_workers == "auto":
            found.append("config.num_workers: auto measures shoal's own sampling; give rllib: runs a number")
        for key in self.rllib_config:
            if key in FIXED:
                found.append(f"config.rllib_config.{key}: {FIXED[key]}; leave it out")
            elif key in OURS:
                found.append(f"config.rllib_config.{key}: has a key of ours; write config.{OURS[key]}")
        return found

    def _asks_for(self, key: str) -> bool:
        """Whether a key that RLlib has nothing for is on; two of them are so by default, unless nobody says it."""
        value = getattr(self, key)
        if key in ("normalize_rewards", "restore_episodes"):
            return bool(value)
        return bool(value) and value != type(self).model_fields[key].default

    def _ability_conflicts(self) -> list[str]:
        """Memory is refused with the other keys of `model`, and RLlib has learners of its own."""
        return []


class RecordedInRLlib(RLlibConfig):
    """The keys of an algorithm of RLlib that learns from recorded steps; the environment only evaluates."""

    updates: ClassVar[int] = 1  # in an iteration, unless `rllib_config` says otherwise

    input: InputSource = None
    """The recorded steps: "folder/*.parquet", a folder, a list of these, or minari:DATASET.

    They are those of output of any run of shoal's own. Episodes that RLlib itself wrote are named by
    rllib_config: {input_: [FOLDER]}."""

    def conflicts(self) -> list[str]:
        """It needs steps to learn from, of one kind."""
        found = super().conflicts()
        if self.input is None and "input_" not in self.rllib_config:
            found.append(
                f"config.input: rllib:{self.rllib_name} learns from recorded steps; set input to what output of "
                'another run has written, e.g. input: "folder/*.parquet"'
            )
        read = sorted(key for key in self.rllib_config if key.startswith("input_"))
        if self.input is not None and read:
            found.append(
                f"config.rllib_config.{read[0]}: input names the recorded steps already; leave one of them out"
            )
        return found


def in_rllibs_words(config: RLlibConfig) -> dict[str, Any]:
    """The settings that RLlib gets, by its names: those that it must know, and those that were set."""
    said: dict[str, Any] = {}
    for ours, theirs in PASSED_ON.items():
        if ours not in ONLY_IF_SET or ours in config.model_fields_set:
            said[theirs] = getattr(config, ours)
    said["num_envs_per_env_runner"] = config.envs_per_worker
    said["num_cpus_per_env_runner"] = cpus_per_worker(config)
    # Of several learners each has its share; with one, it is the driver's own process, which RLlib counts as none.
    said["num_gpus_per_learner"] = config.num_gpus / config.num_learners
    said["num_learners"] = config.num_learners if config.num_learners > 1 else 0
    if "train_batch_size_per_learner" in said:
        said["train_batch_size_per_learner"] = max(1, config.train_batch_size // config.num_learners)
    if isinstance(config, RecordedInRLlib):
        said[UPDATES] = config.updates  # which RLlib wants to be told
    if config.lr_keys:
        said |= dict.fromkeys(config.lr_keys, said["lr"]) if "lr" in said else {}
        said["lr"] = None
    return {**said, **config.rllib_config}


def network_in_rllibs_words(config: RLlibConfig) -> dict[str, Any]:
    """The keys of `model` that were set."""
    if "model" not in config.model_fields_set:
        return {}
    found: dict[str, Any] = {}
    for key in MODEL_PASSED_ON:
        if key in config.model.model_fields_set:
            value = getattr(config.model, key)
            found[key] = list(value) if isinstance(value, tuple) else value
    return found


class PPOInRLlib(RLlibConfig):
    """RLlib's proximal policy optimisation."""

    rllib_name = "PPO"


class APPOInRLlib(RLlibConfig):
    """RLlib's asynchronous PPO with V-trace (Luo et al. 2019)."""

    rllib_name = "APPO"


class IMPALAInRLlib(RLlibConfig):
    """RLlib's asynchronous actor-critic with V-trace (Espeholt et al. 2018)."""

    rllib_name = "IMPALA"


class DQNInRLlib(RLlibConfig):
    """RLlib's deep Q-learning with the parts of Rainbow."""

    rllib_name = "DQN"
    learns_from_replay = True
    actions = ("Discrete",)


class SACInRLlib(RLlibConfig):
    """RLlib's soft actor-critic."""

    rllib_name = "SAC"
    lr_keys = ("actor_lr", "critic_lr", "alpha_lr")
    learns_from_replay = True
    actions = ("Box", "Discrete")


class TQCInRLlib(RLlibConfig):
    """RLlib's truncated quantile critics (Kuznetsov et al. 2020)."""

    rllib_name = "TQC"
    lr_keys = ("actor_lr", "critic_lr", "alpha_lr")
    learns_from_replay = True
    actions = ("Box",)


class DreamerV3InRLlib(RLlibConfig):
    """RLlib's learning in a world model (Hafner et al. 2023)."""

    rllib_name = "DreamerV3"
    has_memory = True
    lr_keys = ("world_model_lr", "actor_lr", "critic_lr")
    learns_from_replay = True
    actions = ("Box", "Discrete")


class BCInRLlib(RecordedInRLlib):
    """RLlib's imitation of recorded episodes."""

    rllib_name = "BC"


class MARWILInRLlib(RecordedInRLlib):
    """RLlib's imitation weighted by advantages (Wang et al. 2018)."""

    rllib_name = "MARWIL"


class CQLInRLlib(RecordedInRLlib):
    """RLlib's conservative Q-learning from recorded episodes (Kumar et al. 2020)."""

    rllib_name = "CQL"
    updates = 2  # by Ray 2.60's source, 1 would hand its learner a batch in place of an iterator
    lr_keys = ("actor_lr", "critic_lr", "alpha_lr")
    actions = ("Box",)


class IQLInRLlib(RecordedInRLlib):
    """RLlib's implicit Q-learning from recorded episodes (Kostrikov et al. 2021)."""

    rllib_name = "IQL"
    lr_keys = ("actor_lr", "critic_lr", "value_lr")
    actions = ("Box",)
