"""Schedulers and launchers that are not packaged: programs that stand in for them reach the nodes by ssh or mpirun.

The variables are those that the schedulers document; what the stand-ins are told is what the real ones would be told.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Bed
from launches import PROBE, launch, seen, wait_until_clean

# Each starts its words on hosts of its job, as the real program does with these arguments.
ON_HOSTS = 'for host in $hosts; do ssh "$host" "$(printf "%q " "$@")" & done; wait'
PROGRAMS = {
    "pbs_tmrsh": 'hosts=$1; shift; grep -qx "$hosts" "$PBS_NODEFILE" || exit 254',
    "pbsdsh": '[ "$1 $3" = "-n --" ] || exit 2; hosts=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE"); shift 3',
    "blaunch": '[ "$1" = -z ] || exit 2; hosts=$2; [ "$3" = -no-shell ] || exit 2; shift 3',
    "jsrun": """
        hosts=$(echo "$LSB_MCPU_HOSTS" | tr ' ' '\\n' | grep '^n' | head -n "$2")
        while [ "$1" != off ]; do shift; done; shift""",
    "aprun": 'hosts=$(head -n "$2" "$COBALT_NODEFILE"); while [ "$1" != -b ]; do shift; done; shift',
    "qrsh": '[ "$1" = -inherit ] || exit 2; shift 4; hosts=$1; grep -q "^$hosts " "$PE_HOSTFILE" || exit 1; shift',
}
NODE_FILE = "n1\nn1\nn2\nn2\nn3\nn3\n"
JOBS = {
    "pbs_tmrsh": {"PBS_JOBID": "12.pbs01", "PBS_NODEFILE": NODE_FILE},
    "pbsdsh": {"PBS_JOBID": "12.pbs01", "PBS_NODEFILE": NODE_FILE},
    "blaunch": {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "n1 2 n2 2 n3 2"},
    "jsrun": {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "login 1 n1 2 n2 2 n3 2", "CSM_ALLOCATION_ID": "3"},
    "aprun": {"COBALT_JOBID": "12", "COBALT_NODEFILE": "n1\nn2\nn3\n"},
    "qrsh": {"JOB_ID": "12", "PE_HOSTFILE": "n1 2 all.q@n1 U\nn2 2 all.q@n2 U\nn3 2 all.q@n3 U\n", "NSLOTS": "6"},
}
BESIDE = ("jsrun", "aprun")  # the batch script runs on a node that is none of the compute nodes

# What each launcher tells its ranks; mpirun's own variables are taken away.
RANKS = {
    "pals": "PALS_RANKID=$rank PALS_SIZE=$size PALS_LOCAL_RANKID=0 PALS_APID=0a-1b PMI_RANK=$rank PMI_SIZE=$size",
    "jsrun": "JSM_NAMESPACE_RANK=$rank JSM_NAMESPACE_SIZE=$size JSM_NAMESPACE_LOCAL_RANK=0 PMIX_NAMESPACE=7.2",
    "aprun": "ALPS_APP_PE=$rank ALPS_APP_ID=4711",
}


def _stand_in(here: Path, program: str) -> dict[str, str]:
    """Put a stand-in on PATH, the job's files in place; the variables."""
    path = here / program
    path.write_text(f"#!/bin/bash\necho >>{here}/called\n{PROGRAMS[program]}\n{ON_HOSTS}\n")
    path.chmod(0o755)
    variables = dict(JOBS[program])
    for name, text in variables.items():
        if name.endswith("FILE"):
            (here / name).write_text(text)
            variables[name] = str(here / name)
    return variables


@pytest.mark.repeats(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_simulated_schedulers_start_their_agents(bed: Bed, here: Path, program: str) -> None:
    variables = _stand_in(here, program)
    node = bed.login if program in BESIDE else bed.nodes["n1"]
    variables["PATH"] = f"{here}:{bed.environment['PATH']}"
    done = node.run(["shoal", "doctor", "--json"], check=False, **variables)
    assert sorted({*json.loads(done.out)["facts"]} - {"login"}) == ["n1", "n2", "n3"], done.told()
    assert (here / "called").exists()
    wait_until_clean(bed)


@pytest.mark.slow
def test_simulated_pbs_runs_a_launch(bed: Bed, here: Path) -> None:
    variables = _stand_in(here, "pbsdsh") | {"PATH": f"{here}:{bed.environment['PATH']}", "NCPUS": "1"}
    done = bed.nodes["n1"].run(launch(command=[*PROBE, "-"]), within_s=120, **variables)
    assert [told["nodes"] for told in seen(done.out)] == [["n1", "n2", "n3"]], done.told()
    wait_until_clean(bed)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["aprun", "pals", "jsrun"])
def test_simulated_launchers_tell_their_ranks(bed: Bed, need: Callable[..., None], launcher: str) -> None:
    need("mpirun.openmpi")
    become = f"""
        rank=$OMPI_COMM_WORLD_RANK size=$OMPI_COMM_WORLD_SIZE
        unset ${{!OMPI_*}} ${{!PMIX_*}}
        export {RANKS[launcher]}
        exec "$@" """
    options = ["--num-ranks", "3"] if launcher == "aprun" else []
    words = ["bash", "-c", become, "bash", *launch(*options, command=["sh", "-c", "echo on $(hostname)"])]
    done = bed.nodes["n1"].run(["mpirun.openmpi", "--host", "n1:2,n2:1", *words], within_s=120)
    assert done.out == "on n1\n", done.told()
    assert "CPUs on 2 hosts" in done.err, done.told()
    wait_until_clean(bed)
