"""Slurm on the bed: munge and the controller on the login node, a slurmd on every other."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bed import LOGIN, Bed, wait_until

SLURM_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "sinfo")
CPUS_PER_NODE = 4

# Processes are tracked by their parents alone (linuxproc): whatever detaches itself escapes Slurm and is ours to end.
# A node that is silent is left to the launcher under test for the first five minutes (SlurmdTimeout).
SLURM_CONF = """\
ClusterName=bed
SlurmctldHost=login({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir=/run/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdTimeout=300
KillWait=10
PropagateResourceLimitsExcept=MEMLOCK
PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm(bed: Bed) -> None:
    """Start everything and wait until all nodes are idle."""
    folder = bed.folder / "slurm"
    (folder / "state").mkdir(parents=True)
    lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS_PER_NODE}" for node in bed.nodes.values()]
    (folder / "slurm.conf").write_text(SLURM_CONF.format(login=LOGIN, folder=folder) + "\n".join(lines) + "\n")
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    places = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
    places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    words = ["munged", "--foreground", "--force", *(f"--{name}={folder / place}" for name, place in places.items())]
    bed.login.services.append(bed.login.popen(words))
    wait_until((folder / "munge.socket").exists, 60, "munged listens")
    bed.login.services.append(bed.login.popen(["slurmctld", "-D"]))
    bed.start_everywhere(["slurmd", "-D"])
    wait_until_idle(bed, list(bed.nodes))
    # The controller has a process of its own to run scripts with.
    bed.login.spared |= {child.pid for service in bed.login.services for child in service.process.children()}


def wait_until_idle(bed: Bed, names: Sequence[str]) -> None:
    """Wait until Slurm has these nodes and nothing runs there."""
    words = ["sinfo", "--noheader", "--Node", "--format=%T", f"--nodes={','.join(names)}"]
    wait_until(
        lambda: bed.login.run(words, check=False).out.split() == ["idle"] * len(names), 60, f"{names} are idle in Slurm"
    )
