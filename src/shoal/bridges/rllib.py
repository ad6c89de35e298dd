"""RLlib's own algorithms in our runs: `--run rllib:IMPALA`.

RLlib learns and acts; everything else is shoal's: the environments with their supervision, the run and its folder,
results, stop criteria, evaluation and sweeps. In each of RLlib's env runners the environments are `RunnerEnv`s, which
RLlib sees as plain numbers and which never raise; what happens to them (episodes that end, failures) goes to the
`RunnerDesk`, an actor that the trainer reads.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, cast
from uuid import uuid4

import numpy as np
from gymnasium import registry, spaces
from threadpoolctl import ThreadpoolController

from shoal.bridges.module_policy import ModulePolicy
from shoal.bridges.plain_spaces import PlainForm
from shoal.bridges.rllib_episodes import READ_AS_EPISODES, episode_dataset, read_input
from shoal.bridges.runner_envs import DeskReport, RunnerDesk, RunnerPlan, make_runner_env
from shoal.config.algorithms import RLLIB, rllib_algorithms
from shoal.config.changing import unchecked
from shoal.config.layout import layout_of
from shoal.config.rllib import RecordedInRLlib, RLlibConfig, in_rllibs_words, network_in_rllibs_words
from shoal.config.settings import AlgorithmConfig
from shoal.config.vocabulary import nearest
from shoal.data.batch import Episode, Incident
from shoal.data.experience import Experience
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.envs.making import maker_of, preprocessing_notes
from shoal.envs.space_trees import space_from, space_tree
from shoal.envs.spaces import Space
from shoal.errors import CheckpointError, ConfigError, EnvError, ShoalError, WorkerError
from shoal.machine.threads import are_limited
from shoal.models.convolutions import default_convolutions
from shoal.models.policy import Policy
from shoal.parallel.evaluators import LocalEvaluators
from shoal.parallel.learner import Learner
from shoal.parallel.workers import Workers
from shoal.runs.checkpoints import Checkpoint, read_checkpoint
from shoal.runs.curriculum import Curriculum
from shoal.runs.evaluation import EvaluationSetup, check_environment
from shoal.runs.resuming import experiment_of
from shoal.runs.seals import check_seal, seal_of
from shoal.runs.trainer import Trainer
from shoal.runs.videos import check_pictures
from shoal.sampling.worker import Worker

log = logging.getLogger("shoal")
progress = logging.getLogger("shoal.progress")

NEEDED = ("torch", "tree", "lz4", "ormsgpack", "scipy", "pandas", "pyarrow", "PIL")
"""Modules that RLlib imports and a plain installation of Ray does not bring."""
FOLDER = "rllib"  # in a checkpoint: RLlib's own, which holds pickles
MODULE = "learner_group/learner/rl_module/default_policy"  # in that
LOOK_S = 0.5  # between two looks at the desk
PATIENCE_S = 60.0  # without a step, after which that is told; as often again
ENV_NAME = "shoal"
LONGEST_CAUSE = 600  # characters of a message of RLlib's
FIRST_ERROR = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception): .*)$", re.MULTILINE)


def check_installed(run: str) -> None:
    """Refuse an algorithm that is not there, with the line that installs it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"run: {run} needs RLlib, of which {missing[0]} is not installed; type: pip install 'shoal-rl[rllib]'"
        )
    if run not in rllib_algorithms():
        import ray

        there = ", ".join(name for name in RLLIB if name in rllib_algorithms())
        raise ConfigError(f"run: the installed Ray {ray.__version__} has no {run}; it has {there}")


def policy_of(checkpoint: Checkpoint, trust: bool = False) -> ModulePolicy:
    """The policy of a checkpoint, for `shoal evaluate` and `shoal.Policy.load`."""
    experiment, _ = experiment_of(checkpoint.experiment_tree)
    check_installed(experiment.run)
    check_seal(checkpoint.state, checkpoint.path, trust)
    config = experiment.config
    obs_space, action_space = map(space_from, checkpoint.state.values["spaces"])
    form = PlainForm(obs_space, action_space, config)
    with _unpacked(checkpoint.state.files) as folder:
        module = _module_in(folder)
    return ModulePolicy(form, module, int(checkpoint.state.values["timesteps_total"]), config.seed)


def _module_in(folder: Path) -> Any:
    """The trained RLModule of RLlib's checkpoint, on the CPU."""
    from ray.rllib.core.rl_module.rl_module import RLModule

    _quiet()
    module: Any = RLModule.from_checkpoint(folder / FOLDER / MODULE)
    if module.is_stateful():
        raise ConfigError("evaluation: this RLModule has a memory, which shoal cannot carry; leave evaluation out")
    return module.cpu()


@contextlib.contextmanager
def _unpacked(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder that only we can read, with files of a checkpoint in it."""
    with tempfile.TemporaryDirectory(prefix="shoal-rllib-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield Path(folder)


class RLlibTrainer(Trainer):
    """Trains one policy by an algorithm of RLlib."""

    config: RLlibConfig

    def __init__(
        self,
        *given: Any,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        env: Any = None,
        preset: str | bool | None = None,
        search_path: Sequence[str | Path] = (),
        **unknown: Any,
    ) -> None:
        check_installed(self.algorithm)
        asked = self._understood(given, config, env, preset, unknown)
        assert isinstance(asked, RLlibConfig)
        self.config = asked
        self.user_code = UserCode.at(*search_path).with_working_folder()
        self.env_maker = maker_of(asked, self.user_code)
        for note in preprocessing_notes(self.env_maker, asked.env_config):
            log.info("%s", note)
        check_pictures(asked, self.env_maker)
        self._thread_pools = ThreadpoolController()
        self._closing = ExitStack()
        self._is_stopped = False
        self.callbacks = None
        self.curriculum = Curriculum(asked, self.env_maker)
        self.evaluators = LocalEvaluators()
        self.output = None  # RLlib writes episodes in a form of its own
        self.workers, self.learner = cast(Workers, self), cast(Learner, None)  # RLlib's are in `_algo`
        self._begin()
        plan = self._look_at_env(asked)
        self._form = PlainForm(plan.obs_space, plan.action_space, asked)
        _check_actions(asked, self._form.action_space)
        self._recorded: Experience | None = None
        if isinstance(asked, RecordedInRLlib) and asked.input is not None:
            self._recorded = read_input(asked, self._form, (plan.obs_space, plan.action_space))
        self._spaces = [space_tree(plan.obs_space), space_tree(plan.action_space)]
        check_environment(asked, self.env_maker, ModulePolicy(self._form))
        try:
            self._start(plan, asked)
        except BaseException:  # a signal may come here
            self.stop()
            raise

    def _begin(self) -> None:
        super()._begin()
        self._steps_seen = 0  # of RLlib's own counter, which a restored checkpoint sets
        self._told: list[Episode] = []
        self._failed: list[Incident] = []
        self._looked_at = 0.0
        self._policy: tuple[int, ModulePolicy] | None = None  # with the iteration that it is of
        self._files: tuple[int, dict[str, bytes]] | None = None

    def _look_at_env(self, config: RLlibConfig) -> RunnerPlan:
        """What runners are told, after the first steps of one environment in this process, which shows its errors."""
        progress.info("making the environment")
        alone = unchecked(config, num_envs_per_worker=1, num_workers=0)
        worker = Worker(alone, self.env_maker)
        try:
            if worker.vector.num_envs != 1 or worker.config.num_envs_per_worker != 1:
                raise ConfigError(f"env: {self.env_maker.name} is a native vector environment; RLlib needs single ones")
            maker = worker.maker
            return RunnerPlan(config, maker, worker.observation_space, worker.action_space)
        finally:
            worker.stop()

    def _start(self, plan: RunnerPlan, config: RLlibConfig) -> None:
        """Start Ray, the desk and RLlib's algorithm."""
        import cloudpickle

        from shoal.parallel.ray_session import connect

        session = connect(config)
        self._closing.callback(session.stop)
        self.ray = session.ray
        _check_more(config, session.ray)
        count = config.worker_count
        progress.info("starting RLlib's %s with %d worker%s", config.rllib_name, count, "s" * (count != 1))
        name = f"shoal-desk-{uuid4().hex}"
        desk = session.ray.remote(num_cpus=0)(RunnerDesk).options(name=name, max_concurrency=1)
        self._desk = desk.remote(cloudpickle.dumps(plan))
        self._closing.callback(session.ray.kill, self._desk)
        session.ray.get(self._desk.take.remote())  # it must be there before a runner looks for it
        with _causes_shown(f"RLlib's {config.rllib_name} cannot start", is_start=True):
            self._algo = self._closing.enter_context(_built(config, self._form, name))
        if self._recorded is not None:
            self._algo.offline_data.data = episode_dataset(self._recorded, self._form)
            self._recorded = None  # which Ray has now
        step = self._algo.training_step

        def watched() -> Any:
            self._look()
            return step()

        self._algo.training_step = watched

    def train_iteration(self) -> dict[str, Any]:
        """One iteration of RLlib's, or as many as it takes until there is a step."""
        self._check_going()
        start = perf_counter()
        told_at: float | None = None
        new = 0
        limit = 1 if not are_limited(os.environ) and not self._form.is_image else None
        with self._thread_pools.limit(limits=limit), _causes_shown(f"RLlib's {self.config.rllib_name} failed"):
            while not new:
                found = self._algo.train()
                new = self._steps_of(found) - self._steps_seen
                self._look(at_once=True)
                if not new:
                    told_at = self._explain_empty(told_at)
        self._steps_seen += new
        incidents, self._failed = self._failed, []
        self._keep_incidents(incidents)
        self.iteration += 1
        self.timesteps_total += new
        self._report(incidents)
        elapsed = perf_counter() - start
        self.time_total_s += elapsed
        episodes, self._told = self._told, []
        return {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "timesteps_this_iter": new,
            **self._window.add(episodes),
            "time_this_iter_s": elapsed,
            "time_total_s": self.time_total_s,
            "timesteps_per_s": new / elapsed,
            "env_failures_total": self.env_failures_total,
            **self._runners(),
            "timers": _seconds(found),
            "learner": _learner_numbers(found),
        }

    @property
    def steps_sampled(self) -> int:
        """For who looks on: RLlib does not tell during an iteration."""
        return self.timesteps_total

    def get_policy(self, policy_id: str | None = None) -> Policy:
        """The policy as it is after the last iteration."""
        if policy_id not in (None, *self.config.multiagent.names):
            raise ConfigError(f"policy_id: there is no policy {policy_id!r}; leave policy_id out")
        if self._policy is None or self._policy[0] != self.iteration:
            with _unpacked(self._saved_files()) as folder:
                module = _module_in(folder)
            policy = ModulePolicy(self._form, module, self.timesteps_total, self.config.seed)
            self._policy = (self.iteration, policy)
        return self._policy[1]

    def evaluate(
        self, checkpoint: str | Path | None = None, *, episodes: int | None = None, explore: bool | None = None
    ) -> dict[str, Any]:
        """Run whole episodes without learning, with the present policy or that of a checkpoint."""
        if checkpoint is None:
            return super().evaluate(episodes=episodes, explore=explore)
        kept = self._policy
        try:
            self._policy = (self.iteration, policy_of(self._checkpoint(checkpoint)))
            return super().evaluate(episodes=episodes, explore=explore)
        finally:
            self._policy = kept

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint of the same algorithm and environment, which must be one's own: it holds pickles."""
        self.set_state(self._checkpoint(path).state)

    def get_state(self) -> State:
        """Everything that the next iteration depends on, as far as RLlib saves it: replay and episodes are not."""
        files = self._saved_files()
        values = {
            "algorithm": self.algorithm,
            "spaces": self._spaces,
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "time_total_s": self.time_total_s,
            "env_failures_total": self.env_failures_total,
            "episodes": self._window.get_state().values,
            "curriculum": self.curriculum.get_state().values,
            "policy": {},
            "rllib": {"ray": self.ray.__version__, "steps": self._steps_seen, "seal": seal_of(files)},
        }
        return State(values, {}, files)

    def set_state(self, state: State) -> None:
        """Take over a saved state."""
        values = state.values
        if values["algorithm"] != self.algorithm:
            raise CheckpointError(f"the checkpoint is of {values['algorithm']}, but this is {self.algorithm}")
        if values["spaces"] != self._spaces:
            raise CheckpointError("the checkpoint's environment has other observations or actions than this one")
        check_seal(state, "the checkpoint")
        with _unpacked(state.files) as folder, _causes_shown("RLlib cannot restore its checkpoint"):
            self._restore_algorithm(folder / FOLDER)
        self._steps_seen = int(values["rllib"]["steps"])
        self.iteration = int(values["training_iteration"])
        self.timesteps_total = int(values["timesteps_total"])
        self.time_total_s = float(values["time_total_s"])
        self.env_failures_total = int(values["env_failures_total"])
        self._window.set_state(state.part("episodes"))
        self._policy = self._files = None

    def _restore_algorithm(self, folder: Path) -> None:
        """Let RLlib read its checkpoint; those that learn from recorded steps fail at the runners that they lack."""
        if self._algo.env_runner_group is None:
            from ray.rllib.algorithms.algorithm import Algorithm

            algo: Algorithm = self._algo
            super(Algorithm, algo).restore_from_path(folder)
        else:
            self._algo.restore_from_path(folder)

    def take_over(self, state: State) -> None:  # noqa: ARG002
        """Not possible: RLlib's checkpoint brings its counters along."""
        raise CheckpointError(f"{self.algorithm} cannot take over the agent of another trial; use another scheduler")

    def _checkpoint(self, path: str | Path) -> Checkpoint:
        checkpoint = read_checkpoint(path)
        if checkpoint.state.values["algorithm"] != self.algorithm:
            theirs = checkpoint.state.values["algorithm"]
            raise CheckpointError(f"{path} is a checkpoint of {theirs}, but this is {self.algorithm}")
        return checkpoint

    def _saved_files(self) -> dict[str, bytes]:
        """RLlib's own checkpoint of the present state, by paths in ours."""
        if self._files is None or self._files[0] != self.iteration:
            with tempfile.TemporaryDirectory(prefix="shoal-rllib-") as folder:
                with _causes_shown("RLlib cannot save its checkpoint"):
                    self._algo.save_to_path(Path(folder, FOLDER))
                found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
                files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
            self._files = (self.iteration, files)
        return self._files[1]

    def _steps_of(self, found: Mapping[str, Any]) -> int:
        """RLlib's count of steps: those sampled, or where it learns from recorded episodes those learned from."""
        if not isinstance(self.config, RecordedInRLlib):
            return int(found.get("env_runners", {}).get("num_env_steps_sampled_lifetime", self._steps_seen))
        learner = found.get("learners", {}).get("default_policy", {})
        return int(learner.get("num_module_steps_trained_lifetime", self._steps_seen))

    def _look(self, at_once: bool = False) -> None:
        """Read the desk; an environment that has given up ends the run with its own error."""
        if not at_once and monotonic() < self._looked_at + LOOK_S:
            return
        self._looked_at = monotonic()
        report: DeskReport = self.ray.get(self._desk.take.remote())
        self._told += report.episodes
        self._failed += report.incidents
        if report.crash:
            raise WorkerError(f"RLlib's {self.config.rllib_name} failed in a worker: {_in_short(report.crash)}")
        if report.end:
            error = EnvError(report.end)
            error.incidents = self._failed
            self._keep_incidents(self._failed)
            raise error

    def _runners(self) -> dict[str, Any]:
        if not self.config.worker_count:
            return {}
        group = self._algo.env_runner_group
        return {
            "num_healthy_workers": group.num_healthy_remote_workers(),
            "num_remote_worker_restarts": group.num_remote_worker_restarts(),
        }

    def _explain_empty(self, told_at: float | None) -> float:
        """Tell of iterations that RLlib has ended without a step and without an error; when that began, or was told."""
        if told_at is None or monotonic() < told_at + PATIENCE_S:
            return told_at or monotonic()
        count, alive = self.config.worker_count, self._runners().get("num_healthy_workers", 0)
        silence = f"RLlib's {self.config.rllib_name} has taken no step for {PATIENCE_S:.0f} s"
        if not count:
            raise ShoalError(f"{silence}, and told no error; look at the data or at the keys of rllib_config")
        if not alive:
            raise WorkerError(
                f"{silence}, and none of its {count} workers is left; an environment that crashes its process needs "
                "env_isolation: process"
            )
        log.warning("%s; %d of %d workers are alive, and their environments are at it", silence, alive, count)
        return monotonic()

    @property
    def _setup(self) -> EvaluationSetup:
        return replace(super()._setup, config=unchecked(self.config, num_learners=1))


@contextlib.contextmanager
def _built(config: RLlibConfig, form: PlainForm, desk: str) -> Iterator[Any]:
    """RLlib's algorithm for a configuration of ours; it leaves nothing in ~/ray_results."""
    kind, theirs = _configured(config, form, desk)
    from ray.tune.trainable import trainable as found

    trainable: Any = found
    usual = trainable.DEFAULT_STORAGE_PATH
    with tempfile.TemporaryDirectory(prefix="shoal-rllib-") as folder:
        trainable.DEFAULT_STORAGE_PATH = folder
        try:
            algorithm = kind(config=theirs)
        finally:
            trainable.DEFAULT_STORAGE_PATH = usual
        try:
            yield algorithm
        finally:
            with contextlib.suppress(Exception):  # it may have failed halfway
                algorithm.stop()


def _configured(config: RLlibConfig, form: PlainForm, desk: str) -> tuple[Any, Any]:
    """The class of RLlib's algorithm, and its configuration."""
    import torch
    from ray.rllib.algorithms.registry import _get_algorithm_class
    from ray.tune.registry import register_env

    _quiet()
    if not are_limited(os.environ) and not form.is_image:
        torch.set_num_threads(1)  # small matrices lose by threads
    kind: Any = _tqc() if config.rllib_name == "TQC" else _get_algorithm_class(config.rllib_name)
    theirs = kind.get_default_config()
    register_env(ENV_NAME, make_runner_env)
    registry.pop("rllib-single-agent-env-v0", None)  # of another trainer in this process, which gymnasium warns of
    theirs.environment(
        ENV_NAME,
        env_config={"desk": desk},
        observation_space=form.observation_space,
        action_space=form.action_space,
        normalize_actions=False,
        clip_actions=False,
        disable_env_checking=True,
    )
    # A slow environment is no lost one: who has a deadline for it says so with env_step_timeout_s. A runner that fails
    # ends after this delay, by default a minute, and nobody hears of it before.
    ours: dict[str, Any] = {"sample_timeout_s": None, "delay_between_env_runner_restarts_s": 1.0, "log_level": "ERROR"}
    if isinstance(config, RecordedInRLlib) and config.input is not None:
        named = [config.input] if isinstance(config.input, str) else list(config.input)
        ours |= {**READ_AS_EPISODES, "input_": named}  # which RLlib only names; `_start` brings what is in them
    settings = {**ours, **in_rllibs_words(config)}
    unknown = [name for name in settings if not hasattr(theirs, name)]
    if unknown:
        close = nearest(unknown[0], [name for name in vars(theirs) if not name.startswith("_")])
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"config.rllib_config.{unknown[0]}: the installed RLlib has no such key{hint}")
    for name, value in settings.items():
        setattr(theirs, name, value)
    if network := _network(config, form):
        theirs.rl_module(model_config=network)
    return kind, theirs


def _tqc() -> Any:
    from ray.rllib.algorithms.tqc import TQC  # which RLlib's own registry has forgotten

    return TQC


def _network(config: RLlibConfig, form: PlainForm) -> dict[str, Any]:
    """The keys of RLlib's default network: those that were set, and for an image convolutions that fit its size."""
    network = network_in_rllibs_words(config)
    if form.is_image and not network.get("conv_filters"):
        height, width = form.observation_space.shape[:2]
        layers = default_convolutions(height, width)
        network["conv_filters"] = [[layer.channels, list(layer.kernel), list(layer.stride)] for layer in layers]
    return network


def _check_actions(config: RLlibConfig, space: Space) -> None:
    """Refuse actions that an algorithm of RLlib cannot take, in place of its misleading errors."""
    kind = type(space).__name__
    if config.actions and kind not in config.actions:
        raise ConfigError(
            f"run: rllib:{config.rllib_name} takes {' or '.join(config.actions)} actions, and these are {kind}; "
            "use rllib:PPO, rllib:IMPALA or a run of shoal's own"
        )
    if config.actions and isinstance(space, spaces.Box) and not (np.all(space.low == -1) and np.all(space.high == 1)):
        raise ConfigError(
            f"run: rllib:{config.rllib_name} acts between -1 and 1; give every number of the action_space bounds, and "
            "leave normalize_actions true"
        )


def _check_more(config: RLlibConfig, ray: Any) -> None:
    """Refuse actors of RLlib's own keys that no core is left for, which would wait for one for ever."""
    more = float(config.rllib_config.get("num_aggregator_actors_per_learner", 0)) * config.num_learners
    free, needed = ray.available_resources().get("CPU", 0.0), layout_of(config).cpus + more
    if more and needed > free:
        raise ConfigError(
            f"config.rllib_config.num_aggregator_actors_per_learner: {more:g} of them and the other processes need "
            f"{needed:g} CPUs, and {free:g} are free; use fewer workers"
        )


@contextlib.contextmanager
def _causes_shown(what: str, is_start: bool = False) -> Iterator[None]:
    """Tell an error of RLlib's, or of a process of its, by the cause at the bottom of it."""
    try:
        yield
    except (ShoalError, KeyboardInterrupt):
        raise
    except Exception as error:
        cause: BaseException = error
        while (below := getattr(cause, "cause", None) or cause.__cause__) is not None and below is not cause:
            cause = below
        # What RLlib refuses, the user repairs in the configuration.
        kind = ConfigError if is_start and isinstance(cause, ValueError) else ShoalError
        told = FIRST_ERROR.search(getattr(error, "traceback_str", ""))  # of a task of Ray's, which keeps text alone
        reason = told[1] if told else f"{type(cause).__name__}: {cause}"
        raise kind(f"{what}: {_in_short(reason)}") from error


def _in_short(text: str) -> str:
    """A message on one line, without RLlib's advice to turn its checks off."""
    lines = [line.strip() for line in text.partition("To suppress all validation errors")[0].splitlines()]
    joined = " ".join(line for line in lines if line) or "no reason given"
    return joined if len(joined) <= LONGEST_CAUSE else f"{joined[:LONGEST_CAUSE]}..."


def _learner_numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """What RLlib's learner tells of the policy, by its own names."""
    told = found.get("learners", {}).get("default_policy", {})
    numbers = {name: float(value) for name, value in told.items() if isinstance(value, int | float | np.number)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _seconds(found: Mapping[str, Any]) -> dict[str, float]:
    """Where RLlib says that an iteration's time went, as far as it says so."""
    told = found.get("timers", {})
    names = {"sample_s": "env_runner_sampling_timer", "learn_s": "learner_update_timer"}
    seconds = {ours: float(told[theirs]) for ours, theirs in names.items() if theirs in told}
    return {name: value for name, value in seconds.items() if math.isfinite(value)}


def _quiet() -> None:
    """Keep what RLlib says of its own development to itself."""
    for name in ("ray.rllib", "ray.tune", "ray._common.deprecation", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
