"""`shoal launch`: one command on a Ray cluster of one's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.cluster.allocation import Host


class SchedulerName(click.ParamType[str]):
    """The name of a scheduler, or `none`."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType`."""
        from shoal.cluster.schedulers import names

        if value not in (*names(), "none"):
            self.fail(f"there is no scheduler {value!r}; use {', '.join(names())} or none.", param, ctx)
        return str(value)


def _refuse_env(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> None:  # noqa: ARG001
    if value:
        raise click.UsageError(f"There is no option --env here; use --variable {value[0]}.", ctx)


MOST_HOSTFILE = 16 << 20  # characters


@click.command()
@click.option("--hosts", metavar="A,B,C", help="Hosts to reach by ssh, e.g. n1,n2 or n[1-3].")
@click.option("--hostfile", type=click.Path(path_type=Path), help="A file with a host on each line.")
@click.option(
    "--scheduler",
    type=SchedulerName(),
    help="Scheduler of this job, if it is not detected: slurm, lsf, cobalt, pbs or sge; none: use this machine alone.",
)
@click.option(
    "--num-cpus",
    type=click.IntRange(1),
    metavar="N",
    help="CPUs that Ray offers on each host; default: those of the allocation, or one per rank if that is more.",
)
@click.option("--num-ranks", type=click.IntRange(1), help="Number of ranks, if the launcher does not report it.")
@click.option(
    "--min-nodes", type=click.IntRange(1), help="Start the command when this many hosts are up; default: all."
)
@click.option(
    "--timeout", default="5m", show_default=True, help="How long hosts may take to be ready, e.g. 90s or 10m."
)
@click.option(
    "--on-node-loss",
    type=click.Choice(["continue", "stop"]),
    default="continue",
    show_default=True,
    help="What to do when a host is lost during the run.",
)
@click.option("--ports", metavar="LOW-HIGH", help="Keep every port within a range, e.g. 30000-30999.")
@click.option("--dashboard", is_flag=True, help="Start Ray's dashboard, on the head's loopback address only.")
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable on every host; repeatable.",
)
@click.option("--env", multiple=True, hidden=True, expose_value=False, callback=_refuse_env)
@click.option(
    "--job-dir", type=click.Path(path_type=Path), help="Folder of the job, on a file system that all hosts share."
)
@click.option("--join", "joined", metavar="JOB", help="Add these hosts to a running job; takes no command.")
@click.option("--agent", hidden=True)
@click.option("--rank", type=int, hidden=True)
@click.option("--joining", is_flag=True, hidden=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def launch(
    hosts: str | None,
    hostfile: Path | None,
    scheduler: str | None,
    num_cpus: int | None,
    num_ranks: int | None,
    min_nodes: int | None,
    timeout: str,
    on_node_loss: str,
    ports: str | None,
    dashboard: bool,
    variables: tuple[str, ...],
    job_dir: Path | None,
    joined: str | None,
    agent: str | None,
    rank: int | None,
    joining: bool,
    command: tuple[str, ...],
) -> None:
    """Start Ray on the hosts of this allocation, run COMMAND once, and stop everything.

    \b
    mpirun -np 4 shoal launch -- shoal train -f custom.yml --num-workers 3
    srun shoal launch -- shoal train -f custom.yml --num-workers auto
    shoal launch --hosts n1,n2,n3 -- python train_ppo.py --ray-address {address}

    Ranks that mpirun, mpiexec, srun, aprun or jsrun starts find each other; those of one host share one Ray node.
    Started once in an allocation, it starts an agent on every host by the scheduler's own means. COMMAND finds the
    cluster in RAY_ADDRESS, and {address} in its arguments is replaced. A `shoal train` or `shoal tune` is checked
    before Ray starts: its options, its files, and whether its workers fit.

    \b
    Exit codes: the command's own, and
      81  the head's Ray could not start, or was lost
      82  a host could not start
      83  a host did not show up or was not ready in time
      84  a host was lost during the run, with --on-node-loss stop
      85  from the command: every finished iteration is saved, start it again
    """
    import asyncio

    timeout_s = seconds_of("--timeout", timeout)
    if agent is not None:
        from shoal.cluster.agent_entry import run_agent, run_agent_by_pipe
        from shoal.cluster.job_folder import published

        if agent == "-":
            raise SystemExit(asyncio.run(run_agent_by_pipe(os.environ, timeout_s, rank, joining, num_cpus)))
        folder = Path(agent)
        running = run_agent(
            lambda: published(folder), os.environ, timeout_s, rank, folder, is_joining=joining, num_cpus=num_cpus
        )
        raise SystemExit(asyncio.run(running))
    if joined is None and not command:
        raise ConfigError(
            "there is no command to run; type e.g. shoal launch -- shoal train CartPole-v1 --num-workers auto"
        )
    if joined is not None and command:
        raise ConfigError("--join adds hosts to a running job, which has a command; leave the command out")
    if dashboard and find_spec("aiohttp") is None:
        raise ConfigError("--dashboard: Ray's dashboard is not installed here; pip install 'ray[default]'")
    from shoal.cli.command_needs import capacity_check
    from shoal.cluster.launching import LaunchOptions, join
    from shoal.cluster.launching import launch as start
    from shoal.cluster.ports import port_range

    options = LaunchOptions(
        command=command,
        hosts=named_hosts(hosts, hostfile),
        scheduler=scheduler,
        num_ranks=num_ranks,
        min_nodes=min_nodes,
        timeout_s=timeout_s,
        on_node_loss=on_node_loss,
        ports=port_range(ports) if ports is not None else None,
        dashboard=dashboard,
        job_dir=job_dir.expanduser().absolute() if job_dir is not None else None,
        environment=dict(_variable(text) for text in variables),
        num_cpus=num_cpus,
        capacity_check=capacity_check(command) if command else None,
    )

    def tell(text: str) -> None:
        with suppress(OSError):  # who reads it may have been killed, and what was started is still to be ended
            click.echo(f"shoal launch: {text}", err=True)

    if joined is not None:
        raise SystemExit(join(joined, options, os.environ, tell))
    raise SystemExit(start(options, os.environ, tell))


def named_hosts(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """The hosts of --hosts or of --hostfile."""
    from shoal.cluster.host_lists import host_file, host_names

    if hosts is not None and hostfile is not None:
        raise ConfigError("use --hosts or --hostfile, not both")
    if hosts is not None:
        return tuple(host_names(hosts))
    if hostfile is None:
        return ()
    try:
        with open(hostfile, encoding="utf-8") as file:
            text = file.read(MOST_HOSTFILE)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile: {hostfile} cannot be read ({getattr(error, 'strerror', 'not text')})") from None
    if len(text) == MOST_HOSTFILE:
        raise ConfigError(f"--hostfile: {hostfile} has more than {MOST_HOSTFILE >> 20} MB; that is no list of hosts")
    return tuple(host_file(text, str(hostfile)))


def seconds_of(option: str, text: str) -> float:
    """The length of time that an option gives."""
    from shoal.config.durations import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error} (got {text!r})") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise ConfigError(f"--variable: must be NAME or NAME=VALUE (got {text!r})")
    if not equals and name not in os.environ:
        raise ConfigError(f"--variable: {name} is not set here; write --variable {name}=VALUE")
    return name, value if equals else os.environ[name]
