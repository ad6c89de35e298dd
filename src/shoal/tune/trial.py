"""A trial as Ray Tune sees it, around an ordinary run in an ordinary run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import traceback
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar

import ray
from ray.tune import PlacementGroupFactory, Trainable

from shoal.config.sweep import Sweep, experiment_with
from shoal.data.results import numbers
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ConfigError, MissingMetric, ShoalError
from shoal.reports.records import (
    SWEEP_FILE,
    Exploit,
    Failure,
    Status,
    read_done,
    read_failure,
    results_of,
    trial_folder,
    write_beginning,
    write_done,
    write_failure,
)
from shoal.runs.atomic_files import remove_folder, replace_file
from shoal.runs.checkpoints import newest_summary
from shoal.runs.lease import LOST_AFTER_S, check_free
from shoal.runs.run import Result, Run, checked
from shoal.runs.stopping import stop_reason
from shoal.tune.metric_checks import check_finite, check_metric, may_come_later
from shoal.tune.ray_spaces import settings_of
from shoal.tune.trial_resources import bundles_of

POINTER = "shoal.json"
EXPLOITS = "exploits.json"
MOST_COPIES = 4  # checkpoints of a trial that others may still want


@dataclass(frozen=True)
class Assignment:
    """What every trial of a sweep is told: the sweep, where it is, and which life of it this is."""

    sweep: Sweep
    folder: str
    user_code: UserCode
    life: str


class TuneTrial(Trainable):
    """What trials of both kinds share: their place, and how their end and their failure are told."""

    assignment: ClassVar[Assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Tune would move to a folder of its own, where no relative path of the user's is right.
        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
        super().__init__(*args, **kwargs)

    def setup(self, config: dict[str, Any]) -> None:
        """See `Trainable`."""
        self.sweep_folder = Path(self.assignment.folder)
        self.number = int(self.trial_name)
        self.folder = self.sweep_folder / trial_folder(self.number)
        self.last: dict[str, Any] = {}
        self.done: tuple[Status, str] | None = None
        self.refusal: ShoalError | None = None
        if not (self.sweep_folder / SWEEP_FILE).exists():
            host = socket.gethostname()
            self.refusal = ConfigError(
                f"results_dir: {self.sweep_folder} does not exist on {host}; set a folder that all nodes share"
            )
            return
        self.begin(config)

    def begin(self, config: dict[str, Any]) -> None:
        """Find out what there is to do, where the sweep's folder is."""
        self.settings, self.seed = settings_of(self.assignment.sweep, config)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_beginning(self.folder, self.settings, self.seed)
        self.done = read_done(self.folder)
        if failure := read_failure(self.folder, self.assignment.life):
            self.refusal = ShoalError(failure.sentence)
        for result in results_of(self.folder):
            self.last |= numbers(result)

    def step(self) -> dict[str, Any]:
        """One result; a trial that has ended tells its last again."""
        try:
            if self.refusal is not None:
                raise self.refusal
            if self.done is not None:
                return {**self.last, "done": True}
            return self.one_result()
        except Exception as error:
            if (self.sweep_folder / SWEEP_FILE).exists() and read_failure(self.folder, self.assignment.life) is None:
                self.folder.mkdir(parents=True, exist_ok=True)  # a run that cannot begin removes it
                failure = Failure(self.assignment.life, sentence_of(error), isinstance(error, MissingMetric))
                write_failure(self.folder, failure, traceback.format_exc())
            raise

    def one_result(self) -> dict[str, Any]:
        """The next result of a trial that goes on."""
        raise NotImplementedError

    def end(self, reason: str) -> None:
        """Write down that there is nothing left to do."""
        self.done = ("finished", reason)
        write_done(self.folder, "finished", reason)

    def get_auto_filled_metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """What Tune wants to know beside the result: where this is; times and counters are the run's own."""
        place = ray.get_runtime_context()
        return {"trial_id": self.trial_id, "pid": os.getpid(), "node_ip": self._local_ip, "node": place.get_node_id()}


class RunTrial(TuneTrial):
    """A run of the sweep's experiment; it goes on from its own newest checkpoint, wherever it was before."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """One place for the trial itself, and one for each process that it starts."""
        experiment = experiment_with(cls.assignment.sweep, *settings_of(cls.assignment.sweep, config))
        return PlacementGroupFactory(bundles_of(experiment.config), strategy="PACK")

    def setup(self, config: dict[str, Any]) -> None:
        """Open the run."""
        self.run: Run | None = None
        self.is_told = False  # that a signal has ended the run
        self.exploit: Exploit | None = None
        super().setup(config)
        if self.refusal is not None or self.done is not None:
            return
        try:
            experiment = experiment_with(self.assignment.sweep, self.settings, self.seed)
            experiment, notes = checked(experiment, self.assignment.user_code)
            wait_until_free(self.folder)
            done = stop_reason(newest_summary(self.folder) or {}, experiment.stop)
            self.run = Run(experiment, self.folder, self.assignment.user_code, done, notes)
            self.results: Generator[Result, None, None] = self.run.results(hold_signals=True)
            if done is not None:
                self.end(done)
        except Exception as error:
            self.refusal = error if isinstance(error, ShoalError) else ShoalError(f"{type(error).__name__}: {error}")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial, or the same again."""
        self.cleanup()
        self.setup(new_config)
        return True

    def one_result(self) -> dict[str, Any]:
        """The next result that has the metric; the last in any case."""
        assert self.run is not None
        metric = self.assignment.sweep.metric
        while True:
            result = next(self.results, None)
            if result is None:  # a signal has ended it: the driver's, or that of somebody who wants this process gone
                if self.is_told:
                    leave: Callable[[], None] = ray.actor.exit_actor
                    leave()
                self.is_told = True
                return self.last
            self._confirm_exploit()
            values = numbers(result)
            check_finite(metric, result)
            if not may_come_later(metric, result):
                check_metric(metric, {**self.last, **values})
            self.last |= values
            is_last = self.run.outcome is not None
            if is_last:
                for _ in self.results:  # saves
                    pass
                assert self.run.outcome is not None
                if metric and metric not in self.last:
                    raise ShoalError(f"{metric} had no value up to the end ({self.run.outcome.sentence})")
                self.end(self.run.outcome.sentence)
            if is_last or metric in values or not metric:
                return {**self.last, "done": is_last}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Leave a note where the newest checkpoint can be had: in a linked copy, which stays though the run goes on."""
        copy = ""
        newest = self.run.save() if self.run is not None else None
        if newest is not None:
            copy = str(link_copy(newest, self.sweep_folder / "ray" / "handed" / f"{self.number:05d}"))
        replace_file(Path(checkpoint_dir) / POINTER, json.dumps({"trial": self.number, "copy": copy}).encode())

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take over the agent of another trial; one's own is there already."""
        pointer = json.loads((Path(checkpoint) / POINTER).read_bytes())
        source, copy = int(pointer["trial"]), Path(pointer["copy"])
        if source == self.number or not pointer["copy"] or self.run is None:
            return
        summary, earlier = newest_summary(self.folder) or {}, exploits_of(self.folder)
        exploit = Exploit(
            training_iteration=int(summary.get("training_iteration", 0)),
            timesteps_total=int(summary.get("timesteps_total", 0)),
            source=source,
            settings=self.settings,
        )
        # Tune hands out the same copy again whenever the trial has a new process, until the trial itself is saved.
        if any((one.source, one.settings, name) == (source, self.settings, copy.name) for one, name in earlier[-1:]):
            return
        try:
            self.run.take_over(copy)
        except CheckpointError as error:
            self.refusal = error
            return
        self.exploit, self._taken_from = exploit, copy.name

    def cleanup(self) -> None:
        """Save the run and let go of its folder; may be called twice."""
        if self.run is not None:
            self.results.close()

    def _confirm_exploit(self) -> None:
        """Write down what was taken over, once it is in the run's own checkpoint."""
        if self.exploit is not None:
            story = [*exploits_of(self.folder), (self.exploit, self._taken_from)]
            tree = [{**asdict(exploit), "checkpoint": name} for exploit, name in story]
            replace_file(self.folder / EXPLOITS, json.dumps(tree).encode())
            self.exploit = None


def exploits_of(folder: Path) -> list[tuple[Exploit, str]]:
    """What a trial has taken over, and from which checkpoints."""
    try:
        tree = json.loads((folder / EXPLOITS).read_bytes())
    except FileNotFoundError:
        return []
    names = [one.pop("checkpoint") for one in tree]
    return [(Exploit(**one), name) for one, name in zip(tree, names, strict=True)]


def link_copy(checkpoint: Path, place: Path) -> Path:
    """A copy of a checkpoint by links, or by bytes where links fail, beside the last few that were handed out."""
    place.mkdir(parents=True, exist_ok=True)
    earlier = sorted(place.glob("[0-9]*"), key=lambda folder: int(folder.name.partition("_")[0]))
    number = int(earlier[-1].name.partition("_")[0]) + 1 if earlier else 1
    target = place / f"{number:06d}_{checkpoint.name}"
    shutil.copytree(checkpoint, target, copy_function=_link)
    for old in earlier[: max(0, len(earlier) + 1 - MOST_COPIES)]:
        with contextlib.suppress(OSError):
            remove_folder(old)
    return target


def sentence_of(error: BaseException) -> str:
    """What went wrong, in the error's own words."""
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def wait_until_free(folder: Path) -> None:
    """Wait for the process that had this trial before, if it is still at its last checkpoint, or was lost elsewhere."""
    deadline = monotonic() + 1.5 * LOST_AFTER_S
    while True:
        try:
            return check_free(folder)
        except ShoalError:
            if monotonic() > deadline:
                raise
        sleep(0.1)
