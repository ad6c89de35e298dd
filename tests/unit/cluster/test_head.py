"""The head with agents that talk as real ones do but start no Ray: who is waited for, who is named, who is told."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import resource
import tarfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cluster import head as head_module
from shoal.cluster.control_connection import Message, Peer, call
from shoal.cluster.head import Head, HeadPlan
from shoal.cluster.job_folder import Notice
from shoal.errors import ConfigError, HeadFailed, LaunchError, NodeFailed, TimedOut

VERSIONS = {"python": "3.11", "ray": "2.60.0", "shoal": "1"}
Behave = Callable[[Peer, Message], bool]
ANSWERING: set[asyncio.Task[None]] = set()


def plan_of(folder: Path, num_ranks: int | None, hosts: tuple[str, ...] = (), **more: Any) -> HeadPlan:
    plan = HeadPlan(
        job_folder=folder,
        secret="s" * 64,
        num_ranks=num_ranks,
        host_names=hosts,
        gives_cpus=True,
        is_local=True,
        prefers_loopback=True,
        min_nodes=None,
        timeout_s=100.0,
        ports=None,
        dashboard=False,
        environment={"PYTHONPATH": "x"},
    )
    return replace(plan, **more)


def good(peer: Peer, message: Message) -> bool:
    """Start at once, stop at once."""
    if message["kind"] == "start_node":
        peer.send("up", address=message["head_address"] or "10.0.0.1:1", token_path="t", dashboard="")
    elif message["kind"] == "stop":
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            entry = tarfile.TarInfo("../../raylet.out")
            entry.size = 5
            tar.addfile(entry, io.BytesIO(b"said\n"))
        peer.send("logs", archive=base64.b64encode(archive.getvalue()).decode())
        peer.send("stopped")
        return False
    return True


def failing(peer: Peer, message: Message) -> bool:
    if message["kind"] == "start_node":
        peer.send("failed", reason="no space left on device")
        return True
    return good(peer, message)


def vanishing(_: Peer, message: Message) -> bool:
    return message["kind"] != "start_node"


async def agent(
    notice: Notice, rank: int | None, host: str, behave: Behave = good, heard: list[Message] | None = None, **more: Any
) -> Peer:
    """Say hello; answer until told otherwise."""
    peer = await call("127.0.0.1", notice.port, notice.secret, 10.0)
    words = {"rank": rank, "host": host, "boot": "b", "pid": 1, "reached": "10.0.0.1", "is_joining": False}
    limits = {
        "cpus": [0, 1],
        "num_cpus": None,
        "cgroup_cpus": None,
        "scheduler_cpus": None,
        "num_gpus": 0,
        "versions": VERSIONS,
    }
    peer.send("hello", **{"versions": VERSIONS, **words, **limits, **more})

    async def answer() -> None:
        while (message := await peer.receive()) is not None:
            if heard is not None:
                heard.append(message)
            if message["kind"] != "alive" and not behave(peer, message):
                break
        await peer.close()

    task = asyncio.create_task(answer())
    ANSWERING.add(task)
    task.add_done_callback(ANSWERING.discard)
    return peer


def with_head(plan: HeadPlan, body: Callable[[Head, Notice], Awaitable[None]]) -> list[str]:
    """Run the body with a head that listens; what it has told the user."""
    told: list[str] = []

    async def run() -> None:
        head = Head(plan, told.append)
        notice = await head.open()
        try:
            await body(head, notice)
        finally:
            await head.stop()

    asyncio.run(run())
    return told


def test_several_ranks_on_a_host_make_one_node_with_all_their_cores(tmp_path: Path) -> None:
    heard: list[list[Message]] = [[] for _ in range(4)]

    async def body(head: Head, notice: Notice) -> None:
        for rank, (host, cpus) in enumerate((("n1", [0, 1]), ("n1", [2, 3]), ("n2", [0]), ("n2", [1]))):
            await agent(notice, rank, host, heard=heard[rank], cpus=cpus)
        first = await head.bring_up()
        assert (first.name, first.num_cpus) == ("n1", 4)
        assert sorted((host.name, host.num_cpus) for host in head.up) == [("n1", 4), ("n2", 2)]

    with_head(plan_of(tmp_path, 4), body)
    starts = [[m for m in messages if m["kind"] == "start_node"] for messages in heard]
    assert [len(each) for each in starts].count(1) == 2
    (first,), (second,) = [each for each in starts if each]
    assert (first["head_address"], second["head_address"]) == (None, "10.0.0.1:1")
    assert (first["ip"], second["ip"]) == ("10.0.0.1", "127.0.0.1")
    assert "s" * 64 not in str(heard)
    assert Notice((), 1, "s" * 64).ray_token not in str(heard)
    assert all(messages[-1]["kind"] == "stop" for messages in heard)
    assert (tmp_path / "logs" / "n2" / "raylet.out").read_text() == "said\n"
    assert not (tmp_path / "raylet.out").exists()


def test_more_ranks_than_cpus_get_a_cpu_each_and_it_is_said(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        for rank in range(4):
            await agent(notice, rank, "n1" if rank < 3 else "n2")
        await head.bring_up()
        assert sorted((host.name, host.num_cpus) for host in head.up) == [("n1", 3), ("n2", 2)]

    (line,) = with_head(plan_of(tmp_path, 4), body)
    assert line.startswith("n1 has more ranks than CPUs, so Ray offers one CPU for each rank (3 on n1, which has 2)")


def test_the_user_says_how_many_cpus_ray_offers_on_each_host(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        await agent(notice, 1, "n2", cpus=list(range(8)))
        await head.bring_up()
        await agent(notice, None, "n3", is_joining=True, num_cpus=7)  # whoever joins says it for the own hosts
        while len(head.up) < 3:
            await asyncio.sleep(0.01)
        assert [host.num_cpus for host in head.up] == [5, 5, 7]

    told = with_head(plan_of(tmp_path, 2, num_cpus=5), body)
    assert told[0] == "n1 has fewer CPUs than --num-cpus, so Ray offers more CPUs than there are (5 on n1, which has 2)"


def test_a_check_sees_what_all_hosts_offer_before_any_ray_is_started(tmp_path: Path) -> None:
    heard: list[Message] = []
    offered: list[Any] = []

    async def check(hosts: Sequence[Any]) -> None:
        offered.extend(hosts)
        raise ConfigError("no room")

    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1", heard=heard)
        await agent(notice, 1, "n2", heard=heard, num_gpus=4)
        with pytest.raises(ConfigError, match="no room"):
            await head.bring_up(check)

    with_head(plan_of(tmp_path, 2), body)
    assert offered == [{"CPU": 2, "GPU": 0}, {"CPU": 2, "GPU": 4}]
    assert "start_node" not in [message["kind"] for message in heard]


def test_two_hundred_agents(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await asyncio.gather(*(agent(notice, rank, f"n{rank}") for rank in range(200)))
        await head.bring_up()
        assert len(head.up) == 200

    with_head(plan_of(tmp_path, 200), body)


def test_a_shell_that_allows_few_open_files_does_not_bound_the_hosts(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))  # as of a login node; both ends are in this process
    try:

        async def body(head: Head, notice: Notice) -> None:
            await asyncio.gather(*(agent(notice, rank, f"n{rank}") for rank in range(200)))
            await head.bring_up()
            assert len(head.up) == 200

        with_head(plan_of(tmp_path, 200), body)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_missing_ranks_and_hosts_are_named(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1.site.org")
        with pytest.raises(TimedOut) as caught:
            await head.bring_up()
        sentences.append(str(caught.value))

    sentences: list[str] = []
    with_head(plan_of(tmp_path, 3, timeout_s=0.3), body)
    with_head(plan_of(tmp_path, None, ("n1", "n2", "n3"), timeout_s=0.3), body)
    assert sentences == ["rank 1, 2 of 3 has not appeared within 0.3 s", "n2, n3 have not appeared within 0.3 s"]


def test_a_host_that_cannot_start_is_named_with_its_error(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        await agent(notice, 1, "n2", failing)
        with pytest.raises(NodeFailed, match="n2 could not start Ray:\n    no space left"):
            await head.bring_up()

    with_head(plan_of(tmp_path, 2), body)


@pytest.mark.parametrize(("behave", "words"), [(failing, "could not start Ray"), (vanishing, "was lost")])
def test_the_heads_own_failure_is_another(tmp_path: Path, behave: Behave, words: str) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1", behave)
        await agent(notice, 1, "n2")
        with pytest.raises(HeadFailed, match=rf"n1 \(the head\) {words}"):
            await head.bring_up()

    with_head(plan_of(tmp_path, 2), body)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        await agent(notice, 1, "n2", versions={**VERSIONS, "ray": "2.54.0"})
        with pytest.raises(LaunchError, match=r"n2 has other versions: ray 2\.54\.0 there, 2\.60\.0 on the head"):
            await head.bring_up()

    with_head(plan_of(tmp_path, 2), body)


def test_an_agent_that_could_not_be_started_is_named_at_once(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        head.could_not_start("n2", "ssh: connect to host n2 port 22: No route to host")
        with pytest.raises(NodeFailed, match="n2: ssh: connect to host n2"):
            await head.bring_up()

    with_head(plan_of(tmp_path, None, ("n1", "n2"), timeout_s=1000.0), body)


def test_min_nodes_are_enough_and_late_ones_are_served(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        await agent(notice, 1, "n2")
        head.could_not_start("n4", "no route to host")
        await head.bring_up()
        assert len(head.up) == 2
        await agent(notice, None, "n3", is_joining=True)
        while len(head.up) < 3:
            await asyncio.sleep(0.01)

    told = with_head(plan_of(tmp_path, None, ("n1", "n2", "n3", "n4"), min_nodes=2), body)
    assert told == ["n3 has joined with 2 CPUs"]


def test_losses_are_told_and_written_down_and_a_host_may_come_back(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        lost = await agent(notice, 1, "n2")
        leaving = await agent(notice, 2, "n3")
        await head.bring_up()
        await lost.close()
        host = await head.losses.get()
        assert (host.name, host.state, head.is_head(host)) == ("n2", "lost", False)
        leaving.send("leaving")
        assert (await head.losses.get()).state == "left"
        await agent(notice, 1, "n2")
        while len(head.up) < 2:
            await asyncio.sleep(0.01)

    with_head(plan_of(tmp_path, 3), body)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    told = [(event["event"], event["host"]) for event in events]
    assert told[-3:] == [("node lost", "n2"), ("node left", "n3"), ("node up", "n2")]


def test_facts_of_those_that_answer(tmp_path: Path) -> None:
    def telling(peer: Peer, message: Message) -> bool:
        if message["kind"] == "facts":
            peer.send("facts", facts={"time": 1.0})
            return True
        return good(peer, message)

    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1", telling)
        await agent(notice, None, "n2", telling)
        head.could_not_start("n3", "no route to host")
        found = await head.facts()
        assert set(found) == {"n1", "n2"}
        assert found["n2"]["asked_at"] <= found["n2"]["answered_at"]

    with_head(plan_of(tmp_path, None, ("n1", "n2", "n3")), body)


def test_a_host_that_is_not_heard_of_is_lost_once_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "AGENT_SILENCE_S", 0.2)

    async def body(head: Head, notice: Notice) -> None:
        own = await agent(notice, 0, "n1")
        beating = asyncio.create_task(_beats(own))
        await agent(notice, 1, "n2")
        await head.bring_up()
        lost = await asyncio.wait_for(head.losses.get(), 60)
        assert (lost.name, lost.state, lost.reason) == ("n2", "lost", "nothing is heard of it")
        await asyncio.sleep(0)
        assert head.losses.empty()
        beating.cancel()

    with_head(plan_of(tmp_path, 2), body)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["host"] for event in events if event["event"] == "node lost"] == ["n2"]


def test_a_host_whose_ray_has_ended_is_told_to_stop(tmp_path: Path) -> None:
    heard: list[Message] = []

    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        peer = await agent(notice, 1, "n2", heard=heard)
        await head.bring_up()
        peer.send("ended", reason="its raylet is stopped (SIGSTOP)")
        assert (await head.losses.get()).reason == "its raylet is stopped (SIGSTOP)"
        while "stop" not in [message["kind"] for message in heard]:
            await asyncio.sleep(0.01)

    with_head(plan_of(tmp_path, 2), body)


def test_a_node_is_lost_once_whatever_becomes_of_its_agent(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        ended, left = await agent(notice, 1, "n2"), await agent(notice, 2, "n3")
        await head.bring_up()
        ended.send("ended", reason="out of memory")
        assert (await head.losses.get()).reason == "out of memory"
        left.send("leaving")
        assert (await head.losses.get()).state == "left"
        left.send("up", address="", token_path="", dashboard="")  # its Ray was ready in the same moment
        for peer in (ended, left):
            await peer.close()
        while not all(member.has_stopped for member in head._members[1:]):
            await asyncio.sleep(0.01)
        assert [host.name for host in head.up] == ["n1"]

    with_head(plan_of(tmp_path, 3), body)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events if event["host"] == "n2"] == ["node up", "node lost"]
    assert [event["event"] for event in events if event["host"] == "n3"] == ["node up", "node left"]


def test_an_agent_that_ends_untold_is_lost(tmp_path: Path) -> None:
    """As one does that no longer hears the head, which still hears it."""

    async def body(head: Head, notice: Notice) -> None:
        await agent(notice, 0, "n1")
        deaf = await agent(notice, 1, "n2")
        await head.bring_up()
        deaf.send("stopped")
        host = await head.losses.get()
        assert (host.name, host.state, host.reason) == ("n2", "lost", "its agent has ended")

    with_head(plan_of(tmp_path, 2), body)


async def _beats(peer: Peer) -> None:
    while True:
        peer.send("alive")
        await asyncio.sleep(0.02)


def test_a_head_that_is_lost_before_all_are_here_is_no_reason_to_wait(tmp_path: Path) -> None:
    async def body(head: Head, notice: Notice) -> None:
        first = await agent(notice, 0, "n1")
        while not head._members:
            await asyncio.sleep(0.01)
        await first.close()
        while not head._members[0].has_stopped:
            await asyncio.sleep(0.01)
        await agent(notice, 1, "n2")
        with pytest.raises(HeadFailed, match=r"n1 \(the head\) was lost"):
            await head.bring_up()

    with_head(plan_of(tmp_path, 2, timeout_s=1000.0), body)


def test_a_late_rank_does_not_bring_a_lost_head_back(tmp_path: Path) -> None:
    heard: list[Message] = []

    async def body(head: Head, notice: Notice) -> None:
        first = await agent(notice, 0, "n1")
        await agent(notice, 1, "n2")
        await head.bring_up()
        await first.close()
        host = await head.losses.get()
        await agent(notice, 2, "n1", heard=heard)
        while len(head._members) < 3:
            await asyncio.sleep(0.01)
        assert head.is_head(host)

    with_head(plan_of(tmp_path, None, ("n1", "n2")), body)
    assert [message["kind"] for message in heard] == ["stop"]
