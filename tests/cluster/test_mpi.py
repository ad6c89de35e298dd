"""Environments with MPI ranks on real nodes: no two of them have a slot in common, and nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Bed, wait_until
from rods import RANKS, START_S, Rods, command_of, driver_of, process_of, wait_until_over


@pytest.mark.slow
def test_no_two_environments_share_a_slot_on_three_nodes_whatever_is_killed(
    bed: Bed, here: Path, need: Callable[..., None]
) -> None:
    need("mpicc", "mpirun", "taskset")
    rods = Rods(bed, here, workers=3, envs=2, cpus=2 * RANKS)
    rods.wait_for_iteration(1)
    rods.check_places()
    before = rods.present()
    assert {record["host"] for record in before.values()} == {"n1", "n2", "n3"}
    assert any(is_core for record in before.values() for _, _, is_core in record["slots"])

    # One environment is killed: it comes back on the slots that it had.
    victim = before[5]
    process_of(bed, victim).kill()
    wait_until(lambda: rods.present()[5]["pid"] != victim["pid"], START_S, "environment 5 is back")
    assert rods.present()[5]["slots"] == victim["slots"]
    rods.check_places()

    # A worker is killed with its environments: they come back on slots that nobody else has.
    old = rods.present()[0]
    worker = process_of(bed, old).parent().parent()
    assert "sampler_process" in " ".join(command_of(worker)), command_of(worker)
    worker.kill()
    wait_until(lambda: all(rods.present()[k]["pid"] != before[k]["pid"] for k in (0, 1)), START_S, "both are back")
    rods.check_places()
    wait_until(lambda: len(rods.ranks()) == rods.num_envs * RANKS, START_S, "every environment has its ranks")

    # The driver is killed: the launch ends with it, and nothing is left on any node.
    driver_of(bed).kill()
    rods.running.wait()
    wait_until_over(bed)


ON_SLOTS = """
import subprocess
from shoal.envs import run_mpi
from shoal.envs.context import EnvContext
context = EnvContext(env_ranks=2)
where = ["sh", "-c", "echo rank $SLURM_PROCID of $SLURM_NTASKS $(hostname) $(taskset -cp $$ | cut -d: -f2)"]
print(*[slot.number for slot in context.slots], flush=True)
raise SystemExit(run_mpi(where, context).wait())
"""


def test_a_step_of_slurm_inside_a_step_of_slurm(slurm: Bed, need: Callable[..., None]) -> None:
    need("taskset")
    words = ["srun", "-N1", "-w", "n2", "-c2", "python", "-c", ON_SLOTS]
    done = slurm.login.run(words, within_s=60, SHOAL_MPIRUN="srun --mpi=none")
    first, *ranks = done.out.splitlines()
    cores = first.split()
    assert len(cores) == 2, done.told()
    wanted = [f"rank {k} of 2 n2 {core}" for k, core in enumerate(cores)]
    # On a machine of one core the second slot is none, and nobody is bound.
    assert sorted(ranks) == wanted or len(ranks) == 2 > (os.cpu_count() or 1), done.told()
