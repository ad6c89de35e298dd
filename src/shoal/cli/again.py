"""`shoal reproduce`, `shoal fork` and `shoal bisect`: a run trained once more."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, set_option, stop_option, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.cli.walltimes import deadline_of, walltime_option
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.runs.outcomes import Outcome
    from shoal.runs.reproducing import Reproduction


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.option(
    "--iterations", type=click.IntRange(1), default=20, show_default=True, help="How many iterations to train again."
)
@click.option("--workers", type=click.IntRange(0), help="Another number of workers for the same environments.")
@click.option("--into", type=click.Path(path_type=Path), help="Keep what is trained in this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@where_option()
@trust_option
def reproduce(
    path: str,
    iterations: int,
    workers: int | None,
    into: Path | None,
    as_json: bool,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Train RUN again from its configuration and seed, and compare every iteration with its chain of receipts.

    The run's folder is enough, and is not changed. The exit code is 0 if all is identical, and 1 if it is not, or if
    the chain ends before the run does.
    """
    import json
    from dataclasses import asdict

    from shoal.runs.reproducing import reproduce as reproduced

    folder = _run_folder(path, results_dir, tells=not as_json)
    with _Scratch(into) as scratch:

        def tell(iteration: int, is_same: bool) -> None:
            if not as_json:
                click.echo(f"iteration {iteration}: {'identical' if is_same else 'differs'}")

        found = reproduced(folder, scratch, iterations, workers, trust, tell)
        if as_json:
            click.echo(json.dumps(asdict(found)))
        else:
            for line in _sentences(found):
                click.echo(line)
    _end_as(found.outcome)
    if found.differs_at is not None or found.unlinked is not None:
        click.get_current_context().exit(1)


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.option("--at", type=click.IntRange(1), help="The iteration to continue from; default: the newest checkpoint's.")
@set_option("Change a key that may change during a run, e.g. config.lr=1e-4; repeatable.")
@stop_option("Stop criteria that replace those of the run; repeatable.")
@click.option("--name", help="Name of the new experiment; default: that of the run with -fork.")
@where_option()
@walltime_option
@trust_option
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
def fork(
    path: str,
    at: int | None,
    sets: tuple[str, ...],
    stop: tuple[str, ...],
    name: str | None,
    results_dir: str | None,
    walltime: str | None,
    trust: bool,
    quiet: bool,
) -> None:
    """Continue RUN in a new folder, bit for bit from the iteration --at, with something changed.

    Without a checkpoint of that iteration, it is trained again from the one before. Reports of the new run show the
    old one too.
    """
    from shoal.cli.run_view import follow
    from shoal.cli.train import limits
    from shoal.config.overrides import parse_override
    from shoal.runs.forks import fork as forked

    changes = dict([("stop", limits(stop))] if stop else [])
    changes.update(parse_override(text) for text in sets)
    folder = _run_folder(path, results_dir)
    with _Scratch(None) as scratch:

        def tell(iteration: int) -> None:
            click.echo(f"iteration {iteration} is trained again")

        run = forked(folder, scratch, at, changes, name, trust, tell)
    run.deadline = deadline_of(walltime)
    follow(run, quiet)


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@where_option()
@trust_option
def bisect(path: str, results_dir: str | None, trust: bool) -> None:
    """Find where RUN broke: gradients that are not finite, or a return that collapsed.

    The stretch is trained again from the checkpoint before it, and a script in the run's folder shows it. The exit code
    is 1 if the run did not break.
    """
    from shoal.reports.records import results_and_unreadable
    from shoal.runs.bisecting import RULES, WatchedIteration
    from shoal.runs.bisecting import bisect as bisected
    from shoal.runs.folders import RESULTS_FILE

    folder = _run_folder(path, results_dir)

    def tell(watch: WatchedIteration) -> None:
        click.echo(f"iteration {watch.iteration} is trained again")

    try:
        results, unreadable = results_and_unreadable(folder)
    except OSError as error:
        raise ConfigError(f"{folder / RESULTS_FILE} cannot be read: {error.strerror or error}") from None
    if not results:
        raise ConfigError(f"{folder / RESULTS_FILE} has no result that can be read, so nothing tells where it broke")
    if unreadable:
        lines, are = ("line", "is") if unreadable == 1 else ("lines", "are")
        click.echo(f"{unreadable} {lines} of {RESULTS_FILE} cannot be read and {are} left out", err=True)
    found = bisected(folder, results, trust, tell)
    if found is None:
        click.echo("It did not break by either rule:")
        for rule in RULES:
            click.echo(f"  {rule}")
        click.get_current_context().exit(1)
    click.echo(f"{found.breakdown.kind}: {found.breakdown.sentence}")
    if found.watch is None or found.script is None:
        click.echo("It did not break when trained again: shoal reproduce tells in what it differs.")
        click.get_current_context().exit(1)
    for line in found.watch.lines():
        click.echo(line)
    click.echo(f"Show it again: python {short_path(found.script)}")


def _sentences(found: Reproduction) -> list[str]:
    """What a reproduction found, in lines."""
    machine = [f"  {line}" for line in found.machine]
    if found.differs_at is None:
        since = f" after iteration {found.began_after}" if found.began_after else ""
        lines = [f"identical to iteration {found.identical_to}{since}"]
        if machine:
            lines += ["although the machine, versions, code or layout differ:", *machine]
        if found.unlinked is not None:
            lines.append(f"the run goes to iteration {found.unlinked}, of which its chain has no link to compare with")
        return lines
    parts = " and ".join(found.parts)
    lines = [f"it first differs at iteration {found.differs_at}, in {parts}"]
    if found.compared_at is not None:
        lines += [f"the states after iteration {found.compared_at}:", *(f"  {line}" for line in found.details)]
    else:
        lines.append("the run has no checkpoint from there on to say more (checkpoint_freq: 1 leaves one of each)")
    if machine:
        return [*lines, "what is different here:", *machine]
    return [*lines, "machine, versions, code and layout are the same: something in it is not determined by its seed"]


class _Scratch:
    """A folder to train in: one that is removed afterwards, or the user's own, which must be new."""

    def __init__(self, asked: Path | None) -> None:
        self._asked = asked

    def __enter__(self) -> Path:
        if self._asked is None:
            self._place = Path(tempfile.mkdtemp(prefix="shoal-again-"))
            return self._place
        self._place = self._asked.expanduser().absolute()
        if self._place.exists():
            raise ConfigError(f"--into: {self._place} exists already; give a new folder")
        return self._place

    def __exit__(self, *_: object) -> None:
        if self._asked is None:
            shutil.rmtree(self._place, ignore_errors=True)
        elif self._place.is_dir():
            click.echo(f"kept in {short_path(self._place)}", err=True)


def _run_folder(text: str, results_dir: str | None, tells: bool = True) -> Path:
    from shoal.cli.run_names import found_run
    from shoal.runs.folders import find_run

    return find_run(found_run(text, results_dir, is_trained=False, tells=tells))


def _end_as(outcome: Outcome | None) -> None:
    """End with the code of the signal that ended the training, if one did."""
    if outcome is not None and outcome.signal is not None:
        from shoal.machine.signals import exit_code

        sys.exit(exit_code(outcome.signal))
