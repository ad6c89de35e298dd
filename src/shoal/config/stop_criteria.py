"""What may end a run: limits of results; and the result by which its checkpoints are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from shoal.config.durations import seconds
from shoal.config.fields import number
from shoal.config.problems import got, printable
from shoal.config.result_names import COUNTERS, is_result_name, result_hint


def stop_criteria(value: Any) -> dict[str, float]:
    """Checked stop criteria; a run ends when any result reaches its limit: `value >= limit`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping such as {timesteps_total: 100000}")
    limits: dict[str, float] = {}
    problems: list[str] = []
    for key, limit in value.items():
        name = printable(str(key))
        if not is_result_name(name):
            problems.append(f"stop.{name}: no result has this name{result_hint(name)}")
            continue
        try:
            limits[name] = limit_of(name, limit)
        except ValueError as error:
            problems.append(f"stop.{name}: {error} {got(limit)}")
    if problems:
        raise PydanticCustomError("stop", "stop criteria", {"problems": problems})
    return limits


def score_attr(value: Any) -> str | None:
    """The name of a result, with `min-` before it where the smallest is the best."""
    if value is None:
        return None
    name = value.removeprefix("min-") if isinstance(value, str) else value
    if not isinstance(name, str) or not is_result_name(printable(name)):
        raise ValueError(f"no result has this name{result_hint(printable(str(name)))}")
    return str(value)


def limit_of(name: str, limit: Any) -> float:
    """A limit as a number; that of `time_total_s` may be a length of time."""
    found = seconds(limit) if name == "time_total_s" and isinstance(limit, str) else number(limit)
    if name in COUNTERS and found <= 0:
        raise ValueError("must be more than 0")  # it would end where it begins
    return found


ScoreAttr = Annotated[str | None, PlainValidator(score_attr), WithJsonSchema({"type": ["string", "null"]})]
