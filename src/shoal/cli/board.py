"""`shoal board`: a page over all runs of a folder, served to this machine alone."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from shoal.cli.listening import is_loopback, refused_address
from shoal.cli.options import Command
from shoal.cli.paths import short_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.reports.board_server import BoardServer

PORT = 8420
SUBMIT_HOSTS = ("SLURM_SUBMIT_HOST", "PBS_O_HOST", "LSB_SUB_HOST", "SGE_O_HOST")
"""Where schedulers say from which host a job was submitted: there one logs in."""


@click.command(cls=Command)
@click.argument("results_dir", required=False, metavar="[RESULTS_DIR]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"The port; default: {PORT}, or a free one if that is taken."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
def board(results_dir: str | None, port: int | None, host: str) -> None:
    """Serve a page over all runs of RESULTS_DIR (~/shoal_results) that is live: list, compare, curves, logs, incidents.

    The name of an experiment shows its runs alone. Open the address that it prints; Ctrl-C ends it. It reads the folder
    alone and writes nothing. Only this machine can reach it, and only with the token in the address; from elsewhere,
    use the ssh line that it prints.
    """
    from shoal.data.number_text import counted
    from shoal.runs.folders import DEFAULT_RESULTS, find_results, results_root

    folder = results_root(DEFAULT_RESULTS) if results_dir is None else find_results(results_dir)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; start a run: shoal train CartPole-v1.")
    server = _listening(folder.resolve(), host, port)
    for line in opening_lines(server.url, server.server_port, host, os.environ):
        click.echo(line)
    found = server.board.look()
    running = sum(run.state == "running" for run in found.runs.values())
    counts = [counted(len(found.runs), "run"), f"{running} running", counted(len(found.sweeps), "sweep")]
    if found.damaged:
        counts.append(f"{counted(len(found.damaged), 'damaged run')} that cannot be listed")
    click.echo(f"{', '.join(counts)} in {short_path(folder)}. Ctrl-C ends the board.")
    server.serve_until_interrupted()
    click.echo("\nThe board has ended; the runs go on.")


def _listening(folder: Path, host: str, port: int | None) -> BoardServer:
    """A server that listens; if no port was asked for, at any that is free."""
    from shoal.reports.board_server import BoardServer

    try:
        try:
            return BoardServer(folder, host, PORT if port is None else port)
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise
            return BoardServer(folder, host, 0)
    except OSError as error:
        raise refused_address(error, host, port, "leave --port out, and a free one is taken") from None


def opening_lines(url: str, port: int, host: str, environ: Mapping[str, str]) -> list[str]:
    """What to open, and from another machine what to type there before."""
    lines = [f"Open {url}"]
    if not is_loopback(host):
        lines.append(
            "Whoever can reach this host and knows the address sees the runs, and the connection is not encrypted."
        )
    elif (way := ssh_words(environ)) is not None:
        lines.append(f"On your own machine, first: ssh -N -L {port}:127.0.0.1:{port} {way}")
    return lines


def ssh_words(environ: Mapping[str, str]) -> str | None:
    """How this host is reached from where the user sits; None if that is here."""
    from shoal.cluster.allocation import job_of

    user = environ.get("USER") or environ.get("LOGNAME") or ""
    at = f"{user}@" if user else ""
    if job_of(environ) is not None:
        login = next((environ[name] for name in SUBMIT_HOSTS if environ.get(name)), "LOGIN_NODE")
        return f"-J {at}{login} {at}{socket.gethostname()}"
    connection = environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        return f"{at}{connection[2]}"
    return None
