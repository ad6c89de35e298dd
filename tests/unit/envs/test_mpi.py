"""`run_mpi` with the launchers that are installed: one rank on each slot of an environment, bound to its core."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.envs import mpi_command, run_mpi
from shoal.envs.context import EnvContext
from shoal.errors import ConfigError, NoSuchItem
from shoal.machine import slots
from shoal.machine.cores import cores
from shoal.machine.processes import processes

WHERE = ["sh", "-c", "echo $(hostname) $(taskset -cp $$ | cut -d: -f2)"]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NESTED = """
import os, sys
from shoal.envs import run_mpi
from shoal.envs.context import EnvContext
from shoal.machine import slots
slots.NAME = sys.argv[1]
assert os.environ["OMPI_COMM_WORLD_SIZE"] == "1"
told = ["sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"]
sys.exit(run_mpi(told, EnvContext(env_ranks=2)).wait())
"""


@pytest.fixture(autouse=True)
def names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "NAME", f"shoal-test-{os.getpid()}-mpi-{{}}")
    for name, value in ROOT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def context() -> Iterator[EnvContext]:
    made = EnvContext({"case": "a"}, env_ranks=2)
    yield made
    made.release()


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpiexec.hydra"])
def test_every_rank_is_bound_to_its_own_core(
    launcher: str, context: EnvContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(launcher)
    if cores() < 2:
        pytest.skip("two ranks share the only core")
    monkeypatch.setenv("SHOAL_MPIRUN", launcher)
    out, _ = run_mpi(WHERE, context, stdout=subprocess.PIPE, text=True).communicate()
    assert sorted(out.splitlines()) == sorted(f"{slot.host} {slot.number}" for slot in context.slots)
    assert os.path.basename(mpi_command(WHERE, context)[0]) == launcher
    assert mpi_command(WHERE, context)[-3:] == WHERE


def test_ranks_that_share_cores_are_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    need("mpirun")
    many = EnvContext(env_ranks=cores() + 1)
    out, _ = run_mpi(WHERE, many, stdout=subprocess.PIPE, text=True).communicate()
    places = out.splitlines()
    assert len(places) == cores() + 1
    assert len(set(places)) == 1, "all of them on all cores"
    assert not any("taskset" in word for word in mpi_command(["./solver"], many))
    many.release()


def test_inside_of_another_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    need("mpirun.openmpi")
    words = ["mpirun.openmpi", "--oversubscribe", "-np", "1", sys.executable, "-c", NESTED, slots.NAME]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], done.stderr


def test_it_ends_with_its_ranks(context: EnvContext) -> None:
    need("mpirun")
    running = run_mpi(["sh", "-c", "echo $$; exec sleep 1000"], context, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    ranks = [int(running.stdout.readline()) for _ in range(2)]
    running.terminate()
    running.wait()
    running.stdout.close()
    assert not {*ranks} & {pid for pid, _, is_dead in processes() if not is_dead}


def test_slots_are_an_attribute_that_is_the_same_for_as_long_as_it_is_needed(context: EnvContext) -> None:
    assert len(context.slots) == 2
    assert context.slots == context.slots == context.with_config({"case": "b"}).slots
    assert copy.deepcopy(context).slots == context.slots
    other = EnvContext(env_ranks=2)
    assert not {*other.slots} & {*context.slots}
    other.release()
    assert EnvContext().slots == ()
    with pytest.raises(NoSuchItem, match=r"type config\.slots"):
        context["slots"]


def test_what_has_no_slots_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config.env_ranks: .* set how many, e.g. env_ranks: 8"):
        run_mpi(["./solver"], EnvContext({"case": "a"}))
    with pytest.raises(ConfigError, match=r"the mapping that the environment's constructor was given.*got a dict"):
        mpi_command(["./solver"], {"case": "a"})
