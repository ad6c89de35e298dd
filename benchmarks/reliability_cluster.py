"""Strangers on the machine, seeds of the launcher, and mutants of what everything rests on."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import simulated_launch
import stranger
import virtual_hosts
from mutants import TARGETS, survivors
from record import Bar, console
from reliability_figures import Found, Pieces, none_of
from simulated_launch import run_seeds

import shoal

PIECE = 500  # seeds


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
    count = sum(len(tried) for tried in answers.values()) + 1
    succeeded = len(stranger.successes(answers)) + followed
    kinds = f"{len(answers['grpc'])} gRPC calls, {len(answers['jobs'])} job requests, {len(answers['files'])} reads"
    bars = [none_of("succeed", succeeded)]
    return Found(count, f"{succeeded} succeed ({kinds}, 1 planted address)", bars, more={"answers": answers})


def launcher_seeds(count: int, folder: Path) -> Found:
    """Seeds of faults on virtual hosts, with the real head and agents; Ctrl-C ends it after the piece under way."""
    source = Path(shoal.__file__).parent
    simulated = [Path(simulated_launch.__file__), Path(virtual_hosts.__file__)]
    pieces = Pieces(
        folder / "launcher.jsonl", [*source.glob("cluster/**/*.py"), *source.glob("machine/**/*.py"), *simulated]
    )
    asked_to_end = []
    before = signal.signal(signal.SIGINT, lambda *_: asked_to_end.append(True))
    done, refuted = 0, []
    try:
        while done < count and not asked_to_end:
            piece = range(done, min(done + PIECE, count))
            name = f"{piece.start} to {piece.stop}"
            if name not in pieces.found:
                pieces.keep(name, run_seeds(piece))
            refuted += pieces.found[name]
            done = piece.stop
            console.print(f"  {done:,} seeds, {len(refuted)} refuted", style="dim")
    finally:
        signal.signal(signal.SIGINT, before)
    bars = [none_of("violations", len(refuted))]
    return Found(done, f"{len(refuted)} violations in {done:,} seeds", bars, more={"refuted": refuted[:20]})


def mutants(most: int, folder: Path) -> Found:
    """Mutants of the modules, `most` of each, and how many the tests catch."""
    alive, count = [], 0
    for name, told, is_alive in survivors(list(TARGETS), most, kept=folder):
        count += 1
        if is_alive:
            alive.append(f"{name}: {told}")
    score = 100 * (count - len(alive)) / max(count, 1)
    bars = [Bar("mutation score", score, 90, at_least=True, unit=" %")]
    return Found(count, f"{score:.0f} % of {count} mutants caught", bars, more={"survivors": alive})
