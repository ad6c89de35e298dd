"""The application: paths, the token, and one JSON sentence for whatever is refused."""

from __future__ import annotations

import hmac
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import ShoalError
from shoal.serving.metrics import CONTENT_TYPE
from shoal.serving.openapi import openapi_document
from shoal.serving.service import Door, Service

logger = logging.getLogger("shoal.serve")

HEALTH = "/healthz"
PROVEN = "shoal.proven"
"""The key of a request's scope that says that it has shown the token."""
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
USUAL = {404: "there is no such path; GET /openapi.json lists them", 405: "this path does not take that method"}


def application(service: Service, token: str, trusts_sockets: bool = False) -> ASGIApp:
    """An ASGI application; with `trusts_sockets`, the mode of a Unix socket's file stands for the token."""
    paths = _Paths(service)
    one = "/v1/policies/{name}"
    routes = [
        Route(f"{one}/actions", paths.actions, methods=["POST"]),  # first, for it is asked for most
        Route(HEALTH, paths.health, methods=["GET"]),
        Route("/metrics", paths.metrics, methods=["GET"]),
        Route("/openapi.json", paths.openapi, methods=["GET"]),
        Route("/v1/policies", paths.policies, methods=["GET"]),
        Route(one, paths.policy, methods=["GET"]),
        Route(f"{one}/reload", paths.reload, methods=["POST"]),
        Route(f"{one}/sessions", paths.begin_session, methods=["POST"]),
        Route(f"{one}/sessions/{{session}}", paths.end_session, methods=["DELETE"]),
    ]

    @asynccontextmanager
    async def living(_app: Any) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    router = Router(routes, redirect_slashes=False, lifespan=living)
    return TokenGuard(router, service, token, trusts_sockets)


class TokenGuard:
    """Stands before the paths: asks for the token, counts, and makes a sentence of every exception."""

    def __init__(self, router: ASGIApp, service: Service, token: str, trusts_sockets: bool) -> None:
        self.router, self.service = router, service
        self._token = token.encode()
        self._trusts_sockets = trusts_sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        metrics = self.service.metrics
        started, status = perf_counter(), 0

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.in_flight.add(1)
        try:
            await self._answer(scope, receive, counting)
        except HTTPException as error:
            await _refusal(error)(scope, receive, counting)
        except ClientDisconnect:
            status = 400  # it ended before it was complete, and nobody waits for an answer
        except Exception:
            logger.exception("a request of %s failed", scope["path"])
            if not status:
                await error_response(500, "the server failed; its log says why")(scope, receive, counting)
        finally:
            metrics.in_flight.add(-1)
            metrics.requests.add(status=str(status))
            metrics.seconds.add(perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may_enter(scope):
            sentence = "the token is missing or wrong; send it as Authorization: Bearer TOKEN"
            raise HTTPException(401, sentence, {"WWW-Authenticate": "Bearer"})
        scope["app"] = self  # so that the router raises, and does not answer in its own words
        await self.router(scope, receive, send)

    def _may_enter(self, scope: Scope) -> bool:
        server = scope.get("server")
        if self._trusts_sockets and server is not None and server[1] is None:
            scope[PROVEN] = True
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, token = given.partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(token, self._token):
            scope[PROVEN] = True
            return True
        return bool(scope["path"] == HEALTH)


class _Paths:
    """What each path does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._document = json.dumps(openapi_document(service)).encode()

    async def health(self, _request: Request) -> Response:
        return _json_response({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        self._refuse_one_of_several("which counts what it answered itself; read Ray Serve's own metrics")
        headers = {**HEADERS, "Content-Type": CONTENT_TYPE}
        return Response(self.service.metrics_text().encode(), headers=headers)

    async def openapi(self, _request: Request) -> Response:
        return Response(self._document, headers=HEADERS, media_type="application/json")

    async def policies(self, _request: Request) -> Response:
        return _json_response({"policies": [door.facts() for door in self.service.doors.values()]})

    async def policy(self, request: Request) -> Response:
        return _json_response(self._door(request).facts())

    async def actions(self, request: Request) -> Response:
        door = self._door(request)
        body = _parsed(await self._body(request))
        return _json_response(await door.actions(body))

    async def reload(self, request: Request) -> Response:
        door = self._door(request)
        self._refuse_one_of_several("and the others would keep their checkpoint; start the server with --follow")
        try:
            is_new = await door.reload()
        except ShoalError as error:
            raise HTTPException(409, f"the checkpoint before it goes on to act: {error}") from None
        return _json_response({"training_iteration": door.served.loaded.iteration, "is_new": is_new})

    async def begin_session(self, request: Request) -> Response:
        door = self._with_memory(request)
        session = door.new_session()
        return _json_response({"session": session.id, "timeout_s": door.sessions.timeout_s}, 201)

    async def end_session(self, request: Request) -> Response:
        door = self._with_memory(request)
        if not door.sessions.end(request.path_params["session"]):
            raise HTTPException(404, "there is no such session, or no more")
        return Response(status_code=204, headers=HEADERS)

    def _refuse_one_of_several(self, why: str) -> None:
        """Refuse what only makes sense if every request reaches the same process."""
        if self.service.replicas > 1:
            raise HTTPException(409, f"one of {self.service.replicas} processes has this request, {why}")

    def _door(self, request: Request) -> Door:
        door = self.service.doors.get(request.path_params["name"])
        if door is None:
            raise HTTPException(404, f"there is no such policy; there are {', '.join(self.service.doors)}")
        return door

    def _with_memory(self, request: Request) -> Door:
        door = self._door(request)
        if not door.served.has_memory:
            raise HTTPException(404, f"{door.name} has no memory, and so no sessions")
        return door

    async def _body(self, request: Request) -> bytes:
        """The body, if it says that it is JSON and is not too long."""
        headers = dict(request.scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise HTTPException(415, "send JSON with the header Content-Type: application/json (curl --json does)")
        most = self.service.limits.max_body_bytes
        length = headers.get(b"content-length", b"0")
        pieces: list[bytes] = []
        size = int(length) if length.isdigit() and len(length) < 20 else most + 1
        if size <= most:
            size = 0
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    break
        if size > most:
            raise HTTPException(413, f"the body has more than {most} bytes; send fewer observations at once")
        return b"".join(pieces)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_number, object_pairs_hook=_object)
    except RecursionError:
        raise HTTPException(400, "the body is not JSON that can be read: it is nested too deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {str(error)[:200]}") from None
    except ValueError:  # Python converts no integer of so many digits, in quadratic time
        raise HTTPException(400, "the body cannot be read: a whole number in it has too many digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise HTTPException(400, f"the body is not clear: an object in it has the key {name[:60]!r} more than once")
    return found


def _no_number(text: str) -> float:
    raise HTTPException(400, f"the body is not JSON: {text} is no number of JSON")


def _json_response(tree: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(tree, allow_nan=False).encode()
    return Response(content, status, {**HEADERS, **(headers or {})}, "application/json")


def error_response(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """What is refused, in one sentence."""
    return _json_response({"error": sentence}, status, headers)


def _refusal(error: HTTPException) -> Response:
    is_usual = error.detail in ("Not Found", "Method Not Allowed")
    sentence = USUAL[error.status_code] if is_usual else error.detail
    allowed = (error.headers or {}).get("Allow")
    if error.status_code == 405 and allowed:
        sentence += f"; it takes {allowed.replace(', ', ' or ')}"
    return error_response(error.status_code, sentence, dict(error.headers or {}))
