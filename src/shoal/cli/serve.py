"""`shoal serve`: trained policies behind a door, observations in and actions out."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs
from shoal.cli.listening import is_loopback, refused_address
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from shoal.serving.served_policy import PolicySource
    from shoal.serving.service import Service, ServingLimits

HOST, PORT = "127.0.0.1", 8421
ONLY_NAME = "policy"
"""What the policy is called if the user gives no name."""
LONGEST_EXAMPLE = 200

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@click.command(cls=Command)
@click.argument("what", nargs=-1, required=True, metavar="[NAME=]RUN|CHECKPOINT...", shell_complete=runs)
@click.option("--port", type=click.IntRange(0, 65535), help=f"The port; 0: a free one; default: {PORT}.")
@click.option("--host", help=f"The address to listen at; default: {HOST}, which only this machine can reach.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Listen at a Unix socket of mode 0600, without a token; and at a port too if --port or --host is given.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Keep the token in this file of mode 0600, made if missing; default: a new one, printed once.",
)
@click.option("--best", is_flag=True, help="Serve the best checkpoint of a run, not the newest.")
@click.option("--follow", is_flag=True, help="Let a newer checkpoint act as soon as the run has one.")
@click.option(
    "--policy-id", "policy_ids", multiple=True, metavar="[NAME=]ID", help="Which policy, if a run has several."
)
@click.option(
    "--batch-wait-ms",
    type=click.FloatRange(0, 1000),
    default=0.0,
    show_default=True,
    help="How long a request may wait for others to share one pass of the network.",
)
@click.option("--max-batch", type=click.IntRange(1, 65536), default=512, show_default=True, help="Most observations.")
@click.option("--max-body-mb", type=click.FloatRange(0.01, 1024), default=8.0, show_default=True, help="Longest body.")
@click.option(
    "--session-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Seconds after which an unused session of a policy with memory is forgotten.",
)
@click.option("--max-sessions", type=click.IntRange(1), default=10_000, show_default=True, help="Most open sessions.")
@click.option("--ray-serve", is_flag=True, help="Deploy the same application on Ray Serve (extra ray-serve).")
@click.option("--replicas", type=click.IntRange(1), help="With --ray-serve: the number of processes; default: 1.")
@where_option()
@trust_option
def serve(
    what: tuple[str, ...],
    port: int | None,
    host: str | None,
    socket_path: Path | None,
    token_file: Path | None,
    best: bool,
    follow: bool,
    policy_ids: tuple[str, ...],
    batch_wait_ms: float,
    max_batch: int,
    max_body_mb: float,
    session_timeout: float,
    max_sessions: int,
    ray_serve: bool,
    replicas: int | None,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Serve trained policies over HTTP: observations in, actions out, for many clients at once.

    Several are served together as `shoal serve a=RUN1 b=RUN2`. Only this machine can reach it, and only with the token
    that it prints. Ctrl-C or SIGTERM ends it when every request that it has accepted is answered.
    """
    _check_extra(ray_serve)
    if replicas is not None and not ray_serve:
        raise ConfigError("--replicas: is of --ray-serve; leave it out, or add --ray-serve")
    if ray_serve and socket_path is not None:
        raise ConfigError("--socket: Ray Serve listens at a port alone; leave --socket or --ray-serve out")
    from shoal.machine.threads import are_limited, limit_threads

    if not are_limited(os.environ):
        limit_threads(1)  # networks of this size only lose by more
    from shoal.serving.service import ServingLimits

    limits = ServingLimits(batch_wait_ms / 1e3, max_batch, int(max_body_mb * (1 << 20)), session_timeout, max_sessions)
    sources = _sources(what, policy_ids, best, follow, results_dir, trust)
    if ray_serve:
        _serve_by_ray(sources, limits, follow, host or HOST, PORT if port is None else port, token_file, replicas or 1)
    else:
        _serve_here(sources, limits, follow, host, port, socket_path, token_file)


class ServerLog(logging.Handler):
    """Shows what the server tells, newer checkpoints and failures, on standard error."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        click.echo(self.format(record), err=True)


def _check_extra(ray_serve: bool) -> None:
    """Refuse before anything is read, where packages are missing."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "httptools")):
        raise ConfigError("serve needs starlette and uvicorn; type: pip install 'shoal-rl[serve]'")
    if ray_serve and not _has_ray_serve():
        raise ConfigError("--ray-serve needs Ray Serve; type: pip install 'shoal-rl[ray-serve]'")


def _has_ray_serve() -> bool:
    """Whether what `ray[serve]` brings is there; importing it would take seconds."""
    return all(find_spec(name) is not None for name in ("fastapi", "grpc", "aiohttp"))


def _sources(
    what: Sequence[str],
    policy_ids: Sequence[str],
    best: bool,
    follow: bool,
    results_dir: str | None,
    trust: bool,
) -> list[PolicySource]:
    """The policies that a person means, by their names."""
    from shoal.cli.run_names import found_run
    from shoal.serving.served_policy import PolicySource

    named: dict[str, str] = {}
    for text in what:
        name, path = _named(text, len(what) == 1)
        if name in named:
            raise ConfigError(f"{name}: is given twice; each policy needs a name of its own")
        named[name] = path
    chosen = _policy_ids(policy_ids, named)
    sources = []
    for name, path in named.items():
        place = found_run(path, results_dir)
        source = PolicySource(name, place, best, trust, chosen.get(name))
        if follow and not source.is_run:
            raise ConfigError(f"--follow: {path} is one checkpoint, which stays as it is; give the folder of its run")
        sources.append(source)
    return sources


def _named(text: str, is_alone: bool) -> tuple[str, str]:
    """Name and place of `NAME=RUN`; one alone needs no name."""
    name, equals, path = text.partition("=")
    if equals and _NAME.fullmatch(name) and path:
        return name, path
    if is_alone:
        return ONLY_NAME, text
    raise ConfigError(
        f"{text}: each of several policies needs a name, of letters, digits and _.-; type: shoal serve a=RUN1 b=RUN2"
    )


def _policy_ids(given: Sequence[str], named: dict[str, str]) -> dict[str, str]:
    """Which policy of its run each name stands for."""
    found = {}
    for text in given:
        name, equals, policy_id = text.partition("=")
        if not equals:
            found.update(dict.fromkeys(named, text))
        elif name in named:
            found[name] = policy_id
        else:
            raise ConfigError(f"--policy-id: {name} is none of {', '.join(named)}")
    return found


def _serve_here(
    sources: list[PolicySource],
    limits: ServingLimits,
    follow: bool,
    host: str | None,
    port: int | None,
    socket_path: Path | None,
    token_file: Path | None,
) -> None:
    from shoal.serving.app import application
    from shoal.serving.server import serve_until_signalled, unix_socket
    from shoal.serving.service import Service

    service = Service(sources, limits, follow)
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        url = token = ""
        if socket_path is not None:
            place = Path(os.path.abspath(socket_path.expanduser()))
            sockets.append(stack.enter_context(unix_socket(place)))
        if socket_path is None or port is not None or host is not None:
            listening = _listening(host or HOST, PORT if port is None else port)
            sockets.append(stack.enter_context(listening))
            url = _url(listening.getsockname())
            token = _token(token_file)
        _tell(service, host or HOST, url, token, token_file, socket_path)
        # Where there is no port, there is nobody to show a token.
        app = application(service, token or os.urandom(32).hex(), trusts_sockets=True)
        logger, shown = logging.getLogger("shoal.serve"), ServerLog()
        logger.setLevel(logging.INFO)
        logger.addHandler(shown)
        stack.callback(logger.removeHandler, shown)
        code = serve_until_signalled(app, sockets)
    answered = sum(service.metrics.requests.values.values())
    click.echo(f"\nEnded after {answered:.0f} requests, all answered.")
    click.get_current_context().exit(code)


def _listening(host: str, port: int) -> socket.socket:
    from shoal.serving.server import tcp_socket

    try:
        return tcp_socket(host, port)
    except OSError as error:
        raise refused_address(error, host, port, "use another, or --port 0 for a free one") from None


def _url(address: tuple[str, int]) -> str:
    import socket

    host, port = address[0], address[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


def _token(token_file: Path | None) -> str:
    from shoal.serving.tokens import new_token, token_in

    if token_file is None:
        return new_token()
    return token_in(token_file.expanduser())[0]


def _tell(service: Service, host: str, url: str, token: str, token_file: Path | None, socket_path: Path | None) -> None:
    """What is served, where, and how to ask for it."""
    for door in service.doors.values():
        loaded = door.served.loaded
        memory = ", with memory" if door.served.has_memory else ""
        click.echo(
            f"{door.name}: {loaded.algorithm} {loaded.env}, iteration {loaded.iteration}{memory}  "
            f"{short_path(loaded.checkpoint)}"
        )
    if socket_path is not None:
        click.echo(f"Serving at the socket {short_path(socket_path)}, which only you can open")
    if url:
        click.echo(f"Serving at {url}")
        if token_file is None:
            click.echo(f"Token, printed once: {token}")
        else:
            click.echo(f"Token in {short_path(token_file)}")
        if not is_loopback(host):
            click.echo("Whoever can reach this host may try the token, and the connection is not encrypted.")
    click.echo(f"Try: {_curl(service, url, token, token_file, socket_path)}")
    click.echo("Ctrl-C ends it.")


def _curl(service: Service, url: str, token: str, token_file: Path | None, socket_path: Path | None) -> str:
    """A line that asks the first policy for an action, or for what it is where observations are long."""
    door = next(iter(service.doors.values()))
    words = ["curl"]
    if socket_path is not None:
        words += ["--unix-socket", shlex.quote(str(socket_path))]
    else:
        shown = token if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
        words += ["-H", f'"Authorization: Bearer {shown}"']
    path = f"/v1/policies/{door.name}"
    example = json.dumps(door.example())
    if len(example) <= LONGEST_EXAMPLE:
        words += ["--json", shlex.quote(example)]
        path += "/actions"
    where = "http://localhost" if socket_path is not None else url
    return " ".join([*words, where + path])


def _serve_by_ray(
    sources: list[PolicySource],
    limits: ServingLimits,
    follow: bool,
    host: str,
    port: int,
    token_file: Path | None,
    replicas: int,
) -> None:
    from shoal.serving.ray_serve import serve_on_ray
    from shoal.serving.service import Service

    _listening(host, port).close()  # in use: better now than in a log of Ray's
    service = Service(sources, limits)
    if replicas > 1 and any(door.served.has_memory for door in service.doors.values()):
        raise ConfigError("--replicas: a policy with memory has its sessions in one process; leave --replicas out")
    token = _token(token_file)

    def tell(url: str) -> None:
        _tell(service, host, url, token, token_file, None)

    code = serve_on_ray(sources, limits, follow, token, host, port, replicas, tell)
    click.get_current_context().exit(code)
