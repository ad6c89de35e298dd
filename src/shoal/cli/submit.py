"""`shoal submit`, `jobs`, `logs` and `cancel`: thin skins over the scheduler's own commands."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.errors import ClusterError, ConfigError

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if TYPE_CHECKING:
    from shoal.cluster.job import Job
    from shoal.cluster.job_records import JobRecord


class ForeignOptions(click.Command):
    """A command that knows other tools' words for its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the right option for a foreign one."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from shoal.cluster.job_files import FOREIGN

            meant = FOREIGN.get(error.option_name.strip("-").replace("-", "_"))
            options = {option for param in self.params for option in param.opts}
            if meant is None:
                raise
            option = f"--{meant.replace('_', '-')}"
            where = option if option in options else f"{meant} in the file of -f"
            raise click.UsageError(f"There is no option {error.option_name}; use {where}.", ctx) from None


@click.command(cls=ForeignOptions)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file that describes the job.")
@click.option("--nodes", type=int, help="Number of nodes.")
@click.option("--walltime", metavar="TIME", help='Time limit of the job, such as "20m" or "02:30:00".')
@click.option("--account", help="Account or project to charge.")
@click.option("--partition", help="Partition or queue.")
@click.option("--cpus-per-node", type=int, help="Number of cores on each node.")
@click.option("--gpus-per-node", type=int, help="Number of GPUs on each node.")
@click.option("--memory-per-node", metavar="SIZE", help='Memory on each node, such as "64GB".')
@click.option("--name", help="Name of the job.")
@click.option(
    "--scheduler", metavar="NAME", help="Scheduler: slurm, lsf, cobalt, pbs or sge; auto: the one of this machine."
)
@click.option("--parallel-environment", metavar="NAME", help="Parallel environment; Grid Engine requires it.")
@click.option("--container", metavar="IMAGE", help="Image that has shoal: a .sif file, docker://..., or a name.")
@click.option("--container-runtime", metavar="NAME", help="apptainer, podman-hpc or shifter; default: by the image.")
@click.option("--output", metavar="FILE", help="Log of the job; %j in it is replaced by the job's id.")
@click.option(
    "--signal-before", metavar="TIME", help="How long before the time limit the command gets a signal to save."
)
@click.option(
    "--login-shell/--no-login-shell",
    default=None,
    help="Run the script in a login shell, which is the default, or not.",
)
@click.option("--requeue/--no-requeue", default=None, help="Put a saved, unfinished run back into the queue, or not.")
@click.option("--max-requeues", type=int, help="Maximum number of requeues.")
@click.option("--min-nodes", type=int, help="Start with this many nodes if others fail to come up.")
@click.option("--ports", metavar="FIRST-LAST", help="Ports that the site's firewall leaves open between nodes.")
@click.option("--on-node-loss", metavar="continue|stop", help="What to do when a node dies during the run.")
@click.option("--script", type=click.Path(path_type=Path), help="File for the script; default: in the job's folder.")
@click.option("--dry-run", is_flag=True, help="Print the script and stop.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def submit(file: Path | None, script: Path | None, dry_run: bool, command: tuple[str, ...], **flags: Any) -> None:
    """Write a batch script that runs COMMAND on a Ray cluster, show it, and submit it.

    COMMAND follows `--`, as in `shoal submit --nodes 3 --walltime 20m -- shoal train -f my.yml --num-workers 100`.
    Flags override the keys of the file, which override those of ~/.config/shoal/site.yml.
    """
    from shoal.cluster import job_commands, job_records
    from shoal.cluster.batch_scripts import batch_script
    from shoal.cluster.schedulers import find_scheduler, scheduler_called

    if dry_run and script is not None:
        raise click.UsageError("--dry-run writes no file; leave --script out, or redirect: --dry-run > job.sh")
    job = _job(file, flags, command)
    _check_command(job.command)
    _check_image(job.container)
    scheduler = find_scheduler(os.environ) if job.scheduler == "auto" else scheduler_called(job.scheduler)
    folder = job_records.folder_for(job.name)
    text = batch_script(job, scheduler, _programs(), folder)
    if dry_run:
        click.echo(text, nl=False)
        return
    here = Path.cwd()
    path = folder / job_records.SCRIPT if script is None else script.absolute()
    job_records.make_folder(folder)
    try:
        job_records.write_script(text, path)
        _make_log_folder(here / job.log)
        click.echo(text)
        answer = job_commands.submit(scheduler.name, path, here)
    except ClusterError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    job_id = job_commands.job_id_in(scheduler.name, answer)
    number = job_commands.number(job_id)
    log = here / job.log.replace("%j", number)
    about = job_records.JobRecord(
        id=job_id,
        scheduler=scheduler.name,
        name=job.name,
        nodes=job.nodes,
        script=str(path),
        folder=str(here),
        log=str(log),
        submitted=time.strftime("%Y-%m-%d %H:%M:%S"),
        command=[*job.command],
    )
    job_records.record(folder, about)
    click.echo(f"Submitted: job {job_id}")
    click.echo(f"  script    {path}")
    click.echo(f"  log       {log}")
    click.echo("  state     shoal jobs")
    click.echo(f"  follow    shoal logs {number} -f")
    click.echo(f"  cancel    shoal cancel {number}")


@click.command()
@click.option("--all", "everything", is_flag=True, help="List jobs that have ended, too.")
def jobs(everything: bool) -> None:
    """List the jobs that were submitted from here, with their current states."""
    from shoal.cluster import job_commands, job_records

    entries = [job for _, job in job_records.recorded()]
    states: dict[tuple[str, str], str] = {}
    for scheduler in dict.fromkeys(job.scheduler for job in entries):
        ids = [job.ids()[-1] for job in entries if job.scheduler == scheduler]
        try:
            found = job_commands.states(scheduler, ids, past=everything)
        except (ClusterError, ConfigError) as error:
            # A home may be shared by machines with different schedulers, and a package that knew one may be gone.
            click.echo(f"The states of the {scheduler} jobs are unknown: {error}", err=True)
            found = dict.fromkeys(ids, "?")
        states.update({(scheduler, job_id): state for job_id, state in found.items()})
    rows = [("job", "state", "name", "nodes", "submitted", "log")]
    for job in entries:
        state = states.get((job.scheduler, job.ids()[-1]))
        if everything or state == "?" or not job_commands.is_over(job.scheduler, state):
            rows.append((job.ids()[-1], state or "gone", job.name, str(job.nodes), job.submitted, job.log))
    if len(rows) == 1:
        click.echo(
            "No job was submitted from here." if everything else "No job is waiting or running; --all lists past ones."
        )
        return
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]))


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job ends.")
def logs(job_id: str, follow: bool) -> None:
    """Print the output of JOB; the last line names the folder with the logs of its nodes."""
    from shoal.cluster import job_records

    folder, job = job_records.find(job_id)
    log = Path(job.log)
    if not follow and not log.exists():
        raise ClusterError(f"{log} does not exist yet: job {job.ids()[-1]} is {_state(job) or 'gone'}; -f waits for it")
    for piece in job_records.log_pieces(log, lambda: not follow or _is_over(job)):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    if not log.exists():
        raise ClusterError(f"{log} does not exist, and job {job.ids()[-1]} has ended; see {job.script}")
    click.echo(f"The logs of its nodes are in {job.cluster_folder(folder)}.", err=True)


@click.command()
@click.argument("job_id", metavar="JOB")
def cancel(job_id: str) -> None:
    """Cancel JOB; if it is running, it gets a signal to save and end."""
    from shoal.cluster import job_commands, job_records

    _, job = job_records.find(job_id)
    present = job.ids()[-1]
    job_commands.cancel(job.scheduler, present)
    click.echo(f"Cancelled: job {present}")


def _job(file: Path | None, flags: dict[str, Any], command: tuple[str, ...]) -> Job:
    """What the site's file, the job's file and the command line say together."""
    from shoal.cluster.job_files import SITE_FILE, Source, job_from, source_of

    sources = []
    site = Path(SITE_FILE).expanduser()
    if site.exists():
        click.echo(f"Using the keys of {site}.", err=True)
        sources.append(source_of(site))
    if file is not None:
        sources.append(source_of(file))
    said = {key: value for key, value in flags.items() if value is not None}
    return job_from([*sources, Source({**said, "command": list(command)} if command else said)])


def _check_command(command: Sequence[str]) -> None:
    """Refuse a `shoal train` or `shoal tune` whose words are wrong before it waits in a queue; warn of what may be."""
    from shoal.cli.command_needs import doubts_about

    for doubt in doubts_about(command, os.environ):
        click.echo(f"Warning: the command fails here, but may not on the nodes: {doubt}", err=True)


def _check_image(image: str | None) -> None:
    """Refuse a folder that is no image; warn of a file that is not here, for the nodes may have it."""
    if image is None:
        return
    from shoal.cluster.containers import check_image_folder

    check_image_folder(image)
    if image.endswith(".sif") and not Path(image).expanduser().exists():
        click.echo(
            f"Warning: the image {image} is not here, but may be on the nodes; `apptainer build` makes one", err=True
        )


def _programs() -> Path:
    """The folder of the shoal that is running, and of its python."""
    invoked = Path(sys.argv[0])
    if invoked.name == "shoal" and invoked.is_file():
        return invoked.absolute().parent
    return Path(sys.executable).parent


def _make_log_folder(log: Path) -> None:
    """Make the folder of a log, without which Slurm lets a job fail and says nothing."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"output: {log.parent} cannot be made: {error.strerror}; set another with --output"
        ) from error


def _state(job: JobRecord) -> str | None:
    from shoal.cluster import job_commands

    present = job.ids()[-1]
    return job_commands.states(job.scheduler, [present]).get(present)


def _is_over(job: JobRecord) -> bool:
    from shoal.cluster import job_commands

    try:
        return job_commands.is_over(job.scheduler, _state(job))
    except ClusterError as error:
        click.echo(f"Its state is unknown at the moment: {error}", err=True)
        return False
