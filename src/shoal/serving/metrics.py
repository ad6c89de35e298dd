"""What `/metrics` tells, in the text format of Prometheus (0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[tuple[str, str], ...]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number that only grows, or with `kind` gauge any number, one for each set of labels."""

    def __init__(self, name: str, meaning: str, kind: str = "counter") -> None:
        self.name, self.meaning, self.kind = name, meaning, kind
        self.values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count."""
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0) + amount

    def set(self, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.values[tuple(labels.items())] = value

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        return [_line(self.name, labels, value) for labels, value in self.values.items()]


class Histogram:
    """How often a number was at most each of some bounds, for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self.name, self.meaning, self.bounds = name, meaning, bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def add(self, value: float, **labels: str) -> None:
        """Count one value."""
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value

    def lines(self) -> list[str]:
        """As Prometheus reads it: each bucket has those below it too."""
        found = []
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, "+Inf"), counts, strict=True):
                total += count
                text = bound if isinstance(bound, str) else f"{bound:g}"
                found.append(_line(f"{self.name}_bucket", (*labels, ("le", text)), total))
            found.append(_line(f"{self.name}_sum", labels, self.sums[labels]))
            found.append(_line(f"{self.name}_count", labels, total))
        return found


class Metrics:
    """All that a server counts."""

    def __init__(self) -> None:
        self.requests = Counter("shoal_requests_total", "Requests that were answered, by status.")
        self.seconds = Histogram("shoal_request_seconds", "Time from a request to its answer.", SECONDS)
        self.actions = Counter("shoal_actions_total", "Actions that were chosen.")
        self.passes = Histogram("shoal_batch_rows", "Observations in one pass of the network.", ROWS)
        self.pass_seconds = Histogram("shoal_batch_seconds", "Time of one pass of the network.", SECONDS)
        self.reloads = Counter("shoal_reloads_total", "Newer checkpoints that were taken or refused.")
        self.iteration = Counter("shoal_training_iteration", "Iteration of the checkpoint that acts.", "gauge")
        self.sessions = Counter("shoal_sessions", "Open sessions of policies with memory.", "gauge")
        self.in_flight = Counter("shoal_requests_in_flight", "Requests that are being answered.", "gauge")

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        lines: list[str] = []
        for each in vars(self).values():
            lines += [f"# HELP {each.name} {each.meaning}", f"# TYPE {each.name} {each.kind}", *each.lines()]
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    shown = f"{value:.10g}"
    if not labels:
        return f"{name} {shown}"
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{pairs}}} {shown}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
