"""`shoal runs`: what there is in a results folder, and how it stands; `rm` and `mv`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs as run_names
from shoal.cli.options import Command
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.reports.run_list import ListedRun

HEADS = ("state", "best", "last", "steps", "changed", "size", "run", "env", "folder")


class RunsGroup(click.Group):
    """`shoal runs` lists; a first word that is a command of the group is one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take everything that is no command for what is to be listed."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=RunsGroup, subcommand_metavar="[FOLDER] | rm | mv")
def runs() -> None:
    """List the runs of a folder; `shoal runs list --help` has the options."""


@runs.command("list", cls=Command)
@click.argument("folder", required=False)
@click.option("--where", metavar="CONDITION", help="Only runs for which this holds: 'best > 400 and lr < 1e-3'.")
@click.option(
    "--sort", metavar="NAME", default="changed", show_default=True, help="Highest first; -NAME: lowest first."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run.")
def list_runs(folder: str | None, where: str | None, sort: str, as_json: bool) -> None:
    """List the runs of FOLDER or of an experiment (all: ~/shoal_results): state, best and last return, age, size.

    A condition and --sort may name what the table shows, every result of the last iteration and every setting, such as
    episode_reward_mean, learner/kl, lr or model/fcnet_activation.
    """
    import json

    from shoal.reports.run_choice import in_order, is_listed, matching
    from shoal.reports.run_list import damaged_text, runs_below
    from shoal.runs.folders import DEFAULT_RESULTS, find_results, results_root

    place = results_root(DEFAULT_RESULTS) if folder is None else find_results(folder)
    if not place.is_dir():
        click.echo(f"There are no runs yet: {short_path(place)} does not exist. Start one: shoal train CartPole-v1")
        return
    below = runs_below(place, with_settings=where is not None or not is_listed(sort))
    found = below.runs
    told_damaged = damaged_text([_place_in(place, path) for path in below.damaged]) if below.damaged else ""
    chosen = in_order(matching(found, where), found, sort)
    if as_json:
        for run in chosen:
            click.echo(json.dumps(run.to_json()))
        if told_damaged:
            click.echo(told_damaged, err=True)
        return
    if not found:
        click.echo(told_damaged or f"There are no runs in {short_path(place)}.")
        return
    for line in _table(chosen, place):
        click.echo(line)
    of_all = f" of {len(found)}" if len(chosen) != len(found) else ""
    running = sum(run.state == "running" for run in chosen)
    told = f", {running} running" if running else ""
    click.echo(f"{len(chosen)}{of_all} run{'s' * (len(found) != 1)}{told} in {short_path(place)}")
    if told_damaged:
        click.echo(told_damaged)


@runs.command("rm", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(paths: tuple[str, ...], yes: bool) -> None:
    """Delete the folders of runs, damaged or not, after a question; never one that is being written."""
    from shoal.machine.memory import bytes_text
    from shoal.reports.run_list import size_and_change
    from shoal.runs.atomic_files import remove_folder

    found = dict(map(_idle_run, paths))
    for path, run in found.items():
        size = bytes_text(size_and_change(path)[0] if run is None else run.size)
        told = f"damaged, {size}" if run is None else f"{run.state}, {size}, {_steps(run)} steps"
        click.echo(f"{short_path(path)}: {told}")
    if not yes:
        click.confirm(f"Delete {len(found)} run{'s' * (len(found) != 1)}?", abort=True)
    for path, run in found.items():
        with _held(path):
            remove_folder(path)
        _leave_no_empty_experiment(path, run)
    click.echo(f"Deleted {len(found)} run{'s' * (len(found) != 1)}.")


@runs.command("mv", cls=Command)
@click.argument("path", metavar="RUN", shell_complete=run_names)
@click.argument("folder", metavar="FOLDER", type=click.Path(file_okay=False))
@click.option("--yes", is_flag=True, help="Do not ask.")
def move(path: str, folder: str, yes: bool) -> None:
    """Move the folder of a run into FOLDER, after a question; never one that is being written."""
    from shoal.runs.atomic_files import move_folder
    from shoal.runs.folders import is_run
    from shoal.runs.lease import LEASE

    if not folder.strip():
        raise ConfigError("FOLDER is empty; give the folder to move the run into, '.' for this one.")
    source, run = _idle_run(path)
    if run is None:
        raise ConfigError(
            f"{source} has damaged files and stays where it is; `shoal verify {typed_path(source)}` says which, "
            f"`shoal runs rm {typed_path(source)}` deletes it."
        )
    target = Path(folder).expanduser().absolute() / run.path.name
    if target.exists():
        raise ConfigError(f"{target} exists already; move the run to another folder.")
    if target.is_relative_to(run.path):
        raise ConfigError(f"{target.parent} is inside of the run itself; move it to another folder.")
    for around in target.parents:
        if is_run(around):
            raise ConfigError(f"{around} is a run, and a run inside of another is not found; give another folder.")
    if not yes:
        click.confirm(f"Move {short_path(run.path)} to {short_path(target)}?", abort=True)
    with _held(run.path):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            move_folder(run.path, target, LEASE)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}; give another folder.") from None
    with suppress(OSError):  # to move a run is no change of it
        os.utime(target, (run.changed, run.changed))
    _leave_no_empty_experiment(source, run)
    click.echo(f"Moved to {short_path(target)}; {_next(run, target)}")


def _next(run: ListedRun, target: Path) -> str:
    """What can be done with a run that has been moved."""
    from shoal.cli.run_view import further_command

    if run.state == "finished":
        return f"it is finished; to train it further: {further_command(target, run.progress.last)}"
    words = "continue it with" if run.is_resumable else "it has no checkpoint; train it again from its start with"
    return f"{words}: shoal resume {typed_path(target)}"


def _idle_run(text: str) -> tuple[Path, ListedRun | None]:
    """The run that a person means by its folder alone, if nobody writes it: what is deleted must be named exactly.

    Of a damaged one there is the folder alone.
    """
    from shoal.reports.run_list import listed
    from shoal.runs.folders import DEFAULT_RESULTS, results_root
    from shoal.runs.lease import check_free

    path = Path(text).expanduser().absolute()
    if not os.path.lexists(path) and not text.startswith((".", "/", "~")):
        path = results_root(DEFAULT_RESULTS) / text  # as the list of all runs has it
    _check_run(path)
    check_free(path)
    return path, listed(path)


def _check_run(path: Path) -> None:
    from shoal.runs.folders import is_run

    if path.is_symlink():
        raise ConfigError(f"{path} is a link; give the folder that it leads to.")
    if not is_run(path):  # a checkpoint has an experiment too
        raise ConfigError(f"{path} is not the folder of a run; `shoal runs` lists the folders.")


def _leave_no_empty_experiment(path: Path, run: ListedRun | None) -> None:
    """Remove the folder that has the name of the run's experiment, if nothing is in it but what lists keep there."""
    from shoal.reports.run_cache import CACHE_FILE, SETTINGS_CACHE_FILE

    if run is None or path.parent.name != run.name:
        return
    with suppress(OSError):
        if path.parent != Path.cwd() and {CACHE_FILE, SETTINGS_CACHE_FILE}.issuperset(os.listdir(path.parent)):
            for name in os.listdir(path.parent):
                (path.parent / name).unlink()
            path.parent.rmdir()


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a run while its folder is deleted or moved, and the sweep that it is a trial of; both as they were named."""
    from shoal.runs.folders import SWEEP_FILE
    from shoal.runs.lease import kept_from_others

    sweep = path.parent.parent
    with ExitStack() as stack:
        try:
            for place in [sweep, path] if (sweep / SWEEP_FILE).is_file() else [path]:
                stack.enter_context(kept_from_others(place))
            _check_run(path)  # it may have been deleted before
            yield
        except OSError as error:
            raise ConfigError(f"{path} cannot be changed: {error.strerror or error}; whose is it?") from None


def _steps(run: ListedRun) -> str:
    return f"{int(run.progress.last.get('timesteps_total', 0)):,}"


def _table(chosen: list[ListedRun], place: Path) -> list[str]:
    """A line for each run, the head first."""
    from time import time

    from shoal.data.number_text import number_text
    from shoal.machine.memory import bytes_text
    from shoal.reports.run_list import RETURN
    from shoal.reports.tables import aligned

    now = time()
    columns = [[head] for head in HEADS]
    for run in chosen:
        cells = (
            f"{run.state}{'*' * run.is_resumable}{'!' * run.lacks_results}",
            number_text(run.progress.best),
            number_text(run.progress.last.get(RETURN)),
            _steps(run),
            _age_text(now - run.changed),
            bytes_text(run.size),
            run.algorithm,
            run.env,
            _place_in(place, run.path),
        )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    lines = aligned([*columns[1:6], columns[0], *columns[6:]], rights=5) if chosen else []
    if any(run.is_resumable for run in chosen):
        lines.append("  *: can be continued with shoal resume FOLDER")
    if any(run.lacks_results for run in chosen):
        lines.append("  !: its results are damaged or missing; shoal verify FOLDER says more")
    return lines


def _place_in(place: Path, path: Path) -> str:
    """The folder of a run as the list shows it."""
    return path.name if path == place else str(path.relative_to(place))


def _age_text(seconds: float) -> str:
    """`3 min ago`: the largest unit alone."""
    from shoal.data.number_text import duration_text

    number, unit = duration_text(max(seconds, 0)).split(" ")[:2]
    return f"{number} {unit} ago"
