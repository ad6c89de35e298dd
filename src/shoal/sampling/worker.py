"""One worker: its environments, its policy, and the sampler between them. It runs here or in a process of a host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from shutil import rmtree
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.vector import VectorEnv

from shoal.config.algorithms import algorithms_that, name_of
from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Sample
from shoal.data.state import State
from shoal.envs.agent_vector import AgentEnvs, AgentRows, PolicySlots
from shoal.envs.agents import AgentsEnv
from shoal.envs.checking import check_first_steps
from shoal.envs.closing import close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.env_limits import Limits
from shoal.envs.env_process import EnvPlan
from shoal.envs.env_processes import env_processes
from shoal.envs.first_look import first_look
from shoal.envs.isolated import IsolatedVector
from shoal.envs.making import AnyEnv, EnvMaker, strip
from shoal.envs.native import NativeVector
from shoal.envs.pace import Pace
from shoal.envs.randomizing import EpisodeValues, Randomizer
from shoal.envs.scratch import SHARED_MEMORY, scratch_folder
from shoal.envs.vector import PythonVector, Vector
from shoal.envs.video import make_in_window
from shoal.errors import CheckpointError, ConfigError, EnvError
from shoal.machine.slots import TakenSlots, take_slots
from shoal.models.build import build_policy
from shoal.models.policy import Policy
from shoal.models.row_actor import RowActor
from shoal.sampling.agent_sampler import AgentSampler
from shoal.sampling.callbacks import EPISODE_HOOKS, load_callbacks, overridden
from shoal.sampling.episode_hooks import EpisodeHooks, HooksInProcess, WorkerElsewhere
from shoal.sampling.many_envs import EnvCreationMonitor
from shoal.sampling.ready_first import ReadyFirstSampler
from shoal.sampling.sampler import Sampler

T = TypeVar("T")
log = logging.getLogger("shoal")


class Worker:
    """Owns the environments `worker_index` is responsible for, and samples them with its policy.

    Worker 0 lives in the driver's process and has the learner's own policy: alone, it is the set of workers that an
    algorithm samples with (`Workers` in parallel/workers.py). Workers from 1 on have a copy. With
    `any_size`, a native vector environment may have more or fewer environments than the config says; `index_offset`
    sets the `env_index` of environments apart that live beside those of training, and `first_index` says which of all
    the first one here is, where that does not follow from `worker_index`. Who has looked at the environment before
    says so with `is_checked`. `host_slots` is how many slots the host offers to all ranks of `env_ranks` there.
    `policy_for` makes the policy from the spaces where it is not that of the configuration.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        maker: EnvMaker,
        worker_index: int = 0,
        policy: Policy | None = None,
        any_size: bool = False,
        index_offset: int = 0,
        first_index: int | None = None,
        is_checked: bool = False,
        host_slots: int | None = None,
        policy_for: Callable[[gym.Space[Any], gym.Space[Any]], Policy] | None = None,
    ) -> None:
        self.config, self.worker_index = config, worker_index
        self._policy_for = policy_for
        self.task: Any = None
        self.num_healthy_workers = self.num_remote_worker_restarts = 0  # it has no process of its own
        self._begun: tuple[int, int] | None = None  # steps and version of a fragment that was asked for
        self.callbacks = load_callbacks(config.callbacks, maker.user_code)
        self._randomizer = Randomizer.from_config(config, maker.user_code)
        self._any_size, self._index_offset = any_size, index_offset
        self._maker = maker
        self.agents: tuple[str, ...] = ()  # of each environment, if there are several
        self.other_spaces: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {}  # of their policies after the first
        self._contexts: dict[int, EnvContext] = {}  # of the environments here, by row
        self._first_index = self._place_of_first() if first_index is None else first_index
        self._slots = TakenSlots({})
        self._pace: Pace | None = None
        self._scratch: str | None = None
        self._memory: str | None = None
        if config.env_ranks:
            self._memory = scratch_folder(self._first_index, place=SHARED_MEMORY)
            self._slots = take_slots(config.envs_per_worker * config.env_ranks, host_slots)
        drawn = EpisodeValues() if self._randomizer is None else self._randomizer.draw(self._first_index, 1, 0)
        if config.isolates_envs:
            try:
                with env_processes():  # one fork server for the first look and for what follows
                    self._isolate(drawn, policy)
            except BaseException:
                self._give_back()
                raise
            return
        if config.env_resets_per_s is not None:
            self._scratch = scratch_folder(self._first_index)
            self._pace = Pace.from_config(config, worker_index, self._scratch)
        env = self._make(0, drawn.env_config) if is_checked else self._checked(drawn, policy is None)
        self.vector: Vector
        try:
            if isinstance(env, AgentsEnv):
                self._seat_agents(env)
            elif isinstance(env, VectorEnv):
                env = self._counted(env, first_index is None)
                self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
            else:
                self.observation_space, self.action_space = env.observation_space, env.action_space
            config = self.config
            self.policy = policy or self._new_policy()
            self.vector = self._vector(env)
        except BaseException:
            close_quietly(env)  # it may own processes, which would outlive the sentence that refuses it
            raise
        self.sampler: Sampler
        if isinstance(self.vector, AgentRows):
            self.sampler = self._agent_sampler(self.vector.envs)
        else:
            self.sampler = Sampler(self.policy, self.vector, config.seed, self._first_index)

    @property
    def num_envs(self) -> int:
        """How many environments there are here; with several agents each of them has several rows."""
        return self.vector.envs.num_envs if isinstance(self.vector, AgentRows) else self.vector.num_envs

    def get_policy(self) -> Policy:
        """The policy that acts here."""
        return self.policy

    @property
    def maker(self) -> EnvMaker:
        """Makes the environments, with what a first look at one has shown."""
        return self._maker

    @property
    def steps_sampled(self) -> int:
        """Steps so far, over all environments; any thread may ask."""
        return self.sampler.steps_sampled

    def sample(self, steps: int) -> Sample:
        """One fragment of at least `steps` steps per environment, all of which get the task at their next reset."""
        if self.task is not None:
            self.vector.task = self.task
        try:
            return self.sampler.sample(steps, self.config.explore, self.config.batch_mode == "complete_episodes")
        except EnvError as error:
            error.incidents = self.sampler.incidents_so_far()
            raise

    @property
    def oldest_pending_version(self) -> int | None:
        """See `Workers`: nothing is sampled here while anybody could ask."""
        return None

    def begin_fragments(self, steps: int, version: int) -> None:
        """See `Workers`."""
        self._begun = steps, version

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        if self._begun is None or not wait:
            return []
        (steps, version), self._begun = self._begun, None
        return [replace(self.sample(steps), weights_version=version)]

    def foreach_worker(self, fn: Callable[[Worker], T]) -> list[T]:
        """The result of `fn(worker)` for every worker, of which this is the only one."""
        return [fn(self)]

    def foreach_env(self, fn: Callable[[Any], T]) -> list[T]:
        """The result of `fn` for every environment, without gymnasium's outermost wrappers."""
        return self.vector.call(fn)

    def get_state(self) -> list[State]:
        """Everything that the next sample depends on, but for the weights: one state, of the only worker."""
        return [self.sampler.get_state()]

    def set_state(self, states: list[State]) -> int:
        """Take over a saved state; returns how many unfinished episodes begin anew."""
        check_count(states, 1)
        self.sampler.vector.replay_limit_s = self.config.replay_limit_s
        return self.sampler.set_state(states[0], self.config.restore_episodes is not False)

    def stop(self) -> None:
        """Close the environments."""
        self.sampler.close()
        for ctx in self._contexts.values():
            ctx.release()
        self._give_back()

    def _give_back(self) -> None:
        """Remove the folders of this worker, and let others have its slots."""
        for folder in (self._scratch, self._memory):
            if folder is not None:
                rmtree(folder, ignore_errors=True)
        self._slots.release()

    def _isolate(self, drawn: EpisodeValues, policy: Policy | None) -> None:
        """Start the environments in processes of their own: no code of theirs runs in this one."""
        config = self.config
        limits = Limits.from_config(config)
        plan = self._plan()
        if plan.pace is not None:
            plan.pace.wait(2)  # to be made and to be reset, before any deadline begins
        look = first_look(replace(plan, maker=self._maker.for_look()), drawn, limits)
        if look.num_envs is not None:
            raise ConfigError(
                f"config.env_isolation: env {self._maker.name} has several agents, or is a native vector environment, "
                "and such are stepped in the worker's own process; leave out env_isolation, timeouts and memory limit"
            )
        if policy is None:
            self._warn(look.warnings)
        if look.legacy:
            self._maker = replace(self._maker, legacy=True)
            plan = replace(plan, maker=self._maker)
        self.observation_space, self.action_space = look.observation_space, look.action_space
        spaces = look.observation_space, look.action_space
        self.policy = policy or self._new_policy()
        quorum = config.straggler_quorum
        vector = IsolatedVector(
            plan,
            config.envs_per_worker,
            self.policy.obs_spec,
            self.policy.action_spec,
            spaces,
            seed=config.seed,
            limits=limits,
            max_failures=config.max_env_failures,
            actor=None if quorum is not None else RowActor.of(self.policy, config.envs_per_worker),
        )
        self.vector = vector
        self.sampler = ReadyFirstSampler(self.policy, vector, config.seed, self._first_index, quorum)

    def _new_policy(self) -> Policy:
        """The policy for the spaces that were found."""
        spaces = self.observation_space, self.action_space
        if self._policy_for is not None:
            return self._policy_for(*spaces)
        return build_policy(*spaces, self.config, self._maker.user_code, others=self.other_spaces)

    def _plan(self) -> EnvPlan:
        """How another process makes the environments of this worker."""
        config = self.config
        observer = None
        if config.callbacks is not None and self._episode_hooks():
            observer = HooksInProcess(config.callbacks, self._maker.user_code, WorkerElsewhere(self.worker_index))
        scratch = scratch_folder(self._first_index)
        return EnvPlan(
            self._maker,
            config.env_config,
            worker_index=self.worker_index,
            num_workers=config.worker_count,
            first_index=self._first_index,
            index_offset=self._index_offset,
            horizon=config.horizon,
            shown=0 if config.render_env else None,
            randomizer=self._randomizer,
            scratch=scratch,
            observer=observer,
            memory=self._memory,
            env_ranks=config.env_ranks,
            slots=self._slots.slots,
            pace=Pace.from_config(config, self.worker_index, scratch),
        )

    def _episode_hooks(self) -> list[str]:
        """The hooks of episodes that the user's callbacks have."""
        if self.callbacks is None:
            return []
        return sorted({*overridden(self.callbacks)} & {*EPISODE_HOOKS})

    def _vector(self, first: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Vector:
        """The vector of environments, of which the first is there already."""
        hooks = self._episode_hooks()
        if isinstance(first, AgentsEnv):
            return self._agent_rows(first)
        if isinstance(first, VectorEnv):
            return self._native_vector(first, hooks)
        if self.config.vectorization == "native":
            raise ConfigError(
                f"config.vectorization: native needs a batch of environments, and env {self._maker.name} is a single "
                "one; leave it out, or let it return a gymnasium.vector.VectorEnv"
            )
        return self._python_vector(first, hooks)

    def _native_vector(self, env: VectorEnv[Any, Any, Any], hooks: list[str]) -> NativeVector:
        config = self.config
        if config.vectorization == "python":
            raise ConfigError(
                f"config.vectorization: env {self._maker.name} is a batch that steps itself; leave it out (got python)"
            )
        if config.horizon is not None:
            raise ConfigError("config.horizon: a native vector environment limits its own episodes; set it there")
        if hooks:
            raise ConfigError(
                "config.callbacks: a native vector environment begins and ends its own episodes, so "
                f"{hooks[0]} cannot be called"
            )
        if config.env_resets_per_s is not None:
            raise ConfigError("config.env_resets_per_s: a native vector environment resets by itself; limit it there")
        if self._randomizer is not None:
            raise ConfigError("config.randomize: a native vector environment resets by itself; draw the values there")
        if config.batch_mode == "complete_episodes":
            raise ConfigError("config.batch_mode: a native vector environment cannot wait for complete_episodes")
        return NativeVector(env, self.policy.obs_spec, self.policy.action_spec, config.seed, self._first_index)

    def _agent_rows(self, first: AgentsEnv) -> AgentRows:
        """Environments of several agents, of which the first is there already."""
        config = self.config
        waiting = [first]

        def make(place: int) -> AgentsEnv:
            env = waiting.pop() if waiting else self._make(place)
            assert isinstance(env, AgentsEnv)
            return env

        slots = []
        for name, places in config.multiagent.agents_of(first.agents).items():
            policy = self._policy_called(name)
            slots.append(PolicySlots(name, places, policy.obs_spec, policy.action_spec))
        envs = AgentEnvs(
            make,
            config.envs_per_worker,
            first.agents,
            slots,
            seed=config.seed,
            first_index=self._first_index,
            worker_index=self.worker_index,
            max_failures=config.max_env_failures,
            horizon=config.horizon,
            rotates=config.multiagent.rotate_agents,
        )
        return envs.groups[0]

    def _policy_called(self, name: str) -> Policy:
        """The policy of this name: the first, or one of the others."""
        is_first = name == self.config.multiagent.names[0]
        return self.policy if is_first else self.policy.others[name]

    def _agent_sampler(self, envs: AgentEnvs) -> AgentSampler:
        """The sampler of the first policy's agents, with those of the others'."""
        samplers: list[AgentSampler] = []
        for group in reversed(envs.groups):
            name = group.policy.name
            policy = self._policy_called(name)
            first_row = self._first_index * len(group.policy.slots)
            others = tuple(samplers) if group.is_first else ()
            seed = self.config.for_policy(name).seed
            samplers.insert(0, AgentSampler(policy, group, seed, first_row, others))
        return samplers[0]

    def _seat_agents(self, env: AgentsEnv) -> None:
        """Let the configuration know the agents, and find the spaces of each policy, which are those of its agents."""
        refuse_for_agents(self.config, self._episode_hooks())
        given, count = self.config.multiagent, env.num_envs
        if given.num_agents not in (0, count):
            raise ConfigError(
                f"config.multiagent.num_agents: env {self._maker.name} has {count} agents (got {given.num_agents}); "
                "leave it out"
            )
        self.agents = env.agents
        found: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {}
        for name, places in given.agents_of(env.agents).items():
            whose = range(count) if given.rotate_agents else places
            found[name] = self._shared_spaces(env, [env.agents[place] for place in whose])
        first = given.names[0]
        self.observation_space, self.action_space = found.pop(first)
        self.other_spaces = found
        self.config = self.config.with_agents(env.agents)

    def _shared_spaces(self, env: AgentsEnv, agents: Sequence[str]) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """The spaces of all of these agents, which one policy acts for."""
        first = agents[0]
        for agent in agents[1:]:
            for what, spaces in (("observations", env.observation_spaces), ("actions", env.action_spaces)):
                if spaces[agent] != spaces[first]:
                    raise ConfigError(
                        f"env {self._maker.name}: its agents {first} and {agent} have different {what} "
                        f"({spaces[first]} and {spaces[agent]}), so one policy cannot act for both; give each a policy "
                        "with config.multiagent.policies"
                    )
        return env.observation_spaces[first], env.action_spaces[first]

    def _python_vector(self, first: gym.Env[Any, Any], hooks: list[str]) -> PythonVector:
        config = self.config
        waiting = [first]
        monitor = EnvCreationMonitor(config.envs_per_worker)

        def make(row: int, drawn: Mapping[str, Any] | None = None) -> tuple[gym.Env[Any, Any], int | None]:
            env = waiting.pop() if waiting else self._make(row, drawn)
            assert not isinstance(env, VectorEnv)
            if drawn and (env.observation_space, env.action_space) != (self.observation_space, self.action_space):
                raise ConfigError(f"config.randomize.env_config: with {dict(drawn)} the environment has other spaces")
            bare, limit = strip(env)
            limits = [n for n in (limit, config.horizon) if n is not None]
            monitor.env_made()
            return bare, min(limits, default=None)

        observer = None
        if self.callbacks is not None and hooks:
            observer = EpisodeHooks(self.callbacks, self)
        return PythonVector(
            make,
            config.envs_per_worker,
            self.policy.obs_spec,
            self.policy.action_spec,
            seed=config.seed,
            first_index=self._first_index,
            worker_index=self.worker_index,
            max_failures=config.max_env_failures,
            randomizer=self._randomizer,
            observer=observer,
            keep_scratch=lambda row: self._contexts[row].keep_scratch(),
            pace=self._pace,
        )

    def _counted(self, env: VectorEnv[Any, Any, Any], follows: bool) -> VectorEnv[Any, Any, Any]:
        """A native vector environment whose number of environments is that of the config, which follows it if it may.

        With another number the first environment here is another one of all: then the vector is made anew (`follows`).
        """
        asked, count = self.config.num_envs_per_worker, env.num_envs
        if self._any_size or asked == count:
            return env
        if asked != "auto":
            raise ConfigError(
                f"config.num_envs_per_worker: the vector environment has {count} environments (got {asked}); "
                f"leave num_envs_per_worker out, or make it with {asked}"
            )
        self.config = self.config.with_envs_per_worker(count)
        if not follows or self._place_of_first() == self._first_index:
            return env
        self._first_index = self._place_of_first()
        env.close()
        again = self._make(0)
        assert isinstance(again, VectorEnv)
        return again

    def _place_of_first(self) -> int:
        """Which of all environments the first one here is."""
        return max(self.worker_index - 1, 0) * self.config.envs_per_worker

    def _checked(self, drawn: EpisodeValues, tells: bool) -> AnyEnv:
        """The first environment, after a look at its first steps; evaluation has nothing new to tell of these."""
        if self._pace is not None:
            self._pace.wait()  # for its reset
        report = check_first_steps(lambda: self._make(0, drawn.env_config), drawn.options)
        if tells:
            self._warn(report.warnings)
        if report.legacy:
            self._maker = replace(self._maker, legacy=True)
        return report.env

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log what the first look at an environment found; one worker is enough for it."""
        if self.worker_index <= 1:
            for warning in warnings:
                log.warning("%s", warning)

    def _make(self, row: int, drawn: Mapping[str, Any] | None = None) -> AnyEnv:
        ctx = self._context(row, drawn)
        if self._pace is not None:
            self._pace.wait()
        shown = self.config.render_env and ctx.env_index == 0
        return make_in_window(self._maker, ctx) if shown else self._maker.make(ctx)

    def _context(self, row: int, drawn: Mapping[str, Any] | None = None) -> EnvContext:
        ranks = self.config.env_ranks
        ctx = EnvContext(
            {**self.config.env_config, **(drawn or {})},
            worker_index=self.worker_index,
            vector_index=row,
            env_index=self._index_offset + self._first_index + row,
            num_workers=self.config.worker_count,
            num_envs=self.config.envs_per_worker,
            slots=self._slots.slots[row * ranks : (row + 1) * ranks],
        )
        if row in self._contexts:
            self._contexts[row].release()  # of the environment that this one takes the place of
        self._contexts[row] = ctx
        return ctx


def refuse_for_agents(config: AlgorithmConfig, hooks: Sequence[str]) -> None:
    """Refuse what cannot be had where an environment has several agents."""
    if not config.takes_agents:
        able = algorithms_that("takes_agents")
        raise ConfigError(f"run: {name_of(type(config))} trains one agent; for several set run: {able}")
    problems = []
    if config.model.memory is not None:
        problems.append(
            f"config.model.{config.model.memory}: several agents have policies without memory; leave it out"
        )
    if config.randomize.options or config.randomize.env_config:
        problems.append("config.randomize: an environment of several agents draws its own values; leave it out")
    if config.batch_mode == "complete_episodes":
        problems.append("config.batch_mode: agents end at different times; leave it at truncate_episodes")
    if config.env_resets_per_s is not None:
        problems.append("config.env_resets_per_s: it is for environments of one agent; leave it out")
    if config.sample_async and config.learns_from_replay:
        problems.append("config.sample_async: with several agents a learner from replay samples in turns; leave it out")
    if config.output is not None:
        problems.append("config.output: the steps of several agents are not written yet; leave it out")
    if hooks:
        problems.append(f"config.callbacks: {hooks[0]} is for environments of one agent; leave it out")
    if problems:
        raise ConfigError(problems)


def check_count(states: list[State], workers: int) -> None:
    """Refuse the states of another number of workers."""
    if len(states) != workers:
        raise CheckpointError(f"the checkpoint has the state of {len(states)} workers, here are {workers}")
