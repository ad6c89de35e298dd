"""Loggers: other people's services that are told what a run reports, beside the files of its folder.

A logger is a class of three methods (`RunLogger`). All of a run work in one thread beside it, so that a slow network
does not slow training, and whatever one of them raises is told once and ends neither training nor the others.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from shoal.config.experiment import Experiment, as_tree
from shoal.config.logger_names import LOGGERS, logger_places
from shoal.data.results import flat, numbers
from shoal.errors import ConfigError
from shoal.runs.atomic_files import replace_file
from shoal.runs.folders import SWEEP_FILE, env_text

logger = logging.getLogger("shoal.loggers")

ID_FILE = "loggers.json"
"""In a run's folder: the id by which its loggers know it again when it is continued."""
MOST_WAITING = 10_000  # results that loggers may be behind
LOGIN_S = 1.0  # that a library may wait for somebody to log in
LONGEST_REASON = 300  # letters of what a logger says when it fails
FINISH_S = 60.0  # that a run waits for its loggers at its end


@dataclass(frozen=True)
class RunInfo:
    """What a logger is told of a run; `id` stays the same when it is continued, and `group` is its sweep, if any."""

    id: str
    name: str
    experiment: str
    folder: Path
    algorithm: str
    env: str
    group: str | None
    is_resumed: bool


class RunLogger(Protocol):
    """What a logger is; its class is called without arguments."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        """A run begins or continues, with this configuration: nested keys as `model/fcnet_hiddens`."""

    def log(self, result: Mapping[str, float]) -> None:
        """An iteration has ended: the numbers of its result, nested names as `learner/kl`."""

    def finish(self, state: str) -> None:
        """The run has ended: `finished`, `interrupted` or `failed`."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers that cannot be loaded, before anything is trained."""
    for name in names:
        if name in LOGGERS:
            found = find_spec(name)
            if found is None or found.origin is None:  # without one it is a folder of that name
                raise ConfigError(f"loggers: {name} is not installed; type pip install 'shoal-rl[{name}]'")
        else:
            _class_of(name)


def _class_of(name: str) -> Callable[[], RunLogger]:
    place = logger_places().get(name)
    if place is None:
        raise ConfigError(f"loggers: the package that has {name} is not installed; install it, or set loggers: []")
    module, _, attribute = place.partition(":")
    try:
        found: Callable[[], RunLogger] = getattr(import_module(module), attribute)
    except Exception as error:  # whatever a package of somebody else raises
        raise ConfigError(f"loggers: {name} ({place}) cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def run_info(experiment: Experiment, folder: Path, is_resumed: bool) -> RunInfo:
    """What the loggers of a run are told of it; its id is in its folder."""
    group, name = None, folder.name
    if (folder.parents[1] / SWEEP_FILE).is_file():
        group = folder.parents[1].name
        name = f"{group}_{folder.name}"
    env = env_text(experiment.config.env)
    return RunInfo(_id_of(folder), name, experiment.name, folder, experiment.run, env, group, is_resumed)


def _id_of(folder: Path) -> str:
    path = folder / ID_FILE
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = str(json.loads(path.read_bytes())["id"])
        if re.fullmatch(r"[0-9a-f]{16}", found):
            return found
    made = os.urandom(8).hex()
    with suppress(OSError):  # of a full disk: then a continued run is another one to them
        replace_file(path, json.dumps({"id": made}).encode())
    return made


class Loggers:
    """The loggers of one run, in a thread of their own; none of this ever raises."""

    def __init__(self, experiment: Experiment, folder: Path, is_resumed: bool) -> None:
        self._waiting: queue.Queue[tuple[str, Any]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        if experiment.loggers:
            info = run_info(experiment, folder, is_resumed)
            config = flat(as_tree(experiment)["config"])
            work = (experiment.loggers, info, config)
            self._thread = threading.Thread(target=self._work, args=work, name="shoal-loggers", daemon=True)
            self._thread.start()

    def log(self, result: Mapping[str, Any]) -> None:
        """Hand on a result."""
        if self._thread is not None:
            try:
                self._waiting.put_nowait(("log", numbers(result)))
            except queue.Full:
                self._tell("behind", "The loggers are %d results behind; more are left out.", MOST_WAITING)

    def finish(self, state: str) -> None:
        """Let the loggers end, and wait for them, though not for ever."""
        if self._thread is None:
            return
        end = time.monotonic() + FINISH_S
        with suppress(queue.Full):
            self._waiting.put(("finish", state), timeout=FINISH_S)
        self._thread.join(max(end - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self._tell("end", "The loggers have not ended within %.0f s, and are left; the run is complete.", FINISH_S)

    def _work(self, names: Sequence[str], info: RunInfo, config: Mapping[str, Any]) -> None:
        working: dict[str, RunLogger] = {}
        for name in names:
            with self._guarded(name):
                made = _class_of(name)()
                made.start(info, config)
                working[name] = made
        while True:
            what, value = self._waiting.get()
            for name, one in working.items():
                with self._guarded(name):
                    getattr(one, what)(value)
            if what == "finish":
                return

    def _guarded(self, name: str) -> _Guard:
        return _Guard(name, self._tell)

    def _tell(self, key: str, words: str, *values: Any) -> None:
        """Warn, once of each."""
        if key not in self._told:
            self._told.add(key)
            logger.warning(words, *values)


class _Guard:
    """Takes whatever a logger raises, `SystemExit` too, and tells it once."""

    def __init__(self, name: str, tell: Callable[..., None]) -> None:
        self._name, self._tell = name, tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST_REASON]
            self._tell(self._name, "The logger %s fails (%s); training continues.", self._name, reason)
        return True


class WandbLogger:
    """Weights & Biases; `WANDB_MODE=offline` and its like are the library's own business."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        """Begin a run, or continue the one of this id."""
        wandb = import_module("wandb")
        # The terminal is the run's own: nothing of it is recorded, and nobody waits there for a key.
        settings = wandb.Settings(console="off", silent=True, login_timeout=LOGIN_S)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.experiment,
            id=run.id,
            name=run.name,
            group=run.group,
            config=dict(config),
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="timesteps_total")
        logger.info("wandb writes to %s.", self._run.dir)

    def log(self, result: Mapping[str, float]) -> None:
        """Log an iteration; those that were logged before a run was continued are the same, and passed over."""
        self._run.log(dict(result), step=int(result["training_iteration"]))

    def finish(self, state: str) -> None:
        """End the run."""
        self._run.finish(exit_code=int(state == "failed"))


class MlflowLogger:
    """MLflow, at `MLFLOW_TRACKING_URI` or wherever the library keeps its runs by itself."""

    STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
    ID = "shoal_id"
    MOST_PARAMS, MOST_METRICS, LONGEST = 100, 1000, 500  # in one message, and letters of a value

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        """Begin a run, or continue the one of this id."""
        mlflow = import_module("mlflow")
        self._client = mlflow.MlflowClient()
        self._metric, param = mlflow.entities.Metric, mlflow.entities.Param
        experiment = self._client.get_experiment_by_name(run.experiment)
        place = experiment.experiment_id if experiment else self._client.create_experiment(run.experiment)
        found = self._client.search_runs([place], f"tags.`{self.ID}` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {self.ID: run.id, "shoal_folder": str(run.folder), **({"shoal_sweep": run.group} if run.group else {})}
        self._id = self._client.create_run(place, run_name=run.name, tags=tags).info.run_id
        own = {"run": run.algorithm, **config}
        params = [param(_mlflow_name(name), str(value)[: self.LONGEST]) for name, value in own.items()]
        for at in range(0, len(params), self.MOST_PARAMS):
            self._client.log_batch(self._id, params=params[at : at + self.MOST_PARAMS])

    def log(self, result: Mapping[str, float]) -> None:
        """Log an iteration against the steps of the environment."""
        now, step = int(time.time() * 1000), int(result.get("timesteps_total", 0))
        metrics = [self._metric(_mlflow_name(name), float(value), now, step) for name, value in result.items()]
        for at in range(0, len(metrics), self.MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[at : at + self.MOST_METRICS])

    def finish(self, state: str) -> None:
        """End the run."""
        self._client.set_terminated(self._id, self.STATES[state])


def _mlflow_name(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


class TrackioLogger:
    """Trackio, on this machine's disk, or where its own variables lead."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        """Begin a run, or continue the one of this name."""
        trackio = import_module("trackio")
        self._run = trackio.init(
            project=re.sub(r"[^\w\-]", "-", run.experiment),
            name=run.name,
            group=run.group,
            config=dict(config),
            resume="allow",
            embed=False,
        )

    def log(self, result: Mapping[str, float]) -> None:
        """Log an iteration."""
        self._run.log(dict(result), step=int(result["training_iteration"]))

    def finish(self, state: str) -> None:  # noqa: ARG002
        """End the run; the library keeps no state of it."""
        self._run.finish()
