"""Sentences from pydantic's errors: `path: problem (got value); did you mean ...?`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from shoal.config.vocabulary import key_hint, nearest
from shoal.machine.terminal import printable as printable

_LIMITS = {
    "greater_than_equal": ("must be at least", "ge"),
    "greater_than": ("must be more than", "gt"),
    "less_than_equal": ("must be at most", "le"),
    "less_than": ("must be less than", "lt"),
}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_KINDS = {
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "invalid_key": "keys must be text",
    "missing": "is missing",
}


def sentences(error: ValidationError, prefix: Sequence[str], known: Iterable[str]) -> list[str]:
    """One sentence for each thing that is wrong; `known` are the dotted paths of all keys there are."""
    places = tuple(known)
    found: list[str] = []
    for detail in error.errors(include_url=False):
        ctx = detail.get("ctx", {})
        if "problems" in ctx:
            found.extend(ctx["problems"])
        else:
            path = ".".join([*prefix, *_names(detail["loc"])])
            found.append(_sentence(path, detail["type"], detail["input"], ctx, str(detail["msg"]), places))
    return found


def got(value: Any) -> str:
    """`(got value)`, short and in YAML's words."""
    words = {None: "null", True: "true", False: "false"}
    shown = words[value] if value is None or isinstance(value, bool) else _value_text(value)
    return f"(got {shown})"


def _value_text(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of very many digits"
    shown = printable(
        f"{value:.0f}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else repr(value)
    )
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _names(loc: tuple[int | str, ...]) -> list[str]:
    """The keys along the way; the place in a list goes to the list's own key as `fcnet_hiddens[1]`."""
    names: list[str] = []
    for part in loc:
        if isinstance(part, int) and names:
            names[-1] += f"[{part}]"
        else:
            names.append(printable(str(part)))
    return names


def _sentence(path: str, kind: str, value: Any, ctx: dict[str, Any], message: str, known: tuple[str, ...]) -> str:
    if kind == "extra_forbidden":
        return f"{path}: unknown key{key_hint(path, known)}"
    if kind == "missing":
        return f"{path}: is missing"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", ctx["expected"])
        close = nearest(value, choices) if isinstance(value, str) else None
        hint = f"; did you mean {close}?" if close else ""
        return f"{path}: must be {_one_of(choices)} {got(value)}{hint}"
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        limit = ctx[name]
        is_round = float(f"{limit:g}") == limit  # else it is that of a computer's whole numbers, and says nothing
        return f"{path}: {words} {limit:g} {got(value)}" if is_round else f"{path}: is too large {got(value)}"
    if kind == "value_error":
        is_schedule = isinstance(value, list | tuple | dict) and f"{path}_schedule" in known
        hint = f"; a schedule is {path}_schedule" if is_schedule else ""
        if isinstance(value, str) and "number" in str(ctx["error"]) and _NUMBER.fullmatch(value):
            hint = f"; leave out the quotes: {value}"
        return f"{path}: {ctx['error']} {got(value)}{hint}"
    if kind in ("too_long", "too_short"):
        bound = f"at most {ctx['max_length']}" if kind == "too_long" else f"at least {ctx['min_length']}"
        return f"{path}: must have {bound} values (got {ctx['actual_length']})"
    return f"{path}: {_KINDS.get(kind, message[:1].lower() + message[1:])} {got(value)}"


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + " or " + choices[-1]
