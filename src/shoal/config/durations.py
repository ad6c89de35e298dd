"""Lengths of time as people write them at a batch system."""

from __future__ import annotations

import re

EXAMPLES = '"90m", "1h30m", "02:30:00" or "1-12:00:00"'

MOST_S = 1e9  # thirty years; a thread cannot wait for much more
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?[dhms])+", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):([0-5]\d):([0-5]\d)", re.ASCII)


def seconds(text: str) -> float:
    """The seconds in `"90m"`, `"02:30:00"` (hours first) or `"1-12:00:00"` (days first); ValueError otherwise."""
    plain = text.strip()
    clock = _CLOCK.fullmatch(plain)
    if clock is not None:
        days, hours, minutes, secs = (int(group or 0) for group in clock.groups())
        return _bounded(days * 86400 + hours * 3600 + minutes * 60 + secs)
    if _WITH_UNITS.fullmatch(plain):
        return _bounded(sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", plain)))
    if re.fullmatch(r"\d+(\.\d*)?", plain):
        raise ValueError(f"must have a unit, such as {EXAMPLES}")
    # "02:30" is minutes and seconds to Slurm but hours and minutes to PBS users.
    raise ValueError(f"must be a length of time such as {EXAMPLES}")


def _bounded(length: float) -> float:
    if length > MOST_S:
        raise ValueError(f"must be at most {MOST_S / _UNITS['d']:.0f}d")
    return float(length)
