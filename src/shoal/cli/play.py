"""`shoal play`: a trained agent at play, before one's eyes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from shoal.cli.completion import environments, runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.data.number_text import counted, number_text
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.envs.watching import EnvView

Kind = Literal["window", "text", "video"]
MODES: dict[Kind, str] = {"window": "human", "text": "ansi", "video": "rgb_array"}


class TextView:
    """The text that an environment draws, in the terminal: in its place where that can be, else one after another."""

    mode = "ansi"

    def __init__(self, fps: float | None = None) -> None:
        from shoal.machine.terminal import can_redraw

        self.fps = fps
        self._is_live = can_redraw()
        self._lines = 0

    def capture(self, env: Any) -> str:
        """What the environment draws now."""
        drawn = env.render()
        if not isinstance(drawn, str):
            kind = type(drawn).__name__
            raise ConfigError(
                f"env {type(env.unwrapped).__name__}: with render_mode='ansi' its render() must return text (got "
                f"{kind}); choose another view by --as"
            )
        return drawn.rstrip("\n")

    def show(self, drawn: str, fps: float, is_first: bool) -> None:
        """Write it over the picture before it, and leave it there for a moment."""
        lines = drawn.count("\n") + 1
        fits = self._is_live and lines < shutil.get_terminal_size().lines
        back = "" if is_first or not fits or not self._lines else f"\x1b[{self._lines}F\x1b[J"
        # The environment's own colours stay, for they may be all that shows where an agent is.
        click.echo(f"{back}{drawn}", color=True)
        self._lines = lines
        if self._is_live:
            time.sleep(1 / (self.fps or fps))


@click.command(cls=Command)
@click.argument("path", metavar="RUN|CHECKPOINT|NAME", shell_complete=runs)
@click.option("--best", is_flag=True, help="The best checkpoint of a run instead of the newest.")
@click.option("--episodes", type=click.IntRange(1), default=3, show_default=True, help="Number of whole episodes.")
@click.option("--fps", type=click.FloatRange(0, min_open=True), help="Steps per second; default: the environment's.")
@click.option("--explore", is_flag=True, help="Sample actions instead of taking the most likely.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the environment.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(list(MODES)),
    help="How to see it; default: the first of these that can be had here.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="MP4|GIF",
    help="File of the video; default: play_DATE.mp4 in the run's folder.",
)
@click.option("--env", shell_complete=environments, help="The environment, as with `shoal evaluate --env`.")
@where_option()
@trust_option
def play(
    path: str,
    best: bool,
    episodes: int,
    fps: float | None,
    explore: bool,
    seed: int | None,
    kind: Kind | None,
    output: Path | None,
    env: str | None,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Watch a trained agent: in a window if there is a screen, as text if its environment draws text, else in a video.

    The episodes are those of `shoal evaluate --video` with the same seed. Ctrl-C ends it.
    """
    if output is not None and kind not in (None, "video"):
        raise click.UsageError(f"-o is the file of a video; leave it out, or --as {kind}.")
    if output is not None:
        _check_output(output)
    from shoal.cli.run_names import found_run
    from shoal.envs.watching import Film, Window
    from shoal.runs.folders import env_text
    from shoal.runs.loaded_policy import find_checkpoint
    from shoal.runs.playing import modes_of, played_episodes
    from shoal.runs.trained_agent import trained_agent

    checkpoint = find_checkpoint(found_run(path, results_dir), best)
    agent = trained_agent(checkpoint, trust, env)
    with ExitStack() as stack:
        setup = agent.setup(stack)
        chosen: Kind = "video" if output is not None else _kind(kind, modes_of(setup), agent.maker.name)
        views: dict[Kind, Callable[[], EnvView]] = {"window": lambda: Window(fps), "text": lambda: TextView(fps)}
        if chosen == "video":
            film = Film((output or _place(checkpoint.path.parent)).absolute(), fps)
            stack.callback(film.close)
        view = film if chosen == "video" else views[chosen]()
        click.echo(f"{agent.experiment.run} {env_text(agent.experiment.config.env)}  {short_path(checkpoint.path)}")
        number = 0
        with closing(played_episodes(setup, view, explore or None, seed)) as played:
            for episode in played:
                if episode is None:
                    continue
                number += 1
                click.echo(f"episode {number}: return {number_text(episode.reward)}, {counted(episode.length, 'step')}")
                if number == episodes:
                    break
        if chosen == "video":
            film.finish()
            click.echo(f"video in {short_path(film.path)}")


def _kind(asked: Kind | None, modes: Sequence[str], name: str) -> Kind:
    """How the environment is seen: as asked for, or the first way that can be had."""
    from shoal.envs.video import check_videos, screen_answers

    if asked == "window" and not screen_answers():
        raise ConfigError(
            "--as window: there is no screen here (DISPLAY is not set, or nothing is there); use --as video"
        )
    if asked is not None:
        if modes and MODES[asked] not in modes:
            can = ", ".join(kind for kind, mode in MODES.items() if mode in modes) or "nothing that can be shown"
            raise ConfigError(f"--as {asked}: env {name} has no render_mode {MODES[asked]!r}; it has {can}")
        found = asked
    elif screen_answers() and "human" in modes:
        found = "window"
    elif "ansi" in modes:
        found = "text"
    elif not modes or "rgb_array" in modes:
        found = "video"
    elif "human" in modes:
        raise ConfigError(
            f"env {name}: it draws only in a window, and there is no screen here (DISPLAY is not set, or nothing is "
            "there)"
        )
    else:
        raise ConfigError(f"env {name}: it draws neither pictures nor text (its render_modes: {', '.join(modes)})")
    if found == "video":
        check_videos("there is no screen here, so it is filmed" if asked is None else "--as video")
    return found


def _check_output(output: Path) -> None:
    from shoal.envs.video import check_video
    from shoal.runs.folders import check_writable

    check_video(output)
    folder = output.absolute().parent
    if output.is_dir() or not folder.is_dir():
        raise ConfigError(f"-o {output}: is not a file in a folder that exists")
    try:
        check_writable(folder)
    except OSError as error:
        raise ConfigError(f"-o {output}: {folder} cannot be written: {error.strerror or error}") from error


def _place(folder: Path) -> Path:
    """A new file in the run's folder, or here if that cannot be written."""
    from shoal.runs.folders import check_writable

    name = f"play_{time.strftime('%Y-%m-%d_%H-%M-%S')}.mp4"
    try:
        check_writable(folder)
    except OSError:
        return Path.cwd() / name
    return folder / name
