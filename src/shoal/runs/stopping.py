"""When a run ends: criteria met, how far it is, and what is taken when the user names none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.stopping import CUSTOM_METRICS
from shoal.config.vocabulary import nearest

COUNTERS = ("training_iteration", "timesteps_total", "episodes_total", "time_total_s")
"""Results that only grow, at a steady rate."""
TREND_LENGTH = 20


def flat(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested result with names joined by `/`; lists and None are left out."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}/"))
        elif hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
            found[prefix + str(name)] = value.item()
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + str(name)] = value
    return found


def numbers(result: Mapping[str, Any]) -> dict[str, int | float]:
    """The finite numbers of a result, flat."""
    return {
        name: value
        for name, value in flat(result).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def stop_reason(result: Mapping[str, Any], stop: Mapping[str, float]) -> str | None:
    """The first criterion that is met, as a sentence such as `episode_reward_mean 481.2 >= 475`; None if none is."""
    values = numbers(result)
    for name, limit in stop.items():
        if name in values and values[name] >= limit:
            return f"{name} {short(values[name])} >= {short(limit)}"
    return None


def missing_metric(name: str, result: Mapping[str, Any]) -> str | None:
    """Why nothing will come of waiting for a metric of the user's own, if episodes ended and none had it."""
    prefix = next((prefix for prefix in CUSTOM_METRICS if name.startswith(prefix)), None)
    values = flat(result)
    if prefix is None or name in values or not values.get(prefix.replace("custom_metrics/", "episodes_this_iter")):
        return None
    own = [other for other in values if other.startswith(prefix)]
    near = nearest(name, own)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(own) or 'none'}"
    return f"no episode so far has this metric; {hint}"


def short(value: float) -> str:
    """A number as people write it: whole numbers whole, others with four digits that matter."""
    if isinstance(value, int) or value == int(value):
        return str(int(value))
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"


@dataclass(frozen=True)
class Progress:
    """How near a run is to one stop criterion."""

    name: str
    limit: float
    fraction: float  # 0 to 1
    eta_s: float | None


def nearest_stop(results: Sequence[Mapping[str, Any]], stop: Mapping[str, float]) -> Progress | None:
    """The criterion that will be met first: by the time it needs at the present rate, else by the share done.

    `results` are those of this process, oldest first. The rate is that of the last results, so a number that is no
    counter has an ETA only while it rises.
    """
    if not results:
        return None
    recent = [numbers(result) for result in results[-TREND_LENGTH:]]
    first = numbers(results[0])
    candidates = [found for name, limit in stop.items() if (found := _progress(recent, first, name, limit))]
    return min(candidates, key=lambda p: (p.eta_s is None, p.eta_s or 0.0, -p.fraction), default=None)


def _progress(
    recent: Sequence[Mapping[str, float]], first: Mapping[str, float], name: str, limit: float
) -> Progress | None:
    found = [(result.get("time_total_s", 0.0), result[name]) for result in recent if name in result]
    if not found:
        return None
    (start_s, start), (now_s, now) = found[0], found[-1]
    if name in COUNTERS:
        origin = 0.0
        if len(found) == 1:
            start_s, start = 0.0, 0.0
    else:
        origin = first.get(name, start)
    fraction = min(max((now - origin) / (limit - origin), 0.0), 1.0) if limit > origin else float(now >= limit)
    if now >= limit:
        return Progress(name, limit, 1.0, 0.0)
    rate = (now - start) / (now_s - start_s) if now_s > start_s else 0.0
    return Progress(name, limit, fraction, (limit - now) / rate if rate > 0 else None)


def default_stop(env: Any) -> dict[str, float]:
    """The environment's own reward threshold as a criterion; nothing if it has none."""
    import gymnasium

    spec = gymnasium.registry.get(env) if isinstance(env, str) else getattr(env, "spec", None)
    threshold = getattr(spec, "reward_threshold", None)
    return {"episode_reward_mean": float(threshold)} if threshold is not None else {}
