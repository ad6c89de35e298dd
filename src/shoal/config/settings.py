"""Every key that all algorithms have in common, with its type, default and meaning.

The docstring under a field is its only description: `shoal config show`, the JSON Schema and the reference read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from shoal.config.algorithm import Algorithm
from shoal.config.algorithms import algorithms_that, name_of
from shoal.config.changing import changed, unchecked
from shoal.config.durations import seconds
from shoal.config.env_sources import EnvSource
from shoal.config.episode_variation import ClassSource, FunctionSource
from shoal.config.fields import (
    Clip,
    Count,
    Cpus,
    Delay,
    EnvCount,
    Evaluated,
    Flag,
    Fraction,
    FragmentLength,
    Framework,
    FreeMapping,
    Learners,
    LearningRate,
    NonNegative,
    PositiveFraction,
    Processes,
    Rate,
    RecordEnv,
    RestoreEpisodes,
    RewardClipping,
    Seconds,
    Seed,
    Size,
    Text,
    WorkerCount,
)
from shoal.config.model import ModelConfig
from shoal.config.multiagent import MultiAgentConfig
from shoal.config.problems import sentences
from shoal.config.schedules import Schedule, levels
from shoal.config.sections import (
    CurriculumConfig,
    EvaluationConfig,
    ExplorationConfig,
    OptimizerConfig,
    RandomizeConfig,
)
from shoal.config.vocabulary import EXPERIMENT_KEYS
from shoal.config.wrappers import Wrappers
from shoal.errors import ConfigError

Config = TypeVar("Config", bound="AlgorithmConfig")

AUTO_ENVS = 8
POLICY_SHIFT = 1_000_033  # between the seeds of policies: no two may draw the same numbers
AUTO_MPI_ENVS = 1
LEAST_ENV_MEMORY_MB = 100

NULL_IS_DEFAULT = (
    "env_config",
    "curriculum",
    "randomize",
    "multiagent",
    "optimizer",
    "model",
    "exploration_config",
    "evaluation_config",
    "replay_buffer_config",
    "q_model_config",
    "evaluation_duration",
    "training_intensity",
    "seed",
)
"""Keys at which null says nothing: sections that are left empty, and numbers that classic RLlib leaves open so."""


class AlgorithmConfig(Algorithm):
    """The keys that all algorithms have in common."""

    env: EnvSource = None
    """The environment: an id, package:id, a registered name, module:Class, file.py:Class; in Python also a callable.

    A program is a mapping: {command: [./solver, --case, a], timeout_s: 60}; docs/lines.md has its keys."""
    env_ranks: Count = 0
    """Number of MPI ranks of each environment, each on a core of its own; 0: it starts none.

    A program (env.command) is started as so many ranks; a class starts its solver with shoal.envs.run_mpi. Environments
    then run in processes of their own, and num_envs_per_worker times env_ranks cores are reserved for each worker."""
    max_concurrent_envs: Size | None = None
    """Number of environments that a run or a sweep may have at once, evaluation included, for licences; null: any.

    More are refused before the start, num_workers: auto stays below it, and a sweep runs fewer trials at a time."""
    env_resets_per_s: Rate | None = None
    """Number of environments that may be made or reset per second, over all workers of a run; null: any number.

    Each worker has an equal share of it, and so has evaluation. Trials of a sweep have it each."""
    env_config: FreeMapping = {}
    """Configuration that the environment gets.

    worker_index, vector_index, env_index and num_workers are attributes of it, and so are scratch_dir, an empty folder
    of the environment's own, port, a free one, and slots, the places of its MPI ranks."""
    wrappers: Wrappers = ()
    """Wrappers around each environment, from inside to outside: [{FrameStackObservation: {stack_size: 4}}].

    Each is the name of one of Gymnasium's, module:Class or file.py:Class, alone or with its arguments as here."""
    preprocessor_pref: Literal["deepmind"] | None = "deepmind"
    """How frames of Atari games are prepared; deepmind: 84 x 84 pixels in grey, the last 4 together; null: not at all.

    An action is repeated for as many frames as the id says (4 for NoFrameskip ids). env_config takes
    terminal_on_life_loss (false) and noop_max (30) as well. With wrappers, or an obs_type in env_config, nothing is
    prepared."""
    max_env_failures: Count | None = 1000
    """Number of environment failures that a run survives; one more ends it, saved, with the cause; null: any number."""
    env_isolation: Literal["auto", "none", "process"] = "auto"
    """Where environments run: none: in the process of their worker; process: each in a process of its own.

    In its own process an environment may hang, crash or exit, and is replaced alone; steps are taken as environments
    are ready, on all cores, with the same result. auto: process where env_ranks, a timeout or a limit is set."""
    env_step_timeout_s: Seconds | None = None
    """Longest time of one step in seconds, after which the environment is ended and started again; null: no limit."""
    env_reset_timeout_s: Seconds | None = None
    """Longest time of a reset, or of making an environment, in seconds; null: no limit."""
    env_memory_limit_mb: Size | None = None
    """Maximum memory of an environment's process and all that it starts, in megabytes, at least 100; null: no limit."""
    env_scratch_limit_mb: Size | None = None
    """Maximum size of an environment's scratch_dir in megabytes, looked at every two seconds; null: no limit."""
    env_restart_delay_s: Delay = 0
    """Seconds before a failed environment starts again, doubled with each further failure in a row, up to 64 times.

    Needs environments in processes of their own, where the others do not wait for it."""
    horizon: Size | None = None
    """Longest episode in steps, after which it is truncated; null: the environment's own limit."""
    env_task_fn: FunctionSource = None
    """Your function (train_results, task_settable_env, env_ctx), which returns the next task; null: none.

    Called in the driver before every iteration but the first, with an environment of its own (env_index -1) that is
    never stepped; every environment gets the task at its next reset. Also as module.function or file.py:function."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Tasks of rising difficulty without a function of your own."""
    randomize: RandomizeConfig = RandomizeConfig()
    """Values that are drawn for every episode."""
    multiagent: MultiAgentConfig = MultiAgentConfig()
    """Policies of the agents, where the environment has several."""
    callbacks: ClassSource = None
    """Your subclass of shoal.DefaultCallbacks, as a class, module.Class or file.py:Class; null: none."""

    num_workers: WorkerCount = 0
    """Number of sampling processes; 0: everything runs in this process, without Ray; auto: what is fastest.

    auto measures for some seconds at the start, as shoal profile does, and takes no more workers than fit the cores. A
    resumed run keeps its number. Classic RLlib: 2."""
    num_envs_per_worker: EnvCount = "auto"
    """Number of environments that each worker steps as one vector; auto: 8, or those of a native vector environment.

    With env_ranks, auto is 1. Classic RLlib: 1; a vector needs one forward pass per step."""
    vectorization: Literal["auto", "python", "native", "envpool"] = "auto"
    """How a worker's environments step: python: one after another; native: as one, by the vector class of the id.

    envpool: as one pool in C++ of EnvPool's environment with that id. auto: python, or an environment that is a batch
    as it is; the start says so where native is there for 32 environments or more. Batches resume with new episodes."""
    num_cpus_per_worker: Cpus = 1
    """Number of cores for each worker; a fraction lets workers share a core.

    With env_ranks it has at least those of its environments' ranks, which it leaves to them while they compute."""
    num_learners: Learners = 1
    """Number of learning processes, each with the experience of the workers on its node; 1: in the driver's process."""
    num_cpus_per_learner: Cpus = 1
    """Number of cores for each learner, if there are several."""
    num_gpus: NonNegative = 0
    """Number of GPUs for learning, over all learners; a fraction shares one; more than 0 needs PyTorch."""
    sample_async: Flag = False
    """Whether workers sample the next batch while the learner learns from this one, with weights one update old.

    DQN and SAC take the fragment of each worker when it is finished, and learn meanwhile up to training_intensity."""
    ignore_worker_failures: Flag = False
    """Whether training continues with the remaining workers when one is lost and not recreated."""
    recreate_failed_workers: Flag = True
    """Whether a lost worker is replaced by a new one (classic RLlib: false)."""
    max_worker_restarts: Count = 1000
    """Number of lost workers that a run replaces; one more ends it, saved, with the cause."""

    rollout_fragment_length: FragmentLength = "auto"
    """Steps of each environment that train_batch_size must be a multiple of; auto: any (classic RLlib: 200).

    A worker always gives its whole share of a batch at once, so this does not change what is learned."""
    straggler_quorum: PositiveFraction | None = None
    """Share of a worker's steps, e.g. 0.9, with which it no longer waits for its late environments; null: it waits.

    These hand over the steps that they have, once some other environment has taken all of its own. Needs environments
    in processes of their own. What is sampled depends on time then: such a run cannot be repeated or resumed exactly.
    """
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Whether a batch may end inside an episode, or waits until every episode in it is complete."""
    train_batch_size: Size = 2048
    """Number of steps that one training iteration learns from, over all environments (classic RLlib's PPO: 4000)."""
    output: Text | None = None
    """Where sampled steps are kept as episodes: a folder for Parquet files, or minari:DATASET; null: nowhere.

    docs/offline.md has their columns. BC and MARWIL learn from them (input)."""
    clip_rewards: RewardClipping = None
    """How rewards are clipped for learning: null: not at all, true: to their sign, a number: to this magnitude."""
    normalize_rewards: Flag = True
    """Whether rewards are divided by the running standard deviation of the discounted return for learning.

    So their unit does not matter. It follows clip_rewards; evaluation and reported returns have the environment's own
    rewards. Classic RLlib: no such key."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """MeanStdFilter scales observations by their running mean and standard deviation."""
    normalize_actions: Flag = True
    """Whether bounded continuous actions are -1..1 to the policy and are scaled to the environment's bounds."""
    clip_actions: Flag = True
    """Whether continuous actions are clipped to the environment's bounds (classic RLlib: false when normalised)."""
    squash_actions: Flag = False
    """Whether bounded continuous actions pass a tanh, which stays within the bounds, instead of being clipped."""

    gamma: Fraction = 0.99
    """Discount factor."""
    lr: LearningRate = 1e-3
    """Learning rate (classic RLlib: 5e-5; 1e-3 suits Adam on small networks and large minibatches)."""
    lr_schedule: Schedule = None
    """Learning rate over timesteps_total, which replaces lr: [[timestep, value], ...] is linear between these points.

    Also {type: step, endpoints: [[timestep, value], ...]}, and {type: exponential, initial: 1e-3, final: 1e-5,
    timesteps: 100000}, or cosine."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimiser's own settings."""
    grad_clip: Clip | None = 0.5
    """Largest norm of a gradient; null: no limit (classic RLlib: null).

    The policy's part and the value function's are clipped separately; shared layers count with the policy's."""
    model: ModelConfig = ModelConfig()
    """The network."""
    framework: Framework = "auto"
    """Library of the network: numpy or torch; auto: torch for images, memory, custom models, GPUs, else numpy.

    Classic RLlib: tf, which is not supported."""
    kernel: Literal["numpy", "compiled", "auto"] = "numpy"
    """How NumPy networks compute: numpy; compiled: C that a compiler makes for this CPU; auto: that where it can.

    The compiled kernel is checked against NumPy at the start. It learns about twice as fast, and its weights differ by
    rounding; docs/kernel.md has its limits. Classic RLlib: no such key."""

    explore: Flag = True
    """Whether actions are sampled in training; false takes the most likely one."""
    exploration_config: ExplorationConfig = ExplorationConfig()
    """How the algorithm explores."""
    evaluation_interval: Size | None = None
    """Number of training iterations between evaluations; null: no evaluation."""
    evaluation_duration: Evaluated = 10
    """Length of one evaluation, in evaluation_duration_unit; null: the default."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """Unit of evaluation_duration."""
    evaluation_num_workers: Processes = 0
    """Number of processes for evaluation, of num_cpus_per_worker cores each; 0: evaluate in this process.

    They share evaluation_duration; each has num_envs_per_worker environments."""
    evaluation_parallel_to_training: Flag = False
    """Whether an evaluation runs while its iteration trains; it then measures the policy from before that iteration."""
    evaluation_config: EvaluationConfig = EvaluationConfig()
    """Settings that differ in evaluation."""
    record_env: RecordEnv = False
    """Whether the first episode of every evaluation becomes a video: true, in videos/ of the run, or a folder's name.

    Videos need PyAV: pip install 'shoal-rl[video]'."""
    render_env: Flag = False
    """Whether the first training environment is shown on the screen, at a speed that people can follow."""

    seed: Seed = 0
    """Seed of all random numbers; the same seed and environments give the same run; null: the default.

    Classic RLlib: unset, so every run differs."""
    restore_episodes: RestoreEpisodes = True
    """Whether a resumed run continues its unfinished episodes, by their state or a replay, or starts new ones.

    A length of time such as 60s limits the replays of each worker, also of one that replaces another."""
    log_level: Literal["DEBUG", "INFO", "WARN", "ERROR"] = "WARN"
    """Lowest level of messages that are shown."""

    @property
    def replay_limit_s(self) -> float | None:
        """How long a worker may replay unfinished episodes; None: as long as it takes."""
        return seconds(self.restore_episodes) if isinstance(self.restore_episodes, str) else None

    @property
    def num_envs(self) -> int:
        """Training environments in all."""
        return max(self.worker_count, 1) * self.envs_per_worker

    @property
    def rows_per_worker(self) -> int:
        """Rows of each worker's arrays: one for each environment, or for each agent of each environment."""
        return self.envs_per_worker * max(self.multiagent.num_agents, 1)

    @property
    def num_rows(self) -> int:
        """Rows of a batch: one for each training environment, or for each agent of each."""
        return max(self.worker_count, 1) * self.rows_per_worker

    @property
    def num_evaluation_envs(self) -> int:
        """Environments of an evaluation in all."""
        workers = max(self.evaluation_num_workers, 1)
        if self.evaluation_duration_unit == "timesteps":
            return min(workers, self.evaluation_duration)
        return min(workers * self.envs_per_worker, self.evaluation_duration)

    @property
    def num_envs_beside_training(self) -> int:
        """Environments that exist at the same time as those of training, at most."""
        evaluation = 0 if self.evaluation_interval is None else self.num_evaluation_envs
        return evaluation + (self.env_task_fn is not None)

    @property
    def starting_processes(self) -> int:
        """Processes that share `env_resets_per_s`."""
        evaluation = 0 if self.evaluation_interval is None else max(self.evaluation_num_workers, 1)
        return max(self.worker_count, 1) + evaluation

    @property
    def isolates_envs(self) -> bool:
        """Whether environments run in processes of their own."""
        return self.env_isolation == "process" or (self.env_isolation == "auto" and bool(self._needs_processes()))

    @property
    def envs_per_worker(self) -> int:
        """Environments of each worker; `auto` is 8 (1 with ranks) until a native vector environment tells its own."""
        if self.num_envs_per_worker == "auto":
            return AUTO_MPI_ENVS if self.env_ranks else AUTO_ENVS
        return self.num_envs_per_worker

    @property
    def worker_count(self) -> int:
        """Processes that sample; before `auto` is resolved, one stands for them all."""
        return 1 if self.num_workers == "auto" else self.num_workers

    @property
    def fragment_length(self) -> int:
        """Steps per environment and fragment, with auto resolved."""
        if self.rollout_fragment_length == "auto":
            return math.ceil(self.train_batch_size / self.num_rows)
        return self.rollout_fragment_length

    @property
    def steps_per_iteration(self) -> int:
        """Steps per environment in one iteration: as many fragments as make up `train_batch_size`."""
        fragments = math.ceil(self.train_batch_size / (self.fragment_length * self.num_rows))
        return self.fragment_length * fragments

    def with_envs_per_worker(self: Config, count: int) -> Config:
        """The configuration with `num_envs_per_worker: auto` resolved, and checked again if another was assumed."""
        if count == self.envs_per_worker:
            return unchecked(self, num_envs_per_worker=count)
        return changed(self, num_envs_per_worker=count)

    def with_agents(self: Config, agents: Sequence[str]) -> Config:
        """The configuration for environments of these agents, checked again; without any: of one."""
        if not agents:
            return self
        given = self.multiagent
        mapping = {str(agent): given.policy_of(agent) for agent in agents} if given.policies else {}
        return changed(self, multiagent=changed(given, num_agents=len(agents), policy_mapping=mapping))

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
                f"config.framework: numpy cannot do {what}; use torch, or leave framework out"
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
            found.append("config.squash_actions: a tanh gives -1..1; set normalize_actions: true, or leave it out")
        found += self._ability_conflicts()
        found += self._layout_conflicts()
        found += self._curriculum_conflicts()
        found += self._isolation_conflicts()
        found += self._vector_conflicts()
        found += self.multiagent.conflicts()
        found += self._policy_conflicts()
        found += self._output_conflicts()
        found += self.licence_conflicts()
        if self.evaluation_parallel_to_training:
            found += [
                f"config.evaluation_parallel_to_training: nothing is evaluated meanwhile; set {key} too"
                for key in self._missing_for_parallel_evaluation()
            ]
        return found

    def timing_notes(self) -> list[str]:
        """What is not promised of a run because it depends on time, in sentences."""
        if not self.sample_async or not self.worker_count:
            return []
        return [
            "sample_async: what workers have sampled ahead is not saved, so a resumed run does not repeat it exactly"
        ]

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
        name = name_of(type(self))
        if self.num_learners > 1 and not self.shares_batches:
            where, instead = "one process", f"or {self._run_that('shares_batches')}"
            if self.learns_offline:
                where, instead = "the num_workers processes of Ray Train", "and set num_workers"
            found.append(f"config.num_learners: {name} learns in {where}; leave it at 1, {instead}")
        if self.model.memory is not None and not self.takes_memory:
            instead = f"leave it out, or {self._run_that('takes_memory')}"
            if self.learns_offline:
                instead = "so do all that learn from recorded steps; leave it out"
            found.append(f"config.model.{self.model.memory}: {name} learns policies without memory; {instead}")
        return found

    @staticmethod
    def _run_that(ability: str) -> str:
        """What to type for an algorithm that has an ability."""
        return f"set run: {algorithms_that(ability)}"

    def _layout_conflicts(self) -> list[str]:
        """What is asked of workers and learners that are not there."""
        found: list[str] = []
        said = "sample_async" in self.model_fields_set and "num_workers" not in self.model_fields_set
        if self.sample_async and self.num_workers == 0 and said:
            found.append("config.sample_async: there are no workers to sample meanwhile; set num_workers above 0")
        shared = self.num_learners > 1 and self.shares_batches
        if shared and self.num_workers != "auto" and self.num_workers < self.num_learners:
            found.append(
                f"config.num_learners: each of {self.num_learners} learners needs a worker to learn from "
                f"(num_workers is {self.num_workers}); use fewer learners, or more workers"
            )
        if self.num_gpus > self.num_learners:
            found.append(
                f"config.num_gpus: one learner uses one GPU at most; for {self.num_gpus:g} GPUs "
                f"set num_learners: {math.ceil(self.num_gpus)}"
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

    def _policy_conflicts(self) -> list[str]:
        """What is wrong with the settings of single policies."""
        found: list[str] = []
        may_differ = (*self.mutable, "model")
        for name, settings in self.multiagent.policies.items():
            path = f"config.multiagent.policies.{name}"
            found += [
                f"{path}.{key}: all policies have the same {key}; a policy may have its own {', '.join(may_differ)}"
                for key in settings
                if key not in may_differ
            ]
            try:
                changed(self, **{**settings, "multiagent": MultiAgentConfig()})
            except ConfigError as error:
                found += [problem.replace("config.", f"{path}.", 1) for problem in error.problems]
        if len(self.multiagent.policies) > 1 and self.num_learners > 1:
            found.append("config.num_learners: several policies are learned in one process; leave it at 1")
        return found

    def for_policy(self: Config, name: str) -> Config:
        """The configuration of one of several policies: with its own settings, and its own seed."""
        given = self.multiagent
        if not given.policies:
            return self
        own = changed(self, **{**given.policies[name], "multiagent": MultiAgentConfig()})
        seed = self.seed + POLICY_SHIFT * given.names.index(name)
        return unchecked(own, multiagent=given, seed=seed)

    def _needs_processes(self) -> list[str]:
        """The keys for which an environment needs a process of its own, of those that are set."""
        keys = ("env_step_timeout_s", "env_reset_timeout_s", "env_memory_limit_mb", "env_scratch_limit_mb")
        ranks = ["env_ranks"] if self.env_ranks else []
        return [*(key for key in keys if getattr(self, key) is not None), *ranks]

    def _isolation_conflicts(self) -> list[str]:
        """What is asked of environments that run in the process of their worker, and cannot be had there."""
        found: list[str] = []
        if self.env_isolation == "none":
            found += [
                f"config.{key}: in the worker's own process nobody can end an environment; "
                "set env_isolation: process, or leave env_isolation out"
                for key in self._needs_processes()
            ]
        if self.env_memory_limit_mb is not None and self.env_memory_limit_mb < LEAST_ENV_MEMORY_MB:
            found.append(
                f"config.env_memory_limit_mb: Python alone takes about a third of {LEAST_ENV_MEMORY_MB} MB; "
                f"set at least {LEAST_ENV_MEMORY_MB} (got {self.env_memory_limit_mb})"
            )
        if self.env_restart_delay_s and not self.isolates_envs:
            found.append(
                "config.env_restart_delay_s: in one process all environments would wait for one; "
                "set env_isolation: process, or leave it out"
            )
        if self.straggler_quorum is not None and not self.isolates_envs:
            found.append(
                "config.straggler_quorum: in one process environments step together, and none is late; "
                "set env_isolation: process, or leave it out"
            )
        if self.straggler_quorum is not None and self.batch_mode == "complete_episodes":
            found.append(
                "config.straggler_quorum: batch_mode: complete_episodes waits for every episode; leave one of them out"
            )
        if self.straggler_quorum is not None and self.envs_per_worker == 1:
            found.append(
                "config.straggler_quorum: a worker waits for its only environment; set num_envs_per_worker: 2 or more, "
                "or leave it out"
            )
        return found

    def _vector_conflicts(self) -> list[str]:
        """What cannot be done to single environments of a batch."""
        if self.vectorization not in ("native", "envpool"):
            return []
        asked = {
            "wrappers": bool(self.wrappers),
            "horizon": self.horizon is not None,
            "env_resets_per_s": self.env_resets_per_s is not None,
            "batch_mode": self.batch_mode == "complete_episodes",
            "randomize": self.randomize != RandomizeConfig(),
            "env_isolation": self.isolates_envs,
            "env_task_fn": self.env_task_fn is not None,
            "curriculum": bool(self.curriculum.stages),
        }
        return [
            f"config.vectorization: {self.vectorization} steps environments as one, and {key} is for single ones; "
            "set python, or leave one of them out"
            for key, is_set in asked.items()
            if is_set
        ]

    def _output_conflicts(self) -> list[str]:
        """What keeps steps from being written down as whole episodes."""
        if self.output is None:
            return []
        found: list[str] = []
        if self.num_learners > 1:
            found.append(
                "config.output: with several learners no process sees all steps; set num_learners: 1, or leave it out"
            )
        if self.straggler_quorum is not None:
            found.append("config.output: straggler_quorum leaves steps to the next batch; leave one of them out")
        if self.output.startswith("minari:") and not self.output.removeprefix("minari:"):
            found.append("config.output: which dataset? Write minari:NAME, e.g. minari:cartpole/expert-v0")
        return found

    def licence_conflicts(self) -> list[str]:
        """More environments than may exist at once."""
        most, beside = self.max_concurrent_envs, self.num_envs_beside_training
        if most is None or self.num_envs + beside <= most:
            return []
        workers = f"{self.worker_count} workers of " if self.worker_count > 1 else ""
        told = [f"{workers}{self.envs_per_worker} environments"]
        if self.evaluation_interval is not None:
            told.append(f"{self.num_evaluation_envs} of evaluation")
        if self.env_task_fn is not None:
            told.append("1 of env_task_fn")
        return [
            f"config.max_concurrent_envs: {' and '.join(told)} are {self.num_envs + beside}, and {most} may exist at "
            "once; lower num_envs_per_worker, num_workers or evaluation_duration"
        ]

    def _unread(self, key: str, unread: bool, why: str) -> list[str]:
        """A key that was set although nothing reads it.

        This is for keys that ask for an effect which does not come. What only guards, or tells the size of what is not
        there, asks for nothing; nor does a detail of what the same configuration turns off explicitly.
        """
        if not unread or getattr(self, key) == type(self).model_fields[key].default:
            return []
        return [f"config.{key}: it has no effect, because {why}; leave it out"]

    def _scheduled(self, key: str, schedule: Any) -> list[str]:
        """A schedule keeps within its key's bound, and a value beside it is the default or the schedule's start."""
        value, start, field = getattr(self, key), levels(schedule)[0], type(self).model_fields[key]
        bound = min((getattr(each, "le", math.inf) for each in field.metadata), default=math.inf)
        if (most := max(levels(schedule))) > bound:
            return [f"config.{key}_schedule: its values must be at most {bound:g} (got {most:g})"]
        if value in (start, field.default):
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
