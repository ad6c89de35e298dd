"""Numbers as people read them: those of results, rates, lengths of time, axes of charts."""

from __future__ import annotations

import math

MOST_WHOLE = 1e15  # above it, a float has no units any more


def number_text(value: float | None) -> str:
    """`475`, `481.2`, `0.0321`, `1.235e+06`: whole numbers whole, others with four digits or those before the point."""
    if value is None:
        return "-"
    if isinstance(value, int) or (value.is_integer() and abs(value) < MOST_WHOLE):
        return str(int(value))
    return f"{value:.1f}" if 100 <= abs(value) < 1e6 else f"{value:.4g}"


def column_text(value: float | None) -> str:
    """As `187.3`: always one digit after the point, so that columns of lines that follow each other stand still."""
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) < 1e5 else f"{value:.3g}"


def rate_text(value: float) -> str:
    """`0.3`, `830`, `2.3k`, `23k`, `1.2M`."""
    if 0 < value < 9.95:
        return f"{value:.1f}"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.{1 if value < 9.95 * limit else 0}f}{unit}"
    return f"{value:.0f}"


def tick_text(value: float) -> str:
    """On an axis: `0.001`, `1e-5`, `250`, `20k`, `1.5M`."""
    size = abs(value)
    if size < 1e-12:
        return "0"
    for least, limit, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= least:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def counted(count: int, noun: str, verbs: tuple[str, str] | None = None) -> str:
    """`1 step`, `1,200 steps`; with the verbs of one and of many `1 trial has`, `2 trials have`."""
    words = [f"{count:,}", noun if count == 1 else f"{noun}s"]
    if verbs is not None:
        words.append(verbs[0] if count == 1 else verbs[1])
    return " ".join(words)


def percent_text(share: float) -> str:
    """`71 %`."""
    return f"{100 * share:.0f} %"


def duration_text(seconds: float) -> str:
    """`5 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = math.ceil(min(seconds, 1e12))
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def call_time_text(seconds: float) -> str:
    """What a call takes: `9 us`, `4.2 ms`, `1.5 s`, `3 min`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
