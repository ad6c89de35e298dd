"""The programs that start agents: which hosts have none, by what these programs say while others run on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from shoal.cluster.agent_processes import AgentProcesses
from shoal.cluster.head import HostState
from shoal.cluster.job_folder import Notice, publish
from shoal.cluster.launching import _loss_sentence
from shoal.cluster.rank_check import missing
from shoal.cluster.slurm import SLURM

# As srun 22.05 says it, which goes on as long as the agents of other hosts; the cause may come after what it caused.
SRUN = """
echo "srun: cluster configuration lacks support for cpu binding" >&2
echo "srun: error: n[2-3]: tasks 1-2: Exited with exit code 2" >&2
echo "slurmstepd-n2: error: execve(): /opt/rl/bin/python: No such file or directory" >&2
echo "srun: error: eio_message_socket_accept: slurm_receive_msg[10.77.0.11:35974]: Zero Bytes were received" >&2
echo "srun: error: Task launch for StepId=3.0 failed on node n4: Invalid job credential" >&2
exec sleep 1000
"""


def test_hosts_on_which_srun_could_not_start_an_agent_are_named_while_it_runs() -> None:
    failed: dict[str, str] = {}

    async def run() -> None:
        processes = AgentProcesses(failed.__setitem__)
        await processes.start(["sh", "-c", SRUN], "n1,n2,n3,n4", None, os.environ, SLURM.starts[0].failure)
        while "n4" not in failed:
            await asyncio.sleep(0.01)
        await processes.stop()
        await processes.wait()

    asyncio.run(run())
    assert sorted(failed) == ["n2", "n3", "n4"]
    assert failed["n2"].splitlines() == [
        "slurmstepd-n2: error: execve(): /opt/rl/bin/python: No such file or directory",
        "srun: error: eio_message_socket_accept: slurm_receive_msg[10.77.0.11:35974]: Zero Bytes were received",
        "srun: error: n[2-3]: tasks 1-2: Exited with exit code 2",
    ]


def test_why_a_rank_would_not_find_its_head(tmp_path: Path) -> None:
    assert "is not seen here; set one that all hosts share" in str(missing(tmp_path, "/usr/lib/python"))
    publish(tmp_path, Notice(("127.0.0.1",), 1, "secret"))
    assert missing(tmp_path, "/usr/lib/python") is None
    assert missing(tmp_path, str(tmp_path / "shoal")) == f"{tmp_path / 'shoal'} is not there, or cannot be run"


def test_a_loss_is_one_line_and_no_loss_where_all_was_told_to_end() -> None:
    host = HostState(
        "n2", state="lost", reason="Some Ray subprocesses exited unexpectedly:\n  raylet\n" + "log\n" * 999
    )
    told = _loss_sentence(host, is_ending=False, is_fatal=False, num_up=2)
    assert told.startswith("n2 was lost: Some Ray subprocesses exited unexpectedly: raylet log log")
    assert told.endswith("...; hosts still up: 2")
    assert len(told) < 300
    assert "\n" not in told
    assert _loss_sentence(host, is_ending=True, is_fatal=True, num_up=2) == "n2 has ended"


def test_a_script_without_no_kill_is_told(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scontrol = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def warning(script: str, **variables: str) -> str | None:
        scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{script}\nEND\n")
        scontrol.chmod(0o755)
        return SLURM.node_loss_warning({"SLURM_JOB_ID": "7", **variables})

    assert "no `#SBATCH --no-kill`" in str(warning("#!/bin/sh\n#SBATCH --nodes=3\nsrun shoal launch"))
    assert warning("#!/bin/sh\n#SBATCH --nodes=3 --no-kill") is None
    assert warning("#!/bin/sh\n#SBATCH -k") is None
    assert warning("#!/bin/sh\n#SBATCH --nodes=3", SBATCH_NO_KILL="1") is None
    assert warning("job script retrieval failed") is None, "there is none after salloc"
