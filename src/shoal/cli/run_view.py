"""A run before the user's eyes: how it begins, its live view, and how it ended."""

from __future__ import annotations

import importlib.util
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from shoal.cli.paths import short_path, typed_path
from shoal.data.number_text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runs.run import Run


def follow(run: Run, quiet: bool) -> None:
    """Train a run before the user's eyes; the process ends here if a signal ended it."""
    from shoal.cli.live import open_view
    from shoal.cli.output import guard_streams, report_lost_streams

    streams = guard_streams()
    if not tell_begin(run, click.echo):
        return
    _flush()
    experiment, title = run.experiment, title_of(run)
    level = experiment.config.log_level
    try:
        with open_view(title, run.folder, experiment.stop, quiet, level, lambda: run.activity) as view:
            run.on_start = partial(tell_start, run, view.say)
            for result in run.results(hold_signals=True):
                view.show(result)
                streams = report_lost_streams(streams)
    finally:
        with undisturbed():
            tell_end(run, isinstance(sys.exc_info()[1], Exception))
            _flush()
    if run.is_stuck:
        from shoal.errors import ShoalError
        from shoal.runs.run import STUCK

        raise ShoalError(STUCK)
    if run.outcome is not None and run.outcome.signal is not None:
        from shoal.machine.signals import exit_code

        sys.exit(exit_code(run.outcome.signal))


def title_of(run: Run) -> str:
    """What a view calls it."""
    from shoal.runs.folders import env_label

    return f"{run.experiment.run} {env_label(run.experiment.config.env)}"


def tell_begin(run: Run, say: Callable[[str], object]) -> bool:
    """Tell where a run begins or goes on; False if there is nothing to train."""
    from shoal.runs.preset_notes import preset_hint

    for note in run.notes:
        say(note)
    if run.done is not None:
        say(f"{short_path(run.folder)} is finished: {run.done}.")
        say(f"To start another run, use `shoal train` with --new; to continue this one: {_further(run)}")
        return False
    say(f"{title_of(run)} in {short_path(run.folder)}")
    hint = preset_hint(run.experiment) if run.resumed_from is None else None
    if hint is not None:
        say(hint)
    return True


def tell_start(run: Run, say: Callable[[str], object]) -> None:
    """Tell which checkpoint a run goes on from, once it has been read, and what was lost after it."""
    if run.resumed_from is None:
        return
    words = f"It continues from {run.resumed_from.name}"
    if run.unsaved:
        lost = counted(run.unsaved, "finished iteration")
        words += f"; {lost} after it must be trained again"
    say(f"{words}.")


def _looked_for(folder: Path) -> tuple[bool, str]:
    """Whether a folder is there; and if its file system is away, so that nobody knows, why."""
    try:
        return folder.is_dir(), ""
    except OSError as error:
        return False, error.strerror or str(error)


def _why_nothing_is_saved(run: Run) -> str:
    """Why a run that has ended has no checkpoint."""
    if not run.last_result:
        return "no iteration was finished"
    is_done = run.outcome is not None and run.outcome.kind == "stopped"
    return "checkpoints are switched off" if is_done else "saving failed"


def tell_end(run: Run, error_follows: bool) -> None:
    """Tell how a run has ended, and what can be done with it."""
    is_there, why_away = _looked_for(run.folder)
    if run.outcome is None:
        if not is_there and not why_away:
            click.echo("Nothing was trained, so the folder was removed.")
        return
    if run.outcome.kind == "failed" and error_follows:
        click.echo("Failed; the error follows below.")  # whoever catches it shows it
    else:
        words = {"stopped": "Finished", "interrupted": "Stopped", "failed": "Failed"}[run.outcome.kind]
        click.echo(f"{words}: {run.outcome.sentence.splitlines()[0]}")
    if run.last_result:
        click.echo(f"  return    {_reached(run)}")
    if why_away:
        click.echo(f"  run       {short_path(run.folder)}, which cannot be read now: {why_away}")
    if not is_there:
        return
    click.echo(f"  run       {short_path(run.folder)}")
    _tell_failures(run)
    if run.leaves_report and (run.folder / "report.html").is_file():
        click.echo(f"  report    {short_path(run.folder / 'report.html')}")
    if run.last_checkpoint is None or not run.last_checkpoint.is_dir():
        click.echo(f"  nothing is saved, because {_why_nothing_is_saved(run)}")
        return
    from shoal.runs.checkpoints import best_checkpoint

    folder = typed_path(run.folder)
    click.echo(f"  saved     {run.last_checkpoint.name}")
    score = run.experiment.checkpoint_score_attr
    if score is not None and (best := best_checkpoint(run.folder, score)) is not None:
        click.echo(f"  best      {best.name} by {score}")
    env = " --env ENV" if run.experiment.config.env is None else ""
    click.echo(f"  evaluate  shoal evaluate {folder}{env}")
    click.echo(f"  continue  {_further(run) if run.outcome.kind == 'stopped' else f'shoal resume {folder}'}")
    if run.last_result:
        is_there = importlib.util.find_spec("tensorboard") is not None
        needs = "" if is_there else "  (needs: pip install 'shoal-rl[board]')"
        click.echo(f"  curves    tensorboard --logdir {folder}{needs}")


def _tell_failures(run: Run) -> None:
    failures = (run.last_result or {}).get("env_failures_total", 0)
    if failures:
        click.echo(f"  failures  {failures} of environments: shoal incidents {typed_path(run.folder)}")


def _reached(run: Run) -> str:
    """The return at the end, and what was better before."""
    from shoal.data.number_text import number_text

    mean = run.last_result.get("episode_reward_mean")
    if run.experiment.config.learns_offline:
        found = run.last_result.get("evaluation/episode_reward_mean")
        return "none, because nothing was evaluated" if found is None else f"evaluation {number_text(found)}"
    if mean is None:
        return "none, because no episode has ended"
    words = f"{number_text(mean)} (episode_reward_mean)"
    if run.best_return is not None and run.best_return[0] > mean:
        since = " since it was resumed" if run.resumed_from is not None else ""
        words += f"; best {number_text(run.best_return[0])} at iteration {run.best_return[1]}{since}"
    if "evaluation/episode_reward_mean" in run.last_result:
        words += f"; evaluation {number_text(run.last_result['evaluation/episode_reward_mean'])}"
    return words


def _further(run: Run) -> str:
    """A command that trains a finished run for as long again, with the changes that it was too late for."""
    from shoal.runs.checkpoints import newest_summary
    from shoal.runs.resuming import typed_value

    words = further_command(run.folder, newest_summary(run.folder) or {})
    missed = run.overrides if run.done is not None else {}
    for key, value in missed.items():
        if key != "stop" and not key.startswith("stop."):
            words += f" --set {shlex.quote(f'{key}={typed_value(value)}')}"
    return words


def further_command(folder: Path, counts: Mapping[str, float]) -> str:
    """The command that trains a finished run for as long again; without environment steps, by its iterations."""
    steps, iterations = int(counts.get("timesteps_total", 50_000)), int(counts.get("training_iteration", 1))
    stop = f"timesteps_total={2 * steps}" if steps else f"training_iteration={2 * iterations}"
    return f"shoal resume {typed_path(folder)} --stop {stop}"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a late Ctrl-C wait no longer than it takes to say how the run ended."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
