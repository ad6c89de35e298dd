"""How long a head takes to gather many agents, have each start a node, and let all of them go.

The agents talk as real ones do, from a process of their own, but start no Ray: only the rendezvous is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from record import Bar, Record, console, show_bars, spread

from shoal.cluster.control_connection import call
from shoal.cluster.head import Head, HeadPlan
from shoal.cluster.job_folder import Notice, publish, published

COUNTS = (200, 1000)
LONGEST_S = 5.0  # the bar, for 200
HELLO = {
    "boot": "b",
    "pid": 1,
    "is_joining": False,
    "num_cpus": None,
    "cgroup_cpus": None,
    "scheduler_cpus": None,
    "num_gpus": 0,
}
VERSIONS = {"python": "3", "ray": "2", "shoal": "0"}


def plan_of(folder: Path, count: int) -> HeadPlan:
    """A launch of so many ranks, each on a host of its own."""
    return HeadPlan(
        job_folder=folder,
        secret="s" * 64,
        num_ranks=count,
        host_names=(),
        gives_cpus=True,
        is_local=True,
        prefers_loopback=True,
        min_nodes=None,
        timeout_s=120.0,
        ports=None,
        dashboard=False,
        environment={},
    )


async def agent(notice: Notice, rank: int) -> None:
    """Say hello, be up when told to start a node, and stop when told to stop."""
    peer = await call("127.0.0.1", notice.port, notice.secret, 60.0)
    peer.send("hello", **HELLO, rank=rank, host=f"n{rank}", reached="127.0.0.1", cpus=[0], versions=VERSIONS)
    while (message := await peer.receive()) is not None:
        if message["kind"] == "start_node":
            peer.send("up", address=message["head_address"] or "127.0.0.1:1", token_path="t", dashboard="")
        elif message["kind"] == "stop":
            peer.send("stopped")
            break
    await peer.close()


def agents(folder: str, count: int) -> None:
    """All agents, in a process of their own."""
    _many_files()
    notice = published(Path(folder))
    assert notice is not None

    async def run() -> None:
        await asyncio.gather(*(agent(notice, rank) for rank in range(count)))

    asyncio.run(run())


async def measure(folder: Path, count: int) -> dict[str, float]:
    """Seconds until all are up, from the first call, and until all have stopped."""
    head = Head(plan_of(folder, count), console.print)
    publish(folder, await head.open())
    process = get_context("spawn").Process(target=agents, args=(str(folder), count))
    process.start()
    while not head.num_ranks_here:
        await asyncio.sleep(0.001)
    started = perf_counter()
    await head.bring_up()
    up = perf_counter()
    await head.stop()
    stopped = perf_counter()
    await asyncio.to_thread(process.join)
    assert len(head.up) == count
    return {"up_s": up - started, "stopped_s": stopped - up}


def _many_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    _many_files()
    record = Record("rendezvous", ("shoal",), {"counts": COUNTS, "repeats": options.repeats})
    found = {}
    for count in COUNTS:
        runs = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                runs.append(asyncio.run(measure(Path(folder), count)))
        found[str(count)] = {key: spread([run[key] for run in runs]) for key in runs[0]}
        console.print(f"  {count} agents: {found[str(count)]}")
    bars = [Bar("200 agents, all up", found["200"]["up_s"]["median"], LONGEST_S, at_least=False, unit=" s")]
    show_bars(bars)
    record.keep(found, bars)


if __name__ == "__main__":
    main()
