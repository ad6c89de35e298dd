"""The samplers of a host, without any Ray: started, asked, killed, replaced and ended."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch
from shoal.envs.making import env_maker
from shoal.envs.process_messages import packed
from shoal.machine.broadcasts import ENDINGS, WARNINGS
from shoal.machine.processes import below, children_of_all
from shoal.models.build import build_policy
from shoal.parallel.host import HostAnswer, HostPlan, HostRequest, SamplerHost
from shoal.parallel.shared_messages import Bytes, message_in

PROBES = Path(__file__).parents[2] / "shared" / "probe_env.py"
NOTHING = packed(None)


class Manned:
    """A host with some workers, and the policy that they sample with."""

    def __init__(self, workers: int, name: str, restore_episodes: bool | str = True, **plan: Any) -> None:
        config = PPOConfig(
            env=f"{PROBES}:{name}",
            num_workers=workers,
            num_envs_per_worker=1,
            model={"fcnet_hiddens": [4]},
            restore_episodes=restore_episodes,
        )
        maker = env_maker(config.env)
        self.host = SamplerHost(HostPlan(packed((config, maker)), **{"recreates": True, "threads": 1, **plan}))
        self.first = self.host.add(dict.fromkeys(range(1, workers + 1)), restarts_left=9, replaces=False)
        _, *spaces = pickle.loads(self.first.first) if self.first.first else [None]
        self.state = build_policy(*spaces, config, maker.user_code).get_state() if spaces else None

    def sample(self, steps: int = 3, restarts_left: int = 9, **asked: Any) -> tuple[HostAnswer, list[Bytes]]:
        return self.host.sample(HostRequest(steps, NOTHING, restarts_left, **asked), self.state)

    def pids(self) -> dict[int, int]:
        function = packed(lambda worker: os.getpid())
        answer = self.host.ask("apply", dict.fromkeys(self.up(), (function,)), 9, self.state)
        return {index: pickle.loads(result)[0] for index, result in answer.results}

    def up(self) -> list[int]:
        return self.first.up

    def until(self, is_wanted: Callable[[HostAnswer], bool]) -> list[HostAnswer]:
        """Samples until an answer is as wanted; all of them."""
        deadline = monotonic() + 60
        answers = [self.sample()[0]]
        while not is_wanted(answers[-1]):
            assert monotonic() < deadline
            answers.append(self.sample(waits=True)[0])
        return answers


@pytest.fixture
def manned() -> Iterator[Callable[..., Manned]]:
    started: list[Manned] = []

    def make(workers: int = 2, name: str = "Walk", **plan: Any) -> Manned:
        started.append(Manned(workers, name, **plan))
        return started[-1]

    yield make
    for each in started:
        each.host.stop()


def test_all_workers_answer_in_one_message_and_in_order(manned) -> None:
    found = manned(3)
    answer, batches = found.sample(steps=4)
    assert answer.up == [told.index for told in answer.fragments] == [1, 2, 3]
    for data in batches:
        batch = message_in(data)
        assert isinstance(batch, Batch)
        assert batch.rewards.shape == (4, 1)
    assert not answer.losses
    assert [pickle.loads(told.summary).num_steps for told in answer.fragments] == [4] * 3


def test_samplers_know_neither_ray_nor_torch(manned) -> None:
    found = manned()
    function = packed(lambda worker: [name for name in ("ray", "torch") if name in __import__("sys").modules])
    answer = found.host.ask("apply", {1: (function,), 2: (function,)}, 9, found.state)
    assert [pickle.loads(result)[0] for _, result in answer.results] == [[], []]


def test_a_killed_sampler_is_replaced_by_the_spare_one_where_it_stood(manned) -> None:
    calm, struck = manned(), manned()
    for each in (calm, struck):
        each.sample()
    spare = struck.host._spare
    assert spare is not None
    os.kill(struck.pids()[2], signal.SIGKILL)
    (loss,) = struck.until(lambda answer: bool(answer.losses))[-1].losses
    answers = struck.until(lambda answer: len(answer.fragments) == 2)
    assert (loss.index, loss.is_replaced, loss.deaths_in_a_row) == (2, True, 1)
    assert "was killed by SIGKILL" in loss.words
    assert struck.host._members[2].handle is spare
    expected = calm.sample()[0].fragments[1].state
    found = pickle.loads(answers[-1].fragments[1].state)
    np.testing.assert_array_equal(found.arrays["current0"], pickle.loads(expected).arrays["current0"])
    assert found.values["noise"] == pickle.loads(expected).values["noise"]


@pytest.mark.parametrize(("limit", "seedings"), [("60s", 1), ("0s", 2)])
def test_replays_of_a_replaced_sampler_may_take_so_long(manned, limit: str, seedings: int) -> None:
    struck = manned(restore_episodes=limit)
    struck.sample()
    os.kill(struck.pids()[2], signal.SIGKILL)
    struck.until(lambda answer: bool(answer.losses))
    fragments = struck.until(lambda answer: len(answer.fragments) == 2)[-1].fragments
    # Where it may not replay, it has begun a new episode, and that with another seed.
    assert pickle.loads(fragments[1].state).values["vector"]["seedings"] == [seedings]


def test_without_restarts_left_a_lost_sampler_is_only_reported(manned) -> None:
    found = manned()
    pid = found.pids()[1]
    found.host.ask("get_state", {}, restarts_left=0)
    os.kill(pid, signal.SIGKILL)
    deadline = monotonic() + 60
    while not (answer := found.sample(restarts_left=0)[0]).losses:
        assert monotonic() < deadline
    assert [(loss.index, loss.is_replaced) for loss in answer.losses] == [(1, False)]
    assert found.sample()[0].up == [2]


def test_the_fork_server_may_die_too(manned) -> None:
    found = manned()
    found.sample()
    found.host._processes._server.kill()
    answers = found.until(lambda answer: bool(answer.losses))
    assert [loss.index for loss in answers[-1].losses] == [1, 2]
    found.until(lambda answer: len(answer.fragments) == 2)


def test_what_a_scheduler_tells_every_process_of_a_job_ends_no_sampler(manned) -> None:
    found = manned()
    pids = found.pids()
    for pid in pids.values():
        for number in ENDINGS | WARNINGS:
            os.kill(pid, number)
    assert found.pids() == pids
    assert not found.sample()[0].losses


def test_workers_that_are_added_later_are_heard_of_with_the_news(manned) -> None:
    found = manned()
    found.host.add({3: None}, 9, waits=False)
    deadline = monotonic() + 60
    while (answer := found.host.news()).up != [1, 2, 3]:
        assert not answer.losses
        assert monotonic() < deadline
    assert len(found.sample()[0].fragments) == 3


def test_an_error_is_answered_with_its_worker(manned) -> None:
    found = manned()
    function = packed(lambda worker: 1 / (2 - worker.worker_index))
    answer = found.host.ask("apply", {1: (function,), 2: (function,)}, 9, found.state)
    assert answer.failure is not None
    assert answer.failure[0] == 2
    assert "division by zero" in pickle.loads(answer.failure[1]).words
    assert len(found.sample()[0].fragments) == 2


def test_an_error_waits_for_those_that_were_asked_the_same(manned) -> None:
    found = manned()
    function = packed(lambda worker: [__import__("time").sleep(0.3 * worker.worker_index), 1 / 0])
    answer = found.host.ask("apply", {1: (function,), 2: (function,)}, 9, found.state)
    assert answer.failure is not None
    assert answer.failure[0] == 1
    after = found.sample()[0]
    assert after.failure is None
    assert len(after.fragments) == 2


def test_fragments_are_collected_as_they_are_finished_and_kept_meanwhile(manned) -> None:
    found, expected = manned(), manned()
    found.host.begin(HostRequest(3, NOTHING, 9, version=5, workers=(1,)), found.state)
    found.pids()  # asks the same worker for something else, before anybody has fetched its fragment
    answer, (data,) = found.host.collect()
    assert [(told.index, told.version) for told in answer.fragments] == [(1, 5)]
    np.testing.assert_array_equal(message_in(data).actions, message_in(expected.sample()[1][0]).actions)
    assert found.host.collect()[1] == [], "nothing else was begun"


def test_stopping_ends_every_process_also_while_a_call_waits(manned) -> None:
    found = manned(1, "SlowWalk")
    found.host.begin(HostRequest(10, NOTHING, 9, workers=(1,)), found.state)
    pids = below([found.host._processes._server.pid], children_of_all())
    assert pids
    found.host.stop()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert found.sample()[0].up == []
