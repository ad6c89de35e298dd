"""What a program types: one object that trains, saves, restores, evaluates and acts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from threadpoolctl import ThreadpoolController

from shoal.config.algorithms import ALGORITHMS, BUILT_IN, load
from shoal.config.changing import changed, unchecked
from shoal.config.experiment import Experiment, algorithm_config, as_said, config_tree, default_config
from shoal.config.foreign_names import POLICY_NAMES, keyword_problems, missing_method, policy_problem
from shoal.config.presets import fold_preset
from shoal.config.sections import NoiseConfig
from shoal.config.settings import AlgorithmConfig, key_paths
from shoal.data.batch import Incident, SampleSummary, Step
from shoal.data.metrics import EpisodeWindow
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.envs.making import maker_of, preprocessing_notes, vectorization_notes
from shoal.envs.recording import RecordingOptions
from shoal.envs.space_trees import space_tree
from shoal.envs.vector import describe
from shoal.errors import CheckpointError, ConfigError, EnvError, ShoalError
from shoal.models.catalog import with_registered_model
from shoal.models.policy import Policy
from shoal.parallel.capacity import check_room
from shoal.parallel.start import start_evaluators, start_learner, start_workers
from shoal.parallel.workers import Workers
from shoal.runs.atomic_files import own_folder
from shoal.runs.auto_workers import with_worker_count
from shoal.runs.checkpoints import understood, write_sharing
from shoal.runs.curriculum import Curriculum
from shoal.runs.evaluation import EvaluationSetup, PendingEvaluation, check_environment, start_evaluation
from shoal.runs.experience_output import ExperienceOutput, WritingWorkers
from shoal.runs.folders import make_run_folder, results_folder
from shoal.runs.hints import Hints
from shoal.runs.learners import make_learner
from shoal.runs.minari_output import start_output
from shoal.runs.resuming import tree_of
from shoal.runs.row_segments import SavedRows
from shoal.runs.saved_states import read_state
from shoal.runs.stopping import stop_reason
from shoal.runs.videos import check_pictures, video_in, videos_folder
from shoal.sampling.callbacks import call_hook, load_callbacks

log = logging.getLogger("shoal")
progress = logging.getLogger("shoal.progress")

MOST_INCIDENTS_SHOWN = 5


class Together(Protocol):
    """Takes the iterations of several trainers at once."""

    def step_of(self, trainer: Trainer) -> Step:
        """One trainer's iteration."""


class TrainerType(type):
    """The type of trainers, which knows what other libraries' classes have: `PPO.load`."""

    if not TYPE_CHECKING:  # a checker shall go on to report names that are not there

        def __getattr__(cls, name: str) -> NoReturn:
            raise missing_method("Trainer", cls.__name__, name) or AttributeError(
                f"type object {cls.__name__!r} has no attribute {name!r}"
            )


class Trainer(metaclass=TrainerType):
    """Trains one policy; `shoal.PPO` and its siblings are trainers with an algorithm.

    Without a name, a mapping is the configuration and everything else the environment: `PPO("CartPole-v1")`,
    `PPO("CartPole-v1", {"lr": 1e-4})`, `PPO({"env": "CartPole-v1"})`, `PPO(config={"lr": 1e-4}, env="CartPole-v1")`.
    `preset=True` starts from the tuned settings for that environment, `preset="NAME"` from those of a name.
    """

    algorithm: ClassVar[str]

    def __init__(
        self,
        *given: Any,
        config: Mapping[str, Any] | AlgorithmConfig | None = None,
        env: Any = None,
        preset: str | bool | None = None,
        search_path: Sequence[str | Path] = (),
        **unknown: Any,
    ) -> None:
        asked = self._understood(given, config, env, preset, unknown)
        self.user_code = UserCode.at(*search_path).with_working_folder()
        self.env_maker = maker_of(asked, self.user_code)
        notes = (*preprocessing_notes(self.env_maker, asked.env_config), *vectorization_notes(self.env_maker, asked))
        for note in notes:
            log.info("%s", note)
        self.config = with_worker_count(asked, self.env_maker)
        check_pictures(self.config, self.env_maker)
        self._thread_pools = ThreadpoolController()
        # The function stays here: it need not be fit for a journey to other processes.
        config = unchecked(with_registered_model(self.config), env_task_fn=None)
        self._closing = ExitStack()
        self._is_stopped = False
        self.callbacks = load_callbacks(self.config.callbacks, self.user_code)
        self.curriculum = Curriculum(self.config, self.env_maker)
        self._closing.callback(self.curriculum.close)
        try:
            self.workers: Workers = start_workers(config, self.env_maker)
            self._closing.callback(self.workers.stop)
            config = self.workers.config
            check_room(config, False, self.workers.policy.obs_spec.num_bytes)
            resolved = self.config.with_envs_per_worker(config.envs_per_worker)
            self.config = resolved.with_agents(self.workers.agents).with_whole_fragments()
            self.learner = start_learner(config, self.workers, self.user_code, make_learner, self._closing)
            check_environment(config, self.env_maker, self.workers.policy)
            self.evaluators = start_evaluators(config, self.workers.policy, self.user_code, self.workers, self._closing)
        except BaseException:  # a signal may come here
            self.stop()
            raise
        for note in config.timing_notes():
            log.warning("%s", note)
        self._begin()
        policy = self.get_policy()
        self._kernel = _kernel_of(policy)
        self.output = self._start_output()
        self._spaces = [space_tree(spec.space) for spec in (policy.obs_spec, policy.action_spec)]
        self._other_spaces = {
            name: [space_tree(spec.space) for spec in (other.obs_spec, other.action_spec)]
            for name, other in policy.others.items()
        }

    def _begin(self) -> None:
        """Set what counts up from nothing."""
        self.folder: Path | None = None  # where `save` writes if it is not told
        self.iteration = 0
        self._started = perf_counter()  # the iteration that is trained now
        self.timesteps_total = 0
        self.time_total_s = 0.0
        self.env_failures_total = 0
        self._saved_rows: Mapping[str, SavedRows] = {}  # of replay, in the last checkpoint that `save` has written
        self._hints = Hints(self.algorithm, self.config.num_envs, self.config)
        self._has_noted = False  # that observations are outside of their space
        self._window = EpisodeWindow()
        self._evaluation: PendingEvaluation | None = None  # beside training
        self.stack: Together | None = None  # of the trainers that train together with this one

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            found = missing_method("Trainer", type(self).__name__, name)
            if found is not None:
                raise found
            return object.__getattribute__(self, name)  # which raises again what it has raised before

    def train(self) -> dict[str, Any]:
        """One iteration: sample, learn, report, and warn of what goes wrong; where one is due, an evaluation."""
        result = self.train_iteration()
        for hint in self._hints.add(result):
            log.warning("%s", hint)
        if self.evaluation_is_due:
            result["evaluation"] = self.evaluate_iteration()
        return result

    def stop_at(self, stop: Mapping[str, float]) -> None:
        """Let an iteration of many short fragments end with the one that meets a stop criterion; {}: none."""
        limit, starts = stop.get("timesteps_total"), getattr(self.config, "learning_starts", None)
        if limit is not None and starts is not None and self.timesteps_total < limit < starts:
            log.warning(
                "nothing is learned: the run ends at %d steps, and learning begins after config.learning_starts=%d; "
                "set that to less, or train for longer",
                limit,
                starts,
            )
        if hasattr(self.learner, "is_over"):  # the iterations of other algorithms are one fragment long
            self.learner.is_over = partial(self._is_met, stop) if stop else None

    def _is_met(self, stop: Mapping[str, float], timesteps: int, samples: Sequence[SampleSummary]) -> bool:
        """Whether the iteration would meet a stop criterion if it ended with these samples."""
        episodes = [episode for sample in samples for episode in sample.episodes]
        count = self._window.total + len(episodes)
        result: dict[str, Any] = {
            "timesteps_total": timesteps,
            "time_total_s": self.time_total_s + perf_counter() - self._started,
            "episodes_total": count,
            "simulator_calls_total": timesteps + count,
        }
        has_news = bool(samples and samples[-1].episodes) and not self.config.curriculum.stages
        if has_news and not stop.keys() <= result.keys():
            result |= self._window.with_episodes(episodes)
        return stop_reason(result, stop) is not None

    def train_iteration(self) -> dict[str, Any]:
        """One iteration without the evaluation, though with `evaluation_parallel_to_training` that begins here."""
        self._check_going()
        start = self._started = perf_counter()
        if self.curriculum.advance():
            self._window.clear()
        self.workers.task = self.curriculum.task
        if self.config.evaluation_parallel_to_training and self._is_due(self.iteration + 1):
            # With the policy as it is before the iteration that it belongs to.
            self._evaluation = self._start_evaluation(self.iteration + 1)
        exploration = self._set_stddev()
        # Small matrices lose by threads, and lose hundredfold where another process wants the core.
        with self._thread_pools.limit(limits=1, user_api="blas"):
            try:
                if self.stack is None:
                    step = self.learner.training_step(self._sampled, self.timesteps_total)
                else:
                    step = self.stack.step_of(self)
            except EnvError as error:
                self._keep_incidents(error.incidents)
                raise
        if self.output is not None:
            self.output.end_iteration()
        self._keep_incidents(step.incidents)
        self.iteration += 1
        self.timesteps_total += step.timesteps
        self._report(step.incidents)
        if step.notes and not self._has_noted:
            self._has_noted = True
            log.warning("%s", step.notes[0])
        elapsed = perf_counter() - start + step.before_s
        self.time_total_s += elapsed
        result = {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "timesteps_this_iter": step.timesteps,
            **self._window.add(step.episodes, self.curriculum.counted(step.episodes)),
            "simulator_calls_total": self.timesteps_total + self._window.total,
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

    def own_step(self) -> Step:
        """Sample and learn alone, where others train together with this one."""
        return self.learner.training_step(self._sampled, self.timesteps_total)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the iteration that was just trained is one with an evaluation."""
        return self._is_due(self.iteration)

    def evaluate_iteration(self) -> dict[str, Any]:
        """The evaluation that belongs to this iteration: the one that has begun, or one now."""
        evaluation, self._evaluation = self._evaluation, None
        return self.evaluate() if evaluation is None else self._evaluated(evaluation)

    def save(self, folder: str | Path | None = None) -> str:
        """Write a checkpoint into `folder` (default: a new run folder) and return its path once it is on the disk."""
        summary = {"training_iteration": self.iteration, "timesteps_total": self.timesteps_total}
        place = self._folder_for_files() if folder is None else Path(folder).expanduser()
        state, tree = self.get_state(), tree_of(self._experiment, self.user_code)
        path, self._saved_rows = write_sharing(place, state, self._saved_rows, tree, summary)
        self.call_hook("on_checkpoint", checkpoint=str(path))
        return str(path)

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint of the same algorithm, environment and model."""
        with understood(Path(path)):
            self.set_state(self._read(path))

    def evaluate(
        self, checkpoint: str | Path | None = None, *, episodes: int | None = None, explore: bool | None = None
    ) -> dict[str, Any]:
        """Run whole episodes without learning, with the present policy or that of a checkpoint."""
        self._check_going()
        duration = episodes or self.config.evaluation_duration
        asked = unchecked(self.config, evaluation_interval=1, evaluation_duration=duration)
        if problems := asked.licence_conflicts():
            raise ConfigError(problems)
        if checkpoint is None:
            return self._evaluated(self._start_evaluation(self.iteration, episodes, explore))
        kept = self.get_policy().get_state()
        try:
            with understood(Path(checkpoint)):
                self.get_policy().set_state(self._read_policy(checkpoint))
            return self._evaluated(start_evaluation(self._setup, episodes=episodes, explore=explore))
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
        policy_id: str | None = None,
    ) -> Any:
        """The action for one observation; `explore` is the config's unless given, `policy_id` one of several policies.

        A policy with memory takes the state that its last answer gave, or where an episode begins
        `get_policy().get_initial_state()`, and answers with action, state and a dict of details.
        """
        explore = self.config.explore if explore is None else explore
        return self.get_policy(policy_id).compute_single_action(
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
        policy_id: str | None = None,
    ) -> Any:
        """An action for each observation of a dict, under the same key, or of a list or batch in its order.

        A policy with memory takes states, and what was before, in the same form, and gives actions, states and details.
        """
        explore = self.config.explore if explore is None else explore
        return self.get_policy(policy_id).compute_actions(
            observations, state, prev_action=prev_action, prev_reward=prev_reward, explore=explore
        )

    @classmethod
    def get_default_config(cls) -> dict[str, Any]:
        """Every key with its default, to be changed and given to a trainer."""
        return default_config(cls.algorithm).copy()

    def get_policy(self, policy_id: str | None = None) -> Policy:
        """The policy that learns; where agents have several, the first, or the one of this name."""
        policy = self.workers.policy
        names = self.config.multiagent.names
        if policy_id is None or policy_id == names[0]:
            return policy
        if policy_id not in policy.others:
            raise ConfigError(f"policy_id: there is no policy {policy_id!r}; use {' or '.join(names)}")
        return policy.others[policy_id]

    def call_hook(self, name: str, **given: Any) -> None:
        """Call one of the driver's hooks, if there are any."""
        if self.callbacks is not None:
            call_hook(self.callbacks, name, trainer=self, **given)

    def get_config(self) -> dict[str, Any]:
        """The resolved configuration as a plain dict."""
        return config_tree(self.config)

    def get_state(self) -> State:
        """Everything that the next iteration depends on."""
        workers: dict[str, Any] = {f"worker{k}": state for k, state in enumerate(self.workers.get_state())}
        if self._other_spaces:
            workers["other_spaces"] = self._other_spaces
        output = {} if self.output is None else {"output": self.output.get_state()}
        if self._kernel is not None:
            workers["kernel"] = self._kernel
        return State.of(
            "/",
            algorithm=self.algorithm,
            spaces=self._spaces,
            training_iteration=self.iteration,
            timesteps_total=self.timesteps_total,
            time_total_s=self.time_total_s,
            env_failures_total=self.env_failures_total,
            episodes=self._window.get_state(),
            curriculum=self.curriculum.get_state(),
            policy=self.get_policy().get_state(),
            learner=self.learner.get_state(),
            **output,
            **workers,
        )

    def set_state(self, state: State) -> None:
        """Take over a saved state; what does not fit is refused before anything changes."""
        values = state.values
        if values["algorithm"] != self.algorithm:
            raise CheckpointError(f"the checkpoint is of {values['algorithm']}, but this is {self.algorithm}")
        self.get_policy().set_state(state.part("policy"))
        self._note_kernel(values.get("kernel"))
        self.learner.set_state(state.part("learner"))
        self.iteration = int(values["training_iteration"])
        self.timesteps_total = int(values["timesteps_total"])
        self.time_total_s = float(values["time_total_s"])
        self.env_failures_total = int(values["env_failures_total"])
        self._window.set_state(state.part("episodes"))
        self.curriculum.set_state(state.part("curriculum"))
        if self.output is not None:
            self.output.set_state(state.part("output") if "output" in values else None)
        if self.config.learns_offline:  # nobody has environments
            return
        workers = state.parts("worker")
        saved = [saved_rows(worker) for worker in workers]
        if saved != [self.config.rows_per_worker] * max(self.config.worker_count, 1):
            log.warning(
                "the checkpoint has %d environments in %d workers, this trainer %d in %d: its unfinished episodes are "
                "dropped",
                sum(saved),
                len(saved),
                self.config.num_rows,
                max(self.config.worker_count, 1),
            )
            return
        steps = sum(replayed_steps(worker) for worker in workers)
        if steps and self.config.restore_episodes:
            progress.info("replaying %d steps of unfinished episodes", steps)
        lost = self.workers.set_state(workers)
        if lost:
            log.info("%d unfinished episodes could not be brought back exactly", lost)

    def take_over(self, state: State) -> None:
        """Take over another trainer's policy, optimiser and task, and keep counters and environments.

        The statistics over the last episodes are about the policy, so they come with it.
        """
        if state.values["algorithm"] != self.algorithm:
            raise CheckpointError(f"the checkpoint is of {state.values['algorithm']}, but this is {self.algorithm}")
        self.get_policy().set_state(state.part("policy"))
        self.learner.set_state(state.part("learner"))
        self.curriculum.set_state(state.part("curriculum"))
        self._window.set_state(State({**state.values["episodes"], "total": self._window.total}))

    def stop(self) -> None:
        """End workers and learners and close the environments; may be called twice."""
        self._is_stopped = True
        self._closing.close()

    def __repr__(self) -> str:
        state = ", stopped" if self._is_stopped else ""
        return f"<{type(self).__name__} on {self.env_maker.name}, iteration {self.iteration}{state}>"

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _understood(
        self,
        given: Sequence[Any],
        config: Mapping[str, Any] | AlgorithmConfig | None,
        env: Any,
        preset: str | bool | None,
        unknown: Mapping[str, Any],
    ) -> AlgorithmConfig:
        """The checked configuration of what a program has given to a trainer."""
        self._refuse(given, env, unknown)
        self.preset: str | None = None  # the name of the one that the settings began with
        return self._config(*_sorted_out(given, config, env), preset)

    def _refuse(self, given: Sequence[Any], env: Any, unknown: Mapping[str, Any]) -> None:
        """Refuse what the trainers of other libraries take, with the line to write."""
        problems = keyword_problems(unknown, key_paths(ALGORITHMS[self.algorithm])) if unknown else []
        for value in given:
            if isinstance(value, str) and value in POLICY_NAMES:
                others = [other for other in (*given, env) if other is not None and other != value]
                problems.insert(0, policy_problem(value, self.algorithm, others[0] if others else None))
        if problems:
            raise ConfigError(problems)

    def _config(
        self, config: Mapping[str, Any] | AlgorithmConfig | None, env: Any, preset: str | bool | None
    ) -> AlgorithmConfig:
        if isinstance(config, AlgorithmConfig):
            if preset:
                raise ConfigError("preset: this config has a value for every key already; give those that you set")
            return config if env is None else changed(config, env=env)
        tree = as_said(self.algorithm, config or {})
        if env is not None:
            if tree.get("env") not in (None, env):
                raise ConfigError(f"env: given twice, as {env!r} and in the config as {tree['env']!r}")
            tree["env"] = env
        if tree.get("env") is None and not ALGORITHMS[self.algorithm].learns_offline:
            raise ConfigError(f"env: is missing; type shoal.{self.algorithm}(env='CartPole-v1')")
        body: dict[str, Any] = {"run": self.algorithm, "config": tree, "preset": preset}
        if problems := fold_preset(body):
            raise ConfigError(problems)
        self.preset = body.get("preset")
        return algorithm_config(self.algorithm, body["config"])

    def _note_kernel(self, saved: str | None) -> None:
        """Say so where a run goes on with another kernel than the one that it was saved with."""
        if saved != self._kernel:
            log.warning(
                "the checkpoint was learned with %s and goes on with %s: the same up to rounding, not bit for bit",
                _kernel_name(saved),
                _kernel_name(self._kernel),
            )

    def _check_going(self) -> None:
        if self._is_stopped:  # without its workers it would wait for ever
            raise ShoalError("this trainer was stopped; make another, and restore a checkpoint into it")

    def _start_output(self) -> ExperienceOutput | None:
        """What writes sampled steps down, if anything does; it ends before the workers do."""
        self._sampled: Any = self.workers
        if self.config.output is None:
            return None
        try:
            output = start_output(self.config.output, self.get_policy(), self.env_maker.source, self.algorithm)
        except BaseException:
            self.stop()
            raise
        self._closing.callback(output.close)
        self._sampled = WritingWorkers(self.workers, output)
        return output

    @property
    def _setup(self) -> EvaluationSetup:
        return EvaluationSetup(self.config, self.env_maker, self.get_policy(), self.evaluators, self.curriculum.task)

    @property
    def _experiment(self) -> Experiment:
        return Experiment(name=self.env_maker.name, run=self.algorithm, preset=self.preset, config=self.config)

    def _folder_for_files(self) -> Path:
        """Where it writes what it is not told a place for: its run, or a new run folder under ~/shoal_results."""
        if self.folder is None:
            parent = results_folder(self._experiment.results_dir, self._experiment.name)
            self.folder = make_run_folder(parent, self.algorithm, self.config.env)
        return self.folder

    def _read(self, path: str | Path) -> State:
        return read_state(path, self.config, self.get_policy().obs_spec.space)

    def _read_policy(self, path: str | Path) -> State:
        """The policy's part of a checkpoint, which must be of the same algorithm."""
        state = self._read(path)
        if state.values["algorithm"] != self.algorithm:
            raise CheckpointError(
                f"{path} is a checkpoint of {state.values['algorithm']}, but this is {self.algorithm}"
            )
        return state.part("policy")

    def _is_due(self, iteration: int) -> bool:
        interval = self.config.evaluation_interval
        return interval is not None and iteration % interval == 0

    def _start_evaluation(
        self, iteration: int, episodes: int | None = None, explore: bool | None = None
    ) -> PendingEvaluation:
        """Begin an evaluation with the policy as it is now, and with the video of this iteration if there are any."""
        recording = RecordingOptions(videos=self._videos(iteration))
        return start_evaluation(self._setup, episodes=episodes, explore=explore, recording=recording)

    def _videos(self, iteration: int) -> tuple[Path, ...]:
        """Where the video of one evaluation goes: into `videos/` of the run, or where `record_env` says."""
        if not self.config.record_env:
            return ()
        folder = videos_folder(self.config) or own_folder(self._folder_for_files() / "videos")
        return (video_in(folder, iteration),)

    def _evaluated(self, evaluation: PendingEvaluation) -> dict[str, Any]:
        """The metrics of an evaluation, and what the user's hook adds to them."""
        folder = self.folder
        if folder is None:
            metrics, results = evaluation.results()
        else:
            metrics, results = evaluation.results_kept(folder, training_iteration=self.iteration)
        if results.video_problem:
            log.error("%s; the run continues", results.video_problem)
        self.call_hook("on_evaluate_end", evaluation_metrics=metrics)
        return metrics

    def _set_stddev(self) -> dict[str, float]:
        """Set a spread of actions that is not learned, whatever a restored policy had; what results say of it."""
        noise = self.config.exploration_config
        if not isinstance(noise, NoiseConfig) or noise.type != "GaussianNoise":
            return {}
        stddev = scheduled(noise.stddev, noise.stddev_schedule, self.timesteps_total)
        policy = self.get_policy()
        for each in (policy, *policy.others.values()):
            each.set_stddev(stddev)
        return {"cur_stddev": stddev}

    def _layout(self, step: Step, elapsed: float) -> dict[str, Any]:
        """How well the processes were used: what only a run with workers can tell."""
        workers, learners = self.config.worker_count, self.config.num_learners
        if not workers:
            return {}
        sampling = step.timers["env"] + step.timers["policy"]  # of a worker, on average
        step.timers["idle"] = max(elapsed - sampling, 0.0)
        step.timers["wait"] = step.wait_s
        busy = workers * sampling + learners * step.timers["learn"]
        return {
            "num_healthy_workers": self.workers.num_healthy_workers,
            "num_remote_worker_restarts": self.workers.num_remote_worker_restarts,
            "staleness": step.staleness,
            # What was sampled before the iteration began may be counted in it.
            "parallel_efficiency": min(busy / (elapsed * (workers + learners)), 1.0),
        }

    def _keep_incidents(self, incidents: Sequence[Incident]) -> None:
        """Keep incidents in the run's folder, if there is one, for `shoal incidents` and `shoal replay`."""
        if self.folder is None or not incidents:
            return
        from shoal.runs.incidents import append_incidents

        where = {"training_iteration": self.iteration + 1, "timesteps_total": self.timesteps_total}
        try:
            append_incidents(self.folder, incidents, self.env_failures_total, **where)
        except OSError as error:
            log.warning("%s/incidents.jsonl cannot be written (%s); training goes on", self.folder, error.strerror)

    def _report(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self.env_failures_total += 1
            if self.env_failures_total <= MOST_INCIDENTS_SHOWN:
                log.warning("%s; it was rebuilt and training continues", describe(incident))
                log.debug("%s", incident.traceback)
            elif self.env_failures_total == MOST_INCIDENTS_SHOWN + 1:
                log.warning("further failures of environments are only counted here; `shoal incidents` lists them")
        limit = self.config.max_env_failures
        if incidents and limit is not None and self.env_failures_total > limit:
            # Each worker ends by itself when it alone has failed too often; this is about all of them.
            count = f"That was failure {self.env_failures_total} and max_env_failures is {limit}."
            raise EnvError(f"{describe(incidents[-1])}\n{count}")


def saved_rows(worker: State) -> int:
    """The number of rows of a saved worker, over all policies."""
    others = worker.values.get("others", {})
    return sum(len(values["history_lengths"]) for values in (worker.values, *others.values()))


def replayed_steps(worker: State) -> int:
    """The number of steps that bring a saved worker's environments back which cannot tell their state."""
    known = worker.values.get("env_states", {})
    lengths = worker.values["history_lengths"]
    return sum(max(length, 0) for row, length in enumerate(lengths) if str(row) not in known)


class Trainers(dict[str, type[Trainer]]):
    """The trainer of each algorithm; that of an installed package's is made when it is first asked for."""

    def __missing__(self, name: str) -> type[Trainer]:
        if name not in ALGORITHMS:
            raise KeyError(name)
        self[name] = made = _trainer(name)
        return made


def _trainer(name: str) -> type[Trainer]:
    doc = f"Trains one policy by {name}; `shoal config show --run {name}` prints its keys."
    place = "" if name in BUILT_IN else ALGORITHMS[name].trainer
    kind = load(place) if place else Trainer
    return type(name, (kind,), {"algorithm": name, "__module__": __name__, "__qualname__": name, "__doc__": doc})


TRAINERS = Trainers({name: _trainer(name) for name in BUILT_IN})


def __getattr__(name: str) -> type[Trainer]:
    """`PPO` and its siblings: a trainer for each algorithm."""
    if not name.startswith("_"):
        try:
            return TRAINERS[name]
        except KeyError:
            pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _sorted_out(
    given: Sequence[Any], config: Mapping[str, Any] | AlgorithmConfig | None, env: Any
) -> tuple[Mapping[str, Any] | AlgorithmConfig | None, Any]:
    """Configuration and environment, also where they were given without their names."""
    for value in given:
        if isinstance(value, Mapping | AlgorithmConfig):
            if config is not None:
                raise ConfigError("config: given twice; leave one of them out")
            config = value
        elif value is not None:
            if env is not None:
                raise ConfigError(f"env: given twice, as {value!r} and as {env!r}; leave one of them out")
            env = value
    return config, env


def _timers(elapsed: float, spent: Mapping[str, float]) -> dict[str, float]:
    """Seconds of an iteration's parts, and their shares of the whole."""
    seconds = {f"{name}_s": time for name, time in spent.items()}
    return seconds | {f"{name}_share": time / elapsed for name, time in spent.items()}


def _kernel_of(policy: Policy) -> str | None:
    """The digest of the compiled kernel that a policy's network computes with, which is told; None is NumPy's."""
    if policy.kernel_use is None:
        return None
    if policy.kernel_use.has_failed:
        log.warning("%s", policy.kernel_use)  # progress is not shown with --quiet
    else:
        progress.info("%s", policy.kernel_use)
    return policy.kernel_use.digest


def _kernel_name(digest: str | None) -> str:
    return "NumPy" if digest is None else f"the compiled kernel {digest}"
