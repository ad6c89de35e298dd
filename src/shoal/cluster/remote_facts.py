"""Ask every host of an allocation about itself, without starting Ray there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cluster.agent_processes import AgentProcesses
from shoal.cluster.allocation import Host
from shoal.cluster.head import Head, HeadPlan
from shoal.cluster.host_facts import facts
from shoal.cluster.job_folder import jobs_folder, make_job_folder, publish, withdraw
from shoal.cluster.launching import LaunchContext, agent_words, is_this_host, launch_context, start_agents
from shoal.errors import ClusterError
from shoal.machine.host_names import short_name


def facts_of_hosts(
    hosts: tuple[Host, ...], scheduler: str | None, environ: Mapping[str, str], timeout_s: float
) -> dict[str, dict[str, Any]]:
    """What each host tells of itself, by its name, or an `error` that says why it tells nothing."""
    where = launch_context(hosts, scheduler, environ)
    if not where.hosts:
        here = facts(environ)
        return {here["hostname"]: here}
    return asyncio.run(_facts_of_hosts(where, environ, timeout_s))


async def _facts_of_hosts(
    where: LaunchContext, environ: Mapping[str, str], timeout_s: float
) -> dict[str, dict[str, Any]]:
    names = tuple(host.name for host in where.hosts)
    folder = _own_folder()
    others = [host for host in where.hosts if not is_this_host(host.name)]
    plan = HeadPlan(
        job_folder=folder,
        secret=secrets.token_hex(32),
        num_ranks=None,
        host_names=names,
        gives_cpus=len(others) < len(names),
        is_local=not others,
        prefers_loopback=True,
        min_nodes=None,
        timeout_s=timeout_s,
        ports=None,
        dashboard=False,
        environment={},
    )
    head = Head(plan, lambda _: None)
    processes = AgentProcesses(head.could_not_start)
    try:
        notice = await head.open()
        publish(folder, notice)
        await processes.start([*agent_words("-", timeout_s), "--rank", "0"], socket.gethostname(), notice, environ)
        if others:
            await start_agents(processes, others, where.scheduler, folder, notice, timeout_s, environ)
        found = await head.facts()
        here = {short_name(name) for name in found}
        for name in names:
            if short_name(name) not in here and not is_this_host(name):
                found[name] = {"error": head.start_failures.get(name, f"no answer within {timeout_s:g} s")}
        return found
    finally:
        withdraw(folder)
        await head.stop()
        await processes.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _own_folder() -> Path:
    """Where the hosts find who asks them; where the jobs' folder cannot be written, which they tell, somewhere else."""
    with contextlib.suppress(ClusterError, OSError):
        make_job_folder(jobs_folder())
        return Path(tempfile.mkdtemp(prefix="doctor-", dir=jobs_folder()))
    return Path(tempfile.mkdtemp(prefix="doctor-"))
