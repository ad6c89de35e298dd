"""How settings and their values are written for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.config.problems import printable

if TYPE_CHECKING:
    from shoal.config.sweep import Setting, Sweep
    from shoal.reports.records import TrialRecord

LOG_KINDS = ("loguniform", "qloguniform", "lograndint")
LIST_KINDS = ("grid_search", "choice")


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each dotted path by as much of its end as tells it from the others: `config.lr` is `lr`."""
    whole = list(paths)
    found = {}
    for path in whole:
        parts = path.split(".")
        ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        alone = (end for end in ends if sum(other == end or other.endswith(f".{end}") for other in whole) == 1)
        found[path] = printable(next(alone, path))
    return found


def value_text(value: Any) -> str:
    """A setting's value, short and in YAML's words."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(value_text(item) for item in value)}]"
    return printable(value) if isinstance(value, str) else printable(json.dumps(value, default=str))


def same_key(value: Any) -> str:
    """Equal for equal values, lists and mappings included; 1 and 1.0 are equal."""
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return repr(value) if isinstance(value, (int, float, str)) else json.dumps(value, sort_keys=True, default=str)


def all_settings(sweep: Sweep) -> tuple[Setting, ...]:
    """The settings of the search, and those that only a population changes on the way."""
    from shoal.config.sweep import mutated  # here, so that a run's report needs nothing of sweeps

    known = {setting.path for setting in sweep.settings}
    return (*sweep.settings, *(setting for setting in mutated(sweep) if setting.path not in known))


def differing(settings: Sequence[Setting], records: Sequence[TrialRecord]) -> list[str]:
    """The paths at which trials have more than one value."""
    return [
        setting.path
        for setting in settings
        if len({same_key(record.settings.get(setting.path)) for record in records}) > 1
    ]


def settings_text(record: TrialRecord, paths: Sequence[str], names: dict[str, str]) -> str:
    """`lr 0.0003, gamma 0.99`."""
    return ", ".join(f"{names[path]} {value_text(record.settings.get(path))}" for path in paths)
