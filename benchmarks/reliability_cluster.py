"""Strangers on the machine, seeds of the launcher, and mutants of what everything rests on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import simulated_launch
import stranger
import virtual_hosts
from mutants import TARGETS, survivors
from record import Bar, console
from reliability_figures import Found, Pieces, all_of, none_of
from simulated_launch import run_seeds

import shoal

PIECE = 500  # seeds
JOBS = 1  # processes that run them
UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED = 16, 7, 12  # of gRPC


def strangers(_: int, folder: Path) -> Found:
    """Everything that another user of the node can try against a Ray that shoal has started."""
    assert os.geteuid() == 0, "becoming another user needs root"
    os.chmod(folder, 0o755)
    with socket.socket() as fake:
        fake.bind(("127.0.0.1", 0))
        fake.listen()
        fake.setblocking(False)
        with stranger.victim(folder, f"127.0.0.1:{fake.getsockname()[1]}") as found:
            answers = stranger.tries(found)
        followed = 0
        try:
            fake.accept()
            followed = 1
        except BlockingIOError:
            pass
    succeeded = len(stranger.successes(answers)) + followed
    counted = answered(answers)
    count = counted["gRPC refused"] + counted["jobs refused"] + counted["reads refused"] + 1 + succeeded
    bars = [none_of("succeed", succeeded), all_of("gRPC calls refused", counted["gRPC refused"], len(stranger.CALLS))]
    return Found(count, told_of(counted, succeeded), bars, more={"answers": answers, "counted": counted})


def answered(answers: dict[str, Any]) -> dict[str, int]:
    """How often a service was reached and refused, and how often there was no such service at a port."""
    grpc, jobs = Counter(answers["grpc"].values()), Counter(answers["jobs"].values())
    return {
        "gRPC refused": grpc[UNAUTHENTICATED] + grpc[PERMISSION_DENIED],
        "gRPC without such a method": grpc[UNIMPLEMENTED],
        "gRPC otherwise": sum(grpc.values())
        - sum(grpc[each] for each in (0, None, UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED)),
        "not gRPC": grpc[None],
        "jobs refused": jobs[401] + jobs[403],
        "jobs otherwise": sum(jobs.values()) - jobs[0] - jobs[200] - jobs[401] - jobs[403],
        "no web server": jobs[0],
        "reads refused": sum(bool(refused) for refused in answers["files"].values()),
    }


def told_of(counted: dict[str, int], succeeded: int) -> str:
    """What was refused, apart from what has found nobody."""
    return (
        f"{succeeded} succeed: {counted['gRPC refused']} gRPC calls and {counted['jobs refused']} job requests were "
        f"refused by authentication, {counted['reads refused']} reads by the file system, and 1 planted address was "
        f"not followed (not counted: {counted['gRPC without such a method']} gRPC calls of methods that the port does "
        f"not have, {counted['not gRPC']} to a port that does not speak it, {counted['no web server']} job requests "
        "where no web server listens)"
    )


def launcher_seeds(count: int, folder: Path) -> Found:
    """Seeds of faults on virtual hosts, with the real head and agents, in `JOBS` processes.

    Ctrl-C ends it after the pieces under way; in the same folder it goes on there.
    """
    source = Path(shoal.__file__).parent
    simulated = [Path(simulated_launch.__file__), Path(virtual_hosts.__file__)]
    pieces = Pieces(
        folder / "launcher.jsonl", [*source.glob("cluster/**/*.py"), *source.glob("machine/**/*.py"), *simulated]
    )
    wanted = {f"{first} to {min(first + PIECE, count)}": range(first, min(first + PIECE, count))
              for first in range(0, count, PIECE)}  # fmt: skip
    todo = iter([name for name in wanted if name not in pieces.found])
    asked_to_end = []
    before = signal.signal(signal.SIGINT, lambda *_: asked_to_end.append(True))
    running: dict[Future[list[str]], str] = {}
    try:
        with ProcessPoolExecutor(JOBS, multiprocessing.get_context("spawn"), _ignore_interrupts) as pool:
            while True:
                while len(running) < JOBS and not asked_to_end and (name := next(todo, None)) is not None:
                    running[pool.submit(run_seeds, wanted[name])] = name
                if not running:
                    break
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    pieces.keep(running.pop(ended), ended.result())
                done, refuted = _so_far(wanted, pieces)
                console.print(f"  {done:,} seeds, {len(refuted)} refuted", style="dim")
    finally:
        signal.signal(signal.SIGINT, before)
    done, refuted = _so_far(wanted, pieces)
    bars = [none_of("violations", len(refuted))]
    return Found(done, f"{len(refuted)} violations in {done:,} seeds", bars, more={"refuted": refuted[:20]})


def _ignore_interrupts() -> None:
    """Ctrl-C at the terminal is for the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _so_far(wanted: dict[str, range], pieces: Pieces) -> tuple[int, list[str]]:
    """How many seeds were run, and what they have refuted."""
    found = [name for name in wanted if name in pieces.found]
    return sum(len(wanted[name]) for name in found), [line for name in found for line in pieces.found[name]]


def mutants(most: int, folder: Path) -> Found:
    """Mutants of the modules, `most` of each, and how many the tests catch."""
    alive, tried, caught = [], Counter[str](), Counter[str]()
    for name, told, is_alive in survivors(list(TARGETS), most, kept=folder):
        module = name.partition(" ")[0]
        tried[module] += 1
        caught[module] += not is_alive
        if is_alive:
            alive.append(f"{name}: {told}")
    count = sum(tried.values())
    score = 100 * sum(caught.values()) / max(count, 1)
    bars = [Bar("mutation score", score, 90, at_least=True, unit=" %")]
    of_each = ", ".join(f"{module} {caught[module]} of {tried[module]}" for module in TARGETS)
    return Found(count, f"{score:.0f} % of {count} mutants caught ({of_each})", bars, more={"survivors": alive})
