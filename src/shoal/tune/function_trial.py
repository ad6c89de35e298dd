"""A trial that is a function of the user's own, run in a thread between its reports."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory
from ray.tune.result import RESULT_DUPLICATE

from shoal.config.layout import Bundle
from shoal.config.sweep import tree_with
from shoal.data.results import numbers, plain_json
from shoal.errors import ShoalError, Stopped
from shoal.runs.atomic_files import open_own
from shoal.runs.folders import RESULTS_FILE
from shoal.runs.stopping import stop_reason
from shoal.tune.metric_checks import check_finite, check_metric
from shoal.tune.report_function import reporting
from shoal.tune.trial import TuneTrial

ENDING_S = 30.0  # that a function may take to clean up after itself


class FunctionTrial(TuneTrial):
    """Runs the function in a thread, which waits in `report` until Tune wants more."""

    function: ClassVar[Callable[..., Any]]
    bundle: ClassVar[Bundle]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:  # noqa: ARG003
        """One place."""
        return PlacementGroupFactory([cls.bundle])

    def setup(self, config: dict[str, Any]) -> None:
        """See `Trainable`.

        It leaves the trial's results alone. Tune may set up two processes for one trial: a new one, which is slow to
        start, and one that became free meanwhile, which gets the trial and may have reported before the new one is up.
        """
        super().setup(config)
        self.call: FunctionThread | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial."""
        self.cleanup()
        self.setup(new_config)
        return True

    def one_result(self) -> dict[str, Any]:
        """The function's next report."""
        if self.call is None:
            self.call = self._begin()
        kind, told = self.call.next()
        if kind == "failed":
            raise ShoalError(told)
        if kind == "ended":
            if not self.last:
                raise ShoalError("the function ended without a report; call shoal.tune.report(score=...) in it")
            self.end("the function ended")
            return {RESULT_DUPLICATE: True}
        self.iteration_count += 1
        counted = {"training_iteration": self.iteration_count, "time_total_s": perf_counter() - self.began}
        result = {**counted, **told}
        self.last = numbers(result)
        check_finite(self.assignment.sweep.metric, told)
        check_metric(self.assignment.sweep.metric, numbers(told) | counted)
        self.file.write(json.dumps(plain_json(result), allow_nan=False) + "\n")
        reason = stop_reason(result, self.assignment.sweep.tree.get("stop") or {})
        if reason is not None:
            self.end(reason)
        return {**self.last, "done": reason is not None}

    def _begin(self) -> FunctionThread:
        """Call the function; one that was interrupted begins anew."""
        self.last = {}
        self.iteration_count = 0
        self.began = perf_counter()
        descriptor = open_own(self.folder / RESULTS_FILE, os.O_WRONLY | os.O_TRUNC)
        self.file = open(descriptor, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        config = tree_with(self.assignment.sweep, self.settings, self.seed).get("config") or {}
        return FunctionThread(type(self).function, config, self.folder / "log.txt")

    def cleanup(self) -> None:
        """End the function where it reports."""
        if self.call is not None:
            self.call.stop()
            self.call = None
        with contextlib.suppress(AttributeError):
            self.file.close()


class FunctionThread:
    """One call of the function, in a thread of its own."""

    def __init__(self, function: Callable[..., Any], config: dict[str, Any], log: Any) -> None:
        self._reports: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._wanted = threading.Semaphore(0)
        self._stopping = False
        self._function, self._config, self._log = function, config, log
        self._thread = threading.Thread(target=self._run, name="shoal-function", daemon=True)
        self._thread.start()

    def next(self) -> tuple[str, Any]:
        """Let the function go on until its next report or its end."""
        self._wanted.release()
        return self._reports.get()

    def stop(self) -> None:
        """Let the function end where it is waiting, and wait for it: what is printed belongs to one call at a time."""
        self._stopping = True
        self._wanted.release()
        self._thread.join(ENDING_S)

    def _report(self, result: dict[str, Any]) -> None:
        self._reports.put(("result", result))
        self._wanted.acquire()
        if self._stopping:
            raise Stopped

    def _run(self) -> None:
        self._wanted.acquire()
        if self._stopping:
            return
        try:
            with (
                open(open_own(self._log, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8", buffering=1) as log,
                contextlib.redirect_stdout(log),
                reporting(self._report),
            ):
                returned = self._function(self._config)
                if isinstance(returned, Mapping):
                    self._report(dict(returned))
            self._reports.put(("ended", None))
        except Stopped:
            pass
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._reports.put(("failed", f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"))
