"""Workers that do not start: told once, by whether others sample meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.parallel import ray_workers
from shoal.parallel.ray_workers import RayWorkers, WorkerSlot


class StandIn:
    """Stands for Ray, in which nothing has started the first times that it is asked."""

    def __init__(self, times: int) -> None:
        self.times = times

    def wait(self, answers: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        """What has started, and what has not."""
        self.times -= 1
        return (answers[:1], answers[1:]) if self.times < 0 else ([], answers)

    def get(self, answer: Any, **_: Any) -> Any:
        """What has started tells where it is."""
        return answer, None, None


@pytest.mark.parametrize("alone", [False, True])
def test_a_worker_that_does_not_start_is_told_once(
    alone: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_workers, "SLOW_START_S", 0.0)
    monkeypatch.setattr(RayWorkers, "_answer", lambda self, answer, slot=None: self._ray.get(answer))
    workers = RayWorkers.__new__(RayWorkers)
    workers._ray = StandIn(3)
    workers._slots = (
        [WorkerSlot(1, None, "first")] if alone else [WorkerSlot(1, None, "first"), WorkerSlot(2, None, None)]
    )
    for _ in range(3):
        workers._admit_started()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("worker 1 has not started for 0 s: Ray has no free cores for it")
    assert told[0].endswith("training waits for it" if alone else "training continues with 1 of 2")
