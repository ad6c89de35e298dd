"""Runs of environments with MPI ranks on the bed, and what they write down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
from bed import ROOT, Bed, Running, wait_until
from launches import launch

PLACED_ROD = Path(__file__).with_name("placed_rod.py")
RANKS = 2
START_S = 180
EXPERIMENT = """
rods:
  env: {env}:PlacedRod
  run: PPO
  results_dir: results
  checkpoint_freq: 1
  config:
    env_ranks: {ranks}
    num_workers: {workers}
    num_envs_per_worker: {envs}
    train_batch_size: {steps}
    env_config: {{solver: {solver}, records: {records}}}
"""


class Rods:
    """A run of rods on the bed, and what its environments have written down."""

    def __init__(self, bed: Bed, here: Path, workers: int, envs: int, cpus: int, *how: str, ranks: int = RANKS) -> None:
        self.bed, self.num_envs, self.records = bed, workers * envs, here / "records.jsonl"
        self.solver = here / "rod"
        source = ROOT / "examples" / "simulators" / "mpi" / "rod.c"
        subprocess.run(["mpicc", "-O2", "-o", self.solver, source], check=True)
        text = EXPERIMENT.format(
            env=PLACED_ROD,
            ranks=ranks,
            workers=workers,
            envs=envs,
            steps=workers * envs * 20,
            solver=self.solver,
            records=self.records,
        )
        (here / "rods.yml").write_text(text)
        words = launch("--hosts", "n1,n2,n3", "--num-cpus", str(cpus), command=["shoal", "train", "rods.yml", *how])
        self.running: Running = bed.nodes["n1"].popen(words, cwd=here)

    def all_records(self) -> list[dict[str, Any]]:
        """What every environment that was ever made has written, in their order."""
        lines = self.records.read_text().splitlines() if self.records.exists() else []
        return [json.loads(line) for line in lines]

    def present(self) -> dict[int, dict[str, Any]]:
        """The last record of each environment."""
        return {record["env_index"]: record for record in self.all_records()}

    def ranks(self) -> list[psutil.Process]:
        """The ranks that run on all nodes."""
        return [
            process
            for node in self.bed.nodes.values()
            for process in node.processes()
            if command_of(process)[:1] == [str(self.solver)]
        ]

    def wait_for_iteration(self, number: int) -> None:
        """Wait until the run has come so far."""

        def is_there() -> bool:
            assert not self.running.ended, self.running.told()
            return f"iter {number:4}" in self.running.out

        wait_until(is_there, START_S, f"iteration {number}: {self.running.told()}")

    def shared_slots(self) -> int:
        """How many slots the present environments have more than once."""
        slots = [tuple(slot) for record in self.present().values() for slot in record["slots"]]
        return len(slots) - len(set(slots))

    def check_places(self) -> None:
        """Every rank is on the host of its slot, bound to it if it is a core, and no slot belongs to two."""
        present = self.present()
        assert sorted(present) == list(range(self.num_envs))
        assert self.shared_slots() == 0, present
        for record in present.values():
            is_bound = all(is_core for _, _, is_core in record["slots"])
            for place, (host, number, _) in zip(record["places"], record["slots"], strict=True):
                assert place.partition(":")[0] == host == record["host"]
                assert (place == f"{host}:{number}") == is_bound, record


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def left_on(bed: Bed) -> list[str]:
    """What is left on the nodes; folders of killed processes without their lock are the next run's to remove."""
    things = [thing for things in bed.left().values() for thing in things]
    return [thing for thing in things if not thing.startswith(("/tmp/shl-", "/dev/shm/shl-"))]


def wait_until_over(bed: Bed) -> None:
    """Wait until nothing is left on the nodes."""
    wait_until(lambda: not left_on(bed), 60, f"nothing is left: {left_on(bed)}")


def driver_of(bed: Bed) -> psutil.Process:
    """The `shoal train` that runs on the first node."""
    (found,) = [process for process in bed.nodes["n1"].processes() if command_of(process)[2:3] == ["train"]]
    return found


def process_of(bed: Bed, record: dict[str, Any]) -> psutil.Process:
    """The process that an environment's record is of; it has written the pid that it has in its node."""
    (found,) = [process for process in bed.nodes[record["host"]].processes() if inner_pid(process) == record["pid"]]
    return found


def inner_pid(process: psutil.Process) -> int:
    """The pid of a process in its own namespace."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return -1
    (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return int(line.split()[-1])
