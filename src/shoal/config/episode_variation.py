"""What may differ from episode to episode, as a configuration says it: tasks, promotion rules, samplers of values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from shoal.config.fields import MAX_DEPTH, number, text
from shoal.config.problems import got, printable
from shoal.config.result_names import is_result_name, result_hint
from shoal.config.stop_criteria import limit_of

Sign = Literal[">=", "<="]

SAMPLERS = {
    "uniform": "uniform: [low, high]",
    "loguniform": "loguniform: [low, high]",
    "normal": "normal: [mean, std]",
    "choice": "choice: [a, b, c]",
}
"""The ways to draw a value, each with an example."""

_COMPARED = re.compile(r"\s*(>=|<=)\s*(\S.*)")


def task_value(value: Any, depth: int = 0) -> Any:
    """A task in JSON's types, since it goes into results and checkpoints; NumPy's numbers become plain ones."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, bool | str):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return task_value(value.item(), depth + 1)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return number(value)
    if isinstance(value, list):
        return [task_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"its keys must be text, {odd[0]!r} is not")
        return {key: task_value(item, depth + 1) for key, item in value.items()}
    what = "null is not a task" if value is None else f"a {type(value).__name__} is not"
    raise ValueError(f"a task is a number, text, true or false, a list or a mapping of these; {what}")


def comparison(name: str, value: Any) -> tuple[Sign, float]:
    """`0.8` and `">= 0.8"`: at least that; `"<= 20"`: at most that."""
    match = _COMPARED.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ">=", limit_of(name, value)
    try:
        plain: Any = float(match[2])
    except ValueError:
        plain = match[2]
    return "<=" if match[1] == "<=" else ">=", limit_of(name, plain)


def stages(value: Any) -> tuple[dict[str, Any], ...]:
    """`[{task: 1, until: {episode_reward_mean: 0.8}}, {task: 2}]`, checked, in plain types."""
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list such as [{task: 1, until: {episode_reward_mean: 0.8}}, {task: 2}]")
    problems: list[str] = []
    found = [_stage(stage, f"config.curriculum.stages[{k}]", problems) for k, stage in enumerate(value)]
    problems += [
        f"config.curriculum.stages[{k}].until: is missing, so stage {k + 2} is never reached; "
        "set e.g. until: {episode_reward_mean: 0.8}"
        for k, stage in enumerate(found[:-1])
        if isinstance(value[k], Mapping) and not stage["until"] and not value[k].get("until")
    ]
    if problems:
        raise PydanticCustomError("stages", "stages", {"problems": problems})
    return tuple(found)


def _stage(value: Any, path: str, problems: list[str]) -> dict[str, Any]:
    stage: dict[str, Any] = {"task": None, "until": {}}
    if not isinstance(value, Mapping):
        problems.append(
            f"{path}: must be a mapping such as {{task: 1, until: {{episode_reward_mean: 0.8}}}} {got(value)}"
        )
        return stage
    problems += [
        f"{path}.{printable(str(key))}: unknown key; a stage has task and until" for key in value if key not in stage
    ]
    try:
        stage["task"] = task_value(value.get("task"))
    except ValueError as error:
        problems.append(f"{path}.task: {error}")
    until = value.get("until") or {}
    if not isinstance(until, Mapping):
        problems.append(f"{path}.until: must be a mapping such as {{episode_reward_mean: 0.8}} {got(until)}")
        return stage
    for key, limit in until.items():
        name = printable(str(key))
        if not is_result_name(name):
            problems.append(f"{path}.until.{name}: no result has this name{result_hint(name)}")
            continue
        try:
            sign, least = comparison(name, limit)
        except ValueError as error:
            problems.append(f"{path}.until.{name}: {error} {got(limit)}")
        else:
            stage["until"][name] = least if sign == ">=" else f"<= {least!r}"
    return stage


def samplers(key: str, value: Any) -> dict[str, dict[str, list[Any]]]:
    """`{wind: {uniform: [0, 10]}}`, checked, in plain types; `key` is where it stands."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to samplers, such as {wind: {uniform: [0, 10]}}")
    found: dict[str, dict[str, list[Any]]] = {}
    problems: list[str] = []
    for name, sampler in value.items():
        try:
            found[text(name)] = _sampler(sampler)
        except ValueError as error:
            problems.append(f"{key}.{printable(str(name))}: {error} {got(sampler)}")
    if problems:
        raise PydanticCustomError("samplers", "samplers", {"problems": problems})
    return found


def _sampler(value: Any) -> dict[str, list[Any]]:
    kinds = " or ".join(f"{{{example}}}" for example in SAMPLERS.values())
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in SAMPLERS:
        raise ValueError(f"must be {kinds}")
    ((kind, given),) = value.items()
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"must be {{{SAMPLERS[kind]}}}")
    if kind == "choice":
        return {kind: [task_value(item) for item in given]}
    if len(given) != 2:
        raise ValueError(f"must be {{{SAMPLERS[kind]}}}")
    first, second = (number(item) for item in given)
    if kind == "normal" and second < 0:
        raise ValueError("its standard deviation must be at least 0")
    if kind != "normal" and (first > second or not math.isfinite(second - first)):
        raise ValueError("its first number must be the lower one")
    if kind == "loguniform" and first <= 0:
        raise ValueError("its numbers must be more than 0")
    return {kind: [first, second]}


def function_source(value: Any) -> str | Callable[..., Any] | None:
    """A function, or where it is found."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, str):
        return text(value)
    raise ValueError("must be a function, module.function or file.py:function")


def class_source(value: Any) -> str | type | None:
    """A class, or where it is found."""
    if value is None or isinstance(value, type):
        return value
    if isinstance(value, str):
        return text(value)
    raise ValueError("must be a class, module.Class or file.py:Class")


def optional_task(value: Any) -> Any:
    """A task, or None."""
    return None if value is None else task_value(value)


_TEXT = WithJsonSchema({"type": ["string", "null"]})
_MAPPING = WithJsonSchema({"type": "object"})

Stages = Annotated[
    Sequence[dict[str, Any]],
    PlainValidator(stages),
    WithJsonSchema({"type": "array", "items": {"type": "object"}}),
]
Task = Annotated[
    Any,
    PlainValidator(optional_task),
    WithJsonSchema({"type": ["number", "string", "boolean", "array", "object", "null"]}),
]
OptionSamplers = Annotated[
    dict[str, dict[str, list[Any]]],
    PlainValidator(functools.partial(samplers, "config.randomize.options")),
    _MAPPING,
]
EnvConfigSamplers = Annotated[
    dict[str, dict[str, list[Any]]],
    PlainValidator(functools.partial(samplers, "config.randomize.env_config")),
    _MAPPING,
]
FunctionSource = Annotated[str | Callable[..., Any] | None, PlainValidator(function_source), _TEXT]
ClassSource = Annotated[str | type | None, PlainValidator(class_source), _TEXT]
