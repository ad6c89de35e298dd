"""Serves a board over HTTP, to who knows its token.

The token is the first part of every address. Whoever else is on this machine, or has a page open in the same browser,
does not know it; and a page whose name was led to this machine is told apart by the name that it asks for.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shoal.errors import ShoalError
from shoal.machine.host_names import is_own_name
from shoal.reports.board import Board, News, Page, event_bytes
from shoal.reports.board_pages import message_page

logger = logging.getLogger("shoal.board")

MOST_STREAMS = 64  # pages that are open at once
HEARTBEAT_S = 15.0
SLOWEST_S = 60.0  # that somebody may take to send a request or to read an answer
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer has: nobody keeps it, frames it, guesses its kind, or is told the address with its token."""


class BoardServer(ThreadingHTTPServer):
    """A server of one board; an OSError if it cannot listen there."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.token = secrets.token_urlsafe(24)
        self.board = Board(folder, f"/{self.token}/")
        self.is_ending = threading.Event()
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without asking a name server for this host's name."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the list, with the token."""
        host = str(self.server_address[0])
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.server_port}{self.board.base}"

    def serve_until_interrupted(self) -> None:
        """Answer until Ctrl-C; pages that are open are told that it ends."""
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            self.is_ending.set()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: who has gone is gone, and everything else was answered."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: BoardServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "shoal", ""
    timeout = SLOWEST_S

    def do_GET(self) -> None:
        """Answer a request, or refuse it."""
        if not is_known_host(self.headers.get("Host", "")):
            return self._refuse(
                HTTPStatus.FORBIDDEN, "This board is not known by that name; use 127.0.0.1 or localhost."
            )
        asked = urlsplit(self.path)
        token, _, path = asked.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            words = "The address lacks the board's token; open the one that `shoal board` has printed."
            return self._refuse(HTTPStatus.FORBIDDEN, words)
        try:
            answer = self.server.board.answer(path, parse_qs(asked.query, max_num_fields=1000))
        except (ShoalError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return self._refuse(HTTPStatus.NOT_FOUND, f"This cannot be read now: {reason}", has_token=True)
        except Exception as error:
            logger.warning("%s cannot be shown: %s: %s", path, type(error).__name__, error)
            words = f"This cannot be shown: {type(error).__name__}: {error}"
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, words, has_token=True)
        if answer is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "There is no such run, or it is gone.", has_token=True)
        if isinstance(answer, News):
            return self._stream(answer)
        return self._send(answer)

    do_HEAD = do_GET

    def _stream(self, stream: News) -> None:
        if not self.server.streams.acquire(blocking=False):
            words = f"There are {MOST_STREAMS} pages open already; close some."
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, words, has_token=True)
        try:
            self.close_connection = True
            self._head(HTTPStatus.OK, "text/event-stream")
            if self.command != "HEAD":
                for piece in self._pieces(stream):
                    self.wfile.write(piece)
        except (OSError, ShoalError):  # the page is closed, or the disk is away: it asks again
            pass
        finally:
            self.server.streams.release()
        return None

    def _pieces(self, stream: News) -> Iterator[bytes]:
        """The messages of a stream; where there is no news for long, a word that is none."""
        last = monotonic()
        for message in stream.messages(self.server.is_ending.wait):
            if message is not None or monotonic() - last >= HEARTBEAT_S:
                last = monotonic()
                yield event_bytes(message)

    def _refuse(self, code: HTTPStatus, sentence: str, has_token: bool = False) -> None:
        text = message_page(self.server.board.base if has_token else None, sentence)
        self._send(Page(text.encode(errors="replace"), code=code))

    def _send(self, page: Page) -> None:
        self._head(page.code, page.kind, len(page.content))
        if self.command != "HEAD":
            self.wfile.write(page.content)

    def _head(self, code: int, kind: str, length: int | None = None) -> None:
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer what is no request of ours with a sentence too."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet: a log of addresses would hold the token."""


def is_known_host(asked: str) -> bool:
    """Whether a browser asks for this machine by a number, by its own name or as localhost.

    A stranger's page may have its own name led to this machine, and then it asks for that name.
    """
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or is_own_name(name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
