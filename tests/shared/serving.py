"""A real server of policies in a thread of this process, and a client of plain HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    sources: Sequence[PolicySource], limits: ServingLimits | None = None, follow: bool = False
) -> Iterator[Any]:
    """The service of a server that answers at `service.port`, until the end of the block."""
    service: Any = Service(sources, limits or ServingLimits(), follow)
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
