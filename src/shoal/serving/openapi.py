"""The OpenAPI document (3.1): every path of every policy, with the exact schema of its observations and actions."""

from __future__ import annotations

from typing import Any

from shoal.serving.service import LARGEST_REWARD, Door, Service
from shoal.serving.space_json import Schema, action_schema
from shoal.version import __version__

ABOUT = "Observations in, actions out. Whatever is refused is answered by one sentence, as {error: sentence}."


def openapi_document(service: Service) -> dict[str, Any]:
    """The document of all that is served."""
    facts = {"$ref": "#/components/schemas/Policy"}
    several = _object({"policies": {"type": "array", "items": facts}})
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths: dict[str, Any] = {
        "/healthz": {
            "get": {
                "operationId": "health",
                "summary": "Whether the server answers",
                "security": [],
                "responses": _responses("200", "It does.", _object({"status": {"const": "ok"}})),
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Counts and times as Prometheus reads them",
                "responses": {**_errors(), "200": {"description": "Prometheus text.", "content": text}},
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document",
                "responses": _responses("200", "An OpenAPI document.", {"type": "object"}),
            }
        },
        "/v1/policies": {
            "get": {
                "operationId": "policies",
                "summary": "The policies that are served",
                "responses": _responses("200", "What each is.", several),
            }
        },
    }
    for door in service.doors.values():
        paths |= _paths_of(door, facts)
    return {
        "openapi": "3.1.0",
        "info": {"title": "shoal serve", "version": __version__, "description": ABOUT},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": {"type": "string"}}), "Policy": _facts_schema()},
        },
    }


def _paths_of(door: Door, facts: Schema) -> dict[str, Any]:
    name, base = door.name, f"/v1/policies/{door.name}"
    reloaded = _object({"training_iteration": _COUNT, "is_new": {"type": "boolean"}})
    paths: dict[str, Any] = {
        base: {
            "get": {
                "operationId": f"{name}_facts",
                "summary": f"What {name} is",
                "responses": _responses("200", "What it is.", facts),
            }
        },
        f"{base}/actions": {
            "post": {
                "operationId": f"{name}_actions",
                "summary": f"The actions of {name} for one observation or several",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _request_schema(door)}},
                },
                "responses": _responses("200", "One action for each observation.", _answer_schema(door)),
            }
        },
        f"{base}/reload": {
            "post": {
                "operationId": f"{name}_reload",
                "summary": "Let a newer checkpoint act, if the run has one",
                "responses": _responses("200", "Which checkpoint acts.", reloaded),
            }
        },
    }
    if door.served.has_memory:
        paths |= _session_paths(door, base)
    return paths


def _session_paths(door: Door, base: str) -> dict[str, Any]:
    name = door.name
    begun = _object({"session": {"type": "string"}, "timeout_s": {"type": "number"}})
    link = {
        "operationId": f"{name}_end_session",
        "parameters": {"session": "$response.body#/session"},
    }
    body = {**door.example(), "session": "$response.body#/session"}
    if door.served.uses_prev_reward:
        body["prev_reward"] = 0.0
    step = {"operationId": f"{name}_actions", "requestBody": body}
    responses = _responses("201", "The session of an episode that begins.", begun)
    responses["201"]["links"] = {"step": step, "end": link}
    return {
        f"{base}/sessions": {
            "post": {
                "operationId": f"{name}_begin_session",
                "summary": "Begin an episode, which the policy will remember",
                "responses": responses,
            }
        },
        f"{base}/sessions/{{session}}": {
            "delete": {
                "operationId": f"{name}_end_session",
                "summary": "Forget an episode",
                "parameters": [
                    {"name": "session", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                ],
                "responses": {**_errors(), "204": {"description": "It is forgotten."}},
            }
        },
    }


_COUNT: Schema = {"type": "integer", "minimum": 0}


def _request_schema(door: Door) -> Schema:
    served, most = door.served, door.limits.max_batch
    one = served.form.schema()
    explore = {"type": "boolean", "default": False, "description": "Sample actions; without, take the most likely."}
    single: dict[str, Schema] = {"observation": one, "explore": explore}
    many: dict[str, Schema] = {"observations": _list(one, most), "explore": explore}
    if not served.has_memory:
        return {"oneOf": [_object(single, ("explore",)), _object(many, ("explore",))]}
    first = {**single, "session": {"type": "null", "description": "An episode begins; the answer has its session."}}
    single["session"] = {"type": "string"}
    many["sessions"] = {**_list({"type": "string"}, most), "uniqueItems": True}
    if served.uses_prev_reward:
        reward = {
            "type": ["number", "null"],
            "minimum": -LARGEST_REWARD,
            "maximum": LARGEST_REWARD,
            "description": "The reward of the step before, which every step needs; null where an episode begins.",
        }
        first["prev_reward"] = single["prev_reward"] = reward
        many["prev_rewards"] = _list(reward, most)
    optional = ("explore",)
    return {"oneOf": [_object(first, ("explore", "prev_reward")), _object(single, optional), _object(many, optional)]}


def _answer_schema(door: Door) -> Schema:
    action = action_schema(door.served.policy.action_spec.space)
    one = {"action": action, "training_iteration": _COUNT}
    single = _object({**one, "session": {"type": "string"}} if door.served.has_memory else one, ("session",))
    many = _object({"actions": _list(action, door.limits.max_batch), "training_iteration": _COUNT})
    return {"oneOf": [single, many]}


def _facts_schema() -> Schema:
    return _object(
        {
            "name": {"type": "string"},
            "algorithm": {"type": "string"},
            "env": {"type": "string"},
            "checkpoint": {"type": "string"},
            "training_iteration": _COUNT,
            "has_memory": {"type": "boolean"},
            "needs_prev_reward": {"type": "boolean"},
            "is_masked": {"type": "boolean"},
            "max_batch": _COUNT,
            "example": {"type": "object"},
        }
    )


def _list(item: Schema, most: int) -> Schema:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": most}


def _object(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _responses(code: str, meaning: str, schema: Schema) -> dict[str, Any]:
    return {code: {"description": meaning, "content": {"application/json": {"schema": schema}}}, **_errors()}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {"description": "Refused, and why.", "content": content}
    return {"4XX": refused, "503": {"description": "Busy; send it again.", "content": content}}
