"""What a simulator raises is its failure, also where it is no `Exception`; and what never ends does not hold a run."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.envs import closing
from shoal.envs.closing import close_all_quietly, close_quietly
from shoal.errors import CallbackError, Interrupted
from shoal.runs.incidents import read_incidents
from shoal.runs.run import Run

SMALL = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": [8]}}


class PanicException(BaseException):
    """As pyo3 has it for a panic in Rust."""


KINDS = {
    "panic": PanicException("called `Option::unwrap()` on a `None` value"),
    "cancelled": asyncio.CancelledError(),
    "generator": GeneratorExit(),
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
}


class Panicky(gymnasium.Env[Any, Any]):
    """Fails once in one method, after some steps of training, with something that is no Exception."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    due = ""  # the method that is to fail next

    def __init__(self, config: Any) -> None:
        self.error, self.where = KINDS[config["kind"]], config["where"]
        self.time = 0
        self._maybe("init")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self._maybe("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        Panicky.steps += 1
        if Panicky.steps == 50:
            Panicky.due = self.where
            if self.where in ("init", "close"):
                raise RuntimeError("so that another one takes its place")
        self._maybe("step")
        return np.zeros(2, np.float32), 1.0, False, self.time == 5, {}

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, where: str) -> None:
        if Panicky.due == where:
            Panicky.due = ""
            raise self.error


@pytest.mark.repeats(4, slow=4)
@pytest.mark.parametrize("where", ["step", "reset", "init", "close"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_whatever_a_simulator_raises(kind: str, where: str, tmp_path: Path) -> None:
    Panicky.steps, Panicky.due = 0, ""
    config = {**SMALL, "env_config": {"kind": kind, "where": where}}
    opened = Run.open(
        shoal.config.experiment.experiment_from(
            {
                "name": "panic",
                "env": Panicky,
                "results_dir": str(tmp_path),
                "stop": {"training_iteration": 6},
                "config": config,
            }
        )
    )
    results = list(opened.results())
    assert len(results) == 6
    assert opened.outcome is not None
    assert opened.outcome.kind == "stopped"
    causes = [str(entry["cause"]) for entry in read_incidents(opened.folder)]
    expected = {"close": ["RuntimeError"], "init": ["RuntimeError", type(KINDS[kind]).__name__]}
    wanted = expected.get(where, [type(KINDS[kind]).__name__])
    assert [any(name in cause for cause in causes) for name in wanted] == [True] * len(wanted), causes
    # It went on to the end, and so it is not another word for a failure that ends it.
    assert results[-1]["training_iteration"] == 6


class Leaving(shoal.DefaultCallbacks):
    """Leaves by the way that a closed generator is left."""

    def on_train_result(self, *, trainer: Any, result: Any, **kwargs: Any) -> None:
        if result["training_iteration"] == 2:
            raise GeneratorExit


def test_a_hook_cannot_make_a_run_end_as_if_it_had_done_its_work(tmp_path: Path) -> None:
    run = shoal.run(
        {
            "env": "CartPole-v1",
            "results_dir": str(tmp_path),
            "stop": {"training_iteration": 5},
            "config": {**SMALL, "callbacks": Leaving},
        }
    )
    with pytest.raises(CallbackError, match="on_train_result failed: GeneratorExit"):
        list(run)


class Stuck:
    """An environment that waits for what never comes when it is closed."""

    def close(self) -> None:
        threading.Event().wait()


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(closing, "CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(closing, "LATE_CLOSE_S", 0.02)
    others = signal.setitimer(signal.ITIMER_REAL, 0)  # of the test runner
    try:
        close_all_quietly([Stuck(), Stuck(), Stuck()])
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
    told = re.findall(r"close\(\) of the environment has not ended within (\S+) s", caplog.text)
    assert told == ["0.1", "0.02", "0.02"]  # together hardly more than one of them


class Cut:
    def close(self) -> None:
        raise Interrupted


def test_a_signal_is_passed_on_by_closing() -> None:
    with pytest.raises(Interrupted):
        close_quietly(Cut())
