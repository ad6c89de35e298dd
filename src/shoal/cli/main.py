"""The `shoal` command: finds subcommands without importing the others, and ends with one sentence when one fails."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shoal.cli.paths import started_here
from shoal.errors import ConfigError, ShoalError
from shoal.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Lazy(NamedTuple):
    """Where a command lives, and its line in the help, which must not cost the import."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "init": _Lazy("shoal.cli.init", "init", "Make a small project that can be trained at once."),
    "train": _Lazy("shoal.cli.train", "train", "Train an agent on an environment, or the experiments of a file."),
    "tune": _Lazy("shoal.cli.tune", "tune", "Search for the best settings with many runs."),
    "resume": _Lazy("shoal.cli.train", "resume", "Continue a run from its newest good checkpoint."),
    "evaluate": _Lazy("shoal.cli.evaluate", "evaluate", "Measure how well a trained agent does."),
    "play": _Lazy("shoal.cli.play", "play", "Watch a trained agent: in a window, as text or in a video."),
    "export": _Lazy("shoal.cli.export", "export", "Write a trained agent as files that run without shoal."),
    "serve": _Lazy("shoal.cli.serve", "serve", "Serve trained agents over HTTP: observations in, actions out."),
    "check": _Lazy("shoal.cli.check", "check", "Try everything on an environment that training will do to it."),
    "profile": _Lazy("shoal.cli.profile", "profile", "Predict where the time will go, and how many workers to use."),
    "diagnose": _Lazy("shoal.cli.diagnose", "diagnose", "Find out why a run does not learn, and what to set."),
    "model": _Lazy("shoal.cli.model", "model", "Show the layers and parameters of a trained agent's network."),
    "runs": _Lazy("shoal.cli.runs", "runs", "List runs and how they stand; delete or move them."),
    "checkpoints": _Lazy("shoal.cli.receipts", "checkpoints", "List the checkpoints of a run, with sizes and hashes."),
    "verify": _Lazy("shoal.cli.receipts", "verify", "Check every hash of a run or sweep, and its chain of receipts."),
    "reproduce": _Lazy("shoal.cli.again", "reproduce", "Train a run again from its seed, and say if it is identical."),
    "fork": _Lazy("shoal.cli.again", "fork", "Continue a run from any iteration with something changed."),
    "bisect": _Lazy("shoal.cli.again", "bisect", "Find the iteration and minibatch where a run broke."),
    "plot": _Lazy("shoal.cli.plot", "plot", "Draw learning curves of runs, in a file or in the terminal."),
    "report": _Lazy("shoal.cli.report", "report", "Write one page about runs that opens in any browser."),
    "watch": _Lazy("shoal.cli.watch", "watch", "Show the live view of a run that trains elsewhere."),
    "board": _Lazy("shoal.cli.board", "board", "Serve a live page over all runs of a folder."),
    "compare": _Lazy("shoal.cli.compare", "compare", "Say which of two is better, and how sure that is."),
    "incidents": _Lazy("shoal.cli.incidents", "incidents", "List the failures of a run's environments."),
    "replay": _Lazy("shoal.cli.incidents", "replay", "Run the episode of a failure again."),
    "launch": _Lazy("shoal.cli.launch", "launch", "Run a command on a private Ray cluster, on the hosts of this job."),
    "submit": _Lazy("shoal.cli.submit", "submit", "Submit a command to the batch system of a cluster."),
    "jobs": _Lazy("shoal.cli.submit", "jobs", "List the jobs that were submitted from here."),
    "logs": _Lazy("shoal.cli.submit", "logs", "Print the output of a job."),
    "cancel": _Lazy("shoal.cli.submit", "cancel", "Cancel a job."),
    "doctor": _Lazy(
        "shoal.cli.doctor", "doctor", "Check for what would break a cluster, here or on every host of a job."
    ),
    "cluster": _Lazy("shoal.cli.cluster", "cluster", "Write the file that starts a cluster on AWS."),
    "import": _Lazy("shoal.cli.import_policy", "import_command", "Make a run of what another library has trained."),
    "migrate": _Lazy("shoal.cli.migrate", "migrate", "Rewrite an experiment file of RLlib or Stable-Baselines3."),
    "config": _Lazy("shoal.cli.config", "config", "Show every configuration key, or check a file."),
    "envs": _Lazy("shoal.cli.envs", "envs", "List the environments that can be trained here."),
    "algorithms": _Lazy("shoal.cli.algorithms", "algorithms", "List the algorithms, and where each comes from."),
    "plugins": _Lazy("shoal.cli.plugins", "plugins", "List what installed packages add to shoal."),
    "presets": _Lazy("shoal.cli.presets", "presets", "List tuned settings for known environments."),
    "completion": _Lazy("shoal.cli.main", "completion", "Print the completion script of a shell."),
    "help": _Lazy("shoal.cli.main", "help_command", "Show the help of a command."),
    "version": _Lazy("shoal.cli.main", "version", "Show shoal's version."),
}


FOREIGN_COMMANDS = {
    "new": "init",
    "create": "init",
    "run": "train",
    "learn": "train",
    "fit": "train",
    "start": "train",
    "test": "evaluate",
    "eval": "evaluate",
    "enjoy": "play",
    "render": "play",
    "rollout": "evaluate",
    "sweep": "tune",
    "optimize": "tune",
    "deploy": "serve",
    "convert": "export",
    "continue": "resume",
    "sbatch": "submit",
    "qsub": "submit",
    "list": "runs",
    "ls": "runs",
}
"""What other tools call these commands."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""How the system says that an output takes no more."""

AWAY = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EREMOTEIO)
"""How it says that a file system is not there, or not any more."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands, in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete a command with its line in the help, without importing it."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        begun = [(name, lazy.help) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=line) for name, line in begun]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command for one that does not exist."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = [FOREIGN_COMMANDS[args[0]]] if args[0] in FOREIGN_COMMANDS else []
            close = close or get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def main(self, *args: Any, **keywords: Any) -> Any:
        """Run the command line; what a full disk, or one that is away, does to it is one sentence on stderr."""
        try:
            return super().main(*args, **keywords)
        except OSError as error:
            if error.errno in AWAY and error.filename is not None and os.environ.get("SHOAL_DEBUG") != "1":
                with suppress(OSError):
                    words = f"{error.filename} cannot be reached: {error.strerror}; is its file system there?"
                    click.echo(f"Error: {words}", err=True)
                sys.exit(1)
            if error.errno not in FULL or os.environ.get("SHOAL_DEBUG") == "1":
                raise
            with suppress(OSError):
                click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
            sys.exit(1)
        finally:
            _forget_lost_streams()

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        """Read the command line; click itself would end with 1 after Ctrl-C, and say that it has aborted."""
        try:
            return super().make_context(*args, **keywords)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what it refuses becomes sentences on stderr and an exit code."""
        try:
            with started_here():
                return super().invoke(ctx)
        except ShoalError as error:
            if os.environ.get("SHOAL_DEBUG") == "1":
                raise
            from shoal.machine.redaction import redacted

            problems = error.problems if isinstance(error, ConfigError) else [str(error)]
            with suppress(OSError):  # who cannot be told has the exit code
                for problem in problems:
                    click.echo(f"Error: {redacted(problem)}", err=True)
            ctx.exit(error.exit_code)
        except click.ClickException as error:
            with suppress(OSError):
                error.show()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(130)


def _forget_lost_streams() -> None:
    """Lead standard streams that cannot be written nowhere.

    Otherwise Python would try again when it ends, and put an exit code of its own in the place of ours.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="shoal")
def main() -> None:
    """Train reinforcement-learning agents on any simulation.

    Start with `shoal train CartPole-v1`, or with your own environment: `shoal train my_env.py:MyEnv`.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: put eval "$(shoal completion bash)" into ~/.bashrc
    zsh:  put eval "$(shoal completion zsh)" into ~/.zshrc, after compinit
    fish: put shoal completion fish | source into ~/.config/fish/config.fish
    """
    from shoal.cli.completion import shell_script

    click.echo(shell_script(shell, main))


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.option("--man", "as_man", is_flag=True, help="Print the manual page of all commands; `man -l -` shows it.")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...], as_man: bool) -> None:
    """Show the help of COMMAND, e.g. `shoal help train`; without one, that of shoal itself."""
    if as_man:
        if words:
            ctx.fail(f"--man is one page of all commands: leave {' '.join(words)} out.")
        from shoal.cli.manual_page import manual_page

        click.echo(manual_page(main), nl=False)
        return
    command: click.Command = main
    here = click.Context(main, info_name="shoal", **main.context_settings)
    for word in words:
        if not isinstance(command, click.Group):
            ctx.fail(f"{here.command_path} has no commands of its own (got {word!r}).")
        name, found, _ = command.resolve_command(here, [word])
        assert found is not None
        command, here = found, click.Context(found, parent=here, info_name=name)
    click.echo(command.get_help(here))


@click.command()
def version() -> None:
    """Show shoal's version."""
    click.echo(f"shoal, version {__version__}")


if __name__ == "__main__":
    sys.exit(main(prog_name="shoal"))
