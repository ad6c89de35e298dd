"""Whether a result has the number that a sweep is about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.config.result_names import OVER_EPISODES
from shoal.config.vocabulary import nearest
from shoal.data.results import flat
from shoal.errors import MissingMetric, ShoalError

MOST_NAMES = 12


def may_come_later(metric: str, result: Mapping[str, Any]) -> bool:
    """Whether a metric that a run's result lacks may be in a later one."""
    if metric.startswith("evaluation/"):
        return "evaluation" not in result
    return metric.startswith(OVER_EPISODES) and not result.get("episodes_total")


def check_finite(metric: str, result: Mapping[str, Any]) -> None:
    """Refuse a result whose metric is there but no finite number: that trial has failed, and the sweep goes on."""
    value = flat(result).get(metric)
    if isinstance(value, float) and not math.isfinite(value):
        raise ShoalError(f"{metric} is {value}")


def check_metric(metric: str, values: Mapping[str, float]) -> None:
    """Refuse a result without the metric, with the names that it has."""
    if not metric or metric in values:
        return
    close = nearest(metric, values)
    if close is not None:
        hint = f"did you mean {close}?"
    else:
        names = [*list(values)[:MOST_NAMES], *(["..."] if len(values) > MOST_NAMES else [])]
        hint = f"there are {', '.join(names)}" if names else "they have no numbers at all"
    raise MissingMetric(f"metric: the results have no {metric}; {hint}")
