"""Connections that no client can hold for nothing: each owes its bytes within a time, and strangers make room.

uvicorn parses HTTP and calls the application. What is added here: a deadline for whoever has begun a request, or has
said nothing yet, or does not read its answer; a bound on headers; a bound on connections, beyond which the oldest that
has never shown the token is closed; and sentences in JSON where uvicorn would answer with plain text.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal.serving.app import PROVEN

SLOWEST_S = 20.0
"""That a client may take to send a request, or to read an answer."""
MOST_HEADER_BYTES = 32 << 10
"""Of the path and the headers of a request, however they arrive."""


class OpenConnections:
    """Who is connected, the oldest first, and never more than `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Take one more; where there is no room for it, the oldest that has never shown the token makes room."""
        if len(self._open) >= self.most:
            strangers = (each for each in self._open if not each.is_proven and not each.is_answering)
            next(strangers, connection).turn_away(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")
        self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget one."""
        self._open.pop(connection, None)


class Connection(HttpToolsProtocol):
    """One connection."""

    registry: OpenConnections  # of the server, see `connection_type`

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.is_proven = False
        self._parsed_bytes = 0  # of the path and whole headers of the request
        self._pending_bytes = 0  # received since there was nothing but path and headers to come
        self._owes_headers = True
        self._is_refused = False
        self._reading: asyncio.TimerHandle | None = None  # runs while the client owes bytes
        self._writing: asyncio.TimerHandle | None = None  # runs while the client does not read

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin: a request is owed."""
        super().connection_made(transport)
        self._reading = self.loop.call_later(SLOWEST_S, self._too_slow)
        self.registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.registry.remove(self)
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse headers without end."""
        if self.transport.is_closing() or self._is_refused:
            return
        if self._owes_headers:
            self._pending_bytes += len(data)
        super().data_received(data)
        if self._owes_headers and self._pending_bytes > MOST_HEADER_BYTES:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        """Expect the rest of the request."""
        super().on_message_begin()
        self._parsed_bytes = 0
        if self._reading is None:
            self._reading = self.loop.call_later(SLOWEST_S, self._too_slow)

    def on_url(self, url: bytes) -> None:
        """Count the path."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, as it is written."""
        self._count(len(name) + len(b": ") + len(value) + len(b"\r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request over."""
        self._owes_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect nothing more of it."""
        self._owes_headers, self._pending_bytes = True, 0
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Remember who has shown the token."""
        self.is_proven = self.is_proven or PROVEN in self.cycle.scope
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Expect the client to read."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(SLOWEST_S, self.transport.abort)

    def resume_writing(self) -> None:
        """See that it has."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        """Say what is no HTTP, or is too long."""
        del msg
        if self._parsed_bytes > MOST_HEADER_BYTES:
            self._refuse_headers()
            return
        self.turn_away(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")

    def turn_away(self, status: HTTPStatus, sentence: str, is_sending: bool = False) -> None:
        """Say why, unless an answer has begun already, and close; who is still sending may finish, and so reads it."""
        if self.transport.is_closing():
            return
        if not self._is_refused and not (self.is_answering and self.cycle.response_started):
            body = json.dumps({"error": sentence}).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if is_sending and not self.is_answering:
            self.transport.write_eof()
            if self._reading is None:
                self._reading = self.loop.call_later(SLOWEST_S, self._too_slow)
        else:
            self.transport.close()
        self._is_refused = True

    def _count(self, length: int) -> None:
        self._parsed_bytes += length
        if self._parsed_bytes > MOST_HEADER_BYTES:
            raise ValueError("too long")  # which ends the parsing, and calls `send_400_response`

    def _refuse_headers(self) -> None:
        words = f"the path and the headers have more than {MOST_HEADER_BYTES} bytes"
        self.turn_away(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words, is_sending=True)

    def _too_slow(self) -> None:
        self._reading = None
        if self.cycle is not None and self.cycle.response_complete:
            self.transport.close()  # it was answered before it had sent everything
        else:
            self.turn_away(HTTPStatus.REQUEST_TIMEOUT, f"the request was not complete after {SLOWEST_S:g} seconds")

    def _stop_timers(self) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._reading = self._writing = None


def connection_type(most: int) -> type[Connection]:
    """The protocol of one server, which has at most so many connections."""
    return type("ServerConnection", (Connection,), {"registry": OpenConnections(most)})
