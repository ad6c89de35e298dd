"""One run from start to end: train, report, evaluate, save, stop."""

from __future__ import annotations

import atexit
import logging
import signal
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from os.path import isfile
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shoal.config.changing import changed
from shoal.config.experiment import Experiment, as_tree, experiment_from
from shoal.config.foreign_names import run_keyword_problem
from shoal.data.number_text import number_text
from shoal.data.results import numbers
from shoal.data.state import State
from shoal.envs.env_errors import error_text, named_text, notice_once
from shoal.envs.importing import INSTALLED, UserCode
from shoal.envs.making import maker_of, preprocessing_notes, vectorization_notes
from shoal.errors import (
    CheckpointError,
    ConfigError,
    EnvStartError,
    FolderGone,
    Interrupted,
    ShoalError,
)
from shoal.machine.deadlines import Deadline, told_deadline
from shoal.machine.fingerprint import fingerprint
from shoal.machine.last_exit import ending_anyway
from shoal.machine.signals import exit_code
from shoal.parallel.capacity import check_size
from shoal.runs.activity import Activity, progress, training
from shoal.runs.chain import Chain, ChainLink
from shoal.runs.checkpoint_folders import checkpoint_folder, checkpoints_of
from shoal.runs.checkpoints import Checkpoint, newest_summary, read_checkpoint, understood
from shoal.runs.folders import EXPERIMENT_FILE, find_run, make_run_folder, results_folder
from shoal.runs.hints import Hints
from shoal.runs.incidents import forget_after
from shoal.runs.interrupts import LEAVE_S, Interrupts
from shoal.runs.lease import check_free, one_at_a_time
from shoal.runs.loggers import Loggers, check_loggers
from shoal.runs.logs import log_to
from shoal.runs.lost_processes import disappearance
from shoal.runs.outcomes import Outcome, forget_outcome, read_outcome
from shoal.runs.own_replay import film_own_replay, films_itself
from shoal.runs.preset_notes import preset_note
from shoal.runs.recorded_inputs import OFFLINE_STOP, offline_stop_note, with_recorded_paths
from shoal.runs.reporters import Reporters
from shoal.runs.resuming import (
    ResumeChoice,
    choose,
    experiment_of,
    experiment_to_run,
    finished_iterations,
    stored_tree,
    with_changes,
)
from shoal.runs.run_folder import RunFolder, write_errors_named
from shoal.runs.seals import trust_pickles
from shoal.runs.stopping import default_stop, missing_metric, stop_reason
from shoal.runs.user_files import file_hashes, keep_code, user_files
from shoal.runs.walltime import Walltime
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.config.settings import AlgorithmConfig
    from shoal.runs.trainer import Trainer

logger = logging.getLogger("shoal.runs")

Result = dict[str, Any]

REPORT_WRITER = "shoal.reports.run_report:leave_report"
NOTEBOOK_VIEW = "shoal.reports.notebook:run_html"
"""Who writes the page of a run, and who shows it, by name: reports read what runs leave, and runs need none of them."""


STUCK = (
    "the walltime has ended the run twice without a finished iteration in between, so another start would gain "
    "nothing; allow more time, or make iterations shorter with a smaller train_batch_size or evaluation_duration"
)

CLOSING_S = 15.0  # for the environments of this process to close, at the end of a command
RAY_CLOSING_S = 60.0  # with workers, which have a limit of their own, and Ray


@dataclass(frozen=True)
class SharedWatch:
    """Who hears of signals, and watches the walltime, for so many runs of one process."""

    interrupts: Interrupts
    walltime: Walltime
    count: int


class Run:
    """A run and its folder; `results()` trains it.

    `user_code` is where the environment and its like are found. `resumed_from` is the checkpoint it goes on from
    and `unsaved` the number of iterations that were finished after it, both for sure once `on_start` is called,
    `last_checkpoint` the newest it has. `done` is the criterion that it has met already, if there is nothing to train.
    `notes` are sentences for the user, `overrides` what `resume` was asked to change. `outcome` is set when it ends.
    `activity` is what it does at the moment, `last_result` its newest numbers, `best_return` the highest mean return of
    this process and its iteration. `leaves_report` says whether it leaves a page about itself, `keeps_code` whether it
    keeps a copy of the user's code. `deadline` is when its process will be ended: it saves and ends before.
    `more_follows` says whether the same command has further runs to train. `watch` is shared by runs that train
    together; their `results` begin with an empty one, when everything is ready. `trainer` is there from then on.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        user_code: UserCode = INSTALLED,
        done: str | None = None,
        notes: tuple[str, ...] = (),
        overrides: Mapping[str, Any] = MappingProxyType({}),
        is_new: bool = False,
    ) -> None:
        self.experiment = experiment
        self.user_code = user_code
        self.done = done
        lost = disappearance(folder) if done is None and not is_new else None
        self.notes = notes if lost is None else (*notes, lost)
        self.overrides = dict(overrides)
        self.outcome: Outcome | None = None
        self.activity = Activity()
        self.last_result: dict[str, int | float] = {}
        self.best_return: tuple[float, int] | None = None
        self.leaves_report = experiment.report
        self.keeps_code = False
        self.deadline: Deadline | None = None
        self.more_follows = False
        self.watch: SharedWatch | None = None
        self.trainer: Trainer | None = None
        self._was_out_of_time = self._has_trained = self._is_command = False
        self._walltime = Walltime(None)
        self._is_new = is_new
        self._same: Callable[[], ResumeChoice] | None = None  # looks again for the run that the same command means
        self._kept = RunFolder(folder, experiment, user_code)
        self._taken_over: Checkpoint | None = None
        self.resumed_from = self._kept.newest
        self.unsaved = self._finished = 0
        self.on_start: Callable[[], None] = lambda: None

    @property
    def folder(self) -> Path:
        """Where the run is."""
        return self._kept.path

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that it has."""
        return self._kept.newest

    @property
    def is_stuck(self) -> bool:
        """Whether the walltime has ended it twice in a row with no iteration finished in between."""
        is_out_of_time = self.outcome is not None and self.outcome.signal == signal.SIGUSR1
        return is_out_of_time and self._was_out_of_time and not self._has_trained

    @property
    def last_link(self) -> ChainLink | None:
        """The receipt of its last finished iteration, if this process has trained one."""
        return None if self._kept.chain is None else self._kept.chain.last

    @classmethod
    def open(cls, experiment: Experiment, new: bool = False, user_code: UserCode = INSTALLED) -> Run:
        """The newest unfinished run of this experiment, or a new one."""
        user_code = user_code.with_working_folder()
        source = None
        if experiment.restore is not None:
            from shoal.runs.warm_start import place_of

            # Of a name it is the newest run, which may soon be this one; the same command still means this one.
            source = place_of(experiment.restore, experiment.results_dir)
        experiment, notes = checked(experiment, user_code)
        parent = results_folder(experiment.results_dir, experiment.name)
        same = None if new else partial(choose, parent, as_tree(experiment), experiment.stop, source)
        if same is not None:
            choice = same()
            notes = (*notes, choice.note) if choice.note else notes
            if choice.folder is not None:
                check_free(choice.folder, or_new=True)
                if source is not None:
                    experiment = changed(experiment, restore=(stored_tree(choice.folder) or {})["restore"])
                return cls(experiment, choice.folder, user_code, choice.done, notes)
        check_size(experiment.config)
        folder = make_run_folder(parent, experiment.run, experiment.config.env)
        if experiment.restore is not None:
            from shoal.runs.warm_start import taken

            notes = (*notes, taken(experiment.restore))
        run = cls(experiment, folder, user_code, None, notes, is_new=True)
        run._same = same
        return run

    @classmethod
    def resume(cls, path: str | Path, overrides: Mapping[str, Any] | None = None, trust: bool = False) -> Run:
        """The run at `path`; `overrides` are other values by dotted key (`stop`, `config.lr`), as far as it may.

        The code that a stranger's run names is refused without `trust`.
        """
        folder = find_run(path)
        given, newest = checkpoint_folder(Path(path).expanduser().absolute()), next(iter(checkpoints_of(folder)), None)
        if given is not None and given != newest:
            raise CheckpointError(
                f"{folder} continues from its newest checkpoint, {newest}; give that or the run's folder."
            )
        tree = stored_tree(folder)
        if tree is None:
            raise CheckpointError(f"{folder / EXPERIMENT_FILE} cannot be read; the run cannot continue without it.")
        if trust:
            trust_pickles()
        _, user_code = experiment_to_run(tree, folder, trust)
        tree, changes = with_changes(folder, tree, overrides or {})
        stored, _ = experiment_of(tree)
        experiment, notes = _with_stop(stored)
        check_loggers(experiment.loggers)
        check_free(folder)
        done = stop_reason(newest_summary(folder) or {}, experiment.stop)
        if done is None:  # else nothing is changed
            notes = (*notes, *changes)
        return cls(experiment, folder, user_code, done, notes, overrides or {})

    def _repr_html_(self) -> str:
        """The run in a notebook, as far as it has come."""
        shown: str = _report(NOTEBOOK_VIEW, self.folder)
        return shown

    def take_over(self, path: str | Path) -> None:
        """Begin with the policy, the optimiser and the task of another run's checkpoint.

        Counters, environments and folder stay the run's own. It is to be called before `results`.
        """
        self._taken_over = read_checkpoint(path)

    def save(self) -> Path | None:
        """Make the last finished iteration a checkpoint, if it is none yet; the newest there is.

        While `results` is at work, between two of them.
        """
        self._kept.save()
        return self.last_checkpoint

    def results(self, hold_signals: bool = False) -> Generator[Result, None, None]:
        """Train until a stop criterion is met, and yield one result per iteration.

        However it ends, the last finished iteration is saved. The first Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 ends it so,
        a second Ctrl-C or SIGTERM at once; with `hold_signals` that is so in the caller's loop body too, else Ctrl-C
        there is Python's own.
        """
        if self.done is not None:
            self.outcome = Outcome("stopped", self.done)
            return
        self._is_command = hold_signals
        with ExitStack() as stack:
            try:
                self._take(stack)
                stack.callback(self._film_replay)
                stack.callback(self._write_outcome)
                with write_errors_named(self.folder):
                    before = read_outcome(self.folder)
                    self._was_out_of_time = before is not None and before.signal == signal.SIGUSR1
                    self._finished = finished_iterations(self.folder)
                    forget_outcome(self.folder)
                    stack.enter_context(log_to(self.folder / "log.txt", self.experiment.config.log_level))
            except ShoalError:
                if self._is_new:
                    self._remove(stack)
                raise
            logger.info("shoal %s starts in %s.", __version__, self.folder)
            for note in self.notes:
                logger.info("%s", note)
            interrupts = self._watched(stack, hold_signals)
            try:
                with interrupts.cutting():
                    start = self._start()
                    trainer = make_trainer(self.experiment, self.user_code, start, self._taken_over)
                    if start is not None:  # the trainer has its state, and there may not be memory for two
                        start = replace(start, state=State())
            except Interrupted:
                self._note_signal(interrupts)
                return
            except (ConfigError, EnvStartError):
                # The user will type something else: nothing was trained, so nothing is left.
                if not checkpoints_of(self.folder):
                    self._remove(stack)
                raise
            stack.callback(self._close, trainer)
            stack.callback(self._leave_report)  # before environments close, which may never end
            self.trainer = trainer
            self._kept.on_checkpoint = lambda path: trainer.call_hook("on_checkpoint", checkpoint=str(path))
            trainer.folder = self.folder
            interrupts.install()  # Ray takes the handlers when it starts
            timesteps = int(start.summary.get("timesteps_total", 0)) if start is not None else 0
            with write_errors_named(self.folder):
                reporters = Reporters(self.folder, self._kept.saved_iteration, timesteps)
                forget_after(self.folder, self._kept.saved_iteration)
                self._begin_chain(trainer, stack)
            stack.callback(reporters.close)
            stack.callback(self._kept.wait)  # before the chain is closed, which it writes
            loggers = Loggers(self.experiment, self.folder, start is not None)
            stack.callback(lambda: loggers.finish(self._state()))
            if self._taken_over is not None:
                logger.info("It starts with the policy, optimiser and task of %s.", self._taken_over.path)
                self._taken_over = None
                if start is not None:  # its own checkpoint has it from now on, so that it is taken over once
                    self._kept.replace(start, trainer.get_state())
            if self.watch is not None:
                yield {}  # the others begin too before anybody trains
            yield from self._train(trainer, reporters, loggers, interrupts)

    def _take(self, stack: ExitStack) -> None:
        """Hold the folder, unless the same command has begun at the same moment elsewhere, and was first."""
        if self._same is None:
            stack.enter_context(self._kept.held())
            return
        with write_errors_named(self.folder), one_at_a_time(self.folder.parent):
            other = self._same().folder
            if other is not None:
                check_free(other, or_new=True)
            stack.enter_context(self._kept.held())

    def _watched(self, stack: ExitStack, hold_signals: bool) -> Interrupts:
        """Who hears of signals and watches the walltime: somebody of its own, or one for several runs."""
        if self.watch is not None:
            self._walltime = self.watch.walltime
            return self.watch.interrupts
        interrupts = stack.enter_context(Interrupts(hold_signals))
        interrupts.what_is_saved = self.saved_words
        interrupts.when_late = self.save_meanwhile
        self._walltime = stack.enter_context(Walltime(self.deadline))
        return interrupts

    def _begin_chain(self, trainer: Trainer, stack: ExitStack) -> None:
        """Open the receipt of the run, and keep the user's code if that is asked for."""
        config = trainer.config
        files = user_files(self.experiment, self.user_code)
        if self.keeps_code:
            keep_code(self.folder, files)
        if config.trainer:  # RLlib's algorithms have their weights in files of their own
            return
        layout = {"workers": config.worker_count, "envs_per_worker": config.envs_per_worker}
        layout["learners"] = config.num_learners
        head = {"seed": config.seed, "shoal": __version__, **fingerprint(), "layout": layout}
        self._kept.chain = Chain(self.folder, self._kept.saved_iteration, {**head, "code": file_hashes(files)})
        stack.callback(self._kept.chain.close)

    def _close(self, trainer: Trainer) -> None:
        """End everything that belongs to the trainer; a command ends also where an environment does not close."""
        self.activity = Activity("closing")
        if not self._is_command:
            trainer.stop()
            return
        has_ray = bool(trainer.config.worker_count or trainer.config.evaluation_num_workers)
        after_s = RAY_CLOSING_S if has_ray else CLOSING_S
        words = (
            f"close() of an environment has not ended within {after_s:.0f} s, and the process ends without it"
            f"{self.saved_words()}"
        )
        with ending_anyway(after_s, self._exit_code(), words):
            trainer.stop()

    def _exit_code(self) -> int:
        """What a command ends with that has trained this run."""
        outcome = self.outcome
        if outcome is None or outcome.kind == "failed" or self.is_stuck:
            return 1
        if outcome.signal is not None:
            return exit_code(outcome.signal)
        return int(self.more_follows)

    def _write_outcome(self) -> None:
        """Leave word of how it ended, for who lists runs."""
        if self.outcome is not None:
            self._kept.leave_word(self.outcome)

    def _state(self) -> str:
        """How it has ended, as lists of runs say it."""
        kind = "failed" if self.outcome is None else self.outcome.kind
        return "finished" if kind == "stopped" else kind

    def _leave_report(self) -> None:
        """Leave a page about the run; whatever is wrong with it, the run is none the worse."""
        self._write_outcome()  # of which it tells
        if self.outcome is None or not self.last_result or not self.leaves_report:
            return
        try:
            _report(REPORT_WRITER, self.folder)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            logger.warning("report.html cannot be written (%s); the run itself is complete.", reason)

    def _film_replay(self) -> None:
        """Film a replay for the page, where that is cheap."""
        if self.outcome is None or not isfile(self.folder / "report.html") or not self.leaves_report:
            return
        if self.outcome.kind == "stopped" and films_itself(self.experiment.config.env, self._training_s):
            self.activity = Activity("ending")
            film_own_replay(self.folder)

    @property
    def _training_s(self) -> float:
        return float(self.last_result.get("time_total_s", 0.0))

    def _remove(self, stack: ExitStack) -> None:
        """Leave nothing of a run that never began."""
        stack.pop_all().close()
        self._kept.remove()

    def _train(
        self, trainer: Trainer, reporters: Reporters, loggers: Loggers, interrupts: Interrupts
    ) -> Iterator[Result]:
        """The loop, and the save at its end."""
        hints = Hints(self.experiment.run, trainer.config.num_envs, trainer.config)
        trainer.stop_at(self.experiment.stop)
        is_left = False
        try:
            while self.outcome is None:
                begun = monotonic()
                result = self._iterate(trainer, interrupts)
                if result is not None:
                    self._kept.link()
                    self._report_row(result, reporters)
                    loggers.log(result)
                    self._warn_of_missing(result)
                    self._note_result(result)
                    for hint in hints.add(result):
                        logger.warning("%s", hint)
                    self._save_if_due()
                    if reason := stop_reason(result, self.experiment.stop):
                        self.outcome = Outcome("stopped", reason)
                    with interrupts.away() if self.watch is None else nullcontext():
                        is_left = True  # unless the program comes back for more
                        yield result
                        is_left = False
                self._note_signal(interrupts)
                if self.outcome is None and self._walltime.is_over(monotonic() - begun):
                    self.outcome = Outcome("interrupted", str(self._walltime.sentence), signal.SIGUSR1)
            logger.info("The run ends: %s.", self.outcome.sentence)
            if self.outcome.kind == "interrupted" or self.experiment.checkpoint_at_end:
                self._kept.save()
            self._kept.settle()
        except BaseException as error:
            if not is_left or not isinstance(error, GeneratorExit):
                self._fail(error)
                if isinstance(error, Exception | KeyboardInterrupt | SystemExit):
                    raise
                # A loop takes GeneratorExit for its own end, and then the run would end as if all were well.
                raise ShoalError(f"training failed: {error_text(error)}") from error
            self._note_signal(interrupts)
            self.outcome = self.outcome or Outcome("stopped", "the program left the loop")
            logger.info("The run ends: %s.", self.outcome.sentence)
            self._kept.save()

    def _report_row(self, result: Result, reporters: Reporters) -> None:
        """Write an iteration down where the run is ours; a folder that was moved gets it before the run ends."""
        try:
            self._kept.confirm()
        except FolderGone as error:
            if error.moved_to is not None:
                reporters.follow(error.moved_to)
                reporters.report(result)
            raise
        reporters.report(result)

    def _save_if_due(self) -> None:
        """Save on schedule, and note how long that takes."""
        self._kept.save_if_due()
        together = 1 if self.watch is None else self.watch.count
        self._walltime.save_s = together * self._kept.last_save_s

    def _fail(self, error: BaseException) -> None:
        """Write down what ended the run, and save what there is; who catches the error shows it."""
        self.outcome = Outcome("failed", named_text(error))
        logger.info("The run fails: %s", self.outcome.sentence)
        if not isinstance(error, CheckpointError):  # which has told what became of the last iteration
            try:
                self._kept.save()
            except ShoalError as another:
                if str(another) != str(error):
                    logger.error("%s", another)

    def _iterate(self, trainer: Trainer, interrupts: Interrupts) -> Result | None:
        """One finished iteration; None if a signal cut it short, and then the one before is what will be saved."""
        interrupts.install()  # an environment, or a library that it uses, may have taken the handlers
        self.activity = training(trainer)
        try:
            with interrupts.cutting(insist=True):
                result = trainer.train_iteration()
        except Interrupted:
            return None
        result.setdefault("timers", {}).update(self._kept.take_times())
        self._kept.note(numbers(result), trainer.get_state())
        if trainer.evaluation_is_due:
            self.activity = Activity("evaluating", trainer.iteration)
            with suppress(Interrupted), interrupts.cutting(insist=True):
                result["evaluation"] = trainer.evaluate_iteration()
            # The next task may depend on it.
            self._kept.note(numbers(result), trainer.get_state())
        return result

    def _warn_of_missing(self, result: Result) -> None:
        """Tell of metrics of the user's own that the run waits for and no episode has."""
        score = self.experiment.checkpoint_score_attr
        waited_for = [("stop", name) for name in self.experiment.stop]
        waited_for += [("checkpoint_score_attr", score.removeprefix("min-"))] if score else []
        for key, name in waited_for:
            if why := missing_metric(name, result):
                notice_once(f"{key}: {name}: {why}")

    def _note_result(self, result: Result) -> None:
        """Remember what the end will tell of: the last result, and the best return."""
        self.last_result = numbers(result)
        self._has_trained = True
        mean = self.last_result.get("episode_reward_mean")
        if mean is not None and (self.best_return is None or mean > self.best_return[0]):
            self.best_return = mean, int(self.last_result["training_iteration"])

    def saved_words(self) -> str:
        """What a process says that is ended before it could save."""
        if self.last_checkpoint is None:
            return "; nothing is saved."
        return f"; the last checkpoint is {self.last_checkpoint}."

    def _note_signal(self, interrupts: Interrupts) -> None:
        if self.outcome is None and interrupts.signal is not None:
            self.outcome = Outcome("interrupted", self._why(interrupts.signal), interrupts.signal)

    def _why(self, number: int) -> str:
        """Why a signal has ended the run."""
        if number == signal.SIGUSR1 and self._walltime.sentence is not None:
            return self._walltime.sentence
        return f"interrupted by {signal.Signals(number).name}"

    def save_meanwhile(self, number: int) -> None:
        """Save while the main thread hangs in somebody's code in spite of a signal, and say what it waits for."""
        waiting = f"{signal.Signals(number).name}: {self._unended()}"
        end = "Ctrl-C or SIGTERM ends the process at once"
        if self._is_command:
            end += f", and {LEAVE_S:.0f} s end it too"
        self._kept.leave_word(Outcome("interrupted", self._why(number), number))
        try:
            self._kept.write()
        except ShoalError as error:
            logger.warning("%s. %s %s.", waiting, error, end)
            return
        saved = "nothing is saved yet" if self.last_checkpoint is None else f"{self.last_checkpoint} is saved"
        logger.warning("%s. Meanwhile %s; %s.", waiting, saved, end)

    def _unended(self) -> str:
        """What a signal does not end."""
        if self.activity.kind == "starting":
            return "the start does not end"
        what = "evaluation" if self.activity.kind == "evaluating" else "training"
        return f"{what} iteration {self.activity.iteration} does not end, because its environment keeps running"

    def _start(self) -> Checkpoint | None:
        """The checkpoint to go on from."""
        start = self._kept.begin()
        self.resumed_from = self._kept.newest
        if start is not None:
            self.last_result = numbers(start.summary)
            self.unsaved = max(0, self._finished - self._kept.saved_iteration)
            logger.info("It continues from %s.", start.path)
        self.on_start()
        return start


def run(config: Mapping[str, Any] | Experiment, *, new: bool = False, **unknown: Any) -> Iterator[Result]:
    """Train the experiment and yield one result per iteration; an unfinished run of the same experiment is continued.

    `config` is a tree such as `{"env": "CartPole-v1", "run": "PPO", "stop": {...}, "config": {...}}`. After Ctrl-C the
    run is saved and KeyboardInterrupt raised, after SIGTERM, SIGHUP or SIGUSR1 SystemExit.
    """
    if unknown:
        raise ConfigError([run_keyword_problem(name, value) for name, value in unknown.items()])
    opened = Run.open(config if isinstance(config, Experiment) else experiment_from(config), new)
    if opened.done is not None:
        logger.warning("%s is finished: %s; use new=True for another run.", opened.folder, opened.done)
    results = _for_a_program(opened)
    # A loop that an exception leaves at a script's top level would be closed, and saved, only when Python is half gone.
    atexit.register(_close, weakref.ref(results))
    return results


def _report(writer: str, folder: Path) -> Any:
    """Let a report that is named read a run's folder."""
    module, _, name = writer.partition(":")
    return getattr(import_module(module), name)(folder)


def _close(reference: weakref.ref[Generator[Result, None, None]]) -> None:
    results = reference()
    if results is not None:
        results.close()


def _for_a_program(opened: Run) -> Generator[Result, None, None]:
    opened.deadline = told_deadline()
    yield from opened.results()
    if opened.is_stuck:
        raise ShoalError(STUCK)
    number = opened.outcome.signal if opened.outcome is not None else None
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(exit_code(number))


def make_trainer(
    experiment: Experiment,
    user_code: UserCode,
    start: Checkpoint | None = None,
    taken_over: Checkpoint | None = None,
) -> Trainer:
    """The experiment's trainer, in the state of a checkpoint if one is given, or with the agent of another."""
    from shoal.runs.auto_workers import with_recorded_count
    from shoal.runs.trainer import TRAINERS

    config = experiment.config
    if start is not None:
        config = with_recorded_count(config, len(start.state.parts("worker")))
    trainer = TRAINERS[experiment.run](config=config, search_path=user_code.folders)
    try:
        if start is not None:
            progress.info("restoring %s", start.path.name)
            with understood(start.path):
                trainer.set_state(start.state)
        elif experiment.restore is not None:
            from shoal.runs.warm_start import begin_with

            begin_with(trainer, experiment.restore)
        if start is None and trainer.output is not None:
            trainer.output.check_new()
        if taken_over is not None:
            with understood(taken_over.path):
                trainer.take_over(taken_over.state)
    except BaseException:
        trainer.stop()
        raise
    return trainer


def checked(experiment: Experiment, user_code: UserCode = INSTALLED) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment as it will run, after a look whether its environment and hooks exist, and what to tell of it."""
    if experiment.restore is not None:
        from shoal.runs.warm_start import with_source

        experiment = with_source(experiment)
    experiment = with_recorded_paths(experiment)
    config = experiment.config
    maker = maker_of(config, user_code.with_working_folder())
    if config.callbacks is not None:
        from shoal.sampling.callbacks import callbacks_class

        callbacks_class(config.callbacks, maker.user_code)
    if config.env_task_fn is not None:
        from shoal.runs.curriculum import load_task_fn

        load_task_fn(config, maker.user_code)
    if config.evaluation_interval is None:
        # A program may evaluate when it likes, a run does so by its interval alone.
        idle = [key for key in ("record_env", "evaluation_num_workers") if getattr(config, key)]
        if idle:
            raise ConfigError(
                [f"config.{key}: a run without evaluation_interval evaluates nothing; set that too" for key in idle]
            )
    check_loggers(experiment.loggers)
    experiment, notes = _with_stop(experiment)
    notes += _size_notes(config)
    preset = preset_note(experiment)
    told = [] if preset is None else [preset]
    told += preprocessing_notes(maker, config.env_config) + vectorization_notes(maker, config)
    return experiment, (*told, *notes)


def _size_notes(config: AlgorithmConfig) -> tuple[str, ...]:
    """Whether the environments alone make iterations longer than they were to be, in a sentence."""
    if config.batch_key != "train_batch_size" or config.learns_offline or config.num_rows <= config.train_batch_size:
        return ()
    size = config.steps_per_iteration * config.num_rows
    return (
        f"config.train_batch_size: {config.train_batch_size:,} is less than the number of environments, each of which "
        f"takes a step at least, so an iteration has {size:,} steps",
    )


def _with_stop(experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with a stop criterion if there can be one, and what to tell about it."""
    if experiment.stop:
        return experiment, ()
    config = experiment.config
    if config.learns_offline:
        return changed(experiment, stop=OFFLINE_STOP), (offline_stop_note(),)
    stop = default_stop(config.env)
    if not stop:
        return experiment, ("No stop is given: the run continues until Ctrl-C, which saves it.",)
    limits = " or ".join(f"{name} reaches {number_text(limit)}" for name, limit in stop.items())
    note = f"No stop is given: the run ends when {limits}, the reward threshold of {config.env}."
    return changed(experiment, stop=stop), (note,)
