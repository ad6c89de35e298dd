"""Workers that do not start: told once, by whether others sample meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.parallel import ray_workers
from shoal.parallel.host import HostAnswer
from shoal.parallel.ray_workers import HostSlot, RayWorkers


class StandIn:
    """Stands for Ray, in which nothing has started the first times that it is asked."""

    def __init__(self, times: int) -> None:
        self.times = times

    def wait(self, answers: list[Any], num_returns: int, **_: Any) -> tuple[list[Any], list[Any]]:
        """What has started, and what has not."""
        self.times -= num_returns == 1
        return (answers[:1], answers[1:]) if self.times < 0 else ([], answers)


@pytest.mark.parametrize("alone", [False, True])
def test_a_worker_that_does_not_start_is_told_once(
    alone: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_workers, "SLOW_START_S", 0.0)
    monkeypatch.setattr(RayWorkers, "_gotten", lambda self, answer: HostAnswer("here", [1]))
    workers = RayWorkers.__new__(RayWorkers)
    workers._ray = StandIn(3)
    workers._homeless, workers._absent, workers._told_slow, workers._begun = [], {}, set(), {}
    workers._hosts = [HostSlot("a", None, [1], "first")]
    if not alone:
        workers._hosts.append(HostSlot("b", None, [2], None, up=[2]))
    for _ in range(3):
        workers._admit_started()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("worker 1 has not started for 0 s: Ray has no free cores for it")
    assert told[0].endswith("training waits for it" if alone else "training continues with 1 of 2")
