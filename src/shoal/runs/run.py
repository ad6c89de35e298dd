"""One run from start to end: train, report, evaluate, save, stop."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from shoal.config.changing import changed
from shoal.config.experiment import Experiment, as_tree, experiment_from, experiment_yaml
from shoal.config.foreign_names import run_keyword_problem
from shoal.data.state import State
from shoal.envs.env_errors import notice_once
from shoal.envs.making import env_maker
from shoal.errors import CallbackError, CheckpointError, ConfigError, ShoalError
from shoal.machine.signals import exit_code
from shoal.runs.activity import Activity, progress, training
from shoal.runs.atomic_files import remove_folder, replace_file
from shoal.runs.checkpoints import (
    Checkpoint,
    checkpoint_folder,
    checkpoints_of,
    newest_good,
    newest_summary,
    prune,
    read_checkpoint,
    tidy,
    write_checkpoint,
)
from shoal.runs.folders import EXPERIMENT_FILE, find_run, make_run_folder, results_folder
from shoal.runs.hints import Hints
from shoal.runs.incidents import cut_back
from shoal.runs.interrupts import Interrupted, Interrupts
from shoal.runs.lease import FolderGone, Lease, check_free
from shoal.runs.logs import log_to
from shoal.runs.reporters import Reporters
from shoal.runs.resuming import choose, experiment_of, stored_tree, tree_of, with_changes
from shoal.runs.stopping import default_stop, missing_metric, numbers, short, stop_reason
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer

logger = logging.getLogger("shoal.runs")

Result = dict[str, Any]

FIRST_REMINDER_S = 600.0  # after which a save that fails again is told again, then after twice as long


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with a sentence such as `episode_reward_mean 481.2 >= 475`."""

    kind: Literal["stopped", "interrupted", "failed"]
    sentence: str
    signal: int | None = None


class Run:
    """A run and its folder; `results()` trains it.

    `search_path` is where the environment's module is looked for. `resumed_from` is the checkpoint it goes on from,
    `last_checkpoint` the newest it has. `done` is the criterion that it has met already, if there is nothing to train.
    `notes` are sentences for the user, `overrides` what `resume` was asked to change. `outcome` is set when it ends.
    `activity` is what it does at the moment, `last_result` its newest numbers, `best_return` the highest mean return of
    this process and its iteration.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        search_path: Sequence[str] = (),
        done: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.experiment = experiment
        self.folder = folder
        self.search_path = tuple(search_path)
        self.done = done
        self.notes = notes
        self.overrides: dict[str, Any] = {}
        self.outcome: Outcome | None = None
        self.activity = Activity()
        self.last_result: dict[str, int | float] = {}
        self.best_return: tuple[float, int] | None = None
        self.resumed_from = next(iter(checkpoints_of(folder)), None)
        self.last_checkpoint = self.resumed_from
        self._is_new = False
        self._last: tuple[dict[str, float], State] | None = None
        self._saved_iteration = 0
        self._lease: Lease | None = None
        self._taken_over: Checkpoint | None = None
        self._tell_checkpoint: Callable[..., None] = lambda **_: None
        self._saving = threading.RLock()
        self._untold: Path | None = None
        self._reminder_s = FIRST_REMINDER_S
        self._remind_at = 0.0

    @classmethod
    def open(cls, experiment: Experiment, new: bool = False, search_path: Sequence[str | Path] = ()) -> Run:
        """The newest unfinished run of this experiment, or a new one."""
        places = _places(search_path)
        source = None
        if experiment.restore is not None:
            from shoal.runs.warm_start import place_of

            # Of a name it is the newest run, which may soon be this one; the same command still means this one.
            source = place_of(experiment.restore, experiment.results_dir)
        experiment, notes = checked(experiment, search_path)
        parent = results_folder(experiment.results_dir, experiment.name)
        if not new:
            choice = choose(parent, as_tree(experiment), experiment.stop, source)
            if choice.folder is not None:
                check_free(choice.folder)
                if source is not None:
                    experiment = changed(experiment, restore=(stored_tree(choice.folder) or {})["restore"])
                return cls(experiment, choice.folder, places, choice.done, notes)
            notes = (*notes, choice.note) if choice.note else notes
        folder = make_run_folder(parent, experiment.run, experiment.config.env)
        if experiment.restore is not None:
            from shoal.runs.warm_start import taken

            notes = (*notes, taken(experiment.restore))
        opened = cls(experiment, folder, places, None, notes)
        opened._is_new = True
        return opened

    @classmethod
    def resume(cls, path: str | Path, overrides: Mapping[str, Any] | None = None) -> Run:
        """The run at `path`; `overrides` are other values by dotted key (`stop`, `config.lr`), as far as it may."""
        folder = find_run(path)
        given, newest = checkpoint_folder(Path(path).expanduser().absolute()), next(iter(checkpoints_of(folder)), None)
        if given is not None and given != newest:
            raise CheckpointError(
                f"{folder} goes on from its newest checkpoint, {newest}; give that or the run's folder."
            )
        tree = stored_tree(folder)
        if tree is None:
            raise CheckpointError(f"{folder / EXPERIMENT_FILE} cannot be read; the run cannot go on without it.")
        tree, changes = with_changes(folder, tree, overrides or {})
        stored, places = experiment_of(tree)
        experiment, notes = _with_stop(stored)
        check_free(folder)
        done = stop_reason(newest_summary(folder) or {}, experiment.stop)
        if done is None:  # else nothing is changed
            notes = (*notes, *changes)
        opened = cls(experiment, folder, places, done, notes)
        opened.overrides = dict(overrides or {})
        return opened

    def take_over(self, path: str | Path) -> None:
        """Begin with the policy, the optimiser and the task of another run's checkpoint.

        Counters, environments and folder stay the run's own. It is to be called before `results`.
        """
        self._taken_over = read_checkpoint(path)

    def save(self) -> Path | None:
        """Make the last finished iteration a checkpoint, if it is none yet; the newest there is.

        While `results` is at work, between two of them.
        """
        if self._lease is not None:
            self._save(self._lease)
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
        with ExitStack() as stack:
            try:
                with _told(self.folder):
                    lease = self._lease = stack.enter_context(Lease(self.folder))
                    tidy(self.folder)
                    self._write_down()
                    stack.enter_context(log_to(self.folder / "log.txt", self.experiment.config.log_level))
            except ShoalError:
                if self._is_new:
                    self._remove(stack)
                raise
            logger.info("shoal %s starts in %s.", __version__, self.folder)
            for note in self.notes:
                logger.info("%s", note)
            interrupts = stack.enter_context(Interrupts(hold_signals))
            interrupts.last_words = self._saved_words
            interrupts.when_late = functools.partial(self._save_meanwhile, lease)
            try:
                with interrupts.cutting():
                    start = self._start()
                    trainer = make_trainer(self.experiment, self.search_path, start, self._taken_over)
            except Interrupted:
                self._note_signal(interrupts)
                return
            except ShoalError as error:
                # The user will type something else: nothing was trained, so nothing is left.
                if error.exit_code == ConfigError.exit_code and not checkpoints_of(self.folder):
                    self._remove(stack)
                raise
            stack.callback(trainer.stop)
            self._tell_checkpoint = functools.partial(trainer.call_hook, "on_checkpoint")
            trainer.folder = self.folder
            interrupts.install()  # Ray takes the handlers when it starts
            timesteps = int(start.summary.get("timesteps_total", 0)) if start is not None else 0
            with _told(self.folder):
                reporters = Reporters(self.folder, self._saved_iteration, timesteps)
                cut_back(self.folder, self._saved_iteration)
            stack.callback(reporters.close)
            if self._taken_over is not None:
                self._save_taken_over(trainer, start, lease)
            yield from self._train(trainer, reporters, interrupts, lease)

    def _remove(self, stack: ExitStack) -> None:
        """Leave nothing of a run that never began."""
        stack.pop_all().close()
        remove_folder(self.folder)
        with suppress(OSError):  # other runs are in it
            self.folder.parent.rmdir()

    def _train(self, trainer: Trainer, reporters: Reporters, interrupts: Interrupts, lease: Lease) -> Iterator[Result]:
        """The loop, and the save at its end."""
        hints = Hints(self.experiment.run, trainer.config.num_envs)
        try:
            while self.outcome is None:
                result = self._iterate(trainer, interrupts)
                if result is not None:
                    self._confirm(lease)
                    reporters.report(result)
                    self._warn_of_missing(result)
                    self._note_result(result)
                    for hint in hints.add(result):
                        logger.warning("%s", hint)
                    self._save_if_due(lease)
                    if reason := stop_reason(result, self.experiment.stop):
                        self.outcome = Outcome("stopped", reason)
                    with interrupts.away():
                        yield result
                self._note_signal(interrupts)
            logger.info("The run ends: %s.", self.outcome.sentence)
            if self.outcome.kind == "interrupted" or self.experiment.checkpoint_at_end:
                self._save(lease)
        except GeneratorExit:
            self._note_signal(interrupts)
            self.outcome = self.outcome or Outcome("stopped", "the program left the loop")
            logger.info("The run ends: %s.", self.outcome.sentence)
            self._save(lease)
        except BaseException as error:
            words = f": {error}" if str(error) else ""
            self.outcome = Outcome("failed", f"{type(error).__name__}{words}")
            logger.info("The run fails: %s", self.outcome.sentence)  # who catches the error shows it
            if not isinstance(error, CheckpointError):  # which has told what became of the last iteration
                try:
                    self._save(lease)
                except ShoalError as another:
                    if str(another) != str(error):
                        logger.error("%s", another)
            raise

    def _iterate(self, trainer: Trainer, interrupts: Interrupts) -> Result | None:
        """One finished iteration; None if a signal cut it short, and then the one before is what will be saved."""
        interrupts.install()  # an environment, or a library that it uses, may have taken the handlers
        self.activity = training(trainer)
        try:
            with interrupts.cutting(insist=True):
                result = trainer.train_iteration()
        except Interrupted:
            return None
        self._last = numbers(result), trainer.get_state()
        if trainer.evaluation_is_due:
            self.activity = Activity("evaluating", trainer.iteration)
            with suppress(Interrupted), interrupts.cutting(insist=True):
                result["evaluation"] = trainer.evaluate_iteration()
            # The next task may depend on it.
            self._last = numbers(result), trainer.get_state()
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
        mean = self.last_result.get("episode_reward_mean")
        if mean is not None and (self.best_return is None or mean > self.best_return[0]):
            self.best_return = mean, int(self.last_result["training_iteration"])

    def _saved_words(self) -> str:
        """What a process says that is ended before it could save."""
        if self.last_checkpoint is None:
            return "; nothing is saved."
        return f"; the last checkpoint is {self.last_checkpoint}."

    def _note_signal(self, interrupts: Interrupts) -> None:
        if self.outcome is None and interrupts.signal is not None:
            name = signal.Signals(interrupts.signal).name
            self.outcome = Outcome("interrupted", f"interrupted by {name}", interrupts.signal)

    def _save_if_due(self, lease: Lease) -> None:
        """Save on schedule; a disk that is full now may have room at the next time, so training goes on."""
        if self._last is None or not self.experiment.checkpoint_freq:
            return
        if int(self._last[0]["training_iteration"]) % self.experiment.checkpoint_freq == 0:
            try:
                self._save(lease)
            except (CallbackError, FolderGone):
                raise
            except ShoalError as error:
                self._complain(error)

    def _complain(self, error: ShoalError) -> None:
        """Tell that a save failed; the same again only after ever longer times."""
        if monotonic() >= self._remind_at:
            again = f"{self._reminder_s / 60:.0f} min"
            logger.error("%s Training goes on, and every save is tried; the next reminder is in %s.", error, again)
            self._remind_at = monotonic() + self._reminder_s
            self._reminder_s *= 2

    def _save(self, lease: Lease) -> None:
        """Save the last finished iteration unless it is saved, and tell the user's hook."""
        self._write_last(lease)
        if self._untold is not None:
            checkpoint, self._untold = self._untold, None
            self._tell_checkpoint(checkpoint=str(checkpoint))

    def _write_last(self, lease: Lease) -> None:
        """Write the last finished iteration unless it is written; any thread may."""
        with self._saving:
            if self._last is None:
                return
            summary, state = self._last
            iteration = int(summary["training_iteration"])
            if iteration <= self._saved_iteration:
                return
            self._confirm(lease)
            self.last_checkpoint = write_checkpoint(self.folder, state, self._tree(), summary)
            self._saved_iteration, self._untold = iteration, self.last_checkpoint
            self._reminder_s, self._remind_at = FIRST_REMINDER_S, 0.0
            prune(self.folder, self.experiment.keep_checkpoints_num, self.experiment.checkpoint_score_attr)

    def _save_meanwhile(self, lease: Lease, number: int) -> None:
        """Save while the main thread hangs in somebody's code in spite of a signal, and say what it waits for."""
        name = signal.Signals(number).name
        what = "evaluation" if self.activity.kind == "evaluating" else "training"
        waiting = f"{name} came, but {what} iteration {self.activity.iteration} does not end: its environment goes on"
        end = "Ctrl-C or SIGTERM ends the process at once"
        try:
            self._write_last(lease)
        except ShoalError as error:
            logger.warning("%s. %s %s.", waiting, error, end)
            return
        saved = "nothing is saved yet" if self.last_checkpoint is None else f"{self.last_checkpoint} is saved"
        logger.warning("%s. Meanwhile %s; %s.", waiting, saved, end)

    def _confirm(self, lease: Lease) -> None:
        """Make sure that the folder is there and ours; if it is gone, save what there is before that is told."""
        try:
            lease.confirm()
        except FolderGone as error:
            raise self._rescued(error) from None

    def _rescued(self, error: FolderGone) -> FolderGone:
        """Save the last iteration where the folder is now, or in a new folder at its old place; the error tells it.

        What is there by now is somebody else's, and stays as it is.
        """
        is_whole = error.moved_to is not None
        self.folder = error.moved_to or self.folder
        self.last_checkpoint = next(iter(checkpoints_of(self.folder)), None) if is_whole else None
        if self._last is None:
            return error
        summary, state = self._last
        iteration = int(summary["training_iteration"])
        try:
            if not is_whole:
                self.folder.mkdir(parents=True, exist_ok=error.is_there)
            if not is_whole or iteration > self._saved_iteration:
                self.last_checkpoint = write_checkpoint(self.folder, state, self._tree(), summary)
                self._saved_iteration = iteration
            if not is_whole:
                self._write_down()
        except (OSError, ShoalError) as another:
            why = another.strerror if isinstance(another, OSError) else another
            error.args = (f"{error} Its last iteration could not be saved: {why}.",)
            return error
        error.args = (f"{error} Its last iteration is saved in {self.last_checkpoint}.",)
        return error

    def _save_taken_over(self, trainer: Trainer, start: Checkpoint | None, lease: Lease) -> None:
        """Put what was taken over in the place of the own checkpoint, so that it is taken over once."""
        assert self._taken_over is not None
        logger.info("It takes over policy, optimiser and task from %s.", self._taken_over.path)
        self._taken_over = None
        if start is not None:
            self._last = start.summary, trainer.get_state()
            self._saved_iteration -= 1
            self._save(lease)

    def _start(self) -> Checkpoint | None:
        """The checkpoint to go on from."""
        start = newest_good(self.folder)
        if start is None and checkpoints_of(self.folder):
            raise CheckpointError(f"no checkpoint of {self.folder} can be read; start another run with --new.")
        self.resumed_from = self.last_checkpoint = start.path if start is not None else None
        self._saved_iteration = int(start.summary["training_iteration"]) if start is not None else 0
        if start is not None:
            self.last_result = numbers(start.summary)
            logger.info("It goes on from %s.", start.path)
        return start

    def _write_down(self) -> None:
        """Write the resolved experiment, for people and for `resume`."""
        replace_file(self.folder / "config.yaml", experiment_yaml(self.experiment).encode())
        replace_file(self.folder / EXPERIMENT_FILE, json.dumps(self._tree(), indent=1).encode())

    def _tree(self) -> dict[str, Any]:
        return tree_of(self.experiment, self.search_path)


def run(config: Mapping[str, Any] | Experiment, *, new: bool = False, **unknown: Any) -> Iterator[Result]:
    """Train the experiment and yield one result per iteration; an unfinished run of the same experiment is continued.

    `config` is a tree such as `{"env": "CartPole-v1", "run": "PPO", "stop": {...}, "config": {...}}`. After Ctrl-C the
    run is saved and KeyboardInterrupt raised, after SIGTERM, SIGHUP or SIGUSR1 SystemExit.
    """
    if unknown:
        raise ConfigError([run_keyword_problem(name, value) for name, value in unknown.items()])
    opened = Run.open(config if isinstance(config, Experiment) else experiment_from(config), new)
    if opened.done is not None:
        logger.warning("%s is finished: %s; say new=True for another run.", opened.folder, opened.done)
    results = _for_a_program(opened)
    # A loop that an exception leaves at a script's top level would be closed, and saved, only when Python is half gone.
    atexit.register(_close, weakref.ref(results))
    return results


def _close(reference: weakref.ref[Generator[Result, None, None]]) -> None:
    results = reference()
    if results is not None:
        results.close()


def _for_a_program(opened: Run) -> Generator[Result, None, None]:
    yield from opened.results()
    number = opened.outcome.signal if opened.outcome is not None else None
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(exit_code(number))


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Turn what the disk says into a sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror or error}; make room, or use --new."
        ) from error


def make_trainer(
    experiment: Experiment,
    search_path: Sequence[str],
    start: Checkpoint | None = None,
    taken_over: Checkpoint | None = None,
) -> Trainer:
    """The experiment's trainer, in the state of a checkpoint if one is given, or with the agent of another."""
    from shoal.runs.trainer import TRAINERS

    trainer = TRAINERS[experiment.run](config=experiment.config, search_path=search_path)
    try:
        if start is not None:
            progress.info("restoring %s", start.path.name)
            trainer.set_state(start.state)
        elif experiment.restore is not None:
            from shoal.runs.warm_start import begin_with

            begin_with(trainer, experiment.restore)
        if taken_over is not None:
            trainer.take_over(taken_over.state)
    except BaseException:
        trainer.stop()
        raise
    return trainer


def checked(experiment: Experiment, search_path: Sequence[str | Path] = ()) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment as it will run, after a look whether its environment and hooks exist, and what to tell of it."""
    if experiment.restore is not None:
        from shoal.runs.warm_start import with_source

        experiment = with_source(experiment)
    config = experiment.config
    maker = env_maker(config.env, _places(search_path), config.wrappers)
    if config.callbacks is not None:
        from shoal.sampling.callbacks import callbacks_class

        callbacks_class(config.callbacks, maker.search_path)
    if config.env_task_fn is not None:
        from shoal.runs.curriculum import load_task_fn

        load_task_fn(config, maker.search_path)
    if config.evaluation_interval is None:
        # A program may evaluate when it likes, a run does so by its interval alone.
        idle = [key for key in ("record_env", "evaluation_num_workers") if getattr(config, key)]
        if idle:
            raise ConfigError(
                [f"config.{key}: a run without evaluation_interval evaluates nothing; set that too" for key in idle]
            )
    return _with_stop(experiment)


def _places(search_path: Sequence[str | Path]) -> list[str]:
    return list(dict.fromkeys(os.path.abspath(folder) for folder in (*search_path, ".")))


def _with_stop(experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with a stop criterion if there can be one, and what to tell about it."""
    if experiment.stop:
        return experiment, ()
    stop = default_stop(experiment.config.env)
    if not stop:
        return experiment, ("No stop is given: the run goes on until Ctrl-C, which saves it.",)
    limits = " or ".join(f"{name} reaches {short(limit)}" for name, limit in stop.items())
    note = f"No stop is given: the run ends when {limits}, the reward threshold of {experiment.config.env}."
    return changed(experiment, stop=stop), (note,)
