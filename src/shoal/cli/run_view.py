"""A run before the user's eyes: how it begins, its live view, and how it ended."""

from __future__ import annotations

import importlib.util
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shoal.cli.paths import short_path, typed_path

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.runs.run import Run


def follow(run: Run, quiet: bool) -> None:
    """Train a run before the user's eyes; the process ends here if a signal ended it."""
    from shoal.cli.live import open_view
    from shoal.cli.output import guard_streams, report_lost_streams
    from shoal.runs.folders import env_label
    from shoal.runs.preset_notes import preset_hint

    streams = guard_streams()
    for note in run.notes:
        click.echo(note)
    if run.done is not None:
        click.echo(f"{short_path(run.folder)} is finished: {run.done}.")
        click.echo(f"To start another run, use `shoal train` with --new; to continue this one: {_further(run)}")
        return
    experiment = run.experiment
    title = f"{experiment.run} {env_label(experiment.config.env)}"
    if run.resumed_from is not None:
        click.echo(f"{title} continues from {short_path(run.resumed_from)}{_unsaved(run.resumed_from)}")
    else:
        click.echo(f"{title} in {short_path(run.folder)}")
        if (hint := preset_hint(experiment)) is not None:
            click.echo(hint)
    _flush()
    level = experiment.config.log_level
    try:
        with open_view(title, run.folder, experiment.stop, quiet, level, lambda: run.activity) as view:
            for result in run.results(hold_signals=True):
                view.show(result)
                streams = report_lost_streams(streams)
    finally:
        with _undisturbed():
            _tell_end(run)
            _flush()
    if run.is_stuck:
        from shoal.errors import ShoalError
        from shoal.runs.run import STUCK

        raise ShoalError(STUCK)
    if run.outcome is not None and run.outcome.signal is not None:
        from shoal.machine.signals import exit_code

        sys.exit(exit_code(run.outcome.signal))


def _tell_end(run: Run) -> None:
    if run.outcome is None:
        if not run.folder.exists():
            click.echo("Nothing was trained, so the folder was removed.")
        return
    if run.outcome.kind == "failed" and isinstance(sys.exc_info()[1], Exception):
        click.echo("Failed; the error follows below.")  # whoever catches it shows it
    else:
        words = {"stopped": "Finished", "interrupted": "Stopped", "failed": "Failed"}[run.outcome.kind]
        click.echo(f"{words}: {run.outcome.sentence.splitlines()[0]}")
    if run.last_result:
        click.echo(f"  return    {_reached(run)}")
    if not run.folder.is_dir():
        return
    click.echo(f"  run       {short_path(run.folder)}")
    if run.leaves_report and (run.folder / "report.html").is_file():
        click.echo(f"  report    {short_path(run.folder / 'report.html')}")
    if run.last_checkpoint is None or not run.last_checkpoint.is_dir():
        why = "no iteration was finished"
        if run.last_result:
            why = "checkpoints are switched off" if run.outcome.kind == "stopped" else "saving failed"
        click.echo(f"  nothing is saved, because {why}")
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


def _unsaved(checkpoint: Path) -> str:
    """What a run that was killed has lost, for the end of a sentence."""
    from shoal.runs.resuming import unsaved_iterations

    lost = unsaved_iterations(checkpoint)
    if not lost:
        return ""
    return f"; {lost} finished iteration{'s' * (lost > 1)} after it had not been saved, and the run trains them again"


def _further(run: Run) -> str:
    """A command that trains a finished run for as long again, with the changes that it was too late for."""
    from shoal.runs.checkpoints import newest_summary
    from shoal.runs.resuming import typed_value

    steps = (newest_summary(run.folder) or {}).get("timesteps_total", 50_000)
    words = f"shoal resume {typed_path(run.folder)} --stop timesteps_total={2 * int(steps)}"
    missed = run.overrides if run.done is not None else {}
    for key, value in missed.items():
        if key != "stop" and not key.startswith("stop."):
            words += f" --set {shlex.quote(f'{key}={typed_value(value)}')}"
    return words


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a late Ctrl-C wait no longer than it takes to say how the run ended."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
