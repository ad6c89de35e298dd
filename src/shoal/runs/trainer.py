"""What a program types: one object that trains, saves, restores, evaluates and acts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

from shoal.algorithms import dqn, ppo, trpo
from shoal.config.dqn import DQNConfig
from shoal.config.experiment import algorithm_config, config_tree
from shoal.config.ppo import PPOConfig
from shoal.config.settings import AlgorithmConfig, NoiseConfig
from shoal.config.trpo import TRPOConfig
from shoal.data.batch import Incident, Step
from shoal.data.metrics import EpisodeWindow
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.envs.making import env_maker
from shoal.envs.space_trees import space_tree
from shoal.envs.vector import describe
from shoal.errors import CheckpointError, ConfigError, EnvError, ShoalError
from shoal.models.catalog import with_registered_model
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.start import start_evaluators, start_learner, start_workers, with_worker_count
from shoal.parallel.workers import Workers
from shoal.runs.curriculum import Curriculum
from shoal.runs.evaluation import Agent, Watch, begin, check_environment, evaluate
from shoal.runs.videos import check_pictures, film_of
from shoal.sampling.callbacks import call_hook, load_callbacks
from shoal.sampling.episodes import Found

log = logging.getLogger("shoal")

MOST_INCIDENTS_SHOWN = 5


class Trainer:
    """Trains one policy; `shoal.PPO` and its siblings are trainers with an algorithm."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        env: Any = None,
        search_path: Sequence[str | Path] = (),
    ) -> None:
        self.config = with_worker_count(self._config(config, env))
        self.search_path = tuple(dict.fromkeys(os.path.abspath(folder) for folder in (*search_path, ".")))
        self.env_maker = env_maker(self.config.env, self.search_path)
        check_pictures(self.config, self.env_maker)
        self._thread_pools = ThreadpoolController()
        # The function stays here: it need not be fit for a journey to other processes.
        config = with_registered_model(self.config).model_copy(update={"env_task_fn": None})
        self._closing = ExitStack()
        self._is_stopped = False
        self.callbacks = load_callbacks(self.config.callbacks, self.env_maker.search_path)
        self.curriculum = Curriculum(self.config, self.env_maker)
        self._closing.callback(self.curriculum.close)
        try:
            self.workers: Workers = start_workers(config, self.env_maker)
            self._closing.callback(self.workers.stop)
            self.learner = start_learner(config, self.workers, self.env_maker.search_path, make_learner, self._closing)
            check_environment(config, self.env_maker, self.workers.policy)
            self.evaluators = start_evaluators(
                config, self.workers.policy, self.env_maker.search_path, self.workers, self._closing
            )
        except BaseException:  # a signal may come here
            self.stop()
            raise
        self.folder: Path | None = None  # where `save` writes if it is not told
        self.iteration = 0
        self.timesteps_total = 0
        self.time_total_s = 0.0
        self.env_failures_total = 0
        self._window = EpisodeWindow()
        self._evaluating: Callable[[], tuple[dict[str, Any], Found]] | None = None
        policy = self.get_policy()
        self._spaces = [space_tree(spec.space) for spec in (policy.obs_spec, policy.action_spec)]

    def train(self) -> dict[str, Any]:
        """One iteration: sample, learn, report; and where one is due, an evaluation."""
        result = self.train_iteration()
        if self.evaluation_is_due:
            result["evaluation"] = self.evaluate_iteration()
        return result

    def train_iteration(self) -> dict[str, Any]:
        """One iteration without the evaluation, though with `evaluation_parallel_to_training` that begins here."""
        self._check_going()
        start = perf_counter()
        if self.curriculum.advance():
            self._window.clear()
        self.workers.task = self.curriculum.task
        if self.config.evaluation_parallel_to_training and self._is_due(self.iteration + 1):
            # With the policy as it is before the iteration that it belongs to.
            self._evaluating = begin(self._agent, watch=self._watch(self.iteration + 1))
        exploration = self._set_stddev()
        # Small matrices lose by threads, and lose hundredfold where another process wants the core.
        with self._thread_pools.limit(limits=1, user_api="blas"):
            step = self.learner.training_step(self.workers, self.timesteps_total)
        self.iteration += 1
        self.timesteps_total += step.timesteps
        self._report(step.incidents)
        elapsed = perf_counter() - start
        self.time_total_s += elapsed
        result = {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "timesteps_this_iter": step.timesteps,
            **self._window.add(step.episodes, self.curriculum.counted(step.episodes)),
            "time_this_iter_s": elapsed,
            "time_total_s": self.time_total_s,
            "timesteps_per_s": step.timesteps / elapsed,
            "env_failures_total": self.env_failures_total,
            **self._layout(step, elapsed),
            "timers": _timers(elapsed, step.timers),
            "learner": {**step.stats, **exploration},
        }
        self.curriculum.report(result)
        self.call_hook("on_train_result", result=result)
        return result

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the iteration that was just trained is one with an evaluation."""
        return self._is_due(self.iteration)

    def evaluate_iteration(self) -> dict[str, Any]:
        """The evaluation that belongs to this iteration: the one that has begun, or one now."""
        evaluating, self._evaluating = self._evaluating, None
        return self.evaluate() if evaluating is None else self._evaluated(*evaluating())

    def save(self, folder: str | Path | None = None) -> str:
        """Write a checkpoint into `folder` (default: a new run folder) and return its path."""
        from shoal.runs.saving import save

        return str(save(self, folder))

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint of the same algorithm, environment and model."""
        from shoal.runs.saving import restore

        restore(self, path)

    def evaluate(
        self, checkpoint: str | Path | None = None, *, episodes: int | None = None, explore: bool | None = None
    ) -> dict[str, Any]:
        """Run whole episodes without learning, with the present policy or that of a checkpoint."""
        from shoal.runs.saving import read_policy

        self._check_going()
        if checkpoint is None:
            watch = self._watch(self.iteration)
            return self._evaluated(*evaluate(self._agent, episodes=episodes, explore=explore, watch=watch))
        kept = self.get_policy().get_state()
        try:
            self.get_policy().set_state(read_policy(self, checkpoint))
            return self._evaluated(*evaluate(self._agent, episodes=episodes, explore=explore))
        finally:
            self.get_policy().set_state(kept)

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        *,
        prev_action: Any = None,
        prev_reward: float | None = None,
        explore: bool | None = None,
    ) -> Any:
        """The action for one observation; `explore` is the config's unless given.

        A policy with memory takes the state that its last answer gave, or where an episode begins
        `get_policy().get_initial_state()`, and answers with action, state and a dict of details.
        """
        explore = self.config.explore if explore is None else explore
        return self.get_policy().compute_single_action(
            obs, state, prev_action=prev_action, prev_reward=prev_reward, explore=explore
        )

    def compute_actions(
        self,
        observations: Any,
        state: Any = None,
        *,
        prev_action: Any = None,
        prev_reward: Any = None,
        explore: bool | None = None,
    ) -> Any:
        """An action for each observation of a dict, under the same key, or of a list or batch in its order.

        A policy with memory takes states, and what was before, in the same form, and gives actions, states and details.
        """
        explore = self.config.explore if explore is None else explore
        return self.get_policy().compute_actions(
            observations, state, prev_action=prev_action, prev_reward=prev_reward, explore=explore
        )

    def get_policy(self) -> Policy:
        """The policy that learns."""
        return self.workers.policy

    def call_hook(self, name: str, **given: Any) -> None:
        """Call one of the driver's hooks, if there are any."""
        if self.callbacks is not None:
            call_hook(self.callbacks, name, trainer=self, **given)

    def get_config(self) -> dict[str, Any]:
        """The resolved configuration as a plain dict."""
        return config_tree(self.config)

    def get_state(self) -> State:
        """Everything that the next iteration depends on."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {
            "algorithm": self.algorithm,
            "spaces": self._spaces,
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "time_total_s": self.time_total_s,
            "env_failures_total": self.env_failures_total,
            "episodes": self._window.get_state().values,
            "curriculum": self.curriculum.get_state().values,
        }
        parts = {"policy": self.get_policy().get_state(), "learner": self.learner.get_state()}
        parts |= {f"worker{k}": state for k, state in enumerate(self.workers.get_state())}
        for name, state in parts.items():
            values[name] = state.values
            arrays |= {f"{name}/{key}": array for key, array in state.arrays.items()}
        return State(values, arrays)

    def set_state(self, state: State) -> None:
        """Take over a saved state; what does not fit is refused before anything changes."""
        values = state.values
        if values["algorithm"] != self.algorithm:
            raise CheckpointError(f"the checkpoint is of {values['algorithm']}, this is {self.algorithm}")
        self.get_policy().set_state(part_of(state, "policy"))
        self.learner.set_state(part_of(state, "learner"))
        self.iteration = int(values["training_iteration"])
        self.timesteps_total = int(values["timesteps_total"])
        self.time_total_s = float(values["time_total_s"])
        self.env_failures_total = int(values["env_failures_total"])
        self._window.set_state(State(values["episodes"]))
        self.curriculum.set_state(State(values["curriculum"]))
        workers = [part_of(state, name) for name in values if name.startswith("worker")]
        saved = [len(worker.values["history_lengths"]) for worker in workers]
        if saved != [self.config.num_envs_per_worker] * max(self.config.worker_count, 1):
            log.warning(
                "the checkpoint has %d environments in %d workers, this trainer %d in %d: its episodes are left",
                sum(saved),
                len(saved),
                self.config.num_envs,
                max(self.config.worker_count, 1),
            )
            return
        lost = self.workers.set_state(workers)
        if lost:
            log.info("%d unfinished episodes could not be brought back exactly", lost)

    def take_over(self, state: State) -> None:
        """Take over another trainer's policy, optimiser and task, and keep counters and environments.

        The statistics over the last episodes are about the policy, so they come with it.
        """
        if state.values["algorithm"] != self.algorithm:
            raise CheckpointError(f"the checkpoint is of {state.values['algorithm']}, this is {self.algorithm}")
        self.get_policy().set_state(part_of(state, "policy"))
        self.learner.set_state(part_of(state, "learner"))
        self.curriculum.set_state(State(state.values["curriculum"]))
        self._window.set_state(State({**state.values["episodes"], "total": self._window.total}))

    def stop(self) -> None:
        """End workers and learners and close the environments; may be called twice."""
        self._is_stopped = True
        self._closing.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _config(self, config: Mapping[str, Any] | AlgorithmConfig | None, env: Any) -> AlgorithmConfig:
        if isinstance(config, AlgorithmConfig):
            return config if env is None else config.model_copy(update={"env": env})
        tree = dict(config or {})
        if env is not None:
            if tree.get("env") not in (None, env):
                raise ConfigError(f"env: given twice, as {env!r} and in the config as {tree['env']!r}")
            tree["env"] = env
        if tree.get("env") is None:
            raise ConfigError(f"env: nothing to train on; type shoal.{self.algorithm}(env='CartPole-v1')")
        return algorithm_config(self.algorithm, tree)

    def _check_going(self) -> None:
        if self._is_stopped:  # without its workers it would wait for ever
            raise ShoalError("this trainer was stopped; make another, and restore a checkpoint into it")

    @property
    def _agent(self) -> Agent:
        return Agent(self.config, self.env_maker, self.get_policy(), self.evaluators, self.curriculum.task)

    def _is_due(self, iteration: int) -> bool:
        interval = self.config.evaluation_interval
        return interval is not None and iteration % interval == 0

    def _evaluated(self, metrics: dict[str, Any], found: Found) -> dict[str, Any]:
        """The metrics of an evaluation, and what the user's hook adds to them."""
        if found.trouble:
            log.error("%s; the run goes on", found.trouble)
        self.call_hook("on_evaluate_end", evaluation_metrics=metrics)
        return metrics

    def _watch(self, iteration: int) -> Watch:
        return Watch(film=film_of(self, iteration)) if self.config.record_env else Watch()

    def _set_stddev(self) -> dict[str, float]:
        """Set a spread of actions that is not learned, whatever a restored policy had; what results say of it."""
        noise = self.config.exploration_config
        if not isinstance(noise, NoiseConfig) or noise.type != "GaussianNoise":
            return {}
        stddev = scheduled(noise.stddev, noise.stddev_schedule, self.timesteps_total)
        self.get_policy().set_stddev(stddev)
        return {"cur_stddev": stddev}

    def _layout(self, step: Step, elapsed: float) -> dict[str, Any]:
        """How well the processes were used: what only a run with workers can tell."""
        workers, learners = self.config.worker_count, self.config.num_learners
        if not workers:
            return {}
        sampling = step.timers["env"] + step.timers["policy"]  # of a worker, on average
        step.timers["idle"] = max(elapsed - sampling, 0.0)
        busy = workers * sampling + learners * step.timers["learn"]
        return {
            **asdict(self.workers.health),
            "staleness": step.staleness,
            "parallel_efficiency": busy / (elapsed * (workers + learners)),
        }

    def _report(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self.env_failures_total += 1
            if self.env_failures_total <= MOST_INCIDENTS_SHOWN:
                log.warning("%s; it was rebuilt and training goes on", describe(incident))
                log.debug("%s", incident.traceback)
            elif self.env_failures_total == MOST_INCIDENTS_SHOWN + 1:
                log.warning("further failures of environments are only counted")
        limit = self.config.max_env_failures
        if incidents and limit is not None and self.env_failures_total > limit:
            # Each worker ends by itself when it alone has failed too often; this is about all of them.
            count = f"That was failure {self.env_failures_total} and max_env_failures is {limit}."
            raise EnvError(f"{describe(incidents[-1])}\n{count}")


class PPO(Trainer):
    """Proximal policy optimisation."""

    algorithm = "PPO"


class TRPO(Trainer):
    """Trust region policy optimisation."""

    algorithm = "TRPO"


class DQN(Trainer):
    """Deep Q-learning."""

    algorithm = "DQN"


TRAINERS: dict[str, type[Trainer]] = {"PPO": PPO, "TRPO": TRPO, "DQN": DQN}


def part_of(state: State, name: str) -> State:
    """The state of one part of a trainer."""
    prefix = f"{name}/"
    arrays = {key.removeprefix(prefix): array for key, array in state.arrays.items() if key.startswith(prefix)}
    return State(state.values[name], arrays)


def make_learner(config: AlgorithmConfig, policy: Policy, group: Group) -> ppo.PPO | trpo.TRPO | dqn.DQN:
    """The learner that a configuration is for."""
    if isinstance(config, TRPOConfig):
        return trpo.TRPO(config, policy, group)
    if isinstance(config, DQNConfig):
        return dqn.DQN(config, policy, group)
    assert isinstance(config, PPOConfig)
    return ppo.PPO(config, policy, group)


def _timers(elapsed: float, spent: Mapping[str, float]) -> dict[str, float]:
    """Seconds of an iteration's parts, and their shares of the whole."""
    seconds = {f"{name}_s": time for name, time in spent.items()}
    return seconds | {f"{name}_share": time / elapsed for name, time in spent.items()}
