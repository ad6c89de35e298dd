"""`shoal watch`: the live view of a run that trains elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, where_option
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.reports.followed_run import FollowedRun

PLAIN_HISTORY = 5  # results of before that plain lines begin with
LEAST_S = 0.1
WORDLESS = "its results meet its stop criterion; outcome.json, which says how it ended, is missing or damaged."


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.option(
    "--interval", type=click.FloatRange(LEAST_S), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Show how it stands now, and end.")
@where_option()
def watch(path: str, interval: float, once: bool, results_dir: str | None) -> None:
    """Show the live view of RUN (or the newest run of that NAME), which trains in another terminal or on another host.

    It reads the run's folder alone, also over NFS, and ends with the run; Ctrl-C ends the view and not the run. The
    exit code is 0 if the run is finished or still trains, and 1 if it failed, was killed or is gone.
    """
    from shoal.cli.live import open_view
    from shoal.cli.run_names import found_run
    from shoal.machine.terminal import can_redraw, printable
    from shoal.reports.followed_run import FollowedRun
    from shoal.runs.activity import Activity, progress
    from shoal.runs.folders import env_label, find_run
    from shoal.runs.resuming import stored_tree

    folder = find_run(found_run(path, results_dir, is_trained=False))
    tree = stored_tree(folder)
    if tree is None:
        raise ConfigError(f"{folder}: its experiment cannot be read; give the folder of a run.")
    run = FollowedRun(folder)
    config, stop = tree.get("config") or {}, tree.get("stop") or {}
    title = f"{printable(str(tree.get('run', '')))} {env_label(config.get('env', ''))}"
    is_live = can_redraw()

    def activity() -> Activity:
        return Activity("starting", since=time.monotonic() - max(time.time() - run.last_change, 0.0))

    shown = newest = 0
    with open_view(title, folder, stop, False, "ERROR", activity, began=run.began) as view:
        if run.is_written and not once:
            progress.info("waiting for the next result")
        while True:
            is_written = run.is_written  # before the look, so that nothing of its end is missed
            look = run.look()
            results = look.results
            if look.is_again and shown:  # it was continued from an earlier iteration; what it had before was shown
                results = [result for result in results if result.get("training_iteration", 0) > newest]
            if not is_live and not shown:
                results = results[-PLAIN_HISTORY:]
            for result in results:
                view.show(result)
                newest = result.get("training_iteration", newest)
            shown += len(results)
            for warning in look.warnings:
                view.log(warning)
            if once or not is_written:
                break
            threading.Event().wait(interval)
    _tell_end(run, shown)


def _tell_end(run: FollowedRun, shown: int) -> None:
    """Say how the run stands now."""
    folder = run.folder
    if run.is_written:
        click.echo(f"{short_path(folder)} is training.")
        return
    state, sentence = run.ending()
    if state is None:
        click.echo(f"{short_path(folder)} is gone, or cannot be read any more.", err=True)
        raise SystemExit(1)
    words = {"finished": "Finished", "interrupted": "Stopped", "failed": "Failed"}.get(state)
    if words is not None:
        click.echo(f"{words}: {sentence or WORDLESS}")
    elif shown:
        click.echo("Nobody trains it, and it left no word: it was killed, or its machine went down.")
    else:
        click.echo("Nobody trains it, and it has no results.")
    if state != "finished":
        click.echo(f"  continue  shoal resume {typed_path(folder)}")
    if state not in ("finished", "interrupted"):
        raise SystemExit(1)
