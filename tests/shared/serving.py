"""A real server of policies in a thread of this process, and a client of plain HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.serving.app import application
from shoal.serving.served_policy import PolicySource
from shoal.serving.server import server_of, tcp_socket
from shoal.serving.service import Service, ServingLimits

TOKEN = "a-token-of-the-tests-alone"


@dataclass
class Client:
    """Asks one server, by a connection that stays open."""

    port: int
    token: str | None = TOKEN

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer; a body that is no bytes is sent as JSON."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        heads = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if sent is not None:
            heads["Content-Type"] = "application/json"
        self.connection.request(method, path, sent, {**heads, **(headers or {})})
        answer = self.connection.getresponse()
        content = answer.read()
        is_json = "json" in (answer.headers["Content-Type"] or "")
        return answer.status, json.loads(content) if is_json else {"text": content.decode()}

    def act(self, name: str = "policy", **body: Any) -> dict[str, Any]:
        """The answer to a request that must be right."""
        status, answer = self.ask("POST", f"/v1/policies/{name}/actions", body)
        assert status == 200, answer
        return answer


@contextmanager
def serving(
    sources: Sequence[PolicySource], limits: ServingLimits | None = None, follow: bool = False, replicas: int = 1
) -> Iterator[Any]:
    """The service of a server that answers at `service.port`, until the end of the block."""
    service: Any = Service(sources, limits or ServingLimits(), follow, replicas)
    listening = tcp_socket("127.0.0.1", 0)
    service.port = listening.getsockname()[1]
    service.server = server_of(application(service, TOKEN))
    thread = threading.Thread(target=service.server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.server.should_exit = True
        thread.join(60)
        with suppress(OSError):
            listening.close()
        assert not thread.is_alive()


def source(path: Path | str, name: str = "policy", **more: Any) -> PolicySource:
    return PolicySource(name, Path(path), **more)


def raw(port: int, sent: bytes, reads: bool = True) -> bytes:
    """What a server answers to bytes that need not be HTTP."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        if not reads:
            return b""
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def bad_requests(port: int, count: int, seed: int, token: str = TOKEN) -> None:
    """All kinds of nonsense, one after another; answers are not waited for by all of them."""
    rng = np.random.default_rng(seed)
    head = (
        "POST /v1/policies/policy/actions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\n"
    )
    kinds = [
        (b"nonsense\r\n\r\n", True),
        (rng.bytes(300), True),
        (head.encode() + b"Content-Length: 50\r\n\r\n{", False),  # and gone
        (head.encode()[:40], False),
        (head.encode() + b"Content-Length: 99999999\r\n\r\n" + b"[" * 1000, True),
        (head.encode() + b"Content-Length: 2000\r\n\r\n" + b"[" * 2000, True),
        (head.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", True),
        (head.encode() + b'Content-Length: 22\r\n\r\n{"observation": [NaN]}', True),
        (head.replace(token, "wrong").encode() + b"Content-Length: 2\r\n\r\n{}", True),
    ]
    for number in range(count):
        sent, reads = kinds[number % len(kinds)]
        try:
            raw(port, sent, reads)
        except ConnectionError:  # it was told, and closed before everything was sent
            continue
