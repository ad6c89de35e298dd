"""When a run ends: criteria met, how far it is, and what is taken when the user names none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.result_names import COUNTERS, OPEN_NAMES
from shoal.config.vocabulary import nearest
from shoal.data.number_text import number_text
from shoal.data.results import flat, numbers

TREND_LENGTH = 20


def stop_reason(result: Mapping[str, Any], stop: Mapping[str, float]) -> str | None:
    """The first criterion that is met, as a sentence such as `episode_reward_mean 481.2 >= 475`; None if none is."""
    values = numbers(result)
    for name, limit in stop.items():
        if name in values and values[name] >= limit:
            return f"{name} {number_text(values[name])} >= {number_text(limit)}"
    return None


def missing_metric(name: str, result: Mapping[str, Any]) -> str | None:
    """Why nothing will come of waiting for a metric of the user's own, if episodes ended and none had it."""
    prefix = next((prefix for prefix in OPEN_NAMES if name.startswith(prefix)), None)
    values = flat(result)
    episodes = "evaluation/episodes_this_iter" if name.startswith("evaluation/") else "episodes_this_iter"
    if prefix is None or name in values or not values.get(episodes):
        return None
    own = [other for other in values if other.startswith(prefix)]
    near = nearest(name, own)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(own) or 'none'}"
    return f"no episode so far has this metric; {hint}"


@dataclass(frozen=True)
class StopProgress:
    """How near a run is to one stop criterion."""

    name: str
    limit: float
    fraction: float  # 0 to 1
    eta_s: float | None


def nearest_stop(results: Sequence[Mapping[str, Any]], stop: Mapping[str, float]) -> StopProgress | None:
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
) -> StopProgress | None:
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
        return StopProgress(name, limit, 1.0, 0.0)
    rate = (now - start) / (now_s - start_s) if now_s > start_s else 0.0
    return StopProgress(name, limit, fraction, (limit - now) / rate if rate > 0 else None)


def default_stop(env: Any) -> dict[str, float]:
    """The environment's own reward threshold as a criterion; nothing if it has none."""
    import gymnasium

    spec = gymnasium.registry.get(env) if isinstance(env, str) else getattr(env, "spec", None)
    threshold = getattr(spec, "reward_threshold", None)
    return {"episode_reward_mean": float(threshold)} if threshold is not None else {}
