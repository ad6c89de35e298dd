"""Every key that all algorithms have in common, with its type, default and meaning.

The docstring under a field is its only description: `shoal config show`, the JSON Schema and the reference read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from shoal.config.algorithms import name_of
from shoal.config.changing import changed, unchecked
from shoal.config.episode_variation import ClassSource, EnvConfigSamplers, FunctionSource, OptionSamplers, Stages, Task
from shoal.config.fields import (
    STRICT,
    BelowOne,
    Count,
    EnvCount,
    EnvSource,
    Flag,
    Fraction,
    FragmentLength,
    Framework,
    FreeMapping,
    NonNegative,
    Positive,
    PositiveFraction,
    RecordEnv,
    RewardClipping,
    Seed,
    Size,
    Text,
    WorkerCount,
    refused_exploration,
)
from shoal.config.model import ModelConfig
from shoal.config.problems import sentences
from shoal.config.schedules import Schedule, levels
from shoal.config.vocabulary import EXPERIMENT_KEYS
from shoal.config.wrappers import Wrappers
from shoal.errors import ConfigError

Config = TypeVar("Config", bound="AlgorithmConfig")
OnPolicy = TypeVar("OnPolicy", bound="OnPolicyConfig")

AUTO_ENVS = 8
LEAST_ENV_MEMORY_MB = 100

NULL_IS_DEFAULT = (
    "env_config",
    "curriculum",
    "randomize",
    "optimizer",
    "model",
    "exploration_config",
    "evaluation_config",
    "replay_buffer_config",
    "evaluation_duration",
    "training_intensity",
    "seed",
)
"""Keys at which null says nothing: sections that are left empty, and numbers that classic RLlib leaves open so."""


class OptimizerConfig(BaseModel):
    """How gradients become steps."""

    model_config = STRICT

    type: Literal["adam"] = "adam"
    """The optimiser."""
    eps: Positive = 1e-5
    """Adam's epsilon (classic RLlib: 1e-8; 1e-5 is usual for PPO and steadier at the start)."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""


class ExplorationConfig(BaseModel):
    """How actions are tried out in training."""

    model_config = STRICT

    type: str = "StochasticSampling"
    """How the algorithm explores."""


class NoiseConfig(ExplorationConfig):
    """How actions are tried out in training."""

    type: Annotated[
        Literal["StochasticSampling", "GaussianNoise", "OrnsteinUhlenbeckNoise"],
        refused_exploration(
            (
                ("EpsilonGreedy", "PerWorkerEpsilonGreedy", "SoftQ"),
                "chooses by the values of actions, and this algorithm explores by sampling from its own action "
                "distribution; leave exploration_config out, or say run: DQN",
            )
        ),
    ] = "StochasticSampling"
    """StochasticSampling: actions are drawn from the policy's own distribution.

    GaussianNoise: so too, but the spread of continuous actions is not learned; it is stddev. OrnsteinUhlenbeckNoise: so
    too, but what chance adds to continuous actions is correlated from step to step, which carries a sluggish system
    further (Hollenstein et al. 2024)."""
    stddev: Positive = 0.3
    """Standard deviation of continuous actions, for GaussianNoise; with normalize_actions the bounds are -1 and 1.

    Classic RLlib: 0.1, on top of a policy without chance."""
    stddev_schedule: Schedule = None
    """Standard deviation over timesteps, as lr_schedule; it replaces stddev."""
    ou_theta: PositiveFraction = 0.15
    """How fast OrnsteinUhlenbeckNoise forgets: the correlation of two steps in a row is 1 - ou_theta."""


class EvaluationConfig(BaseModel):
    """What is different in evaluation."""

    model_config = STRICT

    explore: Flag = False
    """Whether actions are sampled in evaluation; false takes the most likely one (classic RLlib: as in training)."""
    env_config: FreeMapping = {}
    """Entries that replace those of the training env_config."""
    seed: Seed | None = None
    """Seed of the evaluation environments; null: derived from the training seed."""
    horizon: Size | None = None
    """Longest evaluation episode in steps; null: as in training."""
    task: Task = None
    """Task of the evaluation environments; null: that of training at the time."""
    randomize: Flag = True
    """Whether evaluation draws what randomize says, as training does, from seeds of its own."""


class CurriculumConfig(BaseModel):
    """Tasks of rising difficulty, one after another."""

    model_config = STRICT

    stages: Stages = ()
    """Tasks in their order as [{task: 1, until: {episode_reward_mean: 0.8}}, {task: 2}]; []: no curriculum.

    The environments get a stage's task (by set_task) at their next reset. A stage ends as soon as any result in until
    reaches its limit; "<= 20" instead of 20 means at most that. Statistics over episodes are those of its own task."""
    min_episodes: Size = 20
    """Episodes that must have ended at a stage's task before a statistic over episodes may end the stage."""


class RandomizeConfig(BaseModel):
    """Values that are drawn anew for every episode, by each environment from a stream of its own."""

    model_config = STRICT

    options: OptionSamplers = {}
    """What the environment gets as reset(options=...), drawn, e.g. {wind: {uniform: [0, 10]}}.

    Samplers: uniform [low, high], loguniform [low, high], normal [mean, std], choice [a, b, ...]."""
    env_config: EnvConfigSamplers = {}
    """Entries of env_config, drawn, by the same samplers; the environment is made anew for every episode."""
    cases: Text | None = None
    """A CSV file of which every episode gets a row: its columns are env_config.NAME and options.NAME (of reset)."""


class AlgorithmConfig(BaseModel):
    """The keys that all algorithms have in common."""

    model_config = STRICT

    # What other code asks about an algorithm; a key of the user's is none of these.
    learner: ClassVar[str] = ""  # where its learner is, as module:Class
    acts_by_value: ClassVar[bool] = False  # it takes the best of discrete actions; else it samples by probability
    takes_memory: ClassVar[bool] = False  # its learner may be given sequences, for models with memory
    shares_batches: ClassVar[bool] = False  # several learners may learn as one: it has `update(batch, timesteps_total)`
    results: ClassVar[Mapping[str, str]] = {
        "grad_gnorm": "norm of the gradients before clipping",
        "refused_minibatches": "minibatches left out because their gradient was not finite",
        "cur_lr": "learning rate now",
    }
    batch_key: ClassVar[str] = "train_batch_size"  # the key that the length of an iteration follows from
    mutable: ClassVar[tuple[str, ...]] = ("lr", "gamma", "grad_clip")  # keys that may change while a run trains

    env: EnvSource = None
    """The environment: an id, package:id, a registered name, module:Class, file.py:Class; in Python also a callable."""
    env_config: FreeMapping = {}
    """What the environment gets as its configuration.

    worker_index, vector_index, env_index and num_workers are attributes of it, and so are scratch_dir, an empty folder
    of the environment's own, and port, a free one."""
    wrappers: Wrappers = ()
    """Wrappers around each environment, from inside to outside: [{FrameStackObservation: {stack_size: 4}}].

    Each is the name of one of Gymnasium's, module:Class or file.py:Class, alone or with its arguments as here."""
    max_env_failures: Count | None = 1000
    """How many failures of environments a run survives in all; one more ends it, saved, with the cause; null: any."""
    env_isolation: Literal["auto", "none", "process"] = "auto"
    """Where environments run: none: in the process of their worker; process: each in a process of its own.

    In its own process an environment may hang, crash or exit, and is replaced alone; steps are taken as environments
    are ready, on all cores, with the same result. auto: process where a timeout or memory limit is set, else none."""
    env_step_timeout_s: Positive | None = None
    """Seconds that one step of an environment may take, after which it is ended and started again; null: any time."""
    env_reset_timeout_s: Positive | None = None
    """Seconds that a reset, or making an environment, may take; null: any time."""
    env_memory_limit_mb: Size | None = None
    """Megabytes that an environment's process and all that it starts may take, at least 100; null: any memory."""
    env_restart_delay_s: NonNegative = 0
    """Seconds before a failed environment starts again, doubled with each further failure in a row, up to 64 times.

    Needs environments in processes of their own, where the others do not wait for it."""
    horizon: Size | None = None
    """Longest episode in steps, after which it is truncated; null: the environment's own limit."""
    env_task_fn: FunctionSource = None
    """A function (train_results, task_settable_env, env_ctx) of yours that gives the next task; null: none.

    Called in the driver before every iteration but the first, with an environment of its own (env_index -1) that is
    never stepped; every environment gets the task at its next reset. Also as module.function or file.py:function."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Tasks of rising difficulty without a function of your own."""
    randomize: RandomizeConfig = RandomizeConfig()
    """Values that are drawn anew for every episode."""
    callbacks: ClassSource = None
    """Your subclass of shoal.DefaultCallbacks, as a class, module.Class or file.py:Class; null: none."""

    num_workers: WorkerCount = 0
    """Processes that sample experience; 0: everything in this process, without Ray; auto: as many as there are cores.

    Classic RLlib: 2."""
    num_envs_per_worker: EnvCount = "auto"
    """Environments that each worker steps as one vector; auto: 8, or those of a native vector environment.

    Classic RLlib: 1; a vector needs one forward pass a step."""
    num_cpus_per_worker: NonNegative = 1
    """Cores that each worker takes; a fraction lets workers share a core."""
    num_learners: Size = 1
    """Processes that learn, each from the experience of the workers on its own node; 1: in the driver's process."""
    num_cpus_per_learner: NonNegative = 1
    """Cores that each learner takes, where there are several."""
    num_gpus: NonNegative = 0
    """GPUs for learning, over all learners; a fraction shares one; more than 0 needs PyTorch."""
    sample_async: Flag = False
    """Whether workers sample the next batch while the learner learns from this one, with weights one update old."""
    ignore_worker_failures: Flag = False
    """Whether training goes on with the remaining workers when one is lost and not recreated."""
    recreate_failed_workers: Flag = True
    """Whether a lost worker is replaced by a new one (classic RLlib: false)."""
    max_worker_restarts: Count = 1000
    """How many lost workers a run replaces in all; one more ends it, saved, with the cause."""

    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment that train_batch_size must be a multiple of; auto: any (classic RLlib: 200).

    A worker always gives its whole share of a batch at once, so this does not change what is learned."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Whether a batch may end inside an episode, or waits until every episode in it is complete."""
    train_batch_size: Size = 2048
    """Steps that one training iteration learns from, over all environments (classic RLlib's PPO: 4000)."""
    clip_rewards: RewardClipping = None
    """Rewards as the learner sees them: null as they are, true their sign, a number their largest magnitude."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """MeanStdFilter scales observations by their running mean and standard deviation."""
    normalize_actions: Flag = True
    """Whether bounded continuous actions are -1..1 to the policy and are scaled to the environment's bounds."""
    clip_actions: Flag = True
    """Whether continuous actions are clipped to the environment's bounds (classic RLlib: false when normalised)."""
    squash_actions: Flag = False
    """Whether bounded continuous actions pass a tanh, which ends at the bounds, where clipping cuts at them."""

    gamma: Fraction = 0.99
    """Discount factor."""
    lr: Positive = 1e-3
    """Learning rate (classic RLlib's PPO: 5e-5; 1e-3 suits Adam on small networks and large minibatches)."""
    lr_schedule: Schedule = None
    """Learning rate over timesteps_total, which replaces lr: [[timestep, value], ...] is linear between these points.

    Also {type: step, endpoints: [[timestep, value], ...]}, and {type: exponential, initial: 1e-3, final: 1e-5,
    timesteps: 100000}, or cosine."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimiser's own settings."""
    grad_clip: Positive | None = 0.5
    """Largest norm of a gradient; null: no limit (classic RLlib: null)."""
    model: ModelConfig = ModelConfig()
    """The network."""
    framework: Framework = "auto"
    """What computes the network: numpy or torch; auto: torch for images, memory, custom models, GPUs, else numpy.

    Classic RLlib: tf, which is not supported."""

    explore: Flag = True
    """Whether actions are sampled in training; false takes the most likely one."""
    exploration_config: ExplorationConfig = ExplorationConfig()
    """How the algorithm explores."""
    evaluation_interval: Size | None = None
    """Training iterations between evaluations; null: none."""
    evaluation_duration: Size = 10
    """Length of one evaluation, in evaluation_duration_unit; null: the default."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """Unit of evaluation_duration."""
    evaluation_num_workers: Count = 0
    """Processes for evaluation, of num_cpus_per_worker cores each; 0: in this process.

    They share evaluation_duration; each has num_envs_per_worker environments."""
    evaluation_parallel_to_training: Flag = False
    """Whether an evaluation runs while its iteration trains; it is then of the policy as it was before that."""
    evaluation_config: EvaluationConfig = EvaluationConfig()
    """What is different in evaluation."""
    record_env: RecordEnv = False
    """Whether the first episode of every evaluation becomes a video: true, in videos/ of the run, or a folder's name.

    Videos need PyAV: pip install 'shoal-rl[video]'."""
    render_env: Flag = False
    """Whether the first training environment shows itself on the screen, at the pace of eyes."""

    seed: Seed = 0
    """Seed of everything random; the same seed and environments give the same run; null: the default.

    Classic RLlib: unset, so that every run is another."""
    restore_episodes: Flag = True
    """Whether a resumed run replays its unfinished episodes to where they were, rather than starting new ones."""
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = "WARN"
    """Least important messages that are shown."""

    @property
    def num_envs(self) -> int:
        """Training environments in all."""
        return max(self.worker_count, 1) * self.envs_per_worker

    @property
    def isolates_envs(self) -> bool:
        """Whether environments run in processes of their own."""
        return self.env_isolation == "process" or (self.env_isolation == "auto" and bool(self._limits_on_envs()))

    @property
    def envs_per_worker(self) -> int:
        """Environments of each worker; `auto` is 8 until a native vector environment has told its own number."""
        return AUTO_ENVS if self.num_envs_per_worker == "auto" else self.num_envs_per_worker

    @property
    def worker_count(self) -> int:
        """Processes that sample; before `auto` is resolved, one stands for them all."""
        return 1 if self.num_workers == "auto" else self.num_workers

    @property
    def fragment_length(self) -> int:
        """Steps per environment and fragment, with auto resolved."""
        if self.rollout_fragment_length == "auto":
            return math.ceil(self.train_batch_size / self.num_envs)
        return self.rollout_fragment_length

    @property
    def steps_per_iteration(self) -> int:
        """Steps per environment in one iteration: as many fragments as make up `train_batch_size`."""
        fragments = math.ceil(self.train_batch_size / (self.fragment_length * self.num_envs))
        return self.fragment_length * fragments

    def with_envs_per_worker(self: Config, count: int) -> Config:
        """The configuration with `num_envs_per_worker: auto` resolved, and checked again if another was assumed."""
        if count == self.envs_per_worker:
            return unchecked(self, num_envs_per_worker=count)
        return changed(self, num_envs_per_worker=count)

    def with_worker_count(self: Config, count: int) -> Config:
        """The configuration with `num_workers: auto` resolved, and checked again.

        Not for what only written numbers are refused for: nobody can make them fit a count that they do not know.
        """
        resolved = unchecked(self, num_workers=count)
        if problems := resolved.conflicts():
            raise ConfigError(problems)
        return resolved

    def with_whole_fragments(self: Config) -> Config:
        """The configuration, with everything resolved, that says what an iteration really samples."""
        return self

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found: list[str] = []
        if self.framework == "numpy":
            found += [
                f"config.framework: numpy cannot do {what}; say torch, or leave framework out"
                for what, asked in (
                    ("num_gpus above 0", self.num_gpus > 0),
                    ("a custom_model", self.model.custom_model is not None),
                    ("conv_filters", self.model.conv_filters is not None),
                    (self.model.memory, self.model.memory is not None),
                )
                if asked
            ]
        found += self.model.conflicts()
        if self.lr_schedule is not None:
            found += self._scheduled("lr", self.lr_schedule)
        found += self._unread("squash_actions", self.model.custom_action_dist is not None, "custom_action_dist samples")
        if self.squash_actions and not self.normalize_actions:
            found.append("config.squash_actions: a tanh gives -1..1; say normalize_actions: true, or leave it out")
        found += self._ability_conflicts()
        found += self._layout_conflicts()
        found += self._curriculum_conflicts()
        found += self._isolation_conflicts()
        if self.evaluation_parallel_to_training:
            found += [
                f"config.evaluation_parallel_to_training: nothing is evaluated meanwhile; set {key} too"
                for key in self._missing_for_parallel_evaluation()
            ]
        return found

    def written_conflicts(self) -> list[str]:
        """Numbers that do not go together as they are written; harmless where one of them follows from `auto`."""
        return []

    def _missing_for_parallel_evaluation(self) -> list[str]:
        """The keys without which nothing is evaluated beside the training; none if evaluation is off explicitly."""
        if self.evaluation_interval is None and "evaluation_interval" in self.model_fields_set:
            return []
        return [key for key in ("evaluation_interval", "evaluation_num_workers") if not getattr(self, key)]

    def _ability_conflicts(self) -> list[str]:
        """What is asked of an algorithm that cannot do it."""
        found: list[str] = []
        if self.num_learners > 1 and not self.shares_batches:
            found.append(f"config.num_learners: {name_of(type(self))} learns in one process; leave it at 1")
        if self.model.memory is not None and not self.takes_memory:
            found.append(
                f"config.model.{self.model.memory}: {name_of(type(self))} learns from single transitions and has no "
                "memory; leave it out, or say run: PPO"
            )
        return found

    def _layout_conflicts(self) -> list[str]:
        """What is asked of workers and learners that are not there."""
        found: list[str] = []
        if self.sample_async and self.num_workers == 0 and "num_workers" not in self.model_fields_set:
            found.append("config.sample_async: there is nobody to sample meanwhile; set num_workers above 0")
        if self.num_learners > 1 and self.num_workers != "auto" and self.num_workers < self.num_learners:
            found.append(
                f"config.num_learners: each of {self.num_learners} learners needs a worker to learn from "
                f"(num_workers is {self.num_workers}); use fewer learners, or more workers"
            )
        if self.num_gpus > self.num_learners:
            found.append(
                f"config.num_gpus: one learner uses one GPU at most; for {self.num_gpus:g} GPUs "
                f"say num_learners: {math.ceil(self.num_gpus)}"
            )
        return found

    def _curriculum_conflicts(self) -> list[str]:
        """What a curriculum waits for that never comes."""
        found: list[str] = []
        given = self.curriculum
        if given.stages and self.env_task_fn is not None:
            found.append("config.env_task_fn: curriculum.stages choose the task already; leave one of them out")
        if self.evaluation_interval is None:
            found += [
                f"config.curriculum.stages[{k}].until.{name}: there is no evaluation; set evaluation_interval too"
                for k, stage in enumerate(given.stages)
                for name in stage["until"]
                if name.startswith("evaluation/")
            ]
        return found

    def _limits_on_envs(self) -> list[str]:
        """The keys that limit an environment, of those that are set."""
        keys = ("env_step_timeout_s", "env_reset_timeout_s", "env_memory_limit_mb")
        return [key for key in keys if getattr(self, key) is not None]

    def _isolation_conflicts(self) -> list[str]:
        """What is asked of environments that run in the process of their worker, and cannot be had there."""
        found: list[str] = []
        if self.env_isolation == "none":
            found += [
                f"config.{key}: in the worker's own process nobody can end an environment; "
                "say env_isolation: process, or leave env_isolation out"
                for key in self._limits_on_envs()
            ]
        if self.env_memory_limit_mb is not None and self.env_memory_limit_mb < LEAST_ENV_MEMORY_MB:
            found.append(
                f"config.env_memory_limit_mb: Python alone takes about a third of {LEAST_ENV_MEMORY_MB} MB; "
                f"say at least {LEAST_ENV_MEMORY_MB} (got {self.env_memory_limit_mb})"
            )
        if self.env_restart_delay_s and not self.isolates_envs:
            found.append(
                "config.env_restart_delay_s: in one process all environments would wait for one; "
                "say env_isolation: process, or leave it out"
            )
        return found

    def _unread(self, key: str, unread: bool, why: str) -> list[str]:
        """A key that was set although nothing reads it.

        This is for keys that ask for an effect which does not come. What only guards, or tells the size of what is not
        there, asks for nothing; nor does a detail of what the same configuration turns off explicitly.
        """
        if not unread or getattr(self, key) == type(self).model_fields[key].default:
            return []
        return [f"config.{key}: nothing reads it, for {why}; leave it out"]

    def _scheduled(self, key: str, schedule: Any) -> list[str]:
        """A value beside a schedule must be the default or the schedule's start, else one of them is ignored."""
        value, start = getattr(self, key), levels(schedule)[0]
        if value in (start, type(self).model_fields[key].default):
            return []
        return [f"config.{key}: {key}_schedule replaces it and starts at {start:g}; leave {key} out (got {value:g})"]

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls: type[Config], data: Any, handler: ModelWrapValidatorHandler[Config]) -> Config:
        """Report every problem at once, in our words."""
        if isinstance(data, Mapping) and not all(isinstance(key, str) for key in data):
            raise ConfigError([f"config: keys must be text (got {key!r})" for key in data if not isinstance(key, str)])
        try:
            config = handler(_without_null(data))
        except ValidationError as error:
            raise ConfigError(sentences(error, ["config"], [*key_paths(cls), *EXPERIMENT_KEYS])) from None
        conflicts = config.conflicts() + config.written_conflicts()
        if conflicts:
            raise ConfigError(conflicts)
        return config


class OnPolicyConfig(AlgorithmConfig):
    """The keys of algorithms that learn from each batch once, by advantages."""

    takes_memory = True
    shares_batches = True
    results = {
        "policy_loss": "policy's part of the loss",
        "vf_loss": "value function's part of the loss",
        "vf_explained_var": "share of the returns' variance that the values explain",
        "kl": "KL divergence of the new policy from the one that sampled (TRPO: from the one before)",
        "entropy": "entropy of the policy",
        **AlgorithmConfig.results,
        "cur_stddev": "standard deviation of continuous actions now (GaussianNoise)",
    }
    mutable = (*AlgorithmConfig.mutable, "lambda_", "sgd_minibatch_size")

    use_critic: Flag = True
    """Whether a value function is the baseline of the advantages."""
    use_gae: Flag = True
    """Whether advantages are generalised advantage estimates; false: whole returns less the baseline."""
    lambda_: Fraction = 0.95
    """Decay of generalised advantage estimation (classic RLlib: 1.0; 0.95 has less variance)."""
    sgd_minibatch_size: Size = 256
    """Steps per gradient; if left out, at most train_batch_size (classic RLlib: 128).

    A model with memory takes whole sequences, as many as come closest to it."""
    exploration_config: NoiseConfig = NoiseConfig()
    """How the algorithm explores."""

    @model_validator(mode="before")
    @classmethod
    def _small_batch(cls, data: Any) -> Any:
        """A batch smaller than the default minibatch is one minibatch."""
        if isinstance(data, Mapping) and "sgd_minibatch_size" not in data:
            size = data.get("train_batch_size")
            if isinstance(size, int | float) and 1 <= size < cls.model_fields["sgd_minibatch_size"].default:
                return {**data, "sgd_minibatch_size": size}
        return data

    def conflicts(self) -> list[str]:
        """Keys that are right by themselves but not together."""
        found = super().conflicts()
        if self.sgd_minibatch_size > self.train_batch_size:
            found.append(
                f"config.sgd_minibatch_size: {self.sgd_minibatch_size} is more than train_batch_size "
                f"{self.train_batch_size}; make it at most that, or the batch larger"
            )
        if self.use_gae and not self.use_critic:
            found.append("config.use_gae: needs the value function; say use_critic: true, or use_gae: false")
        return found + self._noise_conflicts()

    def with_whole_fragments(self: OnPolicy) -> OnPolicy:
        """See `AlgorithmConfig`: a batch that whole fragments do not make up is as large as those that are sampled."""
        if not self.written_conflicts():
            return self
        return changed(self, train_batch_size=self.steps_per_iteration * self.num_envs)

    def written_conflicts(self) -> list[str]:
        """A batch that fragments do not make up exactly: an iteration samples whole ones, so it would be larger."""
        if self.batch_mode != "truncate_episodes" or "auto" in (self.rollout_fragment_length, self.num_workers):
            return []
        rows = self.fragment_length * self.num_envs
        if self.train_batch_size % rows == 0:
            return []
        return [
            f"config.rollout_fragment_length: {self.rollout_fragment_length} steps of {self.num_envs} environments "
            f"make {rows}, which does not divide train_batch_size {self.train_batch_size}; "
            f"say auto, or train_batch_size: {math.ceil(self.train_batch_size / rows) * rows}"
        ]

    def _noise_conflicts(self) -> list[str]:
        """What is said of an exploration that is not the one in use."""
        noise = self.exploration_config
        path, owners = "config.exploration_config", {"ou_theta": "OrnsteinUhlenbeckNoise"}
        owners |= dict.fromkeys(("stddev", "stddev_schedule"), "GaussianNoise")
        found = [
            f"{path}.{key}: nothing reads it; say type: {owner}, or leave it out"
            for key, owner in owners.items()
            if noise.type != owner and getattr(noise, key) != NoiseConfig.model_fields[key].default
        ]
        if noise.type != "StochasticSampling" and self.model.custom_action_dist is not None:
            found.append(f"{path}.type: nothing reads it, for custom_action_dist samples; leave it out")
        if noise.type != "GaussianNoise":
            return found
        if noise.stddev_schedule is not None:
            start = levels(noise.stddev_schedule)
            if noise.stddev not in (start[0], NoiseConfig.model_fields["stddev"].default):
                found.append(f"{path}.stddev: stddev_schedule replaces it and starts at {start[0]:g}; leave it out")
            if min(start) <= 0:
                found.append(f"{path}.stddev_schedule: a standard deviation must be above 0 (got {min(start):g})")
        if self.model.custom_model is not None or not self.model.free_log_std:
            found.append(
                f"{path}.type: GaussianNoise sets the spread that this model computes itself; "
                "say free_log_std: true without a custom_model, or StochasticSampling"
            )
        return found


def _without_null(data: Any) -> Any:
    """What was said, without the keys at which null says nothing."""
    if not isinstance(data, Mapping):
        return data
    return {key: value for key, value in data.items() if value is not None or key not in NULL_IS_DEFAULT}


def key_paths(config: type[BaseModel], prefix: str = "config") -> list[str]:
    """The dotted paths of all keys of a configuration, outer ones before inner ones."""
    nested: list[str] = []
    own: list[str] = []
    for name, field in config.model_fields.items():
        path = f"{prefix}.{name}"
        own.append(path)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            nested += key_paths(field.annotation, path)
    return own + nested
