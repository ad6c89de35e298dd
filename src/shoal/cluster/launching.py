"""`shoal launch`: a private Ray cluster on the hosts that there are, one command on its head, nothing left after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import strftime
from typing import Any

from shoal.cluster.agent_entry import SIGNALS, run_agent
from shoal.cluster.agent_processes import AgentProcesses
from shoal.cluster.allocation import Host, allocation
from shoal.cluster.capacity_check import CapacityCheck, Resources, answer
from shoal.cluster.exit_codes import HEAD_FAILED, NODE_LOST
from shoal.cluster.head import PASSED_ON, Head, HeadPlan, HostState
from shoal.cluster.job_folder import (
    EVENTS,
    Notice,
    jobs_folder,
    make_job_folder,
    own_addresses,
    publish,
    published,
    withdraw,
)
from shoal.cluster.launcher_watch import launcher_gone
from shoal.cluster.os_variables import variables_for_ray
from shoal.cluster.ports import PortRange
from shoal.cluster.ranks import Rank, rank_of
from shoal.cluster.schedulers import scheduler_called, starts_of
from shoal.cluster.start_commands import usable_start
from shoal.cluster.user_command import UserCommand
from shoal.cluster.walltimes import job_deadline
from shoal.errors import ClusterError, ConfigError
from shoal.machine.deadlines import VARIABLE
from shoal.machine.host_names import is_own_name, short_name
from shoal.machine.keeper import end_descendants
from shoal.machine.private_folder import sweep_all
from shoal.machine.processes import adopt_orphans
from shoal.machine.ray_variables import LOOPBACK, token_variables
from shoal.machine.signals import ECHO_S, RESUME_ME

SAVING_S = 60.0  # for a command that is told to end because a host was lost
LAST_GRACE_S = 4.0  # for keepers whose agents were killed: they end their Ray, save its logs and remove its folder
ABSENT_S = 2.0  # after which it is looked for why a rank has not shown up
MOST_REASON = 200  # characters of the reason for a loss; the job's folder has all of them

Tell = Callable[[str], None]


@dataclass(frozen=True)
class LaunchOptions:
    """What the user has typed."""

    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()  # by --hosts or --hostfile
    scheduler: str | None = None
    num_ranks: int | None = None
    min_nodes: int | None = None
    timeout_s: float = 300.0
    on_node_loss: str = "continue"  # or stop
    ports: PortRange | None = None
    dashboard: bool = False
    job_dir: Path | None = None
    environment: Mapping[str, str] | None = None  # more variables for every host
    num_cpus: int | None = None  # that Ray offers on every host; None: what is ours of it
    capacity_check: CapacityCheck | None = None  # None: nothing is known of what the command needs


@dataclass(frozen=True)
class LaunchContext:
    """Where this process finds itself: among ranks, or alone, with hosts that want agents."""

    rank: Rank | None
    scheduler: str  # whose means start agents; ssh where the user names hosts; empty on one's own machine
    hosts: tuple[Host, ...]
    job: str  # a name for it


def launch_context(hosts: tuple[Host, ...], scheduler: str | None, environ: Mapping[str, str]) -> LaunchContext:
    """What the environment and the user say about where we are."""
    stamp = f"{strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    if hosts:
        return LaunchContext(None, "ssh", hosts, f"ssh-{stamp}")
    if scheduler == "none":
        return LaunchContext(None, "", (), f"local-{stamp}")
    rank, given = rank_of(environ), allocation(environ, scheduler)
    if rank is not None:
        return LaunchContext(rank, given.scheduler if given else "", given.hosts if given else (), rank.key)
    if given is not None:
        return LaunchContext(None, given.scheduler, given.hosts, f"{given.scheduler}-{given.job_id}-{stamp}")
    return LaunchContext(None, "", (), f"local-{stamp}")


def launch(options: LaunchOptions, environ: Mapping[str, str], tell: Tell) -> int:
    """Bring the cluster up, run the command on its head, end everything; the exit code."""
    if "SHOAL_CLUSTER_EVENTS" in environ:
        raise ConfigError(
            "this runs inside a cluster that `shoal launch` has started; leave out the inner `shoal launch`"
        )
    where = launch_context(options.hosts, options.scheduler, environ)
    folder = options.job_dir or jobs_folder() / where.job
    # Among ranks it is left to the head to find out: the others would wait for one that has ended already.
    if where.rank is None and shutil.which(options.command[0], path=environ.get("PATH")) is None:
        raise ConfigError(f"{options.command[0]}: there is no such program on PATH")
    if where.rank is not None and where.rank.rank > 0:
        look = lambda: published(folder)  # noqa: E731
        return asyncio.run(run_agent(look, environ, options.timeout_s, where.rank.rank, folder))
    return asyncio.run(_lead(options, where, folder, environ, tell))


def join(job: str, options: LaunchOptions, environ: Mapping[str, str], tell: Tell) -> int:
    """Add this host, or every host of this allocation, to a running job; the exit code."""
    folder = Path(job).expanduser() if os.sep in job else jobs_folder() / job
    if published(folder) is None:
        raise ClusterError(f"{folder} is not the folder of a running job; `ls {jobs_folder()}` lists the jobs")
    where = launch_context(options.hosts, options.scheduler, environ)
    return asyncio.run(_join(folder, options, where, environ, tell))


async def _join(
    folder: Path, options: LaunchOptions, where: LaunchContext, environ: Mapping[str, str], tell: Tell
) -> int:
    notice = published(folder)
    assert notice is not None
    processes = AgentProcesses(lambda host, why: tell(f"{host} could not start: {why}"))
    others = [] if where.rank is not None else [host for host in where.hosts if not is_this_host(host.name)]
    if others:
        offered = () if options.num_cpus is None else ("--num-cpus", str(options.num_cpus))
        more = ("--joining", *offered)
        await start_agents(processes, others, where.scheduler, folder, notice, options.timeout_s, environ, more)
    rank = where.rank.rank if where.rank is not None else 0
    if rank == 0:
        tell(f"joining {folder.name}; SIGTERM or Ctrl-C removes these hosts again")
    names = [host.name for host in where.hosts]
    if names and where.rank is None and not any(is_this_host(name) for name in names):
        codes = await processes.wait()
        return max(codes, default=0)
    try:
        return await run_agent(
            lambda: notice, environ, options.timeout_s, None, folder, is_joining=True, num_cpus=options.num_cpus
        )
    finally:
        processes.send(signal.SIGTERM)
        await processes.wait()


async def _lead(
    options: LaunchOptions, where: LaunchContext, folder: Path, environ: Mapping[str, str], tell: Tell
) -> int:
    """Be the head."""
    plan = _head_plan(options, where, folder, environ)
    was_there = folder.exists()
    make_job_folder(folder)
    adopt_orphans()
    head = Head(plan, tell)
    processes = AgentProcesses(head.could_not_start)
    signals: asyncio.Queue[int] = asyncio.Queue()
    helpers: list[asyncio.Task[None]] = []
    try:
        with _signals_into(signals):
            notice = await head.open()
            publish(folder, notice)
            if where.rank is not None:
                helpers.append(asyncio.create_task(_watch_launcher(environ, signals, tell)))
            if options.on_node_loss == "continue" and len(where.hosts) > 1 and where.scheduler not in ("", "ssh"):
                helpers.append(asyncio.create_task(_warn_of_node_loss(where.scheduler, environ, tell)))
            if where.rank is not None and where.rank.launcher == "srun":
                helpers.append(asyncio.create_task(_examine_absent(head, processes, where, folder, environ)))
            check = _capacity_check(options, environ)
            beside = [*agent_words("-", plan.timeout_s), "--rank", "0"]
            await processes.start(beside, socket.gethostname(), notice, environ)
            others = [] if where.rank is not None else [host for host in where.hosts if not is_this_host(host.name)]
            if others:
                await start_agents(processes, others, where.scheduler, folder, notice, plan.timeout_s, environ)
            first = await _unless_signalled(head.bring_up(check), signals)
            if not isinstance(first, HostState):
                return 128 + first
            address = first.answer["address"]
            env, changes = variables_for_ray(environ, [host.name for host in head.up])
            _tell_ready(head, first, folder, changes, options.dashboard, tell)
            env |= {
                **(options.environment or {}),
                "RAY_ADDRESS": address,
                **token_variables(first.answer["token_path"]),
                "SHOAL_JOB_DIR": str(folder),
                "SHOAL_CLUSTER_EVENTS": str(folder / EVENTS),
                **(await asyncio.to_thread(_deadline_variable, environ)),
                **(LOOPBACK if address.startswith("127.0.0.1:") else {}),
            }
            command = await UserCommand.start([word.replace("{address}", address) for word in options.command], env)
            return await _run(command, head, signals, options.on_node_loss, tell)
    finally:
        for task in helpers:
            task.cancel()
        withdraw(folder)
        await head.stop()
        await processes.stop()
        await asyncio.to_thread(end_descendants, LAST_GRACE_S)
        sweep_all(environ)  # an agent that was killed after its keeper has ended has left its folder
        if not was_there:
            with contextlib.suppress(OSError):  # of a command that was refused nothing is left to read
                folder.rmdir()


def _deadline_variable(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells the command when the walltime of this job ends, if anybody knows."""
    found = job_deadline(environ)
    return {} if found is None else {VARIABLE: f"{found.at:.0f}"}


def _capacity_check(
    options: LaunchOptions, environ: Mapping[str, str]
) -> Callable[[Sequence[Resources]], Awaitable[None]] | None:
    """Ask at once what the command needs; how to hold that against what the hosts offer."""
    capacity_check = options.capacity_check
    if capacity_check is None:
        return None
    asking = asyncio.create_task(answer(capacity_check.question, {**environ, **(options.environment or {})}))
    # Nobody asks for its answer where the hosts do not even come up.
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def check(hosts: Sequence[Resources]) -> None:
        told = await asking
        if told is not None:
            capacity_check.check(told, hosts)

    return check


def _head_plan(options: LaunchOptions, where: LaunchContext, folder: Path, environ: Mapping[str, str]) -> HeadPlan:
    num_ranks = None
    if where.rank is not None:
        num_ranks = options.num_ranks or where.rank.size
        if num_ranks is None:
            raise ConfigError(f"{where.rank.launcher} does not report the number of ranks; set it with --num-ranks")
    names = tuple(host.name for host in where.hosts)
    if not names and num_ranks is None:
        names = (socket.gethostname(),)
    is_one = len(names) == 1 and is_this_host(names[0])
    passed_on = {name: environ[name] for name in PASSED_ON if name in environ}
    return HeadPlan(
        job_folder=folder,
        secret=secrets.token_hex(32),
        num_ranks=num_ranks,
        host_names=names,
        gives_cpus=num_ranks is not None or any(is_this_host(name) for name in names),
        is_local=num_ranks is None and is_one and where.scheduler in ("", "ssh"),
        prefers_loopback=where.scheduler in ("", "ssh"),
        min_nodes=options.min_nodes,
        timeout_s=options.timeout_s,
        ports=options.ports,
        dashboard=options.dashboard,
        environment={**passed_on, **(options.environment or {})},
        host_cpus={short_name(host.name): host.num_cpus for host in options.hosts if host.num_cpus},
        num_cpus=options.num_cpus,
    )


def agent_words(source: str, timeout_s: float) -> list[str]:
    """The command of an agent that finds the notice in a folder, or on its standard input where that is `-`."""
    return [sys.executable, "-m", "shoal", "launch", "--agent", source, "--timeout", f"{timeout_s:g}s"]


async def start_agents(
    processes: AgentProcesses,
    others: list[Host],
    scheduler: str,
    folder: Path,
    notice: Notice,
    timeout_s: float,
    environ: Mapping[str, str],
    more: tuple[str, ...] = (),
) -> None:
    """Start an agent on every other host, by the scheduler's own means or by ssh."""
    is_ssh = scheduler == "ssh"
    words = [*agent_words("-" if is_ssh else str(folder), timeout_s), *more]
    await _start_on(processes, others, scheduler, words, notice if is_ssh else None, environ)


async def _start_on(
    processes: AgentProcesses,
    hosts: list[Host],
    scheduler: str,
    words: list[str],
    notice: Notice | None,
    environ: Mapping[str, str],
) -> None:
    """Run the words on every one of these hosts; those where that fails are told to the processes' owner."""
    start = usable_start(starts_of(scheduler), hosts, environ)
    names = [host.name for host in hosts]
    commands = start.commands(names, words, environ)
    names = names if len(commands) == len(names) else [",".join(names)] * len(commands)
    for name, command in zip(names, commands, strict=True):
        await processes.start(command, name, notice, environ, start.failure)


async def _watch_launcher(environ: Mapping[str, str], signals: asyncio.Queue[int], tell: Tell) -> None:
    """Have the command saved and ended when the launcher was killed, and end it where it takes too long."""
    name = await launcher_gone(environ)
    tell(f"{name} is gone; the command gets a signal to end")
    signals.put_nowait(signal.SIGTERM)
    await asyncio.sleep(SAVING_S)
    signals.put_nowait(signal.SIGTERM)


async def _warn_of_node_loss(scheduler: str, environ: Mapping[str, str], tell: Tell) -> None:
    """Say it where the scheduler will not let the others go on when a host is lost."""
    warning = await asyncio.to_thread(scheduler_called(scheduler).node_loss_warning, environ)
    if warning is not None:
        tell(warning)


async def _examine_absent(
    head: Head, processes: AgentProcesses, where: LaunchContext, folder: Path, environ: Mapping[str, str]
) -> None:
    """Find out why ranks of srun do not show up: it does not tell the others that it could not start one."""
    await asyncio.sleep(ABSENT_S)
    absent = set(head.absent)
    hosts = [host for host in where.hosts if host.name in absent]
    if hosts:
        words = [sys.executable, "-m", "shoal.cluster.rank_check", str(folder), sys.argv[0]]
        with contextlib.suppress(ClusterError):
            await _start_on(processes, hosts, where.scheduler, words, None, environ)


async def _unless_signalled(work: Coroutine[Any, Any, HostState], signals: asyncio.Queue[int]) -> HostState | int:
    """What the work comes to, or the signal that cuts it short."""
    working, hearing = asyncio.create_task(work), asyncio.create_task(signals.get())
    await asyncio.wait({working, hearing}, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    if working.done():
        if hearing.done() and not hearing.cancelled():  # in the same moment: whoever comes next hears it
            signals.put_nowait(hearing.result())
        return working.result()
    working.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may fail in the same moment
    working.cancel()
    return hearing.result()


async def _run(command: UserCommand, head: Head, signals: asyncio.Queue[int], on_node_loss: str, tell: Tell) -> int:
    """The command's exit code, or that of a loss that ended it."""
    waiting = asyncio.create_task(command.wait())
    hearing, losing = asyncio.create_task(signals.get()), asyncio.create_task(head.losses.get())
    ending: dict[int, float] = {}  # when it was asked to end, by signal
    loss: int | None = None
    deadline: float | None = None
    loop = asyncio.get_running_loop()
    try:
        while not waiting.done():
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait({waiting, hearing, losing}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:  # it had the time to save
                command.end()
                deadline = None
            if hearing in done:
                _pass_on(hearing.result(), command, ending, loop.time())
                hearing = asyncio.create_task(signals.get())
            if losing in done:
                host = losing.result()
                losing = asyncio.create_task(head.losses.get())
                is_fatal = head.is_head(host) or (on_node_loss == "stop" and host.state != "left")
                tell(_loss_sentence(host, bool(ending), is_fatal, len(head.up)))
                if is_fatal and loss is None:
                    deadline = loop.time() + SAVING_S
                    if not ending:  # else it saves already
                        loss = HEAD_FAILED if head.is_head(host) else NODE_LOST
                        command.send(signal.SIGTERM)
        code = waiting.result()
        return code if loss is None or code == RESUME_ME else loss
    finally:
        for task in (waiting, hearing, losing):
            task.cancel()


def _loss_sentence(host: HostState, is_ending: bool, is_fatal: bool, num_up: int) -> str:
    """One line about a host that is no longer there; the events in the job's folder have the whole of its reason."""
    if is_ending:
        return f"{host.name} has ended"
    did = "has left" if host.state == "left" else "was lost"
    reason = " ".join(host.reason.split())
    if len(reason) > MOST_REASON:
        reason = f"{reason[:MOST_REASON]}..."
    return f"{host.name} {did}: {reason}; " + (
        "the command gets a signal to end" if is_fatal else f"hosts still up: {num_up}"
    )


def _pass_on(number: int, command: UserCommand, ending: dict[int, float], now: float) -> None:
    """Give a signal to the command; one that asks it a second time to end ends it."""
    if number in ending:
        if now - ending[number] >= ECHO_S:
            command.end()
    elif number != signal.SIGINT or not _is_from_terminal():
        command.send(number)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        ending.setdefault(number, now)


def _tell_ready(head: Head, first: HostState, folder: Path, changes: list[str], dashboard: bool, tell: Tell) -> None:
    """Say what there is."""
    up = head.up
    cpus, gpus = sum(host.num_cpus for host in up), sum(host.num_gpus for host in up)
    gpus_told = f" and {gpus} GPUs" if gpus else ""
    hosts = up[0].name if len(up) == 1 else f"{len(up)} hosts"
    address = first.answer["address"]
    tell(f"Ray is up at {address} after {head.seconds:.1f} s: {cpus} CPUs{gpus_told} on {hosts}; job {folder.name}")
    if changes:
        tell(f"environment: {', '.join(changes)}")
    if dashboard:
        port = first.answer["dashboard"].rpartition(":")[2]
        tell(f"dashboard: ssh -N -L {port}:127.0.0.1:{port} {first.name}, then http://127.0.0.1:{port}")


def is_this_host(name: str) -> bool:
    """Whether a name or address means the host that this runs on."""
    if is_own_name(name) or name == "localhost":
        return True
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name) in {"127.0.0.1", *own_addresses()}
    return False


def _is_from_terminal() -> bool:
    """Whether a Ctrl-C has reached the command as well, being of the terminal's foreground."""
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


@contextlib.contextmanager
def _signals_into(queue: asyncio.Queue[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, queue.put_nowait, number)
    yield
