"""A sweep from start to end: which folder, Tune around its trials, signals, and the answer."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.config.layout import Bundle
from shoal.config.search_spaces import combinations, extremes
from shoal.config.sweep import Sweep
from shoal.data.number_text import counted
from shoal.data.results import plain_json
from shoal.envs.importing import INSTALLED, UserCode
from shoal.errors import ConfigError, Interrupted, NotTrusted, ShoalError
from shoal.reports.records import (
    OUTCOME_FILE,
    Event,
    is_sweep,
    read_about,
    read_sweep,
    read_trials,
    recovered_trials,
    sweeps_of,
    write_sweep,
)
from shoal.runs.atomic_files import remove_folder, replace_file
from shoal.runs.bounded_files import small_json
from shoal.runs.folders import DEFAULT_RESULTS, make_dated_folder, results_folder
from shoal.runs.interrupts import Interrupts
from shoal.runs.lease import Lease, check_free
from shoal.runs.logs import log_to
from shoal.runs.outcomes import Outcome
from shoal.runs.resuming import FREE_SWEEP_KEYS, by_dotted_key
from shoal.runs.trust import is_own
from shoal.tune.trial_resources import bundle_of, bundles_of, check_room, most_at_once
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.config.settings import AlgorithmConfig
    from shoal.reports.analysis import Analysis
    from shoal.tune.trial import TuneTrial

logger = logging.getLogger("shoal.tune")

PAUSING = ("hyperband", "bohb", "pbt", "pb2")
"""Schedulers that pause a trial and let it go on, which a plain function cannot."""
SIZES = ("config.num_", "config.evaluation_num_workers", "config.env_ranks")
"""The settings on which it depends what a trial takes."""
MOST_SIZES = 500
TRIALS_PER_S = 200  # that Tune's snapshot may take
TOGETHER_MARKER = "seeds_together"  # beside Tune's state, where all seeds of a configuration are one of its trials


@dataclass(frozen=True)
class OwnFunction:
    """A function of the user's own that a sweep runs in place of an algorithm, and what each of its trials takes."""

    call: Callable[..., Any]
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How it is called."""
        return str(getattr(self.call, "__qualname__", type(self.call).__name__))


class SweepRun:
    """A sweep and its folder; `run()` runs it.

    `done` says that there is nothing left to do, `function` what it runs where that is no algorithm. `num_cpus` are the
    cores of a private Ray; None: the machine's. `outcome` is set when it ends.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        user_code: UserCode = INSTALLED,
        done: str | None = None,
        function: OwnFunction | None = None,
        num_cpus: int | None = None,
    ) -> None:
        self.sweep = sweep
        self.folder = folder
        self.user_code = user_code
        self.done = done
        self.function = function
        self.num_cpus = num_cpus
        self.outcome: Outcome | None = None
        self.is_resumed = bool(read_trials(folder)) or any(folder.glob("trials/*"))

    @classmethod
    def open(
        cls,
        sweep: Sweep,
        new: bool = False,
        user_code: UserCode = INSTALLED,
        function: OwnFunction | None = None,
        num_cpus: int | None = None,
        trust: bool = False,
    ) -> SweepRun:
        """The newest unfinished sweep of the same description, else a finished one, else a new one."""
        user_code = user_code.with_working_folder()
        parent = results_folder(str(sweep.tree.get("results_dir", DEFAULT_RESULTS)), sweep.name)
        found = [] if new else [folder for folder in sweeps_of(parent) if _is_same(folder, sweep)]
        unfinished = [folder for folder in found if outcome_of(folder) is None]
        if chosen := next(iter(unfinished or found), None):
            check_free(chosen, or_new=True)
            _check_own(chosen, read_about(chosen), trust)
            return cls(sweep, chosen, user_code, outcome_of(chosen), function, num_cpus)
        return cls(sweep, make_dated_folder(parent, "sweep"), user_code, None, function, num_cpus)

    @classmethod
    def resume(
        cls, path: str | Path, results_dir: str | None = None, num_cpus: int | None = None, trust: bool = False
    ) -> SweepRun:
        """The sweep of a folder, or the newest of a name; a stranger's is refused without `trust`."""
        folder = find_sweep(path, results_dir or DEFAULT_RESULTS)
        about = read_about(folder)
        _check_own(folder, about, trust)
        if about["function"] is not None:
            raise ConfigError(
                f"{folder} is a sweep of the function {about['function']}, which only the program that has it can "
                "continue: call shoal.tune.run with resume=True there"
            )
        check_free(folder)
        user_code = UserCode(tuple(map(str, about["search_path"])))
        return cls(read_sweep(folder), folder, user_code, outcome_of(folder), num_cpus=num_cpus)

    def run(self, show: Callable[[Event], None] = lambda _: None) -> Analysis:
        """Run all trials, and tell of them as they go."""
        from shoal.reports.analysis import Analysis

        if self.done is not None:
            self.outcome = Outcome("stopped", self.done)
            return Analysis(self.folder)
        with ExitStack() as stack:
            stack.enter_context(Lease(self.folder))
            write_sweep(self.folder, self.sweep, self.user_code, self.function.name if self.function else None)
            stack.enter_context(log_to(self.folder / "log.txt", "WARNING"))
            logger.info("shoal %s %s in %s.", __version__, "continues" if self.is_resumed else "starts", self.folder)
            interrupts = stack.enter_context(Interrupts(hold=True, is_guarded=False))
            interrupts.what_is_saved = lambda: "; what its trials have saved is kept, and the same command continues."
            try:
                with suppress(Interrupted):
                    with interrupts.cutting():
                        at_once = self._connect(stack)
                    self._tune(interrupts, show, at_once)
            except ConfigError:
                stack.pop_all().close()
                self._forget()
                raise
            self._end(interrupts)
        return Analysis(self.folder)

    def _connect(self, stack: ExitStack) -> int:
        """Ray, with room for every trial that there may be; how many of them fit at once."""
        from shoal.config.sweep import trial_count
        from shoal.machine.cores import cores
        from shoal.parallel.ray_session import open_session
        from shoal.tune.ray_log import ray_log_to, variables

        stack.enter_context(
            variables(
                TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
                TUNE_DISABLE_SIGINT_HANDLER="1",
                TUNE_DISABLE_STRICT_METRIC_CHECKING="1",  # `metric_checks.py` looks: first results may lack it
                TUNE_GLOBAL_CHECKPOINT_S=str(max(1.0, trial_count(self.sweep) / TRIALS_PER_S)),
                RAY_AIR_NEW_OUTPUT="0",
            )
        )
        trials = self._trial_sizes()
        largest = max(sum(bundle.get("CPU", 0.0) for bundle in trial) for trial in trials)
        session = open_session(self.num_cpus or max(-int(-largest // 1), cores(), 1))
        stack.callback(session.stop)
        stack.enter_context(ray_log_to(self.folder / "ray.log"))
        nodes = [node["Resources"] for node in session.ray.nodes() if node["Alive"]]
        for trial in trials:
            check_room(trial, nodes)
        return max(most_at_once(trial, nodes) for trial in trials)

    def _trial_sizes(self) -> list[list[Bundle]]:
        """What trials take, for the values of settings that change it."""
        if self.function is not None:
            return [[bundle_of(self.function.resources)]]
        return [bundles_of(config) for config in self._trial_configs()]

    def _trial_configs(self) -> list[AlgorithmConfig]:
        """A configuration of trials for each of the values of settings that change what trials take."""
        from shoal.config.sweep import experiment_with

        first = {setting.path: setting.args[0] for setting in self.sweep.settings}
        sizing = [setting for setting in self.sweep.settings if setting.path.startswith(SIZES)]
        most = {setting.path: max(extremes(setting), key=_amount) for setting in sizing}
        configs = [experiment_with(self.sweep, first, None).config]
        for values in (*combinations(sizing, MOST_SIZES), most):
            with suppress(ConfigError):  # settings that are right only together with others
                configs.append(experiment_with(self.sweep, {**first, **values}, None).config)
        return configs

    def _tune(self, interrupts: Interrupts, show: Callable[[Event], None], at_once: int) -> None:
        """Let Tune run the trials."""
        from ray import tune
        from ray.tune import CheckpointConfig, ResumeConfig
        from ray.tune.execution.experiment_state import _find_newest_experiment_checkpoint

        from shoal.tune.ray_schedulers import make_scheduler
        from shoal.tune.ray_spaces import param_space
        from shoal.tune.trial_ids import TrialIds
        from shoal.tune.tune_callback import MOST_DEATHS, TuneCallback

        state = self.folder / "ray"
        state.mkdir(exist_ok=True)
        together = self._trains_seeds_together(at_once)
        life, sweep = os.urandom(8).hex(), self.sweep
        tuned = replace(sweep, seeds=1) if together else sweep
        (self.folder / OUTCOME_FILE).unlink(missing_ok=True)
        trial_ids, scheduler = TrialIds(sweep, recovered_trials(self.folder), together), make_scheduler(sweep)
        callback = TuneCallback(sweep, self.folder, life, trial_ids, scheduler, interrupts, _logging_too(show))
        known = _find_newest_experiment_checkpoint(str(state)) is not None
        again: Any = ResumeConfig.ResumeType.RESUME
        try:
            tune.run(
                self._trainable(life, together),
                name="ray",
                storage_path=str(self.folder),
                config=param_space(tuned),
                num_samples=_num_trials(tuned),
                scheduler=scheduler,
                search_alg=self._search(tuned, at_once),
                callbacks=[callback],
                trial_name_creator=trial_ids,
                trial_dirname_creator=folder_in_tune,
                checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                # A new process for every trial keeps simulators apart; where trials come and go, it costs too much.
                reuse_actors=self.function is not None or sweep.scheduler.type in PAUSING,
                max_failures=MOST_DEATHS,
                raise_on_failed_trial=False,
                resume_config=ResumeConfig(unfinished=again, errored=again) if known else None,
                verbose=0,
            )
        except Exception:
            if interrupts.signal is None:
                raise
            logger.exception("Tune's own end failed, after everything was saved.")
        finally:
            interrupts.install()
            callback.close()
        if callback.mistake is not None:
            raise callback.mistake

    def _trains_seeds_together(self, at_once: int) -> bool:
        """Whether all seeds of a configuration are one trial of Tune's; a sweep that goes on keeps to it."""
        from shoal.tune.seeds_trial import why_seeds_apart

        if self.sweep.seeds == 1 or self.function is not None:
            return False
        marker = self.folder / "ray" / TOGETHER_MARKER
        if self.is_resumed:
            return marker.exists()
        reason = why_seeds_apart(self.sweep, at_once)
        if reason is not None:
            logger.info("Each seed is trained in a process of its own. %s.", reason)
            return False
        logger.info("The seeds of each configuration train together in one process.")
        marker.touch()
        return True

    def _trainable(self, life: str, together: bool = False) -> type[TuneTrial]:
        """The trial's class, which takes what it must know along to other processes."""
        from shoal.tune.function_trial import FunctionTrial
        from shoal.tune.seeds_trial import SeedsTrial
        from shoal.tune.trial import Assignment, RunTrial

        assignment = Assignment(self.sweep, str(self.folder), self.user_code, life)
        if self.function is None:
            kind = SeedsTrial if together else RunTrial
            return type("ShoalTrial", (kind,), {"assignment": assignment})
        known = {
            "assignment": assignment,
            "function": staticmethod(self.function.call),
            "bundle": bundle_of(self.function.resources),
        }
        return type("ShoalFunction", (FunctionTrial,), known)

    def _search(self, tuned: Sweep, at_once: int) -> Any:
        """The search; one that learns from results is not asked for more trials than can run.

        Nor may more run than `max_concurrent_envs` allows for.
        """
        from shoal.tune.ray_searchers import make_search

        limit = self.sweep.max_concurrent_trials
        if self.sweep.search_alg.type != "random":
            limit = min(limit or at_once, at_once)
        licensed = self._most_licensed()
        if licensed is not None:
            limit = min(limit or licensed, licensed)
        return make_search(tuned, limit)

    def _most_licensed(self) -> int | None:
        """How many trials may run at once by `max_concurrent_envs`, which is for all of them together."""
        if self.function is not None:
            return None
        counts = [
            config.max_concurrent_envs // (config.num_envs + config.num_envs_beside_training)
            for config in self._trial_configs()
            if config.max_concurrent_envs is not None
        ]
        return min(counts, default=None)

    def _end(self, interrupts: Interrupts) -> None:
        """Say how it ended, and write the answer."""
        from shoal.reports.answer_files import write_answer

        records = read_trials(self.folder)
        failed = [record for record in records if record.status == "failed"]
        if interrupts.signal is not None:
            name = signal.Signals(interrupts.signal).name
            self.outcome = Outcome("interrupted", f"interrupted by {name}", interrupts.signal)
        elif records and len(failed) == len(records):
            which = "the trial failed" if len(records) == 1 else f"all {len(records)} trials failed; the first"
            self.outcome = Outcome("failed", f"{which}: {failed[0].reason}")
        else:
            told = f", {len(failed)} of them failed" if failed else ""
            ended = counted(len(records), "trial", ("has", "have"))
            self.outcome = Outcome("stopped", f"{ended} ended{told}")
            tree = {"sentence": self.outcome.sentence, "failed": len(failed)}
            replace_file(self.folder / OUTCOME_FILE, json.dumps(tree).encode())
        logger.info("The sweep ends: %s.", self.outcome.sentence)
        if any(record.last_result for record in records):
            write_answer(self.folder)
        if self.outcome.kind == "failed":
            raise ShoalError(self.outcome.sentence)

    def _forget(self) -> None:
        """Leave nothing of a sweep that never had a result: the user will type something else."""
        has_results = any(record.last_result for record in read_trials(self.folder))
        if not self.is_resumed and not has_results:
            remove_folder(self.folder)
            with suppress(OSError):  # others are in it
                self.folder.parent.rmdir()


def find_sweep(text: str | Path, results_dir: str = DEFAULT_RESULTS) -> Path:
    """The sweep that a person means by its folder, or the newest unfinished by an experiment's folder or name."""
    path = Path(os.path.abspath(os.path.expanduser(text)))
    named = results_folder(results_dir, str(text)) if "/" not in str(text) else None
    for place in (path, named):
        if place is not None and is_sweep(place):
            return place
        if place is not None and (found := sweeps_of(place)):
            return next((folder for folder in found if outcome_of(folder) is None), found[0])
    where = f"{path} or {named}" if named is not None else str(path)
    raise ConfigError(f"there is no sweep at {where}; give the folder that `shoal tune` named, or the sweep's name")


def outcome_of(folder: Path) -> str | None:
    """How a sweep has ended that has nothing left to do; None if it goes on, or has failed trials to try again."""
    try:
        tree = small_json(folder / OUTCOME_FILE)
    except (OSError, ValueError):
        return None
    return None if tree["failed"] else str(tree["sentence"])


def _num_trials(tuned: Sweep) -> int:
    """`num_samples` as Tune wants it: a search that is repeated for every seed counts the repetitions too."""
    is_repeated = tuned.seeds > 1 and tuned.search_alg.type != "random"
    return tuned.num_samples * (tuned.seeds if is_repeated else 1)


def _amount(value: Any) -> float:
    """How much a value asks for, if it is a number."""
    return float(value) if isinstance(value, int | float) else 0.0


def folder_in_tune(trial: Any) -> str:
    """Tune's own folder of a trial has the trial's name."""
    return str(trial)


def _logging_too(show: Callable[[Event], None]) -> Callable[[Event], None]:
    """Write events to the log too, but for results, which have files of their own."""

    def tell(event: Event) -> None:
        if event.kind != "result":
            logger.info(event.sentence)  # without arguments, for messages are the same if their text before is
        show(event)

    return tell


def _check_own(folder: Path, about: Mapping[str, Any], trust: bool) -> None:
    """Refuse a sweep of a stranger's: it may name any code, and Ray Tune's own state in it is pickles."""
    if not trust and not is_own(about, folder):
        raise NotTrusted(
            f"{folder} is not a sweep that you have started there, and continuing it runs whatever code it names and "
            "the pickles in it; start another with --new, or add --trust (in Python trust=True)"
        )


def _is_same(folder: Path, sweep: Sweep) -> bool:
    """Whether a command that describes `sweep` continues that of a folder."""
    with suppress(ShoalError):
        free = FREE_SWEEP_KEYS
        if read_about(folder).get("function") is not None:
            # Only the user knows what the keys of their own function's config do.
            free = tuple(key for key in free if not key.startswith("config."))
        return _essence(read_sweep(folder), free) == _essence(sweep, free)
    return False


def _essence(sweep: Sweep, free: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes two sweeps the same: their experiments and their own keys, but for those that are free."""
    from shoal.config.sweep import sweep_tree

    own = dict(plain_json(sweep_tree(sweep)))
    experiment = own.pop("tree")
    return by_dotted_key(experiment, free), by_dotted_key(own, free)
